"""Reading other people's scores: every number is checked, and what it is must be said.

Logits are read as log-odds under the link that is named; probabilities are kept as log-odds in
float64, infinite where they are exactly 0 or 1. Nothing is inferred from the numbers' range.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import DataError, SettingsError
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.predictions import Predictions
from labelwise.scores.columns import parquet_table, read_delimited, read_parquet_columns
from labelwise.scores.npz import read_npz
from labelwise.scores.raw import Raw
from labelwise.types import nearest

__all__ = ["LINK_NAMES", "Kind", "ScoreTable", "read_scores"]

Kind = Literal["logits", "probs"]
LINK_NAMES = ("sigmoid", "softmax", "none")
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores with labels, as predictions, and the split of every row if the file has one."""

    source: str
    predictions: Predictions
    split: NDArray[np.str_] | None = None

    def part(self, name: str) -> Predictions:
        """Return the rows of one split."""
        if self.split is None:
            raise DataError(f"{self.source}: there is no column or array 'split', got {name!r}")
        rows = np.flatnonzero(self.split == name)
        if len(rows) == 0:
            there = sorted(set(self.split.tolist()))
            raise DataError(f"{self.source}: no row has split {name!r}{nearest(name, there)}")
        return replace(take(self.predictions, rows), split=name)


def take(predictions: Predictions, rows: NDArray[np.intp]) -> Predictions:
    """Return some rows of predictions."""
    index = torch.from_numpy(rows)
    observed = predictions.observed
    return replace(
        predictions,
        ids=[predictions.ids[row] for row in rows],
        logits=predictions.logits[index],
        labels=predictions.labels[index],
        observed=None if observed is None else observed[index],
    )


def read_scores(
    path: Path, kind: Kind | None, *, link: str | None = None, labels: Path | None = None
) -> ScoreTable:
    """Return the scores of a file, with its own labels or those of a second file.

    ``kind`` must be given except for predictions written by labelwise, which say it themselves.
    """
    if path.suffix.lower() == ".parquet" and path.is_file():
        table = parquet_table(path)
        if b"labelwise" in (table.schema.metadata or {}):
            return _own(path, kind, link, labels)
        raw = read_parquet_columns(path, table)
    else:
        raw = _read(path)
    if kind is None:
        raise SettingsError(
            f"{path}: say what its scores are with --scores logits or --scores probs"
        )
    if kind == "probs" and link is not None:
        raise SettingsError("--link belongs to logits; probabilities need none")
    if raw.scores is None:
        raise DataError(f"{path}: there are no scores; name one column a label like 'score:dog'")
    truth = raw if labels is None else _joined(raw, _read(labels))
    if truth.labels is None:
        raise DataError(
            f"{path}: there are no labels; add 'label:NAME' columns (an array 'labels'), "
            "or give a second file with --labels"
        )
    logits = _logits(raw, raw.scores, kind)
    present, observed = _labels(truth, truth.labels)
    predictions = Predictions(
        list(raw.ids), logits, present, observed, raw.names, "", _link(kind, link)
    )
    split = None if raw.split is None else np.array(raw.split)
    return ScoreTable(str(path), predictions, split)


def _read(path: Path) -> Raw:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: scores must be one of {', '.join(SUFFIXES)}, got {suffix!r}")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if not path.is_file():
        raise DataError(f"{path} is not a file")
    if suffix == ".npz":
        return read_npz(path)
    if suffix == ".parquet":
        return read_parquet_columns(path, parquet_table(path))
    return read_delimited(path)


def _own(path: Path, kind: Kind | None, link: str | None, labels: Path | None) -> ScoreTable:
    if kind == "probs" or link is not None or labels is not None:
        raise SettingsError(
            f"{path} was written by labelwise: it holds logits with their link and labels; "
            "leave out --scores probs, --link and --labels"
        )
    predictions = Predictions.load(path)
    return ScoreTable(str(path), predictions, np.full(len(predictions), predictions.split))


def _link(kind: Kind, name: str | None) -> Link | None:
    name = "sigmoid" if name is None or kind == "probs" else name
    if name not in LINK_NAMES:
        raise SettingsError(f"unknown link {name!r}{nearest(name, LINK_NAMES)}")
    return {"sigmoid": Sigmoid(), "softmax": Softmax(), "none": None}[name]


def _logits(raw: Raw, scores: NDArray[np.float64], kind: Kind) -> torch.Tensor:
    _refuse(
        raw, np.isnan(scores), scores, "a score must be a number", "fill it in, or drop the row"
    )
    if kind == "logits":
        _refuse(raw, ~np.isfinite(scores), scores, "a logit must be finite", "cut it to ±80 or so")
        return torch.from_numpy(scores.astype(np.float32))
    outside = (scores < 0) | (scores > 1)
    _refuse(
        raw,
        outside,
        scores,
        "a probability lies in [0, 1]",
        "if these are logits, say --scores logits",
    )
    return torch.from_numpy(scores).logit()


def _labels(raw: Raw, labels: NDArray[np.float64]) -> tuple[torch.Tensor, torch.Tensor | None]:
    unknown = np.isnan(labels)
    odd = ~unknown & (labels != 0) & (labels != 1)
    _refuse(raw, odd, labels, "a label is 1, 0, or empty for unknown", "mend the cell")
    present = torch.from_numpy(labels == 1).to(torch.uint8)
    return present, torch.from_numpy(~unknown) if unknown.any() else None


def _refuse(
    raw: Raw, bad: NDArray[np.bool_], values: NDArray[np.float64], rule: str, mend: str
) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        got = "nothing" if np.isnan(value) else f"{value:g}"
        raise DataError(f"{raw.row(row)}: {rule}, got {got} for {raw.names[column]!r}; {mend}")


def _joined(raw: Raw, other: Raw) -> Raw:
    """Return the labels of another file in the rows and columns of this one."""
    if raw.labels is not None:
        raise DataError(f"{raw.source} has labels of its own; leave out --labels")
    if other.labels is None:
        raise DataError(f"{other.source}: there are no labels; name columns like 'label:dog'")
    _labels(other, other.labels)
    for here, what, ours, there, theirs in (
        (raw.source, "label", raw.names, other.source, other.names),
        (other.source, "label", other.names, raw.source, raw.names),
        (raw.source, "id", raw.ids, other.source, other.ids),
    ):
        missing = sorted(set(ours) - set(theirs))
        if missing:
            raise DataError(
                f"{there}: {what} {missing[0]!r} of {here} is missing{nearest(missing[0], theirs)}"
            )
    place = {name: row for row, name in enumerate(other.ids)}
    column = {name: number for number, name in enumerate(other.names)}
    rows = np.array([place[name] for name in raw.ids])
    columns = np.array([column[name] for name in raw.names])
    return replace(raw, labels=other.labels[np.ix_(rows, columns)], source=other.source)
