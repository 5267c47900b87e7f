"""Predictors. Oracles: link and rule of the logits, means over views, and what was saved."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from forged import facts_of, rewrite
from tiny_predictor import NAMES, make, pictures

from labelwise.errors import CheckpointError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.models import HeadSpec
from labelwise.models.spec import NOT_CALIBRATED, ModelSpec, caution_after


def test_a_saved_model_answers_as_before(tmp_path):
    one = make()
    one.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "model.json"}
    other = Predictor.load(tmp_path)
    assert other.space.names == NAMES
    assert other.rule == one.rule
    assert other.transform == one.transform
    expected, answers = one.predict(pictures()), other.predict(pictures())
    for name in ("logits", "probs", "sets"):
        assert np.array_equal(getattr(answers, name), getattr(expected, name))


def test_a_mirrored_model_answers_alike_for_an_image_and_its_mirror_image(tmp_path):
    plain, images = make(), torch.rand(3, 3, 48, 48)
    own = plain.logits(images)
    other = plain.logits(images.flip(3))
    assert not torch.allclose(own, other)
    plain.model.mirrored = True
    plain.save(tmp_path)
    for predictor in (plain, Predictor.load(tmp_path)):
        torch.testing.assert_close(predictor.logits(images), (own + other) / 2)
    plain.model.train()
    torch.manual_seed(0)
    once = plain.model(images).logits
    plain.model.mirrored = False
    torch.manual_seed(0)
    assert torch.equal(once, plain.model(images).logits)


def test_a_network_that_is_being_trained_answers_as_one_that_is_not():
    one, images = make(), torch.rand(3, 3, 48, 48)
    expected = one.logits(images)
    for found in (one.logits, lambda given: one.embed(given)[0]):
        one.model.train()
        assert torch.equal(found(images), expected)


@pytest.mark.parametrize("mirrored", [False, True])
def test_five_crops_answer_with_the_mean_over_windows(tmp_path, mirrored):
    """Oracle: each window cut and scored by hand, of each picture alone."""
    plain, images = make(), torch.rand(3, 3, 35, 42)
    expected = []
    for image in images:
        large = torch.nn.functional.interpolate(image[None], (40, 48), mode="bilinear")[0]
        windows = []
        for top, left in [(2, 3), (0, 0), (0, 6), (5, 0), (5, 6)]:
            window = large[:, top : top + 35, left : left + 42]
            windows += [window, window.flip(2)] if mirrored else [window]
        seen = [plain.embed(window[None]) for window in windows]
        expected.append([torch.cat(values).mean(0) for values in zip(*seen, strict=True)])
    logits, pooled = (torch.stack(values) for values in zip(*expected, strict=True))
    assert not torch.allclose(plain.logits(images), logits, atol=1e-4)
    plain.model.crops, plain.model.mirrored = 5, mirrored
    plain.save(tmp_path)
    for predictor in (plain, Predictor.load(tmp_path)):
        torch.testing.assert_close(predictor.logits(images), logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(predictor.embed(images)[1], pooled, atol=1e-5, rtol=1e-5)


def test_transformers_of_0_2_keep_the_mean_of_their_patches(tmp_path):
    one = make()
    one.save(tmp_path)
    assert set(facts_of(tmp_path / "model.json")["backbone"]) == {"name", "channels"}
    torch.manual_seed(0)
    backbone = create_backbone("test_vit", image_size=32).eval()
    vit = replace(
        one, model=Model(backbone, make_head(one.head, backbone.channels, len(NAMES))).eval()
    )
    vit.save(tmp_path)
    images = torch.rand(2, 3, 32, 32)
    own = vit.logits(images)
    assert torch.equal(Predictor.load(tmp_path).logits(images), own)
    facts = facts_of(tmp_path / "model.json")
    assert facts["backbone"].pop("pooling") == "own"
    (tmp_path / "model.json").write_text(json.dumps(facts))
    backbone.pooling = "mean"
    old = Predictor.load(tmp_path).logits(images)
    assert torch.equal(old, vit.logits(images))
    assert not torch.allclose(old, own)


def test_labels_that_nobody_answered_for_are_named_with_the_model(tmp_path):
    replace(make(), answers=12, unanswered=NAMES[:2]).save(tmp_path)
    named = "not calibrated for 'dog', 'cat': no answers yet; their probabilities are a guess"
    assert Predictor.load(tmp_path).caution.startswith(named)
    assert caution_after(0, NAMES) == NOT_CALIBRATED
    assert "'4' and 3 more: no" in caution_after(12, list(map(str, range(8))))
    beside = ModelSpec.load(tmp_path / "model.json").caution_beside({"cat"})
    assert beside.startswith("not calibrated for 'cat', 'dog': no answers yet")
    replace(make(), answers=12).save(tmp_path)
    assert "unanswered" not in (tmp_path / "model.json").read_text()
    assert Predictor.load(tmp_path).caution is None
    rewrite(tmp_path / "model.json", unanswered=["bird"])
    with pytest.raises(CheckpointError, match="must name labels of the model, got 'bird'"):
        Predictor.load(tmp_path)


def test_unknown_heads_and_options_are_named():
    with pytest.raises(SettingsError, match="unknown head 'liner'; did you mean 'linear'"):
        make_head(HeadSpec("liner", {}), 4, 2)
    with pytest.raises(SettingsError, match=r"head 'linear': .*unexpected keyword .*'depth'"):
        make_head(HeadSpec("linear", {"depth": 2}), 4, 2)


def test_unreadable_models_get_one_sentence(tmp_path):
    make().save(tmp_path)
    description, weights = tmp_path / "model.json", tmp_path / "model.safetensors"
    whole = {path: path.read_bytes() for path in (description, weights)}
    for path, content, match in (
        (description, b"[]", "must have format 1, got list"),
        (description, b'{"format": "two\\nlines"}', "must have format 1, got two lines"),
        (description, b'{"format": 1}', "is not usable: 'labels' is missing"),
        (weights, whole[weights][:-10], "model.safetensors is damaged"),
        (weights, b"", "model.safetensors is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=match):
            Predictor.load(tmp_path)
        path.write_bytes(whole[path])
    rewrite(description, backbone={"name": "small-cn", "channels": 4})
    with pytest.raises(CheckpointError, match="unknown backbone 'small-cn'"):
        Predictor.load(tmp_path)
    description.write_bytes(whole[description])
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read: No such file"):
        Predictor.load(tmp_path)
