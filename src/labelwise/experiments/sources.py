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
from labelwise.data import LabelTable, load, mlspl_split, with_validation
from labelwise.data.observe import single_positive
from labelwise.pictures import FeatureRows
from labelwise.system.progress import Watch
from labelwise.training.features import compute, frozen_backbone

__all__ = ["Frozen", "blank_features", "holds_files", "open_table", "with_features"]


@dataclass(frozen=True)
class Frozen:
    """A backbone whose features stand in the place of images: name, weights, and its input."""

    name: str
    weights: str | None = None
    image_size: int | None = None
    squash: bool = False


def holds_files(folder: Path) -> bool:
    """Return whether something has been put into the folder of a data set."""
    return folder.is_dir() and any(folder.iterdir())


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
    leaves one known label to each training image, and splits as Cole et al. do.
    """
    table = load(source, **options)
    if one_positive:
        table = single_positive(_with_last_fifth(table))
    elif hold_out:
        table = with_validation(table)
    return table if frozen is None else with_features(table, frozen, cache=cache, watch=watch)


def with_features(
    table: LabelTable,
    frozen: Frozen,
    *,
    cache: Path = Path("runs/features"),
    watch: Watch | None = None,
) -> LabelTable:
    """Return the table with the features of a backbone in the place of its images."""
    backbone = frozen_backbone(
        frozen.name, weights=frozen.weights, image_size=frozen.image_size, squash=frozen.squash
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return compute(table, backbone, cache, device=device, watch=watch)


def _with_last_fifth(table: LabelTable) -> LabelTable:
    """Return the table with the validation images of single-positive training, if it has none."""
    if table.split is None or "val" in table.split:
        return with_validation(table)
    train = np.flatnonzero(table.split == "train")
    split = table.split.astype("U5")
    split[train[mlspl_split(len(train))[1]]] = "val"
    return replace(table, split=split)


def blank_features(table: LabelTable, frozen: Frozen) -> LabelTable:
    """Return the table with zeros in the place of the features it would have, none computed."""
    backbone = create_backbone(
        frozen.name, weights=None, image_size=frozen.image_size, squash=frozen.squash
    )
    zeros = np.broadcast_to(np.float32(0), (len(table), backbone.channels))
    return replace(table, images=FeatureRows(zeros, table.images.ids))
