"""Oracle: what Predictor.predict says of the same files, and the file system itself."""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from forged import rewrite
from open_indexes import open_index
from PIL import Image
from raw_photos import dng
from search_setup import picture, save_model
from typer.testing import CliRunner

from labelwise.base.files import locked, write_error
from labelwise.cli.app import app
from labelwise.errors import LabelwiseError
from labelwise.learn.predictor import Predictor
from labelwise.photos import answer, ingest
from labelwise.photos.query import Asked
from labelwise.pictures.decode import IMAGE_SUFFIXES, RAW_SUFFIXES
from labelwise.predictions import Predictions
from labelwise.queries import Query


def counts(changes):
    return {name: value for name, value in vars(changes).items() if value}


def assert_right(index, root, model):
    """Every photo below ``root`` is there once, with the logits the model gives it."""
    columns = np.stack([index.store.column(k) for k in range(len(index.space))], axis=1)
    paths = index.store.paths_of(range(len(index)))
    found = {path: columns[row] for row, some in paths.items() for path in some}
    assert sorted(found) == sorted(str(path) for path in root.rglob("*.png"))
    scored = Predictor.load(model).predict(list(found))
    np.testing.assert_allclose(list(found.values()), scored.logits, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 64])
def test_copies_of_one_update_are_scored_once(update, photos, model, batch_size):
    """Whichever of two equal files is read first, the other waits for what comes of it."""
    for number in range(12):
        source = photos / ("", "2023", "2024/may")[number % 3] / f"{number}.png"
        shutil.copy(source, photos / f"0-copy-{number}.png")  # before its original
        shutil.copy(source, photos / "2024" / "may" / f"copy-{number}.png")
    for folder in ("", "2023"):
        (photos / folder / "broken.png").write_bytes(b"no picture")
    assert counts(update(batch_size=batch_size)) == {"new": 12, "copied": 24, "failed": 2}
    index = open_index(update.folder)
    assert len(index) == 12
    for path in photos.rglob("broken.png"):
        path.unlink()
    assert_right(index, photos, model)
    assert len({reason for _, reason in index.store.unreadable()}) == 1


def test_pictures_that_cannot_be_read_are_named_and_raw_beside_a_picture_is_not(
    update, photos, monkeypatch
):
    monkeypatch.setattr(ingest, "IMAGE_SUFFIXES", IMAGE_SUFFIXES - RAW_SUFFIXES)  # no rawpy
    for name in ("0.NEF", "2023/1.cr2", "alone.dng", "2023/alone.arw"):
        (photos / name).write_bytes(b"raw")
    changes = update()
    assert (changes.new, changes.unread) == (12, {".dng": 1, ".arw": 1})
    assert changes.notes == [
        "2 RAW photos without a JPEG beside passed over; pip install 'labelwise[photos]' reads them"
    ]
    changes.unread.update({".heic": 1})
    assert "1 HEIC photo passed over; pip install 'labelwise[photos]'" in changes.notes[0]
    changes.unread.update({".dcm": 1, ".dicom": 2})
    assert "3 DICOM files passed over; pip install 'labelwise[dicom]'" in changes.notes[1]
    (photos / "2023" / "alone.png").write_bytes((photos / "0.png").read_bytes())
    assert update().unread == {".dng": 1}


