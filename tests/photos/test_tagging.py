"""Oracles: the bytes of the side-cars before, and an independent reading of the written ones."""

import os
from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import save_model
from sidecar_samples import drawn_sidecar, subjects
from typed import run

from labelwise.decide import Threshold
from labelwise.errors import DataError
from labelwise.photos import tagging
from labelwise.photos.metadata import sidecar_of
from labelwise.photos.tagging import (
    WrittenFiles,
    promised_rule,
    raw_partners,
    tags_of,
    undo_sidecar,
    write_sidecar,
)
from labelwise.photos.xmp import Keyword

DOG = [Keyword("dog", 0.9, "m", "2026-01-01")]


@pytest.fixture
def store(update):
    update()
    return open_index(update.folder).store


@pytest.mark.parametrize("seed", range(5))
def test_undo_puts_back_every_byte(store, tmp_path, seed):
    path = tmp_path / "a.jpg.xmp"
    before = drawn_sidecar(seed)
    path.write_bytes(before)
    path.chmod(0o640)
    assert write_sidecar(store, str(path), DOG).state == "written"
    assert "dog" in subjects(path.read_bytes())
    assert path.stat().st_mode & 0o777 == 0o640
    assert write_sidecar(store, str(path), DOG).state == "unchanged"
    assert undo_sidecar(store, str(path)).state == "undone"
    assert path.read_bytes() == before


