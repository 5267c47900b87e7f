"""Calibrators by name, and the choice among them by cross-validated log loss.

Names: ``temperature``, ``platt``, ``platt-shared``, ``few``, ...; ``auto`` chooses, ``none`` leaves
the link as it is. Settings and the command line are read here alone.

Images are dealt into folds; images of one group stay together. The candidate with the least log
loss on folds it was fitted without is fitted to everything; but a link stays as it is unless that
one is better by more than one standard error. Those that draw steps need 100 entries present and
100 absent: with fewer, chance lets one of them win.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from warnings import catch_warnings, simplefilter

import numpy as np

from labelwise.base.arrays import Array, Floats, Mask, Numbers, Values, as_mask, to_numpy
from labelwise.calibration.entries import folds_of, read_entries
from labelwise.calibration.few import AveragedCurves, few
from labelwise.calibration.isotonic import Histogram, Isotonic, histogram, isotonic
from labelwise.calibration.regression import (
    Beta,
    Platt,
    Temperature,
    ZeroShare,
    beta,
    platt,
    temperature,
)
from labelwise.calibration.shrunken import shrunken
from labelwise.errors import DataError, SettingsError
from labelwise.links import (
    Consistent,
    FocalMarginLink,
    Grouped,
    Link,
    PhiLink,
    QuasibinaryLink,
    Sigmoid,
    Softmax,
    SoftmaxOrNoneLink,
    SPALink,
    WeightedSigmoid,
    made_from_spec,
)
from labelwise.types import nearest

Calibrator = Callable[..., Link]
Part = tuple[Floats, Values, Mask | None]

AS_IT_IS = "as it is"
FEW_WORDS = "Platt scaling, shrunk for few photos"
AUTO, NONE = "auto", "none"
SHRUNKEN = "shrunken"  # of cross-fitted heads, and of auto on few rows
FEW = "few"  # for tens of photos; not among the candidates of auto, which takes hundreds
FOLDS = 5

CALIBRATORS: Mapping[str, Calibrator] = {
    "temperature": temperature,
    "platt-shared": partial(platt, scope="shared"),
    "platt-offset": partial(platt, scope="offset"),
    "platt": platt,
    "beta-shared": partial(beta, scope="shared"),
    "beta": beta,
    "isotonic-shared": partial(isotonic, scope="shared"),
    "isotonic": isotonic,
    "histogram": histogram,
}

LEAST_ROWS = 20  # photos, or groups, below which nothing is chosen: shrunken Platt scaling
STEPS = {"isotonic-shared", "isotonic", "histogram"}
ENOUGH_FOR_STEPS = 100  # entries present, and as many absent


@dataclass(frozen=True)
class Candidate:
    """A calibrator and its mean log loss over held-out entries."""

    name: str
    log_loss: float
    behind: float  # how much worse than the best it is
    standard_error: float  # of that difference over images (or groups)


@dataclass(frozen=True)
class Choice:
    """The fitted link, its name, and all that was compared, best first."""

    link: Link
    name: str
    candidates: tuple[Candidate, ...]
    folds: int

    @property
    def words(self) -> str:
        return f"{self.name}, chosen by log loss over {self.folds} folds"

    def __str__(self) -> str:
        first = f"chosen: {self.name}, by log loss over {self.folds} folds of held-out images"
        rows = (
            f"  {row.name:<16} {row.log_loss:.6f}  +{row.behind:.6f} "
            f"(standard error {row.standard_error:.6f})"
            for row in self.candidates
        )
        return "\n".join([first, *rows])


def find_calibrator(name: str) -> Calibrator | None:
    """Return the calibrator of a name, None for "auto" and "none"."""
    if name in (AUTO, NONE):
        return None
    named = {**CALIBRATORS, FEW: few, SHRUNKEN: shrunken}
    if name not in named:
        raise SettingsError(f"unknown calibrator {name!r}{nearest(name, [AUTO, NONE, *named])}")
    return named[name]


def fit_calibrator(
    name: str,
    logits: Array,
    labels: Array,
    link: Link | None,
    observed: Array | None = None,
    *,
    groups: np.ndarray | None = None,
    folds: int = FOLDS,
    source: str = "these scores",
) -> tuple[Link | None, str, Choice | None]:
    """Return the link that the calibrator of a name fits, in words, and what "auto" compared.

    The link is None, without words, where the old one is kept; errors name the ``source``.
    """
    fit = find_calibrator(name)
    try:
        if name == AUTO:
            count = len(logits) if groups is None else len(np.unique(groups))
            if count < LEAST_ROWS and link is not None and not link.couples_labels:
                return shrunken(logits, labels, link, observed), FEW_WORDS, None
            choice = auto(logits, labels, link, observed, groups=groups, folds=min(folds, count))
            kept = choice.link is link
            return (None, "", choice) if kept else (choice.link, choice.words, choice)
        if fit is None:
            return None, "", None
        return fit(logits, labels, link, observed), name, None
    except ValueError as error:
        raise DataError(f"no calibrator can be fitted on {source}: {error}") from None


def auto(
    logits: Array,
    labels: Array,
    link: Link | None,
    observed: Array | None = None,
    *,
    groups: np.ndarray | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    candidates: Mapping[str, Calibrator] | None = None,
) -> Choice:
    """Return the link with the least held-out log loss, and what it was compared with.

    ``groups`` (N,) names the group of each image; without it every image is its own.
    """
    read_entries(logits, labels, link, observed)
    scores, truth = to_numpy(logits), to_numpy(labels)
    seen = None if observed is None else as_mask(to_numpy(observed), "observed")
    if candidates is None:
        known = truth if seen is None else truth[seen]
        present = float(known.sum())
        enough = min(present, known.size - present) >= ENOUGH_FOR_STEPS
        candidates = {name: fit for name, fit in CALIBRATORS.items() if enough or name not in STEPS}
    member = np.arange(len(scores)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(member.max()) + 1
    if not 2 <= folds <= count:
        raise ValueError(f"folds must lie between 2 and the {count} groups, got {folds}")
    fold = folds_of(count, folds, seed)[member]

    def part(rows: Mask) -> Part:
        return scores[rows], truth[rows], None if seen is None else seen[rows]

    def fitted(name: str, data: Part) -> Link:
        if link is not None and name == AS_IT_IS:
            return link
        return candidates[name](*data[:2], link, data[2])

    names = [*([AS_IT_IS] if link is not None else []), *candidates]
    losses = np.zeros((len(names), len(scores)))
    for number in range(folds):
        train, test = part(fold != number), part(fold == number)
        for row, name in enumerate(names):
            with catch_warnings():  # the final fit repeats whatever is worth saying
                simplefilter("ignore")
                own = fitted(name, train)
            losses[row, fold == number] = _log_loss(own, *test)
    table = _table(names, losses, member, scores.size if seen is None else int(seen.sum()))
    kept = next((row for row in table if row.name == AS_IT_IS), table[0])
    best = (kept if kept.behind <= kept.standard_error < np.inf else table[0]).name
    return Choice(fitted(best, (scores, truth, seen)), best, table, folds)


def _log_loss(link: Link, scores: Floats, labels: Values, seen: Mask | None) -> Numbers:
    y = labels.astype(np.float64)
    log_p, log_q = (side.astype(np.float64) for side in link.log_probs(scores))
    with np.errstate(invalid="ignore"):  # 0 log 0 = 0
        present = np.where(y > 0, y * log_p, 0.0)
        absent = np.where(y < 1, (1 - y) * log_q, 0.0)
    loss = -(present + absent)
    total: Numbers = (loss if seen is None else np.where(seen, loss, 0.0)).sum(1)
    return total


def _table(
    names: list[str], losses: np.ndarray, member: np.ndarray, entries: int
) -> tuple[Candidate, ...]:
    totals = losses.sum(1)
    best = losses[totals.argmin()]
    rows = []
    for name, loss, total in zip(names, losses, totals, strict=True):
        if not np.isfinite(total):
            rows.append(Candidate(name, np.inf, np.inf, np.inf))
            continue
        differences = np.bincount(member, weights=loss - best)
        error = differences.std() * len(differences) ** 0.5
        behind = (total - best.sum()) / entries
        rows.append(Candidate(name, total / entries, behind, error / entries))
    return tuple(sorted(rows, key=lambda row: row.log_loss))


# Links as plain data, and back, beside the rules of :mod:`labelwise.decide.rules`.

LINKS: dict[str, type[Link]] = {
    link.kind: link
    for link in (
        *(Sigmoid, WeightedSigmoid, Softmax, SoftmaxOrNoneLink, PhiLink, SPALink, QuasibinaryLink),
        FocalMarginLink,
        *(AveragedCurves, Beta, Histogram, Isotonic, Platt, Temperature, ZeroShare, Consistent),
        Grouped,
    )
}


def link_to_spec(link: Link) -> dict[str, object]:
    """Return a link as plain data, nested links included."""
    spec = {
        key: link_to_spec(value) if isinstance(value, Link) else value
        for key, value in link.spec().items()
    }
    return {"kind": link.kind, **spec}


def link_from_spec(spec: Mapping[str, object]) -> Link:
    """Return the link that ``link_to_spec`` described."""
    return made_from_spec(spec, LINKS, "link")
