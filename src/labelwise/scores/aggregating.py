"""From photos to bursts, sites or patients: one score and one label per unit.

With p_i the probability of a label in photo i of a unit of n photos, u_i its log-odds:

    any       the label is in some photo     P = 1 - product of (1 - p_i)
    most      in more than half of them      P = P(sum of y_i > n / 2), y_i independent
    evidence  the unit has it, and each photo is evidence of its own, beside the share s of
              photos with the label:         log-odds = logit s + sum of (u_i - logit s)

All three take photos as independent, which photos of a burst are not, so these numbers are scores:
what they mean is found by calibrating them on units whose truth is known, as any other scores. The
law of a sum is exact up to 400 photos, and normal with its continuity correction beyond.

The truth of a unit, from labels that may be unknown:

    any, evidence   present if a photo has it, absent if all are known to lack it
    most            present if more than half have it whatever the unknown ones hold, absent if
                    not more than half could; else unknown
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelwise.base.special import log_ndtr
from labelwise.base.text import as_cell
from labelwise.errors import DataError, SettingsError
from labelwise.scores.read import unlabelled_scores
from labelwise.scores.tables import write_columns
from labelwise.tables import open_table
from labelwise.tables.archives import Floats
from labelwise.tables.camera_results import read_times
from labelwise.tables.score_files import Kind, RawScores, read_raw
from labelwise.types import nearest

How = Literal["any", "most", "evidence"]
HOW = ("any", "most", "evidence")
EXACT_UP_TO = 400
SMALLEST = -700.0  # logarithms below it are taken as it, so that log-odds stay finite
PERIODS = {"day": "datetime64[D]", "month": "datetime64[M]", "year": "datetime64[Y]"}


def aggregate(
    log_p: Floats, log_q: Floats, unit: NDArray[np.int64], units: int, how: How, shares: Floats
) -> Floats:
    """Return the log-odds (G, K) of units from those of photos; labels have ``shares`` (K,)."""
    if how not in HOW:
        raise SettingsError(f"how must be one of {', '.join(HOW)}, got {how!r}")
    if how == "any":
        none = np.zeros((units, log_p.shape[1]))
        np.add.at(none, unit, np.maximum(log_q, SMALLEST))
        none = np.minimum(np.maximum(none, SMALLEST), -np.exp(SMALLEST / 2))
        return np.asarray(np.log(-np.expm1(none)) - none)
    odds = np.clip(log_p, SMALLEST, 0) - np.clip(log_q, SMALLEST, 0)
    if how == "evidence":
        prior = np.log(shares) - np.log1p(-shares)
        odds_of = np.tile(prior, (units, 1))
        np.add.at(odds_of, unit, odds - prior)
        return odds_of
    odds_of = np.empty((units, log_p.shape[1]))
    order = np.argsort(unit, kind="stable")
    ends = np.bincount(unit, minlength=units).cumsum()
    for position, rows in enumerate(np.split(order, ends[:-1])):
        odds_of[position] = _most(np.exp(log_p[rows]))
    return odds_of


def _most(p: Floats) -> Floats:
    """Return the log-odds (K,) that more than half of n independent photos (n, K) have a label."""
    count = len(p)
    least = count // 2 + 1
    if count > EXACT_UP_TO:
        away = (p.sum(0) - (least - 0.5)) / np.sqrt(np.maximum((p * (1 - p)).sum(0), 1e-12))
        return np.asarray(log_ndtr(away) - log_ndtr(-away))
    law = np.ascontiguousarray(chances_of_counts(p.T).T)
    yes, no = law[least:].sum(0), law[:least].sum(0)
    tiny = np.exp(SMALLEST / 2)
    return np.asarray(np.log(np.maximum(yes, tiny)) - np.log(np.maximum(no, tiny)))


def chances_of_counts(probs: Floats) -> Floats:
    """Return the chances (n, K + 1) of how many of K independent labels are there."""
    rows, labels = probs.shape
    chances = np.zeros((rows, labels + 1))
    chances[:, 0] = 1
    for column in range(labels):
        p = probs[:, column, None]
        chances[:, 1:] = chances[:, 1:] * (1 - p) + chances[:, :-1] * p
        chances[:, 0] *= 1 - p[:, 0]
    return chances


def aggregate_labels(labels: Floats, unit: NDArray[np.int64], units: int, how: How) -> Floats:
    """Return the labels (G, K) of units, NaN where unknown, from those (N, K) of their photos."""
    present, absent = (np.zeros((units, labels.shape[1])) for _ in range(2))
    np.add.at(present, unit, labels == 1)
    np.add.at(absent, unit, labels == 0)
    photos = np.bincount(unit, minlength=units)[:, None]
    if how == "most":
        yes, no = 2 * present > photos, 2 * (photos - absent) <= photos
    else:
        yes, no = present > 0, absent == photos
    return np.where(yes, 1.0, np.where(no, 0.0, np.nan))


@dataclass(frozen=True, eq=False)
class UnitTable:
    """The units of a table: names, log-odds (G, K), labels with NaN for unknown, and facts."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    odds: Floats
    truth: Floats | None
    photos: NDArray[np.int64]
    columns: dict[str, list[str]]

    def save(self, path: Path) -> None:
        texts: dict[str, Sequence[str]] = {"id": self.names, **self.columns}
        if path.suffix == ".csv":
            texts = {name: list(map(as_cell, values)) for name, values in texts.items()}
        columns: dict[str, object] = {**texts, "photos": self.photos}
        for number, name in enumerate(self.labels):
            columns[f"score:{name}"] = self.odds[:, number]
        for name, own in zip(self.labels, () if self.truth is None else self.truth.T, strict=False):
            columns[f"label:{name}"] = pa.array(own, pa.float64(), from_pandas=True)
        write_columns(path, columns, "units")


