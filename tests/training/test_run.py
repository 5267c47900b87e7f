"""Runs. Oracles: an uninterrupted run of the same seed, and the files that it leaves."""

import _thread
import json
import os
import shutil
import signal
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from tiny_run import Hearing, assert_same_weights, tiny_settings, tiny_table
from typed import refused

from labelwise.answers.suspects import deal_folds, read_review
from labelwise.base.names import Names
from labelwise.base.progress import Silent
from labelwise.calibration import platt
from labelwise.cli.app import app
from labelwise.decide import Promise, find_promise
from labelwise.errors import (
    CheckpointError,
    DataError,
    LabelwiseError,
    SettingsError,
    TrainingError,
)
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.models.scoring import scored
from labelwise.predictions import Predictions
from labelwise.scores.fit import make_promise
from labelwise.scores.run import read_run
from labelwise.tables import LabelTable
from labelwise.tables.derived import stratified_split
from labelwise.training import execution, loggers
from labelwise.training.loop import Loop
from labelwise.training.run import train, train_folds


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Interrupting(Silent):
    """Interrupts this process after some batches, as Ctrl-C does.

    Python is told of the signal by itself: at a real one the process of all tests ended twice with
    SIGSEGV, for a reason that was not found. A run in a bucket (test_buckets) gets a real one.
    """

    def __init__(self, batches):
        self.left = batches

    def advance(self, images):
        self.left -= 1
        if self.left == 0:
            _thread.interrupt_main(signal.SIGINT)


def test_a_run_leaves_the_files_of_the_design_and_learns(tmp_path):
    run = train(tiny_settings(recipe__epochs=8), tmp_path, table=tiny_table(600))
    files = {"settings.yaml", "metrics.jsonl", "evaluation.json", "model.safetensors", "model.json"}
    assert {path.name for path in tmp_path.iterdir()} == {*files, "checkpoint", "predictions"}
    assert run.evaluation.ranking.map_class > 0.9
    assert len(Predictions.load(tmp_path / "predictions" / "test.parquet")) == 100
    epochs = [record for record in records(tmp_path) if "epoch" in record]
    assert [record["epoch"] for record in epochs] == list(range(1, 9))
    assert yaml.safe_load((tmp_path / "settings.yaml").read_text())["recipe"]["epochs"] == 8


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was left alone."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert not train(tiny_settings(), folder, table=tiny_table()).was_finished
    return folder


@pytest.mark.parametrize("batches", [4, 11])  # the end of an epoch, and the middle of one
def test_ctrl_c_stops_between_steps_and_the_same_call_goes_on(tmp_path, whole, batches):
    with pytest.raises(KeyboardInterrupt):
        train(tiny_settings(), tmp_path, table=tiny_table(), watch=Interrupting(batches))
    state = max((tmp_path / "checkpoint").glob("*/state.json"))
    assert json.loads(state.read_text())["step"] == batches
    train(tiny_settings(), tmp_path, table=tiny_table())
    assert_same_weights(whole, tmp_path)


def test_a_finished_run_is_not_run_again_and_lost_results_are_made_again(tmp_path, whole):
    run, model = tmp_path / "run", tmp_path / "run" / "model.safetensors"
    shutil.copytree(whole, run)
    before = model.stat().st_mtime_ns
    again = train(tiny_settings(), run, table=tiny_table())
    assert again.was_finished
    assert again.evaluation == RunFolder(whole).evaluation
    assert model.stat().st_mtime_ns == before
    (run / "evaluation.json").unlink()
    model.unlink()
    train(tiny_settings(), run, table=tiny_table())
    assert model.read_bytes() == (whole / "model.safetensors").read_bytes()


def test_other_settings_are_refused_by_name_unless_fresh(tmp_path, whole):
    table = tiny_table()
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (tmp_path / "mine.txt").write_text("not ours")
    other = tiny_settings(recipe__optimizer__lr=0.5, seed=4)
    with pytest.raises(SettingsError, match=r"lr: 0.05 -> 0.5; seed: 0 -> 4.*--fresh"):
        train(other, tmp_path, table=table)
    assert not train(tiny_settings(seed=4), tmp_path, table=table, fresh=True).was_finished
    assert (tmp_path / "mine.txt").exists()
    with pytest.raises(AssertionError):
        assert_same_weights(whole, tmp_path)
    assert train(tiny_settings(seed=4, hardware__workers=2), tmp_path, table=table).was_finished


