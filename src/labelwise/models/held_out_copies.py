"""How many held-out photos of a run look like one that it was trained on.

    predictions/near-copies.json   in the folder of a run: of each split that is held out, how many
                                   photos look like a training photo, and how many it has

Near copies, such as the next photo of a burst, are told by :mod:`labelwise.pictures.fingerprint`,
from the pixels that the model saw. Where a run was trained on stored features there are no pixels:
two photos are then near copies if their features, less the mean of the training photos, have a
cosine of at least NEAR_FEATURES. A sketch of them stands for features, (1, -1) sums of SKETCH
numbers each: its cosine is that of the features but for about (1 - cosine^2) / sqrt(SKETCH).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import CheckpointError
from labelwise.numeric.near_pairs import near_any
from labelwise.pictures.fingerprint import NEAR
from labelwise.system.files import replacing
from labelwise.system.text import counted, one_line_of

NEAR_FEATURES = 0.95
SKETCH = 128
FEWEST_FEATURES = 64  # with few, different photos have almost the same ones by chance


def sketch_of(features: Tensor) -> Tensor:
    """Return sketches (n, SKETCH) of features (n, D), the same of the same features."""
    signs = np.random.default_rng(0).integers(0, 2, (features.shape[1], SKETCH)) * 2.0 - 1
    weights = torch.from_numpy(signs).to(features.device, torch.float32)
    return features.float() @ weights


@dataclass(frozen=True)
class HeldOutCopies:
    """Of each held-out split, how many photos look like a training photo, and how many it has."""

    splits: Mapping[str, tuple[int, int]]

    @classmethod
    def among(cls, looks: Mapping[str, NDArray[np.float32]]) -> "HeldOutCopies":
        """Compare the looks (n, WIDTH) of every other split with those of train."""
        return cls(_near(looks, NEAR))

    @classmethod
    def among_features(cls, sketches: Mapping[str, NDArray[np.float32]]) -> "HeldOutCopies":
        """Compare sketches (n, SKETCH) of the features of every other split with those of train."""
        middle = sketches["train"].mean(0, dtype=np.float64)
        units = {}
        for name, own in sketches.items():
            moved = own - middle
            lengths = np.linalg.norm(moved, axis=1, keepdims=True)
            units[name] = (moved / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return cls(_near(units, NEAR_FEATURES))

    @classmethod
    def of_run(cls, folder: Path) -> "HeldOutCopies":
        """Return what a run keeps; nothing of one that never looked."""
        path = _file(folder)
        try:
            stated = json.loads(path.read_text(encoding="utf-8"))
            splits = {str(name): (int(some), int(all_)) for name, (some, all_) in stated.items()}
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: {one_line_of(error)}") from None
        return cls(splits)

    def save(self, folder: Path) -> None:
        """Keep it in the folder of a run, if photos were looked at."""
        if self.splits:
            with replacing(_file(folder)) as temporary:
                temporary.write_text(json.dumps(self.splits) + "\n", encoding="utf-8")

    def sentence(self) -> str:
        """Return that in words, and the way out; empty where there are none."""
        found = {name: counts for name, counts in self.splits.items() if counts[0]}
        if not found:
            return ""
        copies = sum(some for some, _ in found.values())
        parts = ", ".join(f"{some:,} of {all_:,} in {name}" for name, (some, all_) in found.items())
        look = "looks" if copies == 1 else "look"
        return (
            f"{counted(copies, 'held-out photo')} {look} like a training photo ({parts}): near "
            "copies make figures and promises too good. `labelwise data near-copies` writes them "
            "as groups, which `labelwise data split` keeps in one split."
        )


def _near(vectors: Mapping[str, NDArray[np.float32]], least: float) -> dict[str, tuple[int, int]]:
    return {
        name: (int(near_any(own, vectors["train"], least).sum()), len(own))
        for name, own in vectors.items()
        if name != "train"
    }


def _file(folder: Path) -> Path:
    return folder / "predictions" / "near-copies.json"