def test_watching_takes_in_new_photos_until_ctrl_c(update, photos, model, monkeypatch):
    def sleep(seconds):
        assert seconds >= 5
        if (photos / "2023" / "new.png").exists():
            raise KeyboardInterrupt
        picture(photos / "2023" / "new.png", 50)

    monkeypatch.setattr("labelwise.cli.index.sleep", sleep)
    words = ["index", str(photos), "--model", str(model), "-o", str(update.folder), "--watch"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    new = [line for line in done.stdout.splitlines() if "new" in line]
    assert new == [f"{update.folder}: 12 new", f"{update.folder}: 1 new, 12 unchanged"]
    assert open_index(update.folder).store.row_of(str(photos / "2023" / "new.png")) == 12


def test_raw_photos_are_indexed_and_a_pair_is_one_photo(update, photos):
    pytest.importorskip("rawpy")
    content = dng(np.full((64, 96, 3), 0.4), orientation=6)
    for name in ("0.DNG", "2023/alone.dng"):
        (photos / name).write_bytes(content)
    (photos / "broken.nef").write_bytes(b"raw")
    assert counts(update()) == {"new": 13, "failed": 1}
    store = open_index(update.folder).store
    row = store.row_of(str(photos / "2023/alone.dng"))
    facts = store.contents_of([row])[row]
    assert (facts.width, facts.height, facts.taken) == (64, 96, "2024-05-01T12:00:00")
    (photos / "0.png").unlink()  # the RAW file is now the photo, and its content is known
    assert counts(update()) == {"unchanged": 13, "copied": 1, "missing": 1}


def test_moved_copied_and_renamed_files_are_known_by_their_content(update, photos, model):
    update()
    shutil.move(photos / "0.png", photos / "2023" / "holiday.png")
    shutil.move(photos / "2024", photos / "2025")
    shutil.copy(photos / "3.png", photos / "copy.png")
    os.utime(photos / "3.png", ns=(0, 10**9))  # as tag --embed and its undo leave it
    assert counts(update()) == {"unchanged": 7, "moved": 5, "copied": 1}
    index = open_index(update.folder)
    assert len(index) == 12
    assert_right(index, photos, model)


def test_an_edited_photo_is_scored_again_and_keeps_what_was_said_of_it(update, photos, model):
    update()
    index, place = open_index(update.folder), str(photos / "0.png")
    row = index.store.row_of(place)
    index.correct(row, {"dog": "present"}, who="Anna")
    picture(photos / "0.png", 99)
    assert counts(update()) == {"unchanged": 11, "changed": 1}
    index = open_index(update.folder)
    assert_right(index, photos, model)
    after = index.store.row_of(place)
    assert after != row
    (said,) = index.store.corrections(row=after)
    assert (said.label, said.state, said.who) == ("dog", "present", "Anna")


def test_what_is_gone_is_missing_and_comes_back_for_nothing(update, photos, tmp_path, monkeypatch):
    """A root that is empty or gone altogether changes nothing."""
    update()
    shutil.move(photos / "2023", tmp_path / "elsewhere")
    assert counts(update()) == {"unchanged": 8, "missing": 4}
    assert len(open_index(update.folder).store.dead_rows()) == 4
    shutil.move(tmp_path / "elsewhere", photos / "2023")
    monkeypatch.setattr("labelwise.photos.ingest.score", None)
    assert counts(update()) == {"unchanged": 12}
    assert not len(open_index(update.folder).store.dead_rows())
    (photos / "0.png").unlink()
    assert counts(update()) == {"unchanged": 11, "missing": 1}
    assert open_index(update.folder).store.count_files() == {"ok": 11, "missing": 1}
    assert update(forget_missing=True).forgotten == 1
    shutil.move(photos, tmp_path / "disk")
    for _ in range(2):
        changes = update()
        assert "is its disk mounted" in changes.refused[0]
        assert changes.missing == 0
        photos.mkdir(exist_ok=True)
    assert open_index(update.folder).store.count_files() == {"ok": 11}


def test_unreadable_files_are_remembered_until_they_change(update, photos, monkeypatch):
    """Those that were too large only as long as no more pixels are allowed."""
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    Image.new("RGB", (400, 300)).save(photos / "scan.png")
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "119999")
    assert counts(update()) == {"new": 12, "failed": 2}
    with monkeypatch.context() as patch:
        patch.setattr("labelwise.photos.ingest.score", None)
        assert counts(update()) == {"unchanged": 14}
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "120000")
    picture(photos / "broken.jpg", 50)
    assert counts(update()) == {"unchanged": 12, "new": 2}
    assert open_index(update.folder).store.unreadable() == []