def test_other_data_is_refused(tmp_path):
    settings = tiny_settings()
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path, table=tiny_table(), watch=Interrupting(2))
    with pytest.raises(CheckpointError, match="the data changed since the run"):
        train(settings, tmp_path, table=tiny_table(seed=1))


def test_a_deterministic_run_leaves_the_process_as_it_was_and_is_a_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    train(tiny_settings(deterministic=True, recipe__epochs=1), tmp_path, table=tiny_table())
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # read when CUDA starts
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(SettingsError, match="deterministic: True -> False"):
        train(tiny_settings(recipe__epochs=1), tmp_path, table=tiny_table())


def test_accumulated_halves_are_one_whole_batch(tmp_path):
    table = tiny_table()
    for name, flags in (("whole", {}), ("halves", {"batch_size": 8, "recipe__accumulate": 2})):
        settings = tiny_settings(recipe__optimizer__name="sgd", **flags)
        train(settings, tmp_path / name, table=table)
    assert_same_weights(tmp_path / "whole", tmp_path / "halves", atol=1e-6, rtol=1e-5)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    table = tiny_table()
    table.images.features[table.split == "train"] *= 1e19
    settings = tiny_settings(recipe__optimizer__name="sgd", recipe__optimizer__lr=1e18)
    with pytest.raises(TrainingError, match=r"epoch 1, batch \d+ of 4 \(images 0000"):
        train(settings, tmp_path, table=table)
    assert not list((tmp_path / "checkpoint").glob("*/state.json"))


def test_early_stopping_waits_for_patience_and_deploys_the_best_epoch(tmp_path):
    settings = tiny_settings(
        recipe__epochs=30, recipe__patience=2, recipe__optimizer__lr=0.5, recipe__metric="log_loss"
    )
    train(settings, tmp_path, table=tiny_table())
    losses = [record["val_log_loss"] for record in records(tmp_path) if "epoch" in record]
    assert len(losses) == losses.index(min(losses)) + 3 < 30
    val = Predictions.load(tmp_path / "predictions" / "val.parquet")
    log_p, log_q = val.link.log_probs(val.logits.astype(float))
    loss = -np.where(val.labels > 0, log_p, log_q).mean()
    assert loss == pytest.approx(min(losses), rel=1e-5)


def test_without_validation_or_test_the_run_says_what_is_missing(tmp_path):
    table = tiny_table()
    train_only = table.subset(table.split == "train")
    run = train(tiny_settings(calibrate="platt"), tmp_path / "one", table=train_only)
    assert run.evaluation.data.split == "train"
    assert any("no validation split" in note for note in run.evaluation.notes)
    with pytest.raises(DataError, match="must have rows in the split train, got val, test"):
        train(tiny_settings(), tmp_path / "two", table=table.subset(table.split != "train"))


def test_a_disk_that_cannot_be_written_leaves_the_last_checkpoint(tmp_path, monkeypatch, whole):
    settings, table = tiny_settings(), tiny_table()
    sync, left = os.fsync, [9]

    def failing(descriptor):
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(28, os.strerror(28))
        sync(descriptor)

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(LabelwiseError, match="the disk is full"):
        train(settings, tmp_path / "cut", table=table)
    monkeypatch.setattr("os.fsync", sync)
    assert not list(tmp_path.rglob("*.partial"))
    train(settings, tmp_path / "cut", table=table)
    assert_same_weights(whole, tmp_path / "cut")
    steps = [[record["step"] for record in records(run)] for run in (whole, tmp_path / "cut")]
    assert steps[0] == steps[1]


def test_training_in_a_thread_leaves_signals_alone(tmp_path):
    before, settings = signal.getsignal(signal.SIGINT), tiny_settings(recipe__epochs=1)
    worker = threading.Thread(target=partial(train, settings, tmp_path, table=tiny_table()))
    worker.start()
    worker.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "model.json").exists()


