"""``labelwise train`` in this process on a small table of images."""

import json
import sys
import threading
from collections import Counter
from html import unescape

import numpy as np
import pytest
import typer
import yaml
from PIL import Image
from search_setup import picture
from test_app import call
from typed import must_run, refused, run

import labelwise
from labelwise.cli.app import app
from labelwise.cli.text import resumable
from labelwise.errors import SettingsError
from labelwise.pictures import PictureImages
from labelwise.pictures.sources import FileImages
from labelwise.training.settings import SHORT_NAMES, read_settings

SMALL = (
    *("--set", "data_options.num_train=96", "--set", "data_options.num_val=48"),
    *("--set", "data_options.num_test=48", "--set", "data_options.size=32"),
    *("--image-size", "32", "--epochs", "1", "--batch-size", "32", "--accelerator", "cpu"),
)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verb") / "my run"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "train", "scenes", "-o", str(folder), *SMALL) == 0
    return folder


def test_a_run_ends_with_a_report_that_says_what_it_is_of_and_can_be_written_again(
    run_folder, monkeypatch
):
    first = (run_folder / "report.html").read_text()
    assert first.startswith("<!doctype html>")
    assert "http://" not in first.replace("http://www.w3.org", "")
    for fact in (
        "<dt>Weights</dt><dd>none: trained from random values</dd>",
        "<dt>Data</dt><dd>scenes</dd>",
        f"<dt>Command</dt><dd>labelwise train scenes -o '{run_folder}' --set ",
    ):
        assert fact in unescape(first)
    settings = yaml.safe_load((run_folder / "settings.yaml").read_text())
    for name in ("method", "backbone"):
        assert f"<dt>{name.title()}</dt><dd>{settings[name]}</dd>" in first
    assert call(monkeypatch, "report", run_folder) == 0
    again = (run_folder / "report.html").read_text()
    assert again.count("<img") == first.count("<img") > 0


def test_a_program_exports_the_run_and_gets_the_same_answers(run_folder, tmp_path, monkeypatch):
    """Oracle: the run itself, on pictures that are no photos of its data."""
    run = labelwise.load_run(run_folder)
    files = [run.export(tmp_path / "one.onnx"), labelwise.export(run_folder, tmp_path / "two.onnx")]
    for number in range(3):
        picture(tmp_path / f"photos/{number}.png", number)
    own = labelwise.predict(run_folder, tmp_path / "photos")
    for file in files:
        (other,) = labelwise.score(labelwise.load_model(file), PictureImages(own.ids))
        np.testing.assert_allclose(other.probabilities, own.probabilities, atol=1e-5)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match="pip install pandas"):
        own.to_frame()


def test_the_same_command_says_that_it_is_done(run_folder, monkeypatch, capsys):
    assert call(monkeypatch, "train", "scenes", "-o", str(run_folder), *SMALL) == 0
    shown = capsys.readouterr().out
    assert "was finished before; --fresh starts over" in shown
    assert "mAP" in shown
    assert "      labelwise evaluate" in shown


def test_other_settings_are_refused(run_folder):
    said = refused("train", "scenes", "-o", run_folder, *SMALL, "--lr", "0.5")
    assert "recipe.optimizer.lr: 0.004 -> 0.5" in said


def test_what_an_error_says_to_give_is_taken(tmp_path):
    (tmp_path / "photos.csv").write_text("file;tags\na.png;dog, cat\n")  # the photo is not there
    command = ["train", tmp_path / "photos.csv", "-o", tmp_path / "run"]
    assert "1. labels separated by ',': a.png = cat, dog: `--set separator=,`" in refused(*command)
    command += ["--set", "separator=,"]
    assert "1 of 1 image is missing" in refused(*command)


def test_flags_override_the_file_and_all_is_saved(tmp_path, monkeypatch):
    seen = {}

    def told(settings, folder, **others):
        seen.update(settings=settings, folder=folder, **others)

    monkeypatch.setattr("labelwise.cli.train.train_and_report", told)
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"data": "scenes", "method": "spa", "recipe": {"epochs": 7}}))
    words = ["--lr", "0.1", "--fresh", "--set", "recipe.ema=0.99", "--set", "options.k_neg=2.5"]
    assert call(monkeypatch, "train", "--settings", str(file), *words) == 0
    settings, recipe = seen["settings"], seen["settings"].recipe
    assert (settings.method, settings.options) == ("spa", {"k_neg": 2.5})
    assert (recipe.epochs, recipe.optimizer.lr, recipe.ema) == (7, 0.1, 0.99)
    assert str(seen["folder"].path) == "runs/scenes-spa"
    assert (seen["fresh"], seen["folds"]) == (True, None)