def test_a_folder_that_cannot_be_listed_keeps_its_photos(update, photos, monkeypatch):
    """Permissions do not bind the user root, so the refusal is made here."""
    update()
    listing = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("2023"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    changes = update()
    assert changes.missing == 0
    assert changes.unlisted == [str(photos / "2023")]


def test_names_of_all_kinds_are_indexed_and_others_passed_over(update, photos):
    picture(photos / "hidden" / ".secret.png", 20)
    picture(photos / "@eaDir" / "thumb.png", 21)
    odd = [photos / f"{name}.png" for name in ("caf\u00e9", "cafe\u0301", "A", "a")]
    for seed, path in enumerate([*odd, photos / "UPPER.PNG"]):
        picture(path, 30 + seed)
    raw = os.fsencode(photos) + b"/caf\xe9.png"
    os.link(os.fsencode(odd[0]), raw)  # a name that is not Unicode
    (photos / "loop").symlink_to(photos)
    os.mkfifo(photos / "pipe.png")
    passed = {"left_out": {"hidden file": 1, "system folder": 1, "special file": 1}}
    assert counts(update()) == {"new": 17, "copied": 1, **passed}
    store = open_index(update.folder).store
    paths = store.paths_of(range(17))
    assert os.fsdecode(raw) in [path for found in paths.values() for path in found]
    assert {row: {store.row_of(path) for path in found} for row, found in paths.items()} == {
        row: {row} for row in range(17)
    }
    assert store.row_of(str(photos / r"caf\xe9.png")) is None  # as the other name is shown
    assert store.row_of("") is None
    assert counts(update()) == {"unchanged": 18, **passed}
    odd[3].unlink()
    odd[2].rename(photos / "a.PNG")  # as a disk that does not tell case apart would
    assert counts(update()) == {"moved": 1, "missing": 1, "unchanged": 16, **passed}


def test_turned_photos_have_the_size_and_time_people_see(update, photos):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8769)[0x9003] = "2024:05:01 12:30:00"
    Image.new("RGB", (40, 20), "red").save(photos / "turned.jpg", exif=exif)
    update()
    index = open_index(update.folder)
    (facts,) = index.store.contents_of([index.store.row_of(str(photos / "turned.jpg"))]).values()
    assert (facts.width, facts.height, facts.taken) == (20, 40, "2024-05-01T12:30:00")


def test_another_link_reads_no_picture(update, model, tmp_path, monkeypatch):
    update()
    before = np.exp(open_index(update.folder).odds(2).log_p)
    other = shutil.copytree(model, tmp_path / "other")
    platt = {"kind": "platt", "link": None, "slope": [1] * 4, "offset": [3] * 4, "limit": 100.0}
    rewrite(other / "model.json", link=platt)
    monkeypatch.setattr("labelwise.photos.ingest.score", None)
    update(model=other)
    after = np.exp(open_index(update.folder).odds(2).log_p)
    odds = before / (1 - before) * np.exp(3)
    np.testing.assert_allclose(after, odds / (1 + odds), rtol=1e-5)


def test_an_index_keeps_to_one_decoder(update, photos):
    update()
    with pytest.raises(LabelwiseError, match="made with --decode cpu, got --decode cuda; add --re"):
        update(decode="cuda")
    facts = update.folder / "index.json"
    text = facts.read_text()
    assert '"decode": "cpu"' in text
    with open_index(update.folder).store.database.rewriting(facts.name):
        facts.write_text(text.replace('"decode": "cpu"', '"decode": "cuda"'))
    with pytest.raises(LabelwiseError, match="--decode cuda, which needs --device cuda, got cpu"):
        update()
    assert counts(update(decode="cpu", rebuild=True)) == {"new": 12}
    assert facts.read_text() == text
    assert not update(decode="cpu").anything


def test_other_weights_need_a_rebuild_which_keeps_corrections(update, photos, tmp_path):
    update()
    index = open_index(update.folder)
    index.correct(index.store.row_of(str(photos / "3.png")), {"cat": "absent"})
    other = save_model(tmp_path / "other", seed=1)
    with pytest.raises(LabelwiseError, match="--rebuild"):
        update(model=other)
    assert counts(update(model=other, rebuild=True)) == {"new": 12}
    index = open_index(update.folder)
    assert_right(index, photos, other)
    (said,) = index.store.corrections(row=index.store.row_of(str(photos / "3.png")))
    assert (said.label, said.state) == ("cat", "absent")
    assert not [*update.folder.glob(".*")]


