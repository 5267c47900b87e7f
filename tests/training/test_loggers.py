"""Loggers of a run. Oracle: metrics.jsonl, beside what TensorBoard itself reads."""

import json
import sys

import numpy as np
import pytest
from tiny_run import tiny_settings, tiny_table

from labelwise.cli import main
from labelwise.errors import SettingsError
from labelwise.training import loggers
from labelwise.training.loop import Loop
from labelwise.training.run import train


def points(records):
    """Return {name: [(step, value)]} of journal records, as float32, which TensorBoard keeps."""
    found = {}
    for record in records:
        for name, value in record.items():
            if name != "step" and value is not None:
                found.setdefault(name, []).append((record["step"], np.float32(value)))
    return found


def journal(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def shown_by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        name: [(event.step, np.float32(event.value)) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_journal(tmp_path):
    train(tiny_settings(hardware__loggers="tensorboard"), tmp_path, table=tiny_table())
    expected = points(journal(tmp_path))
    assert {"loss", "lr", "epoch", "epoch_loss", "val_map", "seconds", "best"} <= expected.keys()
    assert len(expected["loss"]) > 3
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
    assert journal(tmp_path)[-1]["step"] >= 10
    train(settings, tmp_path, table=tiny_table())
    assert closed == [False, True]
    after = journal(tmp_path)
    steps = [record["step"] for record in after if "loss" in record]
    assert steps == sorted(set(steps))
    assert shown_by_tensorboard(tmp_path) == points(after)


def test_a_finished_run_can_be_shown_later_and_loggers_are_no_other_settings(tmp_path):
    train(tiny_settings(), tmp_path, table=tiny_table())
    assert not (tmp_path / "tensorboard").exists()
    run = train(tiny_settings(hardware__loggers=["tensorboard"]), tmp_path, table=tiny_table())
    assert run.was_finished
    assert shown_by_tensorboard(tmp_path) == points(journal(tmp_path))
    train(tiny_settings(), tmp_path, table=tiny_table(), fresh=True)
    assert not (tmp_path / "tensorboard").exists()


def test_a_solved_head_is_logged_too(tmp_path):
    settings = tiny_settings(features="identity", hardware__loggers=["tensorboard"])
    train(settings, tmp_path, table=tiny_table())
    expected = points(journal(tmp_path))
    assert "l2" in expected
    assert shown_by_tensorboard(tmp_path) == expected


def test_a_missing_package_is_one_sentence_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("labelwise.training.loggers.find_spec", lambda name: None)
    out = tmp_path / "run"
    words = ["labelwise", "train", "scenes", "--log", "wandb", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert "--log wandb needs wandb: pip install 'labelwise[log]'" in error
    assert error.count("\n") == 1
    assert not out.exists()
    with pytest.raises(SettingsError, match="'tensorboard', 'wandb' or 'mlflow', got 'tensorbord'"):
        tiny_settings(hardware__loggers=["tensorbord"])
