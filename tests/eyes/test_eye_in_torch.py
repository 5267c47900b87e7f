"""A solved run by torch, as on a GPU. Oracle: the same run by ONNX Runtime."""

import numpy as np
import torch

from labelwise.decide import Threshold
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