@pytest.mark.parametrize("knows", [True, False])
def test_bf16_is_left_to_processors_that_know_it(tmp_path, monkeypatch, knows):
    monkeypatch.setattr(execution, "_cpu_computes_bfloat16", lambda: knows)
    seen = set()
    forward = torch.nn.Linear.forward

    def watched(layer, x):
        out = forward(layer, x)
        seen.add(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.Linear, "forward", watched)
    watch = Hearing()
    train(tiny_settings(precision="bf16"), tmp_path, table=tiny_table(), watch=watch)
    assert (torch.bfloat16 in seen) == knows
    assert torch.float32 in seen  # predictions are in full precision
    assert ("this processor does not compute bf16: training in 32 bits" in watch.messages) != knows


def test_a_cross_fitted_promise_keeps_its_sets_and_its_photos_promise_nothing_again(tmp_path):
    """Oracle: the calibrator and the promise of the same rows, each fitted by itself."""
    wish = {"promise": "recall=0.6", "confidence": 0.9, "cross_fit": True, "recipe__epochs": 1}
    settings = tiny_settings(calibrate="platt", **wish)
    train(settings, tmp_path, table=tiny_table(1200))
    run = RunFolder(tmp_path)
    model, own = run.model(), run.predictions("train").link
    val, apart, test = (run.predictions(name) for name in ("val", "promise", "test"))
    assert abs(len(apart) - 0.8 * (len(apart) + len(val))) <= 1
    both = val.joined(apart)
    again = platt(both.logits, both.labels, own)(test.logits)
    np.testing.assert_allclose(model.link(test.logits), again, rtol=1.3e-6, atol=1e-5)
    first = platt(val.logits, val.labels, own)
    how = {"photos": "apart", "confidence": 0.9, "seed": settings.seed}
    promised = make_promise(find_promise("recall=0.6"), first, apart, val, **how)
    assert [promise.n for promise in promised.promises] == [len(apart)]
    for part in (test, val, apart):
        sets = promised.rule(first.decision_probs(part.logits))
        found = scored(model, part.logits).sets
        np.testing.assert_array_equal(found, sets)
    assert run.fitted_splits == {"train", "val", "promise"}  # the link has seen them by now
    assert "fitted again on all" in run.evaluation.calibrator
    # A calibrator of steps cannot keep the sets: that is said, and the first one stays.
    run = train(tiny_settings(calibrate="isotonic", **wish), tmp_path, table=tiny_table(1200))
    assert any("not cross-fitted" in note for note in run.evaluation.notes)
    assert json.loads((tmp_path / "model.json").read_text())["promises"]


def test_a_promise_is_made_on_rows_that_nothing_else_sees_and_saved_with_the_model(tmp_path):
    settings = tiny_settings(recipe__epochs=8, promise="recall=0.6", confidence=0.9)
    table = tiny_table(1200)
    run = train(settings, tmp_path, table=table)
    facts = json.loads((tmp_path / "model.json").read_text())
    (promise,) = map(Promise.from_spec, facts["promises"])
    splits = RunFolder(tmp_path).splits
    ids = {name: set(RunFolder(tmp_path).predictions(name).ids) for name in splits}
    told = (promise.what, promise.level, promise.confidence, promise.n)
    assert told == ("recall", 0.6, 0.9, len(ids["promise"]))
    assert not ids["promise"] & ids["val"]
    assert abs(len(ids["promise"]) - len(ids["val"])) <= 1
    assert any("on test" in note for note in run.evaluation.notes)
    checkable = {name: bool(read_run(tmp_path, name).standing()) for name in splits}
    assert checkable == {"train": False, "val": False, "promise": False, "test": True}
    # What cannot be promised is said, and the model keeps the tuned rule.
    hopeless = tiny_settings(recipe__epochs=1, promise="precision=0.999")
    run = train(hopeless, tmp_path / "other", table=table)
    assert json.loads((tmp_path / "other" / "model.json").read_text())["promises"] == []
    assert any("Not promised" in note for note in run.evaluation.notes)
    with pytest.raises(SettingsError, match="promise must be written like"):
        train(tiny_settings(promise="precise"), tmp_path / "third", table=table)


# Groups from the table to the promise: none crosses splits, all figures are by group.


