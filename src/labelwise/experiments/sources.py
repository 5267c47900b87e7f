"""The data an experiment trains on: read, given a validation split, perhaps made features.

Calibrators, rules and tuning need a validation split. Where a table has none its rows are drawn
from train once, with a fixed seed and in proportion to each label set, so that every method and
every training seed sees the same three splits.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.backbones import create_backbone
from labelwise.data import LabelTable, load
from labelwise.data.observe import single_positive
from labelwise.errors import DataError
from labelwise.progress import Watch
from labelwise.training.features import compute

__all__ = ["Frozen", "open_table", "with_validation"]


@dataclass(frozen=True)
class Frozen:
    """A backbone whose features stand in the place of images: name, weights, and its input."""

    name: str
    weights: str | None = None
    image_size: int | None = None
    squash: bool = False


def open_table(
    source: str,
    options: dict[str, Any],
    *,
    hold_out: bool = True,
    frozen: Frozen | None = None,
    one_positive: bool = False,
    cache: Path = Path("runs/features"),
    watch: Watch | None = None,
) -> LabelTable:
    """Return the table of ``source``.

    ``hold_out`` takes validation rows from train where there are none; ``frozen`` puts the
    features of a backbone in the place of the images, while ``watch`` looks on; ``one_positive``
    leaves one known label to each training image.
    """
    table = load(source, **options)
    if hold_out:
        table = with_validation(table)
    if one_positive:
        table = single_positive(table)
    if frozen is not None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        backbone = create_backbone(
            frozen.name,
            weights=frozen.weights,
            image_size=frozen.image_size,
            squash=frozen.squash,
        )
        table = compute(table, backbone, cache, device=device, watch=watch)
    return table


def with_validation(table: LabelTable, *, share: float = 0.1, seed: int = 0) -> LabelTable:
    """Return the table, ``share`` of whose training rows became validation if it had none."""
    if table.split is None:
        raise DataError(f"{table.name} has no split column; make one with `labelwise data split`")
    if "val" in table.split:
        return table
    rows = np.flatnonzero(table.split == "train")
    generator = np.random.default_rng(seed)
    rows = rows[generator.permutation(len(rows))]
    # Rows of equal label sets lie together, and every 1/share-th of that order is taken.
    keys = [table.present.row(row).tobytes() for row in rows.tolist()]
    order = np.argsort(np.unique(keys, return_inverse=True)[1], kind="stable")
    taken = rows[order][np.diff(np.floor(np.arange(len(rows) + 1) * share)) > 0]
    split = table.split.astype("<U5").copy()
    split[taken] = "val"
    return replace(table, split=split)