def test_the_same_keywords_of_another_day_leave_the_sidecar_as_it_is(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    write_sidecar(store, str(path), DOG)
    before = path.read_bytes()
    later = [replace(one, date="2031-01-01T00:00:00+00:00") for one in DOG]
    assert write_sidecar(store, str(path), later).state == "unchanged"
    assert path.read_bytes() == before
    surer = [replace(one, probability=0.99) for one in later]
    assert write_sidecar(store, str(path), surer).state == "written"
    assert b"2031" in path.read_bytes()


def test_a_sidecar_that_was_not_there_is_removed_again(store, tmp_path):
    path = str(tmp_path / "a.jpg.xmp")
    assert write_sidecar(store, path, DOG, dry_run=True).state == "written"
    assert not os.path.exists(path)
    write_sidecar(store, path, DOG)
    assert WrittenFiles(store, "sidecars").paths() == [path]
    undo_sidecar(store, path)
    assert not os.path.exists(path)
    assert WrittenFiles(store, "sidecars").paths() == []


def test_what_others_changed_since_stays(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    write_sidecar(store, str(path), DOG)
    path.write_bytes(path.read_bytes().replace(b"<rdf:li>dog", b"<rdf:li>Anna</rdf:li><rdf:li>dog"))
    assert undo_sidecar(store, str(path)).state == "undone"
    assert subjects(path.read_bytes()) == ["Anna"]


def test_what_cannot_be_edited_is_left_alone_and_named(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    path.write_bytes(b"<x:xmpmeta broken")
    outcome = write_sidecar(store, str(path), DOG)
    assert outcome.state == "left alone"
    assert "well-formed" in outcome.reason
    assert path.read_bytes() == b"<x:xmpmeta broken"


def test_a_sidecar_that_changes_while_it_is_edited_is_left_alone(store, tmp_path, monkeypatch):
    path = tmp_path / "a.jpg.xmp"
    path.write_bytes(drawn_sidecar(1))
    real = tagging.tagged

    def slow(data, keywords, ours):
        path.write_bytes(drawn_sidecar(2))
        return real(data, keywords, ours)

    monkeypatch.setattr(tagging, "tagged", slow)
    outcome = write_sidecar(store, str(path), DOG)
    assert outcome.state == "left alone"
    assert "just now" in outcome.reason
    assert path.read_bytes() == drawn_sidecar(2)


def test_the_raw_file_of_a_pair_is_its_partner(tmp_path):
    for name in ("d.JPG", "d.CR2"):
        (tmp_path / name).touch()
    assert raw_partners(str(tmp_path / "d.JPG")) == [str(tmp_path / "d.CR2")]
    assert raw_partners(str(tmp_path / "d.CR2")) == []


def test_tags_are_the_sets_of_the_rule(update):
    update()
    index = open_index(update.folder)
    index.correct(3, {"dog": "present", "beach": "absent"})
    for row, keywords in tags_of(index, Threshold(0.4)):
        sets = index.sets(slice(row, row + 1), Threshold(0.4))[0]
        names = {name for name, given in zip(index.space.names, sets, strict=True) if given}
        assert {one.label for one in keywords} == names
        assert [one.probability for one in keywords] == sorted(
            (one.probability for one in keywords), reverse=True
        )
        if row == 3:
            assert keywords[0].label == "dog"
            assert "beach" not in names


@pytest.fixture
def large(tmp_path):
    """An index of 600 photos that are like the held-out ones."""
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    return open_index(made_index(tmp_path / "large.index", save_model(tmp_path / "run"), logits))


def test_tags_can_be_promised(large):
    index = large
    made = promised_rule(index, 0.3, 0.9)
    (promise,), rule = made.promises, made.rule
    assert promise.what == "tags"
    assert promise.observed >= 0.7
    # The photos it was made on are four fifths of these: their own share of right tags is near.
    photos = index.held_out
    sets, present = rule(photos.link.decision_probs(photos.logits)), photos.labels == 1
    assert (sets & present).sum() / sets.sum() == pytest.approx(promise.observed, abs=0.05)
    assert sets.sum(1).max() <= promise.at_most


def test_tags_can_be_promised_of_each_label_and_others_are_not_given(large):
    index = large
    made = promised_rule(index, 0.4, 0.8, per_label=True)
    names = index.space.names
    promised = {name for promise in made.promises for name in promise.labels}
    assert promised
    photos = index.held_out
    sets, present = made.rule(photos.link.decision_probs(photos.logits)), photos.labels == 1
    given = {name for name, column in zip(names, sets.T, strict=True) if column.any()}
    assert given <= promised
    for promise in made.promises:
        columns = [names.index(name) for name in promise.labels]
        chosen = sets[:, columns]
        assert (chosen & present[:, columns]).sum() >= 0.6 * chosen.sum()
    with pytest.raises(DataError, match="cannot be promised"):
        promised_rule(index, 0.001, 0.999, per_label=True)


@pytest.mark.parametrize(
    ("names", "photo", "expected"),
    [
        (["a.jpg"], "a.jpg", "a.jpg.xmp"),
        (["b.jpg", "B.XMP"], "b.jpg", "B.XMP"),
        (["c.jpg", "c.jpg.xmp", "c.xmp"], "c.jpg", "c.jpg.xmp"),
        (["a.jpg", "A.JPG.XMP"], "a.jpg", "A.JPG.XMP"),
        (["IMG.JPG", "img.xmp"], "IMG.JPG", "img.xmp"),
        (["a.jpg", "A.jpg", "A.jpg.xmp"], "a.jpg", "a.jpg.xmp"),
        (["a.jpg", "A.jpg", "A.jpg.xmp"], "A.jpg", "A.jpg.xmp"),
        (["a.jpg", "A.png", "A.xmp"], "a.jpg", "a.jpg.xmp"),
        (["a.jpg", "a.jpg.xmp", "A.JPG.xmp"], "a.jpg", "a.jpg.xmp"),
        (["a.jpg", "a.cr2", "a.xmp"], "a.jpg", "a.xmp"),
    ],
)
def test_a_photo_finds_its_own_sidecar_whatever_the_case_of_its_name(
    tmp_path, names, photo, expected
):
    for name in names:
        (tmp_path / name).touch()
    assert sidecar_of(str(tmp_path / photo)) == str(tmp_path / expected)


def test_ctrl_c_says_how_to_go_on_and_what_was_written_can_be_undone(update, photos, monkeypatch):
    update()
    writing, before = tagging.write_sidecar, sorted(photos.rglob("*"))

    def until_the_third(*given, **options):
        if len(list(photos.rglob("*.xmp"))) == 2:
            raise KeyboardInterrupt
        return writing(*given, **options)

    monkeypatch.setattr(tagging, "write_sidecar", until_the_third)
    words = ["tag", str(update.folder), "--xmp"]
    stopped = run(*words)
    assert stopped.exit_code == 130
    said = f"stopped; run the same command again to go on, {update.folder} keeps what is done"
    assert said in " ".join(stopped.output.split())
    monkeypatch.setattr(tagging, "write_sidecar", writing)
    assert "2 unchanged" in run(*words).output
    run("tag", update.folder, "--undo")
    assert sorted(photos.rglob("*")) == before
