from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import tiny_settings, tiny_table

from labelwise.backbones import create_backbone
from labelwise.data import ArrayImages, BytesImages, LabelTable
from labelwise.errors import SettingsError
from labelwise.methods import METHODS
from labelwise.training.build import (
    build_model,
    build_objective,
    fingerprint,
    hint_at_photos,
    start_at_priors,
)
from labelwise.types import Outputs


def built(method, table, **flags):
    settings = tiny_settings(method=method, **flags)
    torch.manual_seed(0)
    model, _ = build_model(settings, table)
    facts = table.splits()["train"].facts()
    return model, build_objective(settings, facts, model), facts


def test_pictures_are_squashed_only_if_the_settings_say_so():
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    table = LabelTable.from_arrays("ab", ArrayImages(pixels), np.eye(2, dtype=bool))
    crops = []
    for squash in (False, True):
        settings = tiny_settings(method="bce", backbone="resnet10t", image_size=32, squash=squash)
        crops.append(build_model(settings, table)[0].backbone.transform.crop)
    assert crops[0] < 1
    assert crops[1] is None


def test_photos_through_a_network_for_small_pictures_are_remarked_on():
    def said(backbone, side, content=None):
        photo = Image.new("RGB", (2 * side, side))
        buffer = BytesIO()
        photo.save(buffer, "PNG")
        images = BytesImages([content or buffer.getvalue()], ["a.png"])
        return hint_at_photos(create_backbone(backbone), images)

    assert "small-cnn sees pictures at 48 pixels, these have 144" in said("small-cnn", 144)
    assert said("small-cnn", 143) == ""
    assert said("resnet10t", 1000) == ""
    assert said("small-cnn", 144, b"no picture") == ""  # whoever reads it next says so


@pytest.mark.parametrize("method", ["bce", "spa", "asl+phi", "focal+phi", "softmax"])
def test_training_starts_at_the_label_shares(method):
    model, objective, facts = built(method, tiny_table())
    start_at_priors(model, objective, facts)
    outputs: Outputs = model(torch.zeros(1, 6))
    probs = objective.link(outputs.logits.double())[0]
    shares = torch.tensor(facts.priors)
    expected = shares / shares.sum() if method == "softmax" else shares
    torch.testing.assert_close(probs, expected.double(), atol=1e-5, rtol=1e-4)


def test_quasibinary_starts_at_the_shares_up_to_a_shift():
    model, objective, facts = built("quasibinary", tiny_table())
    start_at_priors(model, objective, facts)
    logits = model(torch.zeros(1, 6)).logits[0].double()
    difference = logits - torch.tensor(facts.priors).double().log()
    torch.testing.assert_close(difference, difference.mean().expand(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["two-way", "role"])
def test_methods_without_shares_keep_the_heads_start(method):
    model, objective, facts = built(method, tiny_table())
    before = model.head.classifier.bias.clone()
    start_at_priors(model, objective, facts)
    assert torch.equal(model.head.classifier.bias, before)


def test_estimates_live_on_the_gpu_if_they_fit_and_nothing_else_was_asked_for():
    table = tiny_table()
    facts = table.splits()["train"].facts()
    model, _ = build_model(tiny_settings(method="role"), table)

    def kind(device, rows=facts.num_images, **options):
        settings = tiny_settings(method="role", options={"k": 2.0, **options})
        built = build_objective(settings, replace(facts, num_images=rows), model, device)
        return type(built.table).__name__

    assert kind("cuda") == "DeviceEstimates"
    assert kind("cuda", table="memory") == "RowEstimates"
    assert kind("cpu") == "RowEstimates"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelwise.training.build.TABLE_ENTRIES", 7)
        assert kind("cuda") == "RowEstimates"
    build_objective(tiny_settings(method="bce"), facts, model, "cuda")


def test_a_label_that_never_occurs_starts_low_but_finite():
    table = tiny_table()
    labels, _ = table.targets()
    labels[:, 0] = 0
    rare = LabelTable.from_arrays(table.space, table.images, labels, split=table.split)
    model, objective, facts = built("bce", rare)
    start_at_priors(model, objective, facts)
    assert -8 <= model.head.classifier.bias[0] < -4


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_can_be_built_from_its_name(method):
    model, objective, _ = built(method, tiny_table())
    assert set(objective.aux) <= set(model.head.aux)


def test_misfits_are_named():
    with pytest.raises(SettingsError, match="'average-k' needs the head output 'proposal'"):
        built("average-k", tiny_table(), head="linear")
    with pytest.raises(SettingsError, match="holds features, so backbone must be 'identity'"):
        built("bce", tiny_table(), backbone="small-cnn")
    with pytest.raises(SettingsError, match=r"'log_loss' needs probabilities.*only ranks"):
        built("two-way", tiny_table(), recipe__metric="log_loss")


def test_the_fingerprint_sees_labels_ids_and_splits():
    table = tiny_table()
    labels, _ = table.targets()
    same = fingerprint(table.splits())
    assert fingerprint(tiny_table().splits()) == same
    labels[3, 1] ^= 1
    other = LabelTable.from_arrays(
        table.space, table.images, labels, split=table.split, name=table.name
    )
    assert fingerprint(other.splits()) != same
    assert fingerprint(table.subset(np.arange(95)).splits()) != same
