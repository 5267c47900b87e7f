"""Effort: what is tried and kept, when it stops. Oracles: a bootstrap, files, made-up scores."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sample_photos import write_photos
from tiny_run import Hearing, tiny_table

from labelwise.errors import SettingsError
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.training.run import BETTER_NETWORKS, better_by, train, tried
from labelwise.training.settings import read_settings

LITE0 = "tf_efficientnet_lite0"


def scores(noise, rows=400, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.random((rows, 3)) < 0.3
    logits = 2.0 * truth + noise * np.random.default_rng(seed + 1).normal(size=truth.shape)
    ids = [str(row) for row in range(rows)]
    labels = torch.from_numpy(truth).float()
    return Predictions(ids, torch.from_numpy(logits).float(), labels, None, ("a", "b", "c"), "val")


def test_the_error_of_a_difference_is_that_of_the_bootstrap():
    one, other = scores(1.0), scores(1.6)
    gain, error = better_by(one, other)
    rng, draws = np.random.default_rng(3), []
    for _ in range(100):
        rows = torch.from_numpy(rng.integers(0, len(one), len(one)))
        first, second = (
            average_precision(p.logits[rows], p.labels[rows] > 0.5) for p in (one, other)
        )
        draws.append(first.value - second.value)
    assert gain == pytest.approx(np.mean(draws), abs=0.02)
    assert error == pytest.approx(np.std(draws), rel=0.25)
    assert better_by(other, one)[0] == -gain
    with pytest.raises(ValueError, match="on the same rows"):
        better_by(one, scores(1.0, rows=10))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("effort") / "made", count=32)


def settings_of(photos, cache, **flags):
    base = {"data": str(photos), "image_size": 64, "calibrate": "none", "recipe.epochs": 1}
    base |= {"hardware.accelerator": "cpu", "hardware.features_cache": str(cache)}
    return read_settings(None, base | flags)


def test_good_keeps_the_solved_head_where_training_gains_nothing(photos, tmp_path, monkeypatch):
    """Oracle: the photos are told apart perfectly by the solved head, so nothing can be gained."""
    monkeypatch.setattr("labelwise.training.run.PERFECT", 2.0)  # or nothing would be tried
    watch = Hearing()
    named = {"image_size": 32, "backbone": LITE0}
    settings = settings_of(photos, tmp_path / "features", effort="good", **named)
    done = train(settings, tmp_path / "run", watch=watch)
    run = RunFolder(tmp_path / "run")
    names = ("solved", "solved-all", "trained")
    kept, pooled, trained = (RunFolder(run.trials / name) for name in names)
    assert sorted(path.name for path in run.trials.iterdir()) == list(names)
    assert trained.settings["start"] == str(kept.path)
    assert trained.settings["recipe"]["epochs"] == 1
    own, good, other = (
        (one.path / "model.safetensors").read_bytes() for one in (run, pooled, trained)
    )
    assert own == good != other
    note = done.evaluation.notes[-1]
    assert "head solved: 1.0000; tf_efficientnet_lite0, trained from there: " in note
    assert "Kept: tf_efficientnet_lite0, head solved. All that this effort tries was tried." in note
    assert run.evaluation.notes[-1] == note
    assert train(settings, tmp_path / "run", watch=watch).was_finished
    with pytest.raises(SettingsError, match="trained without this effort"):
        train(settings, kept.path)


@pytest.fixture
def clock(monkeypatch):
    """A list whose first number is the time."""
    seconds = [0.0]
    now = SimpleNamespace(monotonic=lambda: seconds[0])
    for module in ("labelwise.training.run", "labelwise.base.progress"):
        monkeypatch.setattr(f"{module}.time", now)
    return seconds


class Made:
    """Writes trials whose validation scores are as good as their name says, and trains nothing."""

    def __init__(self, trained, noise):
        self.trained, self.noise, self.begun = trained, noise, []

    def __call__(self, settings, folder, watch):
        self.begun.append(folder.name)
        if folder.name not in self.noise:
            raise SettingsError("weights are not in the cache and the hub cannot be reached")
        run = RunFolder(folder)
        RunFolder(folder).take_over(self.trained)
        (folder / "evaluation.json").write_bytes(self.trained.evaluation_path.read_bytes())
        scores(self.noise[folder.name]).save(run.predictions_path("val"))


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    settings = settings_of(photos, folder / "features", effort="quick")
    plain = settings.model_dump(exclude_unset=True, exclude={"recipe"})
    train(read_settings(None, plain), folder / "run")
    return RunFolder(folder / "run")


def tried_by(made, settings, tmp_path):
    watch = Hearing()
    return tried(settings, RunFolder(tmp_path / "run"), made, watch).notes[-1], watch.messages


def test_best_tries_sizes_and_networks_and_keeps_what_is_told_apart(photos, finished, tmp_path):
    noise = {"solved": 1.5, "solved-96": 1.0, "trained": 0.99, "averaged": 0.5}
    made = Made(finished, noise)
    note, _ = tried_by(made, settings_of(photos, tmp_path, effort="best"), tmp_path)
    networks = [f"solved-{name}" for name in BETTER_NETWORKS]
    assert made.begun == ["solved", "solved-96", *networks, "trained", "averaged"]
    assert note.count("its weights cannot be had here") == 3
    assert "at 96 pixels, trained from there, weights averaged" in note.partition("Kept: ")[2]
    assert np.array_equal(RunFolder(tmp_path / "run").predictions("val").logits, scores(0.5).logits)


def test_good_tries_better_networks_and_keeps_one_beyond_chance(photos, finished, tmp_path):
    better = f"solved-{BETTER_NETWORKS[1]}"
    made = Made(finished, {"solved": 1.5, better: 1.0, "trained": 1.4})
    note, _ = tried_by(made, settings_of(photos, tmp_path, effort="good"), tmp_path)
    assert made.begun == ["solved", *(f"solved-{name}" for name in BETTER_NETWORKS), "trained"]
    assert f"Kept: {BETTER_NETWORKS[1]}, head solved." in note


@pytest.mark.parametrize("network", ["hgnetv2_b0", "tiny_vit_5m_224", "test_vit2"])
def test_a_head_is_solved_on_a_random_network_of_each_family(network, photos, tmp_path):
    side = 64 if network == "test_vit2" else 56  # a multiple of its patches
    flags = {"features": network, "image_size": side, "hardware.accelerator": "cpu"}
    flags["hardware.features_cache"] = str(tmp_path / "features")
    done = train(read_settings(None, {"data": str(photos), **flags}), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.spec.backbone.name == network
    assert done.evaluation.data.rows == len(run.predictions("test"))


def test_nothing_more_is_tried_once_validation_is_ranked_perfectly(photos, finished, tmp_path):
    made = Made(finished, {"solved": 0.0, "trained": 0.0})
    note, messages = tried_by(made, settings_of(photos, tmp_path, effort="good"), tmp_path)
    assert made.begun == ["solved"]
    assert note.endswith("Nothing more was tried: the mAP on validation is 1.")
    assert "Nothing more was tried: the mAP on validation is 1." in messages


def test_data_that_holds_features_has_no_network_to_train(tmp_path):
    flags = {"hardware.accelerator": "cpu", "calibrate": "none", "effort": "best"}
    done = train(
        read_settings(None, {"data": "tiny", **flags}), tmp_path / "run", table=tiny_table()
    )
    assert sorted(path.name for path in RunFolder(done.folder).trials.iterdir()) == [
        "solved",
        "solved-all",
    ]
    assert done.evaluation.notes[-1].endswith(
        "Kept: head solved on the features of the data. "
        "Nothing more was tried: the data holds features, and no network."
    )


def test_a_try_is_given_up_when_the_minutes_are_over(photos, finished, tmp_path, clock):
    made = Made(finished, {"solved": 1.0, "trained": 0.1})

    def slow(settings, folder, watch):
        for _ in range(2):
            clock[0] += 40.0 if made.begun else 5.0
            watch.advance(1)
        made(settings, folder, watch)

    settings = settings_of(photos, tmp_path, effort="good", minutes=1.4, backbone=LITE0)
    note, messages = tried_by(slow, settings, tmp_path)
    assert made.begun == ["solved"]
    assert clock == [90.0]
    words = "The 1.4 minutes were over: tf_efficientnet_lite0, trained from there was given up."
    assert note.endswith(f"Kept: tf_efficientnet_lite0, head solved. {words}")
    assert words in messages


@pytest.mark.parametrize(("minutes", "epochs"), [(1, 0), (2, 1), (6, 4), (60, 5)])
def test_epochs_are_planned_that_fit_into_the_minutes(
    photos, finished, tmp_path, clock, minutes, epochs
):
    """The solved try takes 25 s, so an epoch 75 s: four of them fit into the rest of 6 minutes."""
    made, planned = Made(finished, {"solved": 1.0, "trained": 0.1}), []

    def timed(settings, folder, watch):
        planned.append(settings.recipe.epochs)
        made(settings, folder, watch)
        clock[0] += 25.0

    flags = {"minutes": minutes, "backbone": LITE0, "recipe.epochs": 5}
    settings = settings_of(photos, tmp_path, effort="good", **flags)
    note, _ = tried_by(timed, settings, tmp_path)
    assert planned[1:] == ([epochs] if epochs else [])
    assert ("leave no time for" in note) == (epochs == 0)
