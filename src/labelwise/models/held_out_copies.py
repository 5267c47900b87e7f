"""How many held-out photos of a run look like one that it was trained on.

    predictions/near-copies.json   in the folder of a run on photos: of each split that is held out,
                                   how many photos look like a training photo, and how many it has

Near copies, such as the next photo of a burst, are told by :mod:`labelwise.pictures.fingerprint`,
from the pixels that the model saw.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import CheckpointError
from labelwise.numeric.near_pairs import near_any
from labelwise.pictures.fingerprint import NEAR
from labelwise.system.files import replacing
from labelwise.system.text import counted, one_line_of

__all__ = ["HeldOutCopies"]


@dataclass(frozen=True)
class HeldOutCopies:
    """Of each held-out split, how many photos look like a training photo, and how many it has."""

    splits: Mapping[str, tuple[int, int]]

    @classmethod
    def among(cls, looks: Mapping[str, NDArray[np.float32]]) -> "HeldOutCopies":
        """Compare the looks (n, WIDTH) of every other split with those of train."""
        return cls(
            {
                name: (int(near_any(own, looks["train"], NEAR).sum()), len(own))
                for name, own in looks.items()
                if name != "train"
            }
        )

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


def _file(folder: Path) -> Path:
    return folder / "predictions" / "near-copies.json"
