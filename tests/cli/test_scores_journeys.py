"""What people do with scores, as they type it. Oracles: figures by another way, the link."""

import csv
import io
import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sample_scores import NAMES as LABELS
from sample_scores import sample
from test_app import call
from tiny_predictor import NAMES, make
from typed import must_run, refused, run

from labelwise.base.progress import LineWatch
from labelwise.base.text import from_cell
from labelwise.decide import Threshold, TopK
from labelwise.errors import LabelwiseError
from labelwise.evaluation import Evaluation
from labelwise.links import Sigmoid
from labelwise.scores import read_fitted, read_scores
from labelwise.types import LabelSpace

ROWS = 12


def done(*words):
    return must_run(*words).stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make().save(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos with a table of label lists; the third label is never present."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    lines = ["path,labels"]
    for row in range(ROWS):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{row:02}.png")
        lines.append(f"{row:02}.png,{('dog', 'dog|cat', '')[row % 3]}")
    (folder / "truth.csv").write_text("\n".join(lines) + "\n")
    return folder


def evaluated(*words):
    return Evaluation.from_json(done("evaluate", *words, "--query-length", "0", "--json"))


def test_a_run_is_evaluated_on_new_photos_as_its_predictions_are(model, photos, tmp_path):
    """In the three formats of predict, whose figures agree with those of --data."""
    new = evaluated(model, "--data", photos / "truth.csv")
    assert new.data.rows == ROWS
    assert (new.data.present, new.data.unknown) == (12, 0)
    assert "own threshold" in new.sets.rule
    for suffix in ("csv", "jsonl", "parquet"):
        answers = tmp_path / f"answers.{suffix}"
        done("predict", model, photos, "-o", answers)
        found = evaluated(answers, "--labels", photos / "truth.csv", "--rule", "none")
        assert found.data == new.data.__class__(**{**vars(new.data), "split": None}), suffix
        assert found.final.log_loss == pytest.approx(new.final.log_loss, rel=1e-4)
        assert found.ranking.map_class == pytest.approx(new.ranking.map_class)


def test_json_stays_json_while_progress_is_shown(model, photos, monkeypatch):
    """Lines about progress come from 30 seconds on, here at once."""
    monkeypatch.setattr(LineWatch.__init__, "__defaults__", (-1.0, None))
    result = run("evaluate", model, "--data", photos / "truth.csv", "--json")
    assert Evaluation.from_json(result.stdout).data.rows == ROWS
    assert f"{ROWS}/{ROWS} images" in result.stderr


def test_photos_that_cannot_be_read_are_counted(model, photos, tmp_path):
    for path in photos.glob("*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "03.png").write_bytes(b"no picture")
    new = evaluated(model, "--data", tmp_path / "truth.csv")
    assert new.data.rows == ROWS - 1
    assert "1 of 12 images could not be read, left out" in new.notes[0]
    assert run("predict", model, tmp_path, "-o", tmp_path / "p.jsonl").exit_code == 1
    found = evaluated(tmp_path / "p.jsonl", "--labels", tmp_path / "truth.csv")
    assert found.ranking.map_class == pytest.approx(new.ranking.map_class)
    assert "1 image of" in found.notes[0]


def test_labels_are_matched_by_name(model, photos, tmp_path):
    """A table of columns that lacks one label of the model leaves it unknown, and says so."""
    with (tmp_path / "columns.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "cat", "dog"])
        for row in range(ROWS):
            table.writerow([photos / f"{row:02}.png", int(row % 3 == 1), int(row % 3 < 2)])
    found = evaluated(model, "--data", tmp_path / "columns.csv")
    both = evaluated(model, "--data", photos / "truth.csv")
    assert found.data.unknown == ROWS
    aps = {row.name: row.ap for row in both.rows}
    assert [row.ap for row in found.rows] == pytest.approx([aps[name] for name in NAMES])
    assert "does not speak of 1 label" in found.notes[0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--labels", "truth.csv"], "--labels does not apply: .* is a run folder"),
        (["--scores", "logits"], "--scores does not apply"),
        (["--by", "site"], "--by does not apply"),
        (["--device", "cpu"], "--device does not apply: .* own predictions"),
        (["--data", "x.csv", "--decode", "cuda"], "--decode cuda needs .* --device cuda; got cpu"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_options_that_do_not_apply_to_a_run_are_errors(model, words, sentence):
    with pytest.raises(LabelwiseError, match=sentence):
        raise LabelwiseError(refused("evaluate", model, *words))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A link and thresholds fitted on labelled scores, and other scores without labels."""
    tmp_path = tmp_path_factory.mktemp("fitted")
    held, new = sample(200), sample(50, seed=1)
    np.savez(tmp_path / "held.npz", scores=held.logits, labels=held.labels, names=np.array(LABELS))
    back = list(range(len(LABELS)))[::-1]
    columns = {f"score:{LABELS[k]}": new.logits[:, k] for k in back}
    pq.write_table(pa.table({"id": list(new.ids), **columns}), tmp_path / "new.parquet")
    held_words = ("held.npz", "--scores", "logits")
    path = tmp_path / "thresholds.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done("calibrate", *held_words, "--calibrator", "platt", "-o", "fit")
        done("calibrate", *held_words, "--rule", "best-f", "--calibrator", "platt", "-o", path)
        probs = ("fit/probabilities.parquet", "--scores", "probs")
        done("calibrate", "--calibrator", "none", *probs, "--rule", "0.3", "-o", "p.json")
        done(
            "calibrate", "--calibrator", "none", *held_words, "--rule", "best-f", "-o", "plain.json"
        )
    return tmp_path, new


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_what_was_fitted_is_applied_to_scores_without_labels(fitted, suffix):
    folder, new = fitted
    out = folder / f"out.{suffix}"
    link, rule = folder / "fit" / "link.json", folder / "thresholds.json"
    words = done("predict", link, rule, folder / "new.parquet", "-o", out)
    assert "50 rows, 5 labels" in words
    probs = read_fitted(link).link(new.logits.astype(np.float64))
    sets = read_fitted(rule).rule(read_fitted(link).link.decision_probs(new.logits))
    truth = folder / "truth.npz"
    np.savez(truth, labels=new.labels, ids=np.array(new.ids), names=np.array(LABELS))
    kind = () if suffix == "jsonl" else ("--scores", "probs")
    found = read_scores(out, "probs", labels=truth).predictions
    np.testing.assert_allclose(Sigmoid()(found.logits), probs, rtol=1e-9, atol=1e-12)
    assert found.names == LABELS
    assert evaluated(out, *kind, "--labels", truth).data.rows == 50
    if suffix == "parquet":
        chosen = pq.read_table(out)["labels"].to_pylist()
        expected = [{LABELS[k] for k in np.flatnonzero(row)} for row in sets]
        assert [set(labels) for labels in chosen] == expected
        assert [len(labels) for labels in chosen] == sets.sum(1).tolist()
        alone = folder / "alone.parquet"
        done("predict", rule, folder / "new.parquet", "-o", alone)
        assert pq.read_table(alone).equals(pq.read_table(out))


def test_a_rule_of_calibrated_probabilities_goes_with_their_link(fitted):
    folder, new = fitted
    link = folder / "fit" / "link.json"
    done("predict", link, folder / "p.json", folder / "new.parquet", "-o", folder / "o.parquet")
    expected = Threshold(0.3)(read_fitted(link).link.decision_probs(new.logits)).sum(1).tolist()
    found = pq.read_table(folder / "o.parquet")["labels"].to_pylist()
    assert [*map(len, found)] == expected
    words = refused("predict", link, folder / "plain.json", folder / "new.parquet", "-o", "o.csv")
    assert "was fitted on other probabilities" in words


def test_what_cannot_be_applied_says_why(fitted):
    folder, _ = fitted
    link, scores = folder / "fit" / "link.json", folder / "new.parquet"
    table = pq.read_table(scores)
    other = folder / "other.parquet"
    pq.write_table(table.drop_columns(["score:dog"]), other)
    assert "label 'dog' of" in refused("predict", link, other, "-o", "o.csv")
    pq.write_table(table.append_column("score:cow", table["score:dog"]), other)
    assert "label 'cow' of" in refused("predict", link, other, "-o", "o.csv")
    assert "the model comes first" in refused("predict", scores, scores, "-o", "o.csv")
    done("predict", folder / "fit", scores, "-o", folder / "by-folder.csv")  # as its link.json
    assert "must end in .parquet" in refused("predict", link, scores, "-o", "o.txt")
    probs = (folder / "fit" / "probabilities.parquet", "--scores", "probs", "-o", "o.csv")
    assert "fitted on logits" in refused("predict", link, *probs)
    facts = json.loads(link.read_text())
    for change, sentence in (
        ({"names": 3}, "'names'"),
        ({"names": ["a", "a"]}, "'a' twice"),
        ({"format": 2}, "must have format 1"),
        ({"link": {"kind": "magic"}}, "unknown link 'magic'"),
        ({"link": 5}, "'link'"),
        ({"scores": "odds"}, "'scores'"),
    ):
        broken = folder / "broken.json"
        broken.write_text(json.dumps(facts | change))
        assert sentence in refused("predict", broken, scores, "-o", "o.csv")
    broken.write_text("{")
    assert "not JSON" in refused("predict", broken, scores, "-o", "o.csv")
    broken.write_text('{"kind": "sigmoid"}')
    assert "'names' is missing" in refused("predict", broken, scores, "-o", "o.csv")


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


GOOD = npy(np.eye(2))
DAMAGED = {  # members in place of good scores and labels
    "text": {"scores.npy": b"hello"},
    "cut off": {"scores.npy": GOOD[:-8]},
    "huge": {"scores.npy": GOOD.replace(b"(2, 2)", b"(9999999, 9999999)", 1)},
    "a header of code": {"scores.npy": GOOD.replace(b"{'descr'", b"{exec(''", 1)},
    "empty member": {"scores.npy": b""},
    "complex": {"scores.npy": npy(np.eye(2) * 1j)},
    "observed twos": {"observed.npy": npy(np.eye(2) * 2)},
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_archive_gets_one_sentence(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        for name, content in ({"scores.npy": GOOD, "labels.npy": GOOD} | DAMAGED[kind]).items():
            archive.writestr(name, content)
    assert "s.npz" in refused("evaluate", tmp_path / "s.npz", "--scores", "logits")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"path": "a", "probs": {"dog": "x"}}', "line 1: the probability of 'dog' must be a num"),
        ('{"path": "a", "probs": [1]}', "line 1 must be an object with 'path' and 'probs'"),
        ("[]", "the table is empty"),
        ('{"path": "a", "probs": {"dog": 1}}\n[]', "line 2: must be an object"),
        ("{", "line 1: not JSON"),
        ('{"path": "a", "probs": {"dog": 1}}\n{"path": "b", "probs": {"cat": 1}}', "line 2 must"),
        (2 * '{"path": "a", "probs": {"dog": 1}}\n', "'a' is there twice"),
        ('{"path": "a", "probs": {"dog": 1.5}}', "a probability lies in"),
        ('{"path": "a", "error": "no"}', "the table has no rows"),
    ],
)
def test_json_lines_that_are_damaged_get_one_sentence(tmp_path, line, sentence):
    (tmp_path / "p.jsonl").write_text(line)
    assert sentence in refused("evaluate", tmp_path / "p.jsonl", "--labels", "x.csv")


def test_an_infinite_log_loss_is_shown_as_infinite_not_undefined(tmp_path):
    probs, labels = np.array([[0.0, 0.2], [1.0, 0.5]]), np.array([[1, 0], [1, 1]])
    np.savez(tmp_path / "s.npz", scores=probs, labels=labels)
    words = done("evaluate", tmp_path / "s.npz", "--scores", "probs")
    line = next(line for line in words.splitlines() if line.startswith("Log loss"))
    assert ("infinite" in line, "undefined" in line) == (True, False)
    assert "Log loss is infinite: 1 entry was given probability 0 or 1 and wrong" in words


def test_a_promise_is_checked_again_on_new_photos(model, photos, tmp_path):
    """Oracle: the recall of the sets that predict gives, against the level that was promised."""
    facts = {"confidence": 0.9, "n": 50, "counted": 40, "observed": 0.9, "photos": "val"}
    facts |= {"made": "2026-01-01T00:00:00", "test": "exact binomial"}
    never, always = ({"what": "recall", "level": level, **facts} for level in (0.999, 0.001))
    folder = tmp_path / "promised"
    predictor = make()
    words = ("evaluate", folder, "--data", photos / "truth.csv", "--query-length", "0")
    for cut, promise, said in (
        (0.999, never, "Promise broken: 0.0% on 8 new photos"),
        (0.0, always, "Promise kept: 100.0% on 8 new photos"),
    ):
        replace(predictor, rule=Threshold(cut), promises=(promise,)).save(folder)
        assert said in " ".join(done(*words).split())
    assert "Promise" not in done(*words, "--rule", "0.5")


# ``labelwise predict`` on good, odd and broken files.

BROKEN = ("empty.png", "truncated.jpg", "text.jpg", "bomb.png")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of files of every kind; those of BROKEN cannot be read."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    rgb.save(folder / "plain.png")
    rgb.convert("CMYK").save(folder / "cmyk.jpg")
    rgb.convert("P").save(folder / "palette.png", transparency=0)
    rgb.convert("RGBA").save(folder / "alpha.webp")
    Image.fromarray(rng.integers(0, 65536, (30, 30), dtype=np.uint16)).save(folder / "deep.png")
    rgb.save(folder / "moving.gif", save_all=True, append_images=[rgb.rotate(90)])
    turned = Image.Exif()
    turned[0x0112] = 6
    rgb.save(folder / "turned.jpg", exif=turned)
    (folder / "sub").mkdir()
    rgb.save(folder / "sub" / 'comma, "quote".png')
    (folder / "empty.png").touch()
    whole = io.BytesIO()
    rgb.save(whole, "JPEG")
    (folder / "truncated.jpg").write_bytes(whole.getvalue()[:700])
    (folder / "text.jpg").write_text("not a picture")
    Image.new("1", (30_000, 30_000)).save(folder / "bomb.png")
    (folder / "notes.txt").write_text("no picture either")
    return folder


@pytest.mark.parametrize("out", ["out.csv", "shards/"])
def test_the_decoder_of_a_gpu_needs_one(model, pictures, tmp_path, out):
    said = refused("predict", model, pictures, "-o", f"{tmp_path}/{out}", "--decode", "cuda")
    assert said == "--decode cuda needs a model on a GPU, --device cuda; got cpu"
    assert list(tmp_path.iterdir()) == []


def test_good_files_are_answered_and_broken_ones_named_in_files_of_each_kind(
    model, pictures, tmp_path, monkeypatch, capsys
):
    for suffix in ("csv", "jsonl", "parquet"):
        assert call(monkeypatch, "predict", model, pictures, "-o", tmp_path / f"a.{suffix}") == 1
        shown = capsys.readouterr()
        assert all(name in shown.err for name in BROKEN)
        assert "4 of 12 images could not be read" in shown.err
        assert "8 of 12 images predicted" in shown.out
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(lines) == 12
    for line in lines:
        is_broken = line["path"].endswith(BROKEN)
        assert line.keys() == ({"path", "error"} if is_broken else {"path", "labels", "probs"})
        assert is_broken or list(line["probs"]) == list(NAMES)
    with (tmp_path / "a.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    parquet = pq.read_table(tmp_path / "a.parquet")
    assert parquet.schema.field("probs").type == pa.list_(pa.float32())  # any reader takes it
    table = parquet.to_pylist()
    for line, row, record in zip(lines, rows, table, strict=True):
        assert line["path"] == row["path"] == record["path"]
        assert line.get("error", "") == row["error"] == (record["error"] or "")
        if "error" not in line:
            assert line["labels"] == json.loads(row["labels"]) == record["labels"]
            probs = list(line["probs"].values())
            assert [float(row[name]) for name in NAMES] == pytest.approx(probs, rel=1e-5)
            assert record["probs"] == pytest.approx(probs, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("{model}", "{pictures}", "-o", "a.txt"), "must end in .csv, .jsonl, .parquet, got"),
        (("{pictures}", "{pictures}"), "model.json does not exist; give the folder of a finished"),
        (("{pictures}/plain.png", "{model}"), "the model comes first: the folder of a run"),
        (("{pictures}/gone", "{pictures}"), "gone is not there"),
        (("{model}", "{model}"), "there are no images in the folder"),
        (("{model}", "{pictures}/gone.png"), "there is no file or folder"),
        (("{model}", "{pictures}/gone.png", "{model}/model.json"), "gone.png: the image cannot be"),
        (
            ("{model}", "{pictures}/plain.png", "-o", "{pictures}/plain.png/a.csv"),
            "part of that path is a file, not a folder",
        ),
    ],
)
def test_bad_requests_get_a_sentence(model, pictures, arguments, sentence):
    filled = [text.format(model=model, pictures=pictures) for text in arguments]
    done = run("predict", *filled)
    assert (done.exit_code, done.stdout) == (1, "")
    assert sentence in f"{done.stderr} {done.exception}"


def test_ctrl_c_says_what_became_of_the_file(model, pictures, tmp_path, monkeypatch, capsys):
    def stopped(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("labelwise.models.scoring.score", stopped)
    out = tmp_path / "answers.csv"
    assert call(monkeypatch, "predict", str(model), str(pictures), "-o", str(out)) == 130
    assert f"stopped; {out} was not written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_odd_neighbours_in_a_folder_stop_nothing(model, tmp_path, monkeypatch, capsys):
    """A pipe, a name that is not UTF-8, a hidden copy, a thin picture, PostScript: one command."""
    folder = tmp_path / "photos"
    folder.mkdir()
    good = Image.new("RGB", (40, 30), "red")
    good.save(folder / "a.png")
    good.save(folder / "._a.png")
    good.save(os.fsencode(folder) + b"/caf\xe9.png", "PNG")
    Image.new("RGB", (1, 60_000)).save(folder / "thin.png")
    good.save(folder / "eps.jpg", "EPS")
    os.mkfifo(folder / "pipe.jpg")
    out = tmp_path / "answers.jsonl"
    assert call(monkeypatch, "predict", str(model), str(folder), "-o", str(out)) == 1
    assert "eps.jpg: this is not an image file" in capsys.readouterr().err
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    names = [answer["path"].rpartition("/")[2] for answer in answers]
    assert sorted(names) == ["a.png", r"caf\xe9.png", "eps.jpg", "thin.png"]
    failed = [name for name, answer in zip(names, answers, strict=True) if "error" in answer]
    assert failed == ["eps.jpg"]
    assert "it is a device, pipe or socket" in run("predict", model, folder / "pipe.jpg").stderr


def test_cells_are_no_formulas_and_labels_no_commands(tmp_path, monkeypatch, capsys):
    names = ("=1+1", "\x1b[2Jdog", "-2")
    predictor = make(rule=TopK(3))
    replace(predictor, space=LabelSpace(names)).save(tmp_path / "model")
    picture = tmp_path / "a.png"
    Image.new("RGB", (40, 30)).save(picture)
    out = tmp_path / "answers.csv"
    assert call(monkeypatch, "predict", str(tmp_path / "model"), str(picture), "-o", str(out)) == 0
    assert "\x1b" not in capsys.readouterr().out
    with out.open(newline="") as stream:
        header, row = csv.reader(stream)
    assert [from_cell(cell) for cell in header[3:]] == list(names)
    assert not [cell for cell in (*header, row[0], row[1]) if cell.startswith(("=", "-", "+", "@"))]
    assert set(from_cell(row[1]).split("|")) == set(names)


def test_answers_obey_a_taxonomy(model, pictures, tmp_path):
    """Oracle: the plain answers. Each chain of two labels is asked for, so one is broken."""
    photos = [str(pictures / name) for name in ("plain.png", "deep.png")]
    moved = 0
    for child, parent in ((NAMES[0], NAMES[1]), (NAMES[1], NAMES[0])):
        (tmp_path / "kinds.csv").write_text(f"child,parent\n{child},{parent}\n")
        found = {}
        for name, more in (("plain", ()), ("kinds", ("--taxonomy", tmp_path / "kinds.csv"))):
            out = tmp_path / f"{name}.jsonl"
            must_run("predict", model, *photos, "-o", out, "--overwrite", *more)
            found[name] = [json.loads(line) for line in out.read_text().splitlines()]
        for before, after in zip(found["plain"], found["kinds"], strict=True):
            odds = [np.log(p / (1 - p)) for p in (before["probs"][child], before["probs"][parent])]
            wrong = odds[0] > odds[1]
            moved += wrong
            expected = [np.mean(odds)] * 2 if wrong else odds
            shown = [after["probs"][child], after["probs"][parent]]
            np.testing.assert_allclose(shown, 1 / (1 + np.exp(-np.array(expected))), rtol=1e-6)
            assert child not in after["labels"] or parent in after["labels"]
    assert moved
    shards = ("-o", f"{tmp_path}/shards/", "--taxonomy", tmp_path / "kinds.csv")
    assert "--taxonomy is for answers in one file" in refused("predict", model, *photos, *shards)