def of_patients(rows=480, size=4) -> LabelTable:
    group = Names([f"p{row // size}" for row in range(rows)])
    table = replace(tiny_table(rows=rows), split=None, group=group)
    shares = {"train": 0.4, "val": 0.4, "test": 0.2}
    return stratified_split(table, shares, by_content=False)


def test_a_run_keeps_groups_whole_and_measures_by_group(tmp_path):
    table = of_patients()
    folder = tmp_path / "run"
    settings = tiny_settings(calibrate="auto", promise="recall=0.5", recipe__epochs=8)
    evaluation = train(settings, folder, table=table).evaluation
    run = RunFolder(folder)
    groups = {name: set(run.predictions(name).group) for name in run.splits}
    assert set(groups) == {"train", "val", "promise", "test"}
    assert len(set.union(*groups.values())) == sum(map(len, groups.values())) == 120
    assert evaluation.data.groups == len(groups["test"])
    assert any("groups of images" in figure.how for figure in evaluation.headline)
    (promise,) = run.spec.promises
    assert promise["groups"] <= len(groups["promise"])
    assert any("on test" in note and "new photos in" in note for note in evaluation.notes)


def test_a_group_in_two_splits_is_refused_before_training(tmp_path):
    table = of_patients()
    split = np.array(table.split)
    split[np.array(list(table.group)) == "p7"] = ["train", "train", "train", "test"]
    with pytest.raises(DataError, match=r"1 group cross.*'p7' has row 29 in train.*row 32 in test"):
        train(tiny_settings(), tmp_path / "run", table=replace(table, split=split))
    assert not (tmp_path / "run" / "model.safetensors").exists()


# Out-of-fold predictions. Oracles: a run trained by hand without the rows, and the rule that a row


def test_each_row_is_judged_by_a_run_without_it(tmp_path):
    table = tiny_table()
    run = train(tiny_settings(), tmp_path / "run", table=table)
    made = train_folds(run, 2)
    rows = np.flatnonzero(table.split == "train")
    assert list(made.ids) == [table.ids[row] for row in rows]
    np.testing.assert_array_equal(made.labels, table.targets(rows)[0])
    dealt = deal_folds(len(rows), 2, seed=0)
    held = rows[dealt == 1]
    by_hand = np.array(table.split)
    by_hand[by_hand == "test"] = "none!"
    by_hand[held] = "test"
    kept = np.flatnonzero(by_hand != "none!")
    apart = replace(table.subset(kept), split=by_hand[kept])
    other = train(tiny_settings(), tmp_path / "hand", table=apart)
    folder = RunFolder(other.folder)
    odds = folder.spec.made_link.log_odds(folder.predictions("test").logits.astype(float))
    np.testing.assert_allclose(made.logits[dealt == 1], odds, atol=1e-5, rtol=1e-5)


def test_folds_go_on_and_stand_beside_each_other(tmp_path):
    run = train(tiny_settings(), tmp_path / "run", table=tiny_table())
    first = train_folds(run, 2)
    weights = tmp_path / "run" / "folds" / "1-of-2" / "model.safetensors"
    time = weights.stat().st_mtime_ns
    again, files = train_folds(run, 2), RunFolder(tmp_path / "run")
    assert weights.stat().st_mtime_ns == time
    for one in (again, files.out_of_fold()):
        torch.testing.assert_close(one.logits, first.logits)
        assert isinstance(one.link, Sigmoid)
    assert "folds" not in files.splits
    other = replace(run, table=tiny_table(rows=90))
    with pytest.raises(SettingsError, match="was trained on other rows; start over with --fresh"):
        train_folds(other, 2)


def test_groups_stay_together():
    dealt = deal_folds(10, 3, group=np.array(list("aabbccddee")))
    assert (dealt[::2] == dealt[1::2]).all()
    assert set(dealt.tolist()) == {0, 1, 2}


