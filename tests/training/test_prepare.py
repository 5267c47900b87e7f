"""What is built from settings and a table, which method ``auto`` takes, and where runs start."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_predictor import encoded
from tiny_run import Hearing, assert_same_weights, tiny_settings, tiny_table

from labelwise.data import LabelTable, find_unreadable
from labelwise.data.derived import single_positive
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.methods import METHODS
from labelwise.models import Predictor
from labelwise.networks.backbones import create_backbone
from labelwise.objectives import ROLE
from labelwise.pictures import ArrayImages, BytesImages, FeatureRows, FileImages, batches
from labelwise.system.progress import Silent
from labelwise.training import checkpoint, prepare
from labelwise.training.execution import kernels_loading
from labelwise.training.features import (
    advice_for_photos,
    build_model,
    build_objective,
    set_biases_to_priors,
)
from labelwise.training.prepare import choose_method, hash_of_rows
from labelwise.training.run import train
from labelwise.training.settings import read_settings


def built(method, table, **flags):
    settings = tiny_settings(method=method, **flags)
    torch.manual_seed(0)
    model, _ = build_model(settings, table)
    facts = table.splits()["train"].facts()
    return model, build_objective(settings, facts, model), facts


def test_the_model_looks_at_pictures_as_the_settings_say():
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    table = LabelTable.from_arrays("ab", ArrayImages(pixels), np.eye(2, dtype=bool))
    settings = tiny_settings(method="bce", backbone="resnet10t", image_size=32, crops=5)
    model, _ = build_model(settings, table)
    assert (model.crops, model.mirrored) == (5, False)
    assert model.backbone.transform.crop < 1
    changed = settings.model_copy(update={"squash": True, "mirror": True, "crops": 1})
    model, _ = build_model(changed, table)
    assert (model.crops, model.mirrored, model.backbone.transform.crop) == (1, True, None)
    with pytest.raises(SettingsError, match="tiny holds features, so crops must be 1, got 5"):
        build_model(tiny_settings(method="bce", crops=5), tiny_table())
    with pytest.raises(SettingsError, match="'crops': input should be 1 or 5, got 3"):
        tiny_settings(crops=3)


def test_photos_through_a_network_for_small_pictures_are_remarked_on():
    def warning(backbone, side, content=None):
        photo = encoded(Image.new("RGB", (2 * side, side)), "PNG")
        images = BytesImages([content or photo], ["a.png"])
        return advice_for_photos(create_backbone(backbone), images)

    assert "small-cnn sees pictures at 48 pixels, these have 144" in warning("small-cnn", 144)
    assert warning("small-cnn", 143) == ""
    assert warning("resnet10t", 1000) == ""
    assert warning("small-cnn", 144, b"no picture") == ""  # whoever reads it next says so


@pytest.mark.parametrize("method", sorted(METHODS))
def test_with_all_labels_known_every_method_starts_from_the_same_shares(method):
    model, objective, facts = built(method, tiny_table())
    assert set(objective.aux) <= set(model.head.aux)
    assert objective.shares_read(facts) == facts.priors
    set_biases_to_priors(model, objective, facts)
    bias = model.head.classifier.bias.double()
    expected = objective.start_logits(torch.tensor(facts.priors, dtype=torch.float64))
    torch.testing.assert_close(bias, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "unknown_is_absent"),
    [("bce", False), ("iu", False), ("bce+lpr", False), ("an", True), ("wan", True), ("em", True)],
)
def test_unknown_labels_count_in_the_start_as_the_method_reads_them(method, unknown_is_absent):
    table = tiny_table()
    labels, _ = table.targets()
    known = np.random.default_rng(1).random(labels.shape) < 0.5
    partly = LabelTable.from_arrays(
        table.space, table.images, np.where(known, labels, 0), known, split=table.split
    )
    model, objective, facts = built(method, partly)
    set_biases_to_priors(model, objective, facts)
    train = table.split == "train"
    present = (labels * known)[train].sum(0)
    shares = present / (train.sum() if unknown_is_absent else known[train].sum(0))
    started = torch.sigmoid(model.head.classifier.bias.double())
    torch.testing.assert_close(started, torch.tensor(shares), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", ["bce", "iu", "spa", "rml", "softmax"])
def test_where_no_absence_is_known_the_start_takes_no_side(method):
    model, objective, facts = built(method, single_positive(tiny_table()))
    assert facts.priors == (1.0,) * 4  # all that is known is present
    assert objective.shares_read(facts) == (0.5,) * 4
    set_biases_to_priors(model, objective, facts)
    halves = torch.full((4,), 0.5, dtype=torch.float64)
    bias = model.head.classifier.bias.double()
    torch.testing.assert_close(bias, objective.start_logits(halves), atol=1e-5, rtol=1e-5)


def test_a_label_of_every_image_is_told_apart_from_one_that_is_never_known_absent():
    everywhere, among_known, absent_once = (1, 1, 1, 1), (1, 1, 1, 0), (1, 1, 0, 0)
    labels = np.array([everywhere, among_known, absent_once]).T
    known = np.array([(1, 1, 1, 1), (1, 1, 1, 0), (1, 1, 1, 0)], bool).T
    images = FeatureRows(np.zeros((4, 2), np.float32))
    facts = LabelTable.from_arrays("abc", images, labels, known).facts()
    assert facts.known_shares() == (1.0, 0.5, pytest.approx(2 / 3))
    assert replace(facts, known_present=None).known_shares() == facts.priors


def test_estimates_live_on_the_gpu_if_they_fit_and_nothing_else_was_asked_for():
    table = tiny_table()
    facts = table.splits()["train"].facts()
    model, _ = build_model(tiny_settings(method="role"), table)

    def on_host(device, rows=facts.num_images, **options):
        settings = tiny_settings(method="role", options={"k": 2.0, **options})
        built = build_objective(settings, replace(facts, num_images=rows), model, device)
        return built.table.on_host

    assert not on_host("cuda")
    assert on_host("cuda", table="memory")
    assert on_host("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelwise.training.features.TABLE_ENTRIES", 7)
        assert on_host("cuda")
    build_objective(tiny_settings(method="bce"), facts, model, "cuda")


def test_misfits_are_named():
    with pytest.raises(SettingsError, match="'average-k' needs the head output 'proposal'"):
        built("average-k", tiny_table(), head="linear")
    with pytest.raises(SettingsError, match="holds features, so backbone must be 'identity'"):
        built("bce", tiny_table(), backbone="small-cnn")
    with pytest.raises(SettingsError, match="'two-way' couples the images of a batch"):
        built("two-way", tiny_table(), recipe__accumulate=2)
    with pytest.raises(SettingsError, match=r"'log_loss' needs probabilities.*only ranks"):
        built("two-way", tiny_table(), recipe__metric="log_loss")


def test_the_fingerprint_sees_labels_ids_and_splits():
    table = tiny_table()
    labels, _ = table.targets()
    same = hash_of_rows(table.splits())
    assert hash_of_rows(tiny_table().splits()) == same
    labels[3, 1] ^= 1
    other = LabelTable.from_arrays(
        table.space, table.images, labels, split=table.split, name=table.name
    )
    assert hash_of_rows(other.splits()) != same
    assert hash_of_rows(table.subset(np.arange(95)).splits()) != same


def table(labels, observed=None) -> LabelTable:
    labels = np.array(labels)
    features = np.zeros((len(labels), 2), np.float32)
    return LabelTable.from_arrays(list("abc"), FeatureRows(features), labels, observed)


@pytest.mark.parametrize(
    ("labels", "observed", "method"),
    [
        ([[1, 0, 0], [0, 0, 1]], None, "softmax"),
        ([[1, 0, 0], [0, 0, 0]], None, "softmax-or-none"),
        ([[1, 1, 0], [0, 0, 0]], None, "bce"),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]], "wan"),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]], "bce"),
    ],
)
def test_the_labels_choose_the_method(labels, observed, method):
    known = None if observed is None else np.array(observed, bool)
    name, reason = choose_method(table(labels, known))
    assert name == method
    assert reason


def test_a_run_answers_for_the_share_of_empty_images_it_was_told(tmp_path):
    plain = tiny_settings(recipe__epochs=1, method="bce")
    train(plain, tmp_path / "plain", table=tiny_table())
    run = train(
        tiny_settings(recipe__epochs=1, method="bce", zero_share=0.9),
        tmp_path / "shifted",
        table=tiny_table(),
    )
    one, other = (Predictor.load(tmp_path / name) for name in ("plain", "shifted"))
    features = torch.from_numpy(tiny_table().images.features)
    before, after = (p.link(p.logits(features)) for p in (one, other))
    assert (after < before).all()
    assert "shifted to 90% images without labels" in str(run.evaluation)


def test_a_share_needs_images_without_labels(tmp_path):
    always = tiny_table()
    labels, _ = always.targets()
    full = LabelTable.from_arrays(
        list("abcd"), always.images, np.maximum(labels, np.eye(4)[0]), split=always.split
    )
    with pytest.raises(SettingsError, match="zero_share cannot be used with val: images with"):
        train(tiny_settings(recipe__epochs=1, method="bce", zero_share=0.5), tmp_path, table=full)


STILL = {"recipe__optimizer__lr": 0.0, "recipe__epochs": 1, "recipe__keep": "last"}


class Stopping(Silent):
    """Stops the run after its second epoch."""

    def epoch(self, record, epochs):
        if record["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.fixture
def earlier(tmp_path):
    train(tiny_settings(), tmp_path / "earlier", table=tiny_table())
    return tmp_path / "earlier"


def estimates(folder):
    tensors = checkpoint.load_latest(folder / "checkpoint", "objective").tensors
    objective = ROLE(64, 4, 1.5)
    objective.load_state_dict(tensors)
    return objective.estimates(torch.arange(64))


def test_backbone_and_head_go_on_under_another_method(earlier, tmp_path):
    watch = Hearing()
    later = tiny_settings(start=str(earlier), method="asl", **STILL)
    train(later, tmp_path / "later", table=tiny_table(), watch=watch)
    assert_same_weights(earlier, tmp_path / "later")
    assert f"starting from {earlier}" in watch.messages


def test_a_stopped_run_goes_on_from_its_own_checkpoint(earlier, tmp_path):
    settings = tiny_settings(start=str(earlier), recipe__save_seconds=0)
    train(settings, tmp_path / "straight", table=tiny_table())
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", table=tiny_table(), watch=Stopping())
    shutil.move(earlier, tmp_path / "gone")
    train(settings, tmp_path / "stopped", table=tiny_table())
    assert_same_weights(tmp_path / "straight", tmp_path / "stopped")
    with pytest.raises(LabelwiseError, match=r"earlier/model\.json"):
        train(settings, tmp_path / "stopped", table=tiny_table(), fresh=True)


@pytest.mark.parametrize("same", [True, False])
def test_estimates_go_on_with_the_images_they_are_of(tmp_path, same):
    role = {"method": "role", "options": {"k": 1.5}}
    train(tiny_settings(**role), tmp_path / "earlier", table=tiny_table())
    watch, table = Hearing(), tiny_table() if same else tiny_table(seed=1)
    settings = tiny_settings(**role, start=str(tmp_path / "earlier"), **STILL)
    train(settings, tmp_path / "later", table=table, watch=watch)
    assert any("with its estimates of the labels" in text for text in watch.messages) == same
    first, second = (estimates(tmp_path / name) for name in ("earlier", "later"))
    assert torch.allclose(first, second, atol=1e-5) == same
    assert first.std() > 0.1


def test_other_labels_and_other_heads_are_refused_before_anything_is_written(earlier, tmp_path):
    place, table = tmp_path / "later", tiny_table()
    settings = tiny_settings(start=str(earlier))
    labels, _ = table.targets()
    renamed = LabelTable.from_arrays(
        ("a", "b", "c", "z"), table.images, labels, split=np.asarray(table.split)
    )
    with pytest.raises(SettingsError, match="has other labels; take its backbone alone with"):
        train(settings, place, table=renamed)
    with pytest.raises(SettingsError, match=r"has another model \(identity, head 'linear'\)"):
        train(
            tiny_settings(start=str(earlier), method="average-k", options={"k": 2}),
            place,
            table=table,
        )
    with pytest.raises(LabelwiseError, match="nowhere"):
        train(tiny_settings(start="nowhere"), place, table=table)
    assert not place.exists()


# The labels per image that role and epr expect; oracle: the complete validation split.


RNG = np.random.default_rng(0)


def one_positive(rows=120):
    truth = RNG.random((rows, 4)) < 0.6
    split = np.repeat(["train", "val", "test"], rows // 3)
    images = FeatureRows(RNG.normal(size=(rows, 3)).astype(np.float32))
    table = LabelTable.from_arrays("abcd", images, truth, split=split)
    return single_positive(table), truth[split == "val"].sum(1).mean()


def settings(method, **values):
    fixed = {"data": "t", "backbone": "identity", "method": method, "recipe.epochs": 1}
    return read_settings(None, {**fixed, "calibrate": "none", "rule": "0.5", **values})


@pytest.mark.parametrize("method", ["role", "epr"])
def test_it_comes_from_a_complete_validation_split(tmp_path, method):
    table, mean = one_positive()
    watch = Hearing()
    train(settings(method), tmp_path / "run", table=table, watch=watch)
    assert f"labels per image, from validation: {mean:.2f} (options.k)" in watch.messages


def test_it_is_asked_for_where_no_split_tells_it(tmp_path):
    table, _ = one_positive()
    rows = np.flatnonzero(table.split != "val")
    with pytest.raises(SettingsError, match=r"set options\.k, or give a validation split"):
        train(settings("epr"), tmp_path / "run", table=table.subset(rows))
    train(settings("epr", **{"options.k": 2.0}), tmp_path / "run", table=table.subset(rows))


def test_processes_find_the_pictures_that_threads_find_broken(tmp_path, monkeypatch):
    """Oracle: ``find_unreadable``, which reads them one after the other."""
    monkeypatch.setattr(batches, "are_worth_it", lambda *_: True)
    photo = encoded(Image.radial_gradient("L").convert("RGB"), "JPEG")
    names = [f"{number}.jpg" for number in range(300)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(photo if number % 100 != 7 else photo[:-100])
    table = LabelTable.from_arrays("a", FileImages(tmp_path, names), np.ones((300, 1), bool))
    found = prepare._unreadable(table, 2, Silent())
    expected = find_unreadable(table)
    assert [image.row for image in found] == [7, 107, 207]
    assert [(image.row, image.id) for image in found] == [(i.row, i.id) for i in expected]
    assert [image.reason for image in found] == [image.reason for image in expected]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_that_are_loaded_beforehand_draw_nothing_and_hold_nothing():
    device = torch.device("cuda")
    make = partial(create_backbone, "tf_efficientnet_lite0", image_size=64)
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    held = torch.cuda.memory_allocated()
    with kernels_loading(make, 4, device, torch.bfloat16):
        pass
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.cuda.get_rng_state(), states[1])
    assert torch.cuda.memory_allocated() == held

    def broken():
        raise SettingsError("the run itself says this")

    with kernels_loading(broken, 4, device, None):
        pass
