"""A solved run by torch, as on a GPU. Oracle: the same run by ONNX Runtime, and by timm."""

import numpy as np
import pytest
import timm
import torch

from labelwise.decide import Threshold
from labelwise.errors import SettingsError
from labelwise.exports.hub import export_hub
from labelwise.eyes import Eye
from labelwise.learn.predictor import Predictor
from labelwise.links import Sigmoid
from labelwise.models.loading import load_model
from labelwise.models.solved import SolvedModel
from labelwise.types import LabelSpace


def test_torch_answers_as_the_solved_run_does(tmp_path):
    eye, rng = Eye.open(), np.random.default_rng(0)
    for number, outputs in enumerate((eye.head_features, ("means",))):  # the second: runs of 0.3
        width = sum(eye.outputs[name] for name in outputs)
        head = rng.normal(size=(3, width)) / 30, rng.normal(size=3)
        folder = tmp_path / str(number)
        folder.mkdir()
        space = LabelSpace(("a", "b", "c"))
        SolvedModel.of(eye, outputs, *head, space, Sigmoid(), Threshold(0.5)).save(folder)
        photos = rng.integers(0, 256, (2, 3, 224, 224), dtype=np.uint8)
        by_torch, plain = Predictor.load(folder), load_model(folder)
        for found, expected in zip(
            by_torch.embed(torch.from_numpy(photos)), plain.embed(photos), strict=True
        ):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=1e-4)
        by_torch.save(tmp_path)  # for a hub: its name builds it again
        again = Predictor.load(tmp_path).logits(torch.from_numpy(photos))
        torch.testing.assert_close(again, by_torch.logits(torch.from_numpy(photos)))


def test_timm_loads_a_head_on_means_alone(tmp_path):
    """What `train --set means_only=true` writes; other heads on the built-in network are named."""
    eye, rng, space = Eye.open(), np.random.default_rng(0), LabelSpace(("a", "b"))
    for number, kept in enumerate((eye.of_means(), eye)):
        width = sum(kept.outputs[name] for name in kept.head_features)
        head, folder = (
            (rng.normal(size=(2, width)) / 30, rng.normal(size=2)),
            tmp_path / f"{number}",
        )
        folder.mkdir()
        parts = (kept, kept.head_features, *head, space, Sigmoid(), Threshold(0.5))
        SolvedModel.of(*parts).save(folder)
    plain, more = (Predictor.load(tmp_path / name) for name in "01")
    with pytest.raises(SettingsError, match="train with `--set means_only=true` for a folder"):
        more.model.timm_names()
    assert export_hub(plain, tmp_path / "hub", lambda folder, model: None).loads_in_timm
    photo = torch.from_numpy(rng.integers(0, 256, (1, 3, 224, 224), dtype=np.uint8))
    network = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    mean, std = (torch.tensor(values) for values in (plain.transform.mean, plain.transform.std))
    with torch.inference_mode():
        logits = network((photo / 255 - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(logits, plain.logits(photo), atol=1e-4, rtol=0)