def test_suspects_of_a_run_with_folds_are_training_rows(tmp_path, monkeypatch):
    table = tiny_table(rows=240)
    rows = np.flatnonzero(table.split == "train")
    sure = rows[table.images.features[rows, 0] > 1.5]  # carry the label "a" without doubt
    hidden = table.targets()[0].copy()
    hidden[sure[:5], 0] = 0
    kept = {"split": table.split, "name": "tiny"}
    worse = LabelTable.from_arrays(table.space, table.images, hidden, **kept)
    run = train(tiny_settings(recipe__epochs=8), tmp_path / "run", table=worse)
    monkeypatch.chdir(tmp_path)
    ask = ["data", "review", "run", "-o", "review.csv", "--top", "20", "--checks", "5"]
    with pytest.raises(SettingsError, match="train it with --folds 5"):
        app([*ask, "--split", "train"], standalone_mode=False)
    train_folds(run, 4)
    app(ask, standalone_mode=False)
    found = [(one.photo, one.label) for one in read_review(tmp_path / "review.csv")]
    assert {(table.ids[row], "a") for row in sure[:5]} <= set(found)
    assert {photo for photo, _ in found} <= {table.ids[row] for row in rows}
    app([*ask, "--split", "val"], standalone_mode=False)
    val = {table.ids[row] for row in np.flatnonzero(table.split == "val")}
    assert {one.photo for one in read_review(tmp_path / "review.csv")} <= val


# Loggers of a run. Oracle: metrics.jsonl, beside what TensorBoard itself reads.


def points(records):
    """Return {name: [(step, value)]} of journal records, as float32, which TensorBoard keeps."""
    found = {}
    for record in records:
        for name, value in record.items():
            if name != "step" and value is not None:
                found.setdefault(name, []).append((record["step"], np.float32(value)))
    return found


def shown_by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        name: [(event.step, np.float32(event.value)) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_journal_of_a_solved_head(tmp_path):
    settings = tiny_settings(features="identity", hardware__loggers="tensorboard")
    train(settings, tmp_path, table=tiny_table())
    expected = points(records(tmp_path))
    assert "l2" in expected
    assert shown_by_tensorboard(tmp_path) == expected


def test_a_run_stopped_in_between_closes_its_loggers_and_shows_each_step_once(
    tmp_path, monkeypatch
):
    """Steps after the last checkpoint are lost with the process, and made again."""
    closed, close, write = [], loggers.TensorBoard.close, Loop._write

    def noted(self, *, whole):
        close(self, whole=whole)
        closed.append(whole)

    def stopped_at_ten(loop, record):
        write(loop, record)
        if record["step"] >= 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(loggers.TensorBoard, "close", noted)
    settings = tiny_settings(hardware__loggers=["tensorboard"], recipe__epochs=4)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_write", stopped_at_ten)
        patch.setattr(Loop, "_save", lambda loop: None)
        with pytest.raises(KeyboardInterrupt):
            train(settings, tmp_path, table=tiny_table())
    assert records(tmp_path)[-1]["step"] >= 10
    train(settings, tmp_path, table=tiny_table())
    assert closed == [False, True]
    after = records(tmp_path)
    steps = [record["step"] for record in after if "loss" in record]
    assert steps == sorted(set(steps))
    shown = shown_by_tensorboard(tmp_path)
    assert {"loss", "lr", "epoch", "epoch_loss", "val_map", "seconds", "best"} <= shown.keys()
    assert shown == points(after)


def test_a_finished_run_can_be_shown_later_and_loggers_are_no_other_settings(tmp_path):
    train(tiny_settings(), tmp_path, table=tiny_table())
    assert not (tmp_path / "tensorboard").exists()
    run = train(tiny_settings(hardware__loggers=["tensorboard"]), tmp_path, table=tiny_table())
    assert run.was_finished
    assert shown_by_tensorboard(tmp_path) == points(records(tmp_path))
    train(tiny_settings(), tmp_path, table=tiny_table(), fresh=True)
    assert not (tmp_path / "tensorboard").exists()


def test_a_missing_package_is_one_sentence_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.training.loggers.find_spec", lambda name: None)
    error = refused("train", "scenes", "--log", "wandb", "-o", tmp_path / "run")
    assert "--log wandb needs wandb: pip install 'labelwise[log]'" in error
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingsError, match="'tensorboard', 'wandb' or 'mlflow', got 'tensorbord'"):
        tiny_settings(hardware__loggers=["tensorbord"])
