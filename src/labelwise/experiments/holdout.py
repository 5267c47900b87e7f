"""A validation split for tables that come without one, taken from their training images.

Calibrators, rules and tuning need it. The rows are drawn once, with a fixed seed, in proportion
to each label set, so that every method and every training seed sees the same three splits.
"""

from dataclasses import replace

import numpy as np

from labelwise.data import LabelTable
from labelwise.errors import DataError

__all__ = ["with_validation"]


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
