"""A run small enough for a test: feature rows, an identity backbone, seconds in all."""

import numpy as np
import torch

from labelwise.base.progress import Silent
from labelwise.base.tensors import load_tensors
from labelwise.pictures import FeatureRows
from labelwise.tables import LabelTable
from labelwise.training.settings import read_settings


class Hearing(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.messages = []

    def say(self, text):
        self.messages.append(text)


def tiny_table(rows=96, seed=0, features=6):
    """Return rows whose four labels follow from their features, split 64/16/16 in the hundred."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    labels = (x[:, :4] + 0.3 * rng.normal(size=(rows, 4)) > 0.4).astype(np.uint8)
    split = np.array(["train", "train", "train", "train", "val", "test"])[np.arange(rows) % 6]
    return LabelTable.from_arrays(
        ("a", "b", "c", "d"), FeatureRows(x), labels, split=split, name="tiny"
    )


def tiny_settings(**flags):
    """Return settings for :func:`tiny_table`; flags use ``__`` for the dots of keys."""
    base = {
        "data": "tiny",
        "backbone": "identity",
        "batch_size": 16,
        "calibrate": "none",
        "hardware.accelerator": "cpu",
        "recipe.epochs": 3,
        "recipe.optimizer.lr": 0.05,
        "recipe.log_steps": 2,
    }
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return read_settings(None, base | given)


def assert_same_weights(one, other, **tolerance):
    """Compare the weights of two runs, to the bit unless a tolerance is given."""
    first, second = (load_tensors(folder / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], **tolerance or {"atol": 0, "rtol": 0})