def aggregate_table(source: Path, kind: Kind | None, by: Sequence[str], how: How) -> UnitTable:
    """Return the units of a table of scores by one column or several."""
    if not by:
        raise SettingsError("say what a unit is: --by burst, or any other column")
    columns = list(dict.fromkeys(by))
    raw, values = _read(source, columns)
    scores = unlabelled_scores(raw, kind, None)
    link = scores.link
    if link is None:
        raise SettingsError("scores that only rank cannot be aggregated; calibrate them first")
    log_p, log_q = (side.astype(np.float64) for side in link.log_probs(scores.logits))
    keys = [" / ".join(cells) for cells in zip(*values, strict=True)]
    odd = next((row for row, key in enumerate(keys) if "\0" in key), None)
    if odd is not None:  # which NumPy would leave out at an end
        raise DataError(f"{source}: row {odd + 1}: the name of a unit must not hold a null")
    names, first, unit = np.unique(np.array(keys), return_index=True, return_inverse=True)
    unit = unit.astype(np.int64)
    truth = raw.labels
    if truth is not None:
        truth = np.where((truth > 0) & (truth < 1), truth > 0.5, truth)
    told = {
        name: [column[row] for row in first]
        for name, column in zip(columns, values, strict=True)
        if name not in ("id", "photos")
    }
    kept = {
        name: _common(source, name, column, unit, first, keys)
        for name, column in (("split", raw.split), ("group", raw.group))
        if column is not None and name not in columns
    }
    return UnitTable(
        tuple(names.tolist()),
        raw.names,
        aggregate(log_p, log_q, unit, len(names), how, _shares(raw, np.exp(log_p))),
        None if truth is None else aggregate_labels(truth, unit, len(names), how),
        np.bincount(unit, minlength=len(names)),
        {name: column for name, column in kept.items() if column is not None} | told,
    )


def _read(source: Path, by: Sequence[str]) -> tuple[RawScores, list[tuple[str, ...]]]:
    """Return the scores and the columns of the units; day, month and year come from ``time``."""
    known, header = {"split", "group"}, open_table(source).header
    derived = [name for name in by if name in PERIODS and name not in header]
    wanted = [name for name in by if name not in {*known, *derived}]
    raw = read_raw(source, [*wanted, *(["time"] if derived else [])])
    if derived:
        times = read_times(raw.facts["time"], str(source), "time")
        periods = {
            name: tuple(np.datetime_as_string(times.astype(PERIODS[name])).tolist())
            for name in derived
        }
        raw = replace(raw, facts={**raw.facts, **periods})
    columns = {"split": raw.split, "group": raw.group} | dict(raw.facts)
    for name in by:
        if columns.get(name) is None:
            raise DataError(f"{source}: there is no column {name!r}{nearest(name, raw.facts)}")
    return raw, [tuple(columns[name] or ()) for name in by]


def _shares(raw: RawScores, probs: Floats) -> Floats:
    """Return how often photos have each label: those known to, else by their probabilities."""
    shares = probs.mean(0)
    if raw.labels is not None:
        known = (~np.isnan(raw.labels)).sum(0)
        shares = np.where(known > 0, np.nansum(raw.labels, 0) / np.maximum(known, 1), shares)
    least = 1 / (2 * max(len(raw.ids), 1))
    return np.asarray(np.clip(shares, least, 1 - least))


def _common(
    source: Path,
    name: str,
    column: Sequence[str],
    unit: NDArray[np.int64],
    first: NDArray[np.intp],
    keys: Sequence[str],
) -> list[str] | None:
    """Return the split or group of each unit; None for groups that cut units."""
    codes = np.unique(np.array(column), return_inverse=True)[1]
    odd = np.flatnonzero(codes != codes[first][unit])
    if not len(odd):
        return [column[row] for row in first]
    if name == "group":
        return None
    row = int(odd[0])
    splits = f"{column[int(first[unit[row]])]!r} and {column[row]!r}; divide the photos by unit"
    raise DataError(f"{source}: row {row + 1}: {keys[row]!r} is in the splits {splits}")