def test_a_rebuild_that_stops_anywhere_harms_nothing(update, photos, tmp_path, monkeypatch):
    """Oracle: the logits of the model that the index must answer with, before and after."""
    models = [save_model(tmp_path / f"model {seed}", seed=seed) for seed in (1, 2)]
    update(model=models[0])
    index = open_index(update.folder)
    index.correct(index.store.row_of(str(photos / "3.png")), {"cat": "absent"})
    index.store.database.put("sidecars", [(b"3.xmp", "3.xmp", None, b"hash", "tags")])
    mine = [update.folder / name for name in ("scores/mine.parquet", "cache/mine.bin")]
    for path in mine:
        path.write_text("not labelwise's")
    monkeypatch.setattr(ingest, "ROWS_PER_WRITE", 4)
    written, write = [], pq.write_table

    def fill(table, path, **how):
        written.append(path.parent.name)
        if written.count("scores") == 2:  # the first photos are in the new index then
            raise OSError(errno.ENOSPC, "No space left on device")
        write(table, path, **how)

    with monkeypatch.context() as full:
        full.setattr(pq, "write_table", fill)
        with pytest.raises(LabelwiseError, match="the disk is full"):
            update(model=models[1], rebuild=True, batch_size=4)
    assert_right(open_index(update.folder), photos, models[0])
    replace, left = os.replace, [0]

    def stop(source, target):
        left[0] -= ingest.REBUILT in f"{source}{target}"
        if not left[0]:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("labelwise.photos.ingest.os.replace", stop)
    is_index = [True]
    while not is_index or left[0] <= 0:
        left[0] = len(is_index)
        with suppress(KeyboardInterrupt):
            update(model=models[1], rebuild=is_index[-1])
        is_index.append((update.folder / "index.json").exists())
    assert is_index[:3] == [True, True, False]
    assert len(is_index) > 4
    index = open_index(update.folder)
    assert_right(index, photos, models[1])
    (said,) = index.store.corrections(row=index.store.row_of(str(photos / "3.png")))
    assert (said.label, said.state) == ("cat", "absent")
    assert index.store.database.read("sidecars")[0][0] == b"3.xmp"
    assert all(path.read_text() == "not labelwise's" for path in mine)
    assert not [*update.folder.glob(".*")]


def test_a_short_write_of_numpy_is_called_a_full_disk(tmp_path):
    short = OSError("328960 requested and 313312 written")
    assert "the disk is full" in str(write_error(tmp_path / "a.npy", short))


def test_what_is_missing_is_said_and_one_process_writes_at_a_time(update, tmp_path):
    with pytest.raises(LabelwiseError, match="needs a model"):
        update(model=None)
    with pytest.raises(LabelwiseError, match="is not a folder"):
        update(tmp_path / "nowhere")
    with pytest.raises(LabelwiseError, match="not an index"):
        open_index(tmp_path)
    update()
    with locked(update.folder, "busy"), pytest.raises(LabelwiseError, match="another process"):
        update()


def test_validation_photos_set_the_cut_of_a_list_and_test_photos_judge_it(update, tmp_path):
    """Oracle: how many photos set a cut and judge it; one set of photos is halved."""
    run, sizes = save_model(tmp_path / "run"), []
    for _ in range(2):
        update(model=run)
        splits = Asked(open_index(update.folder), Query.parse("dog")).splits
        sizes.append([len(photos.scores) for photos in splits])
        shutil.copy(run / "predictions" / "test.parquet", run / "predictions" / "val.parquet")
    assert (sum(sizes[0]), sizes[1]) == (400, [400, 400])
    assert 150 < sizes[0][1] < 250


def test_a_killed_update_leaves_an_index_that_goes_on(tmp_path, warm_commands):
    """The same with 50 kills: ``python tests/kill_indexing.py``."""
    program = Path(__file__).parents[1] / "kill_indexing.py"
    result = warm_commands.run(["--kills", "1"], tmp_path, program)
    assert result.returncode == 0, result.stderr
    assert "killed 1 of" in result.stdout


def test_photos_of_a_cross_fitted_promise_are_called_validation_photos(update, tmp_path):
    """The link was fitted on them once the promise was made; another model may bring new ones."""
    run, query = save_model(tmp_path / "run"), Query.parse("dog")
    predictions = run / "predictions"

    def known():
        update(model=run)  # the same weights
        found = answer(open_index(update.folder), query, wrong_about=0.6)
        return found.statement.sentence.partition("with the ")[2].partition(" photos;")[0]

    (predictions / "test.parquet").rename(predictions / "promise.parquet")
    assert known() == "test"
    (run / "settings.yaml").write_text("cross_fit: true\n")
    assert known() == "validation"
    index = open_index(update.folder)
    assert (index.facts.held_out, len(index.held_out)) == ("val", 400)
    shutil.copy(predictions / "promise.parquet", predictions / "test.parquet")
    assert known() == "test"
    (run / "settings.yaml").write_text("cross_fit: false\n")
    rows = Predictions.load(predictions / "test.parquet")
    replace(rows, ids=[f"t{id}" for id in rows.ids]).save(predictions / "test.parquet")
    update(model=run)  # photos of both splits fitted nothing
    index = open_index(update.folder)
    assert (len(index.held_out), index.facts.held_out) == (800, "promise and test")
    splits = Asked(index, query).splits
    assert sum(len(half.scores) for half in splits) == 800
