"""``labelwise predict`` on good, odd and broken files."""

import csv
import io
import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from test_app import call
from tiny_predictor import NAMES, make
from typed import must_run, refused, run

from labelwise.base.text import from_cell
from labelwise.decide import TopK
from labelwise.types import LabelSpace

BROKEN = ("empty.png", "truncated.jpg", "text.jpg", "bomb.png")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make().save(folder)
    return folder


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
