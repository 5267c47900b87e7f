"""Cached features: the backbone's own numbers, computed once for each content."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import Hearing, tiny_settings, tiny_table
from typed import must_run

from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.eyes.fit import fit
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import METHODS, make_objective
from labelwise.learn.predictor import Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import ArrayImages
from labelwise.pictures import memory as mapped
from labelwise.pictures.memory import moments_of, scaled
from labelwise.tables import LabelTable, load
from labelwise.training import features
from labelwise.training.features import compute, content_key
from labelwise.training.loader import Loader
from labelwise.training.run import train
from labelwise.training.settings import read_settings
from labelwise.types import DatasetFacts, Targets


def table(rows: int = 5, seed: int = 0) -> LabelTable:
    rng = np.random.default_rng(seed)
    images = ArrayImages(rng.integers(0, 256, (rows, 16, 16, 3), dtype=np.uint8))
    return LabelTable.from_arrays(["a", "b"], images, rng.random((rows, 2)) < 0.5, name="tiny")


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return create_backbone("small-cnn", image_size=16)


@pytest.mark.parametrize("pooled", [True, False])
def test_features_are_the_backbones_in_eval_mode(backbone, pooled, tmp_path):
    data = table()
    cached = compute(data, backbone, tmp_path, pooled=pooled, batch_size=2)
    assert backbone.training
    images = next(Loader(data, backbone.transform, batch_size=5).epoch(0)).images
    with torch.no_grad():
        expected = backbone.eval()(images)
    expected = expected.mean(dim=(2, 3)) if pooled else expected
    np.testing.assert_allclose(cached.images.features, expected.numpy(), atol=1e-5)
    assert list(cached.ids) == list(data.ids)
    assert np.array_equal(cached.targets()[0], data.targets()[0])
    rows = next(Loader(cached, backbone.transform, batch_size=5).epoch(0)).images
    identity = create_backbone("identity", channels=backbone.channels)
    assert identity(rows).shape[:2] == (5, backbone.channels)


def test_a_second_time_nothing_is_computed_and_foreign_files_are_reported(
    backbone, tmp_path, monkeypatch
):
    first = compute(table(), backbone, tmp_path)
    monkeypatch.setattr(features, "_features", None)
    again = compute(table(), backbone, tmp_path)
    assert np.array_equal(first.images.features, again.images.features)
    with pytest.raises(DataError, match="tiny already holds features"):
        compute(first, backbone, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"broken")
    with pytest.raises(DataError, match=r"\.npy.*delete it"):
        compute(table(), backbone, tmp_path)


def test_the_key_changes_with_weights_transform_pixels_and_kind(backbone):
    data = table()
    keys = {content_key(data.images, backbone, True), content_key(data.images, backbone, False)}
    keys |= {content_key(table(**one).images, backbone, True) for one in ({"seed": 1}, {"rows": 4})}
    backbone.transform = replace(backbone.transform, crop=0.9)
    keys.add(content_key(data.images, backbone, True))
    with torch.no_grad():
        next(backbone.parameters()).view(-1)[0] += 1e-3
    keys.add(content_key(data.images, backbone, True))
    assert len(keys) == 6


@pytest.mark.parametrize("pooled", [True, False])
def test_many_features_are_mapped_and_scaled_when_read(backbone, tmp_path, monkeypatch, pooled):
    """Oracle: numpy on the same features in one array."""
    data = table(rows=11)
    whole = compute(data, backbone, tmp_path / "one", pooled=pooled).images.features
    monkeypatch.setattr(features, "IN_MEMORY", 0)
    monkeypatch.setattr(mapped, "AT_ONCE", 100)
    made = compute(data, backbone, tmp_path / "one", pooled=pooled).images
    assert isinstance(made.features, mapped.MappedFeatures)
    assert (made.features.shape, made.features.nbytes) == (whole.shape, whole.nbytes)
    assert made.features.ndim == whole.ndim
    part = made.subset(np.array([9, 0, 5, 5])).subset(np.array([3, 0]))
    assert np.array_equal(np.asarray(part.features), whole[[5, 9]])
    assert np.array_equal(part.features[1], whole[9])
    assert np.array_equal(made.features[2:7], whole[2:7])
    assert np.array_equal(made.features[np.arange(11) % 2 == 0], whole[::2])
    for one, other in zip(moments_of(made.features), moments_of(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    mean, spread = moments_of(whole)[0], np.arange(1.0, whole.shape[1] + 1)
    shape = (-1, 1, 1) if whole.ndim == 4 else (-1,)
    expected = ((whole - mean.reshape(shape)) / spread.reshape(shape)).astype(np.float32)
    for one in (made.features, whole):
        assert np.array_equal(np.asarray(scaled(one, mean, spread)), expected)


# Runs on frozen features. Oracles: the loop's optimum, the saved predictions, autograd.


SOLVED = {"bce", "an", "an-ls", "wan", "iu", "iun", "bce-ls", "softmax", "softmax-or-none"}
FACTS = DatasetFacts(num_images=12, num_labels=4, mean_labels=1.5, priors=(0.3,) * 4)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of pictures whose brightness of red and green are their labels, and its table."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    lines = ["path,labels,split"]
    for row in range(72):
        red, green = rng.random(2) < 0.5
        pixels = rng.integers(0, 100, (16, 16, 3)) + 150 * np.array([red, green, 0])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{row}.png")
        names = "|".join(name for name, there in (("red", red), ("green", green)) if there)
        lines.append(f"{row}.png,{names},{('train', 'train', 'val', 'test')[row % 4]}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    return folder


# On the CPU: a GPU convolves in TF32, which is off by 1e-3.
CPU = ("--set", "hardware.accelerator=cpu")
FROZEN = ("--features", "small-cnn", "--set", "calibrate=none", *CPU)


def settings_of(photos, folder, **flags):
    base = {"data": str(photos / "photos.csv"), "features": "small-cnn", "calibrate": "none"}
    base |= {"hardware.features_cache": str(folder / "cache"), "hardware.accelerator": "cpu"}
    return read_settings(None, base | flags)


def assert_measured_as_deployed(run, photos):
    """What is deployed says of the photos what was measured on their features."""
    test = load(str(photos / "photos.csv")).splits()["test"]
    found = Predictor.load(run).predict(test.images).logits
    measured = RunFolder(run).predictions("test").logits
    np.testing.assert_allclose(found, measured, atol=1e-3, rtol=1e-3)


def test_train_on_features_then_predict_photos(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = must_run("train", photos / "photos.csv", *FROZEN, "-o", "run").output
    assert "solving the head: 54 rows of features, 2 labels" in out
    must_run("predict", "run", photos / "3.png", photos / "7.png", "-o", "answers.jsonl")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
    assert RunFolder(tmp_path / "run").evaluation.ranking.map_class > 0.9
    (kept,) = (tmp_path / "runs/features").glob("*.bin")
    size = kept.stat().st_size
    must_run("train", photos / "photos.csv", *FROZEN, "-o", "asl", "--method", "asl")
    assert kept.stat().st_size == size  # the same, computed once
    boosted = ("--method", "ll-r+boostlu", "--set", "recipe.epochs=2")  # standardised maps
    must_run("train", photos / "photos.csv", *FROZEN, "-o", "boosted", *boosted)
    for name in ("run", "asl", "boosted"):
        assert_measured_as_deployed(tmp_path / name, photos)


def test_mapped_features_train_as_those_in_memory(photos, tmp_path, monkeypatch):
    """Solved, and in steps; what is too much for the memory is trained in steps."""

    def logits(**flags):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        settings = settings_of(photos, tmp_path, **{"recipe.epochs": 2} | flags)
        train(settings, folder, watch=watch)
        return RunFolder(folder).predictions("test").logits

    watch = Hearing()
    plain = [logits(), logits(method="asl")]
    monkeypatch.setattr("labelwise.eyes.feature_cache.IN_MEMORY", 0)
    for expected, flags in zip(plain, ({}, {"method": "asl"}), strict=True):
        torch.testing.assert_close(logits(**flags), expected, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr("labelwise.training.solved.memory_bytes", lambda: 1000)
    logits()
    assert any("too much to solve the head" in text for text in watch.messages)


def test_a_model_of_stored_features_says_that_it_cannot_see(photos, tmp_path):
    train(tiny_settings(), tmp_path / "run", table=tiny_table())
    with pytest.raises(LabelwiseError, match="trained on stored features and cannot see pictures"):
        Predictor.load(tmp_path / "run").predict(photos / "3.png")


@pytest.mark.parametrize("name", METHODS)
def test_convex_forms_are_the_methods_losses(name):
    objective = make_objective(name, FACTS)
    rng = torch.Generator().manual_seed(0)
    labels = (torch.rand(12, 4, generator=rng) < 0.4).double()
    labels[0], labels[1] = 0, 1
    for observed in (None, torch.rand(12, 4, generator=rng) < 0.7):
        targets = Targets(labels, observed, torch.arange(12))
        convex = objective.convex(targets)
        assert (convex is not None) == (name in SOLVED)
        if convex is None:
            return
        logits = torch.randn(12, 4, dtype=torch.float64, generator=rng, requires_grad=True)
        (expected,) = torch.autograd.grad(objective(logits, labels, observed), logits)
        found = convex.derivatives(logits.detach()).gradient
        # up to the factor by which a mean differs from a sum
        factor = (found * expected).sum() / expected.square().sum()
        assert factor > 1
        torch.testing.assert_close(found, factor * expected)


def test_pos_weight_is_part_of_the_convex_form():
    objective = make_objective("bce", FACTS, pos_weight=[1.0, 2.0, 3.0, 4.0])
    labels = torch.eye(4, dtype=torch.float64)
    logits = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(objective(logits, labels), logits)
    found = objective.convex(Targets(labels)).derivatives(logits.detach()).gradient
    torch.testing.assert_close(found, 16 * expected)


def solved_run(folder, table, **flags):
    flags = {"data": "tiny", "features": "identity", "method": "bce", **flags}
    flags |= {"hardware.accelerator": "cpu"}
    train(read_settings(None, flags), folder, table=table, watch=(watch := Hearing()))
    return RunFolder(folder), watch.messages


@pytest.mark.parametrize("keep_val", [False, True])
def test_the_solved_head_is_cross_fitted_on_all_rows_that_it_may_see(keep_val, tmp_path):
    """Oracle: the arrays' own fit. Its out-of-fold logits are the run's validation."""
    table = tiny_table(240)
    splits = ("train",) if keep_val else ("train", "val")
    pool = table.subset(np.isin(np.array(list(table.split)), splits))
    expected = fit(pool.images.features, pool.targets()[0])
    run, messages = solved_run(tmp_path / "run", table, keep_val=keep_val)
    assert any(text.startswith("cross-fitted in 5 folds") for text in messages)
    model = run.model().model.head.classifier
    np.testing.assert_allclose(model.weight.detach(), expected.weight, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(model.bias.detach(), expected.bias, atol=1e-5, rtol=1e-4)
    typical = np.exp(np.log(expected.strength).mean())
    assert run.journal.read()[-1]["l2"] == pytest.approx(typical)
    assert run.ids("train") == list(pool.ids)
    val = run.predictions("val")
    if keep_val:
        assert list(val.ids) == list(table.splits()["val"].ids)
        assert not run.folds_path.exists()
        return
    assert list(val.ids) == list(pool.ids)
    np.testing.assert_allclose(val.logits, expected.out_of_fold, atol=1e-5)
    assert run.spec.link["kind"] == "platt"
    odds = run.spec.made_link.log_odds(val.logits.astype(np.float64))
    np.testing.assert_allclose(run.out_of_fold().logits, odds, atol=1e-4)


def test_a_guarantee_takes_its_own_rows_out_of_the_pool(tmp_path):
    table = tiny_table(400)
    run, _ = solved_run(tmp_path / "run", table, promise="recall=0.5")
    kept, pool = set(run.ids("promise")), set(run.ids("train"))
    validation = set(table.splits()["val"].ids)
    assert kept < validation
    assert pool == (set(table.splits()["train"].ids) | validation) - kept
    assert set(run.ids("val")) == pool


def test_rows_need_no_validation_and_a_second_command_finishes_again(tmp_path):
    table = tiny_table(160)
    rows = table.subset(np.flatnonzero(np.array(list(table.split)) != "val"))
    run, _ = solved_run(tmp_path / "run", rows)
    before = run.spec
    run, _ = solved_run(tmp_path / "run", rows, rule="0.5")  # no training
    assert run.spec.link == before.link
    assert run.spec.rule != before.rule


def test_images_for_identity_and_other_features_are_refused(photos, tmp_path):
    table = tiny_table()
    for name, given, sentence in (
        ("identity", None, "identity is for data that holds features"),
        ("small-cnn", table, "holds 6 features per row, and small-cnn gives"),
    ):
        settings = settings_of(photos, tmp_path, features=name, method="bce")
        with pytest.raises(SettingsError, match=sentence):
            train(settings, tmp_path / "run", table=given)


def test_a_head_that_looks_at_places_gets_maps(photos, tmp_path):
    head = {"head": "query2label", "head_options": {"width": 16, "attention_heads": 2}}
    settings = settings_of(photos, tmp_path, method="bce", **head, **{"recipe.epochs": 1})
    train(settings, tmp_path / "run")
    (file,) = (tmp_path / "cache").glob("*.npy")
    assert np.load(file, mmap_mode="r").ndim == 4
    assert_measured_as_deployed(tmp_path / "run", photos)
