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

from labelwise.base.progress import Watch
from labelwise.learn.backbones import Backbone, create_backbone
from labelwise.pictures import FeatureRows
from labelwise.tables import LabelTable, load, mlspl_split, with_validation
from labelwise.tables.derived import single_positive, stratified_split
from labelwise.training.features import compute, frozen_backbone

# Who chose the validation images.
OWN_SPLIT = "the data set's own"
NO_SPLIT = "no validation images"
STRATIFIED = "in proportion to each label set"
LAST_FIFTH = "the last fifth of a permutation by numpy's RandomState(1200)"


@dataclass(frozen=True)
class Frozen:
    """A backbone whose features stand in the place of images: name, weights, and its input."""

    name: str
    weights: str | None = None
    image_size: int | None = None
    squash: bool = False

    def backbone(self) -> Backbone:
        return frozen_backbone(**vars(self))


def dealt_again(table: LabelTable, seed: int) -> LabelTable:
    """Return the table with its rows, or groups, dealt into splits of the same sizes by a seed."""
    names, counts = np.unique(np.asarray(table.split), return_counts=True)
    shares = dict(zip(names.tolist(), (counts / counts.sum()).tolist(), strict=True))
    return stratified_split(replace(table, split=None), shares, seed=seed)


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
    watch: Watch | None = None,
) -> LabelTable:
    """Return the table of ``source``, divided, perhaps with frozen features."""
    table = divided(load(source, **options), hold_out=hold_out, one_positive=one_positive)
    return table if frozen is None else with_features(table, frozen, watch=watch)


def divided(table: LabelTable, *, hold_out: bool, one_positive: bool = False) -> LabelTable:
    """Return the table with the validation rows, and the known labels, of an experiment."""
    if one_positive:
        return single_positive(_with_last_fifth(table))
    return with_validation(table) if hold_out else table


@dataclass(frozen=True)
class ValidationImages:
    """The share of the training images that became validation, and who chose them."""

    share: float
    chosen_by: str

    @classmethod
    def of(cls, table: LabelTable, parted: LabelTable, one_positive: bool) -> "ValidationImages":
        """Return what :func:`divided` did to the rows of ``table``."""
        if table.split is not None and "val" in table.split:
            return cls(0.0, OWN_SPLIT)
        train = len(table) if table.split is None else int((table.split == "train").sum())
        taken = 0 if parted.split is None else int((parted.split == "val").sum())
        if not taken:
            return cls(0.0, NO_SPLIT)
        in_order = one_positive and table.split is not None
        return cls(round(taken / train, 2), LAST_FIFTH if in_order else STRATIFIED)


def with_features(table: LabelTable, frozen: Frozen, *, watch: Watch | None = None) -> LabelTable:
    """Return the table with the features of a backbone in the place of its images."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return compute(table, frozen.backbone(), Path("runs/features"), device=device, watch=watch)


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
    backbone = create_backbone(**{**vars(frozen), "weights": None})
    zeros = np.broadcast_to(np.float32(0), (len(table), backbone.channels))
    return replace(table, images=FeatureRows(zeros, table.images.ids))