def test_the_help_states_the_defaults_of_the_settings():
    """Oracle: the settings themselves, of a run and of one on frozen features."""
    frozen = read_settings(None, {"data": "scenes", "features": "small-cnn"})
    settings = {"": read_settings(None, {"data": "scenes"}), " with --features": frozen}
    named = {"patience": "never", "head": "the method's", "image_size": "the network's"}
    named |= {"effort": "quick on photos", "bands": "8-bit RGB", "window": "none"}
    named |= {"composite": "red,green,blue if there are such, else the first"}
    for option in typer.main.get_command(app).commands["train"].params:
        name = {"calibrator": "calibrate"}.get(option.name, option.name)
        shown = getattr(option, "show_default", None)
        if name not in SHORT_NAMES or not isinstance(shown, str):
            continue
        expected = []
        for words, chosen in settings.items():
            value = chosen
            for part in SHORT_NAMES[name].split("."):
                value = getattr(value, part)
            text = f"{named[name] if value is None else value}"
            if text not in expected and not (name == "backbone" and words):
                expected.append(f"{text}{words}")
        assert shown == "; ".join(expected), name


def test_what_the_reader_found_is_shown(tmp_path):
    """Oracle: the parts that were written, and the share of them that becomes validation."""
    for part, first in (("train", 0), ("test", 20)):
        numbers = range(first, first + 20)
        for number in numbers:
            picture(tmp_path / "coco" / f"{part}2017" / f"{number}.png", number)
        facts = {"images": [{"id": number, "file_name": f"{number}.png"} for number in numbers]}
        facts["annotations"] = [{"id": n, "image_id": n, "category_id": n % 2} for n in numbers]
        facts["categories"] = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
        file = tmp_path / "coco" / "annotations" / f"instances_{part}2017.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(facts))
    small = ("--image-size", "16", "--epochs", "1", "--batch-size", "8", "--accelerator", "cpu")
    shown = must_run("train", tmp_path / "coco", "-o", tmp_path / "run", *small).output
    assert shown.count("reads as COCO: 2 parts") == 1
    assert "2 of 20 training images became validation" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "setting 'data' is needed"),
        (("nothere.csv",), "there is no file or folder 'nothere.csv'"),
        (("scenes", "--backbone", "resnet5"), "unknown backbone 'resnet5'; did you mean"),
        (("scenes", "--method", "qasibinary"), "did you mean 'quasibinary'"),
        (("scenes", "--head", "lin"), "unknown head 'lin'; did you mean 'linear'"),
        (("scenes", "--augment", "shft"), "did you mean 'shift'"),
        (("scenes", "--calibrator", "plat"), "did you mean 'platt'"),
        (("scenes", "--rule", "bestf"), "unknown rule 'bestf'; use one like auto, 0.5"),
        (("scenes", "--metric", "mpa"), "did you mean 'map'"),
        (("scenes", "--set", "recipe.lr=1"), "did you mean 'recipe.optimizer.lr'"),
        (("scenes", "--set", "lr"), "a setting must look like key=value, got 'lr'"),
        (("scenes", "--settings", "no.yaml"), "no.yaml does not exist"),
        (("scenes", "--effort", "good", "--folds", "2"), "--folds trains one model"),
        (("scenes", "--effort", "good", "--engine", "ray"), "--engine ray trains one model"),
        (("scenes", "--minutes", "2"), "minutes end the efforts good and best"),
        (("scenes", "--set", "data_options.szie=3"), "has no option 'szie'; did you mean 'size'"),
    ],
)
def test_wrong_names_get_one_sentence_and_leave_nothing(tmp_path, arguments, sentence):
    assert sentence in refused("train", *arguments, "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", [("compare", "scenes"), ("papers", "run", "000-table2")])
def test_weights_without_the_features_they_are_of_are_refused(verb):
    error = refused(*verb, "--weights", "w.safetensors", "--dry-run")
    assert "--weights are those of --features, which is not given" in error
    assert "--set weights=w.safetensors" in error


FEW = ("--set", "data_options={num_train: 16, num_val: 8, num_test: 8}")


@pytest.mark.parametrize(
    ("work", "arguments"),
    [
        ("training.run.train", ("train", "scenes", *FEW)),
        ("papers.jobs.train", ("compare", "scenes", "--methods", "bce,spa", "--jobs=1", *FEW)),
        ("papers.reproduce.reproduce", ("papers", "run", "000-table2")),
    ],
)
def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys, work, arguments):
    def interrupted(*words, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"labelwise.{work}", interrupted)
    assert call(monkeypatch, *arguments, "-o", str(tmp_path)) == 130
    assert f"again to go on, {tmp_path} keeps what is done" in capsys.readouterr().err


def test_ctrl_c_before_there_is_a_folder_does_not_say_that_it_keeps_anything(tmp_path, capsys):
    with pytest.raises(typer.Exit), resumable(tmp_path / "none"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.endswith("stopped; run the same command again\n")


def test_the_rows_of_a_table_are_listed_as_printed(monkeypatch, capsys):
    for table, rows in (
        ("000-table2", ("quasibinary always 80.6 6.9 0.913", "pretrained if named – – –")),
        ("004-table2", ("role fine-tuned not with --quick 66.9",)),
    ):
        assert call(monkeypatch, "papers", "list", table) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert {*rows} <= {*lines}
    assert call(monkeypatch, "papers", "list") == 0
    assert "put into data/coco: MS-COCO 2014" in capsys.readouterr().out


# What a person types before and after a training that does not go as wanted.

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
    figures = json.loads((out / "evaluation.json").read_text())
    assert figures["sets"]["rule"] in (out / "report.html").read_text()  # not the page of before


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
