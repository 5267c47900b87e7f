"""What a person types before and after a training that does not go as wanted."""

import json
import threading
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from typed import must_run, refused, run

from labelwise.pictures.sources import FileImages

QUICK = ("--epochs", "1", "--batch-size", "8", "--image-size", "16", "--calibrator", "none")


@pytest.fixture
def photos(tmp_path):
    """Forty-eight little pictures, red, blue, both or neither, in three splits."""
    rng = np.random.default_rng(0)
    lines = ["path,labels,split"]
    for number in range(48):
        red, blue = rng.integers(0, 2, 2)
        pixels = rng.integers(0, 60, (16, 16, 3), dtype=np.uint8)
        pixels[..., 0] += np.uint8(180 * red)
        pixels[..., 2] += np.uint8(180 * blue)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        labels = "|".join(name for name, there in (("red", red), ("blue", blue)) if there)
        lines.append(f"{number}.png,{labels},{('train', 'train', 'val', 'test')[number % 4]}")
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def trained(table, out, *more):
    return must_run("train", table, "-o", out, *QUICK, *more).output


def stopped(table, out, *more):
    """Return the sentence by which a training is refused; there is no run then."""
    said = refused("train", table, "-o", out, *QUICK, *more)
    assert not out.exists()
    return said


def state(out):
    weights, journal = (out / name for name in ("model.safetensors", "metrics.jsonl"))
    return weights.read_bytes(), journal.read_bytes()


def rule_of(out):
    return json.loads((out / "model.json").read_text())["rule"]


def test_a_rule_that_cannot_be_fitted_leaves_a_model_and_the_next_command_another_rule(
    photos, tmp_path
):
    lines = photos.read_text().replace("red|blue,val", ",val").replace("red,val", ",val")
    photos.write_text(lines.replace("blue,val", ",val"))
    out = tmp_path / "run"
    printed = trained(photos, out, "--rule", "best-f")
    assert "rule 'best-f' cannot be fitted: labels must hold a present entry" in printed
    assert "with another rule, calibrator or share will not train again" in printed
    assert rule_of(out) == {"kind": "threshold", "value": 0.5}
    before = state(out)
    printed = trained(photos, out, "--rule", "top-1")
    assert rule_of(out) == {"kind": "top-k", "k": 1}
    assert state(out) == before
    assert "epoch" not in printed


def test_a_table_may_move_and_a_finished_run_says_that_its_data_changed(photos, tmp_path):
    out = tmp_path / "run"
    trained(photos, out)
    moved = photos.rename(photos.with_name("moved.csv"))
    assert "finished before" in trained(moved, out)
    lines = moved.read_text().splitlines()
    moved.write_text("\n".join(lines[:-4]) + "\n")
    assert "the data changed since the run in" in trained(moved, out)
    said = refused("train", moved, "-o", out, *QUICK, "--rule", "0.1")
    assert "the data changed since" in said


def test_broken_pictures_stop_a_run_before_it_begins_or_are_left_out(photos, tmp_path):
    whole = (tmp_path / "5.png").read_bytes()
    (tmp_path / "5.png").write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "run"
    said = stopped(photos, out)
    for words in ("1 of 48 images cannot be read: ", "5.png", "out with `--on-error skip`"):
        assert words in said
    printed = trained(photos, out, "--on-error", "skip")
    assert "left out: 1 of 48 images cannot be read" in printed
    assert "finished before" in trained(photos, out, "--on-error", "skip")


def test_pictures_are_read_once_for_features_and_not_at_all_for_those_that_are_kept(
    photos, tmp_path, monkeypatch
):
    """Oracle: how often threads decoded each file; the report shows some in the main one."""
    reads = Counter()
    read = FileImages.read

    def counted(images, row, at_least=None):
        if threading.current_thread() is not threading.main_thread():
            reads[images.ids[row]] += 1
        return read(images, row, at_least)

    monkeypatch.setattr(FileImages, "read", counted)
    frozen = ("--features", "small-cnn", "--image-size", "16", "--calibrator", "none")
    frozen += ("--accelerator", "cpu")  # for a GPU, processes decode
    cache = ("--set", f"hardware.features_cache={tmp_path / 'cache'}")

    def train_features(out):
        reads.clear()
        done = run("train", photos, "-o", tmp_path / out, *frozen, *cache)
        return done, list(reads.values())

    first, counts = train_features("first")
    assert first.exit_code == 0, first.output or first.exception
    assert counts == [1] * 48
    again, counts = train_features("again")
    assert again.exit_code == 0, again.output or again.exception
    assert counts == []
    for name in ("5.png", "7.png"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    broken, _ = train_features("broken")
    assert "2 of 48 images cannot be read: " in str(broken.exception)
    assert not (tmp_path / "broken").exists()


def test_missing_pictures_can_be_left_out(photos, tmp_path):
    (tmp_path / "5.png").unlink()
    assert "1 of 48 images is missing" in stopped(photos, tmp_path / "run")
    trained(photos, tmp_path / "run", "--skip-missing")


def test_what_is_to_be_typed_next_works_without_a_test_split(photos, tmp_path):
    photos.write_text(photos.read_text().replace(",test", ",train"))
    printed = trained(photos, tmp_path / "run")
    (line,) = (line for line in printed.splitlines() if "labelwise evaluate" in line)
    assert line.split()[3:] == ["--split", "val"]
    must_run(*line.split()[1:])
    error = refused("evaluate", tmp_path / "run")
    assert "has no test split; choose another of its splits (train, val) with --split" in error
    said = "There is no test split: these figures are of val, which took part in "
    said += "fitting the model, and so are too good. `labelwise data split --shares` draws one."
    assert said in " ".join(printed.split())
    shares = "train=.6,val=.2,test=.2"
    run("data", "split", photos, "-o", tmp_path / "drawn.csv", "--shares", shares)
    assert "There is no test split" not in trained(tmp_path / "drawn.csv", tmp_path / "drawn")
