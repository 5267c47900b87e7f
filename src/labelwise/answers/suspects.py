"""Suspects: given labels that are probably wrong, and labels that are probably missing.

    missing   the label is said to be absent:   worst first by   log p - log(1 - p)
    wrong     the label is said to be present:  worst first by   log(1 - p) - log p

p is the probability that the label is there, by rows other than this one
(:func:`crossfit_true_log_odds`). If labels are lost at random with chance r and none is given
wrongly, an absent one is there with the chance r p / (1 - p + r p): the order holds whatever r is,
but how many suspects are true does not follow from the scores. Unknown entries are never suspects.

The promise (:func:`promise_suspects`) is exact and assumes nothing of the model. The list is cut
into stretches (first 50, next 50, next 100, next 200, ...), and a random sample of each is marked
``check`` before anybody looks. A stretch of S suspects with n checked, x of them false, is rejected
as "more than floor(level S) false" if

    P(Hypergeometric(S, floor(level S) + 1, n) <= x) <= 1 - confidence

Stretches are tested from the first on until one fails (a fixed sequence), so with ``confidence``
no stretch that passed holds more false suspects than the level: nor do they together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import ANSWER_WORDS, AnswerLog, answered
from labelwise.base.arrays import Array, Numbers, Values, as_mask, check_shapes, to_numpy
from labelwise.base.special import expit, logit
from labelwise.base.table_files import write_csv
from labelwise.base.text import from_cell
from labelwise.calibration import platt
from labelwise.calibration.entries import folds_of
from labelwise.errors import DataError, SettingsError
from labelwise.links import Link
from labelwise.tables import LabelTable
from labelwise.tables.table import LabelSets, SoftLabels
from labelwise.tables.tabular import read_csv_rows
from labelwise.types import nearest

# A review file is a CSV with one question per row, "does this photo carry this label?". The table
# says what is ``given``, ``check`` marks the random sample that a promise is made on, ``promised``
# what a promise covers, and ``answer`` is for the person (empty: not asked yet).

ReviewAnswer = Literal["yes", "no", "unsure", ""]
Given = Literal["present", "absent", "unknown"]
Because = Literal["review", "promised"]
ANSWERS: dict[str, ReviewAnswer] = {"": "", **ANSWER_WORDS}
COLUMNS = ("rank", "photo", "label", "given", "probability", "check", "promised", "answer")
STATES: dict[str, Given] = {"yes": "present", "no": "absent", "unsure": "unknown"}
GIVEN: dict[str, Given] = {state: state for state in STATES.values()}


@dataclass(frozen=True)
class Reviewed:
    """One question of a review file, answered or not."""

    photo: str
    label: str
    given: Given
    probability: float
    check: bool = False
    promised: bool = False
    answer: ReviewAnswer = ""

    @property
    def confirmed(self) -> bool | None:
        """Whether the given label is a mistake; None where nobody looked. Unknown is not."""
        if not self.answer or self.given == "unknown":
            return None
        return self.answer == ("yes" if self.given == "absent" else "no")


@dataclass(frozen=True)
class Change:
    """An entry of a table that was repaired."""

    photo: str
    label: str
    before: str
    after: str
    because: Because


def write_review(path: Path, questions: Sequence[Reviewed]) -> None:
    """Write a review file; the answers of questions that have one are kept."""
    rows = []
    for rank, own in enumerate(questions, start=1):
        marks = ("yes" if mark else "" for mark in (own.check, own.promised))
        facts = (rank, own.photo, own.label, own.given, f"{own.probability:.6f}")
        rows.append((*facts, *marks, own.answer))
    write_csv(path, COLUMNS, rows)


def read_review(path: Path) -> list[Reviewed]:
    """Return the questions of a review file, in the order of their ranks."""
    try:
        rows = read_csv_rows(path, COLUMNS)
    except DataError as error:
        written = "review files are written by `labelwise data review`"
        raise DataError(f"{error}; {written}") from None
    answers: dict[int, Reviewed] = {}
    for line, row in enumerate(rows, start=2):
        where = f"{path}: line {line}"
        answer, given = ANSWERS.get(row["answer"].strip().lower()), row["given"]
        try:
            rank, probability = int(row["rank"]), float(row["probability"])
        except ValueError:
            raise DataError(f"{where}: rank and probability must be numbers") from None
        if answer is None:
            words = f"an answer is yes, no, unsure or empty, got {row['answer']!r}"
            raise DataError(f"{where}: {words}")
        if not 0 <= probability <= 1:
            raise DataError(f"{where}: a probability lies in [0, 1], got {row['probability']}")
        if not row["photo"] or not row["label"]:
            raise DataError(f"{where}: photo and label must not be empty")
        state = GIVEN.get(given)
        if state is None:
            raise DataError(f"{where}: given is present, absent or unknown, got {given!r}")
        if rank in answers:
            raise DataError(f"{where}: rank {rank} is there twice")
        photo, label = from_cell(row["photo"]), from_cell(row["label"])
        marks = row["check"] == "yes", row["promised"] == "yes"
        answers[rank] = Reviewed(photo, label, state, probability, *marks, answer)
    return [answers[rank] for rank in sorted(answers)]


def repair(
    table: LabelTable,
    questions: Iterable[Reviewed],
    *,
    accept_promised: bool = False,
    test_too: bool = False,
) -> tuple[LabelTable, list[Change]]:
    """Return the table with the answers in it, and what they changed.

    ``accept_promised`` also turns round the promised suspects that nobody answered. Labels that a
    model found wrong flatter its own test, so the test split is changed with ``test_too`` only.
    """
    row_of = {name: row for row, name in enumerate(table.ids)}
    labels, observed = table.targets()
    known = np.ones(labels.shape, np.bool_) if observed is None else observed.copy()
    labels = np.where(known, labels, 0)
    changes = []
    for question in questions:
        photo, answer = question.photo, question.answer
        if not answer:
            if not accept_promised or not question.promised or question.given == "unknown":
                continue
            answer = "yes" if question.given == "absent" else "no"
        if photo not in row_of:
            raise DataError(f"{table.name} has no photo {photo!r}{nearest(photo, row_of)}")
        row, column = row_of[photo], table.space.column(question.label)
        share, after = float(labels[row, column]), STATES[answer]
        before = "soft" if 0 < share < 1 else "present" if share else "absent"
        if not known[row, column]:
            before = "unknown"
        if after == before:
            continue
        if table.split is not None and table.split[row] == "test" and not test_too:
            raise DataError(
                f"{table.name}: {photo!r} is in the test split, where a model's own suspects "
                "flatter it; leave test out, or say --test-too and review other test photos as well"
            )
        labels[row, column], known[row, column] = answer == "yes", answer != "unsure"
        because: Because = "review" if question.answer else "promised"
        changes.append(Change(photo, question.label, before, after, because))
    repaired = replace(
        table,
        present=LabelSets.from_dense(labels > 0.5),
        unknown=LabelSets.from_dense(~known),
        soft=None if table.soft is None else SoftLabels.from_dense(labels),
    )
    return repaired, changes


def log_changes(path: Path, changes: Iterable[Change]) -> None:
    """Append changes to an answer log; those that nobody answered are by labelwise."""
    who = {"review": None, "promised": "labelwise"}
    AnswerLog(path).append(
        [answered(c.photo, c.label, c.after, who[c.because], c.because) for c in changes]
    )


# What rows that a fit did not see say of each row: links and heads fitted over folds.
#
# A model that was fitted on a wrong label believes it, so the labels of a row are only judged by
# fits on the other rows. Frozen features get the out-of-fold logits of :mod:`labelwise.eyes.fit`.
#
# A head that learns from mistakes that one certain dog in twenty is not a dog makes all certain
# dogs look the same. So a share ``missing`` of the present labels is taken to be lost and a share
# ``wrong`` of the absent ones to be given by mistake,
#
#     P(given) = wrong + (1 - missing - wrong) P(there)         log-odds of P(there): z_k
#
# and both shares, the same for all labels, are fitted together with z_k. The other labels of a
# photo are evidence too: where there are a fork and a knife, a table may have been forgotten. In
# context the log-odds u_k of a label become
#
#     z_k = a_k u_k + c_k + sum over j other than k of B_kj y_j + C_kj p_j      y_j: p_j if unknown
#
# with y and p about their means, fitted on the other folds with ``l2`` / 2 (||B||^2 + ||C||^2).
# Suspects are ordered by z.

STEPS = 40
CONTEXT_L2 = 5.0
USUAL_MISTAKES = (0.05, 0.001)  # missing of the present, wrong of the absent, before any fit


def crossfit_log_odds(
    logits: Array,
    labels: Array,
    link: Link | None,
    observed: Array | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
) -> Numbers:
    """Return calibrated log-odds (N, K): each row's by the Platt link of the other folds."""
    scores, truth, known = _arrays(logits, labels, observed)
    odds = np.empty(scores.shape)
    for held in _folds(len(scores), folds, seed):
        fitted = platt(scores[~held], truth[~held], link, None if known is None else known[~held])
        odds[held] = to_numpy(fitted.log_odds(scores[held]))
    return odds


@dataclass(frozen=True, eq=False)
class TrueLogOdds:
    """Log-odds (N, K) that labels are there; the shares of present ones not given, absent given."""

    log_odds: Numbers
    missing: float
    wrong: float


def crossfit_true_log_odds(
    log_odds: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    context: bool = True,
    folds: int = 5,
    seed: int = 0,
    l2: float = CONTEXT_L2,
) -> TrueLogOdds:
    """Return the log-odds that labels are there, where those that are given have mistakes.

    ``log_odds`` are those of :func:`crossfit_log_odds`. With ``context`` the other labels of a row
    count too; what is given of a label itself is never used for it.
    """
    odds, truth, known = _arrays(log_odds, labels, observed)
    weight = np.ones(truth.shape) if known is None else known.astype(np.float64)
    others = np.zeros((len(odds), 0))
    if context:
        probs = expit(odds)
        others = np.concatenate([np.where(weight > 0, truth, probs), probs], axis=1)
        others -= others.mean(0)
    held_out_odds, shares = np.empty(odds.shape), []
    # Other folds than before: rows that share a fold have log-odds by one fit, and its errors.
    for held in _folds(len(odds), folds, seed + 1):
        seen = [part[~held] for part in (odds, others, truth, weight)]
        slope, offset, pairs, rates = _fit_with_mistakes(*seen, l2=l2)
        held_out_odds[held] = slope * odds[held] + offset + others[held] @ pairs
        shares.append(rates)
    missing, wrong = np.mean(shares, axis=0).tolist()
    return TrueLogOdds(held_out_odds, missing, wrong)


def _fit_with_mistakes(
    odds: Numbers, others: Numbers, truth: Numbers, weight: Numbers, *, l2: float
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Fit P(given) of the notes above to labels that hold mistakes (maximum a posteriori).

    ``odds`` (N, K) are the calibrated log-odds u, ``others`` (N, 2K) the other labels y beside
    their probabilities p, less their means, or (N, 0) without context; ``truth`` (N, K) is what the
    table says, ``weight`` (N, K) 0 where it says nothing. The log-odds of both shares of mistakes
    have a normal prior with deviation 1 around USUAL_MISTAKES, B and C one of precision ``l2``.

    Returns the slopes a (K,), the offsets c (K,), the matrix B above C (2K, K), or (0, K) without
    context, and the two shares: missing labels, wrong labels. Solved by L-BFGS with the exact
    gradient.
    """
    from scipy.optimize import minimize  # slow to import, and seldom needed

    rows, labels = odds.shape
    off_diagonal = np.tile(1 - np.eye(labels), (others.shape[1] // labels, 1))
    usual = logit(np.array(USUAL_MISTAKES))
    ends = [labels, 2 * labels, 2 * labels + off_diagonal.size]

    def parts(numbers: Numbers) -> list[Numbers]:
        slope, offset, pairs, shares = np.split(numbers, ends)
        return [slope, offset, pairs.reshape(off_diagonal.shape) * off_diagonal, shares]

    def loss(numbers: Numbers) -> tuple[float, Numbers]:
        slope, offset, pairs, shares = parts(numbers)
        p, rates = expit(slope * odds + offset + others @ pairs), expit(shares)
        missing, wrong = rates
        given = wrong + (1 - missing - wrong) * p
        likely = truth * np.log(given) + (1 - truth) * np.log1p(-given)
        penalty = l2 * np.square(pairs).sum() + np.square(shares - usual).sum()
        by_given = weight * ((1 - truth) / (1 - given) - truth / given)
        by_z = by_given * (1 - missing - wrong) * p * (1 - p)
        by_rates = np.array([-(by_given * p).sum(), (by_given * (1 - p)).sum()])
        by_pairs = (others.T @ by_z + l2 * pairs) * off_diagonal
        by_shares = by_rates * rates * (1 - rates) + shares - usual
        gradient = [(by_z * odds).sum(0), by_z.sum(0), by_pairs.ravel(), by_shares]
        return float(penalty / 2 - (likely * weight).sum()) / rows, np.concatenate(gradient) / rows

    start = np.concatenate([np.ones(labels), np.zeros(labels + off_diagonal.size), usual])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    slope, offset, pairs, shares = parts(found.x)
    return slope, offset, pairs, expit(shares)


def deal_folds(
    rows: int, folds: int, *, seed: int = 0, group: Values | None = None
) -> NDArray[np.int64]:
    """Return the number of the fold (N,) of each row; rows of one ``group`` (N,) share a fold."""
    units = np.arange(rows) if group is None else np.unique(group, return_inverse=True)[1]
    count = int(units.max(initial=-1)) + 1
    if not 2 <= folds <= count:
        what = "rows" if group is None else "groups"
        raise SettingsError(f"folds must lie between 2 and the {count} {what}, got {folds}")
    return folds_of(count, folds, seed & 0xFFFFFFFF)[units]  # the bits that torch takes


def _folds(rows: int, folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Return masks (N,) of the rows held out."""
    dealt = deal_folds(rows, folds, seed=seed)
    return [dealt == number for number in range(folds)]


def _arrays(
    scores: Array, labels: Array, observed: Array | None
) -> tuple[Numbers, Numbers, NDArray[np.bool_] | None]:
    values, truth = (to_numpy(part).astype(np.float64) for part in (scores, labels))
    known = None if observed is None else as_mask(to_numpy(observed), "observed").astype(bool)
    check_shapes(scores=values, labels=truth, observed=known)
    return values, truth, known


SuspectKind = Literal["missing", "wrong"]
FIRST_STRETCH = 50


@dataclass(frozen=True, eq=False)
class Suspects:
    """Entries (photo, label) that may be mistakes, and the chances that the label is there."""

    kind: SuspectKind
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    probs: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class SuspectPromise:
    """The first ``count`` suspects hold at most ``level`` false ones, with ``confidence``."""

    count: int
    level: float
    confidence: float
    checked: int
    false: int
    stretches: tuple[tuple[int, int, int], ...]  # size, checked, found false

    def __str__(self) -> str:
        level, sure = f"at most {self.level:.0%}", f"{self.confidence:.0%} confidence"
        if not self.count:
            size, checked, false = self.stretches[0] if self.stretches else (0, 0, 0)
            return (
                f"nothing can be promised: of {checked} checked among the first {size}, "
                f"{false} were false, too many for {level} with {sure}"
            )
        return (
            f"promised with {sure}: {level} of the first {self.count:,} suspects are false; "
            f"{self.checked:,} of them were checked, {self.false:,} were false"
        )


def find_suspects(
    log_odds: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    kind: SuspectKind,
    most: int = 1000,
) -> Suspects:
    """Return the ``most`` likeliest suspects among the known entries of one kind."""
    if kind not in ("missing", "wrong"):
        raise ValueError(f"kind must be 'missing' or 'wrong', got {kind!r}")
    odds, truth = to_numpy(log_odds), to_numpy(labels)
    known = None if observed is None else as_mask(to_numpy(observed), "observed")
    check_shapes(log_odds=odds, labels=truth, observed=known)
    asked = truth == (kind == "wrong")
    places = np.flatnonzero(asked if known is None else asked & known)
    doubt = odds.reshape(-1)[places] * (-1 if kind == "missing" else 1)
    if np.isnan(doubt).any():
        raise ValueError("log_odds must not be NaN where a label is known, got NaN")
    keep = min(most, len(places))
    if 0 < keep < len(places):
        first = doubt <= np.partition(doubt, keep - 1)[keep - 1]  # and those tied with the last
        places, doubt = places[first], doubt[first]
    places = places[np.lexsort((places, doubt))][:keep]
    rows, columns = np.divmod(places, odds.shape[1])
    return Suspects(kind, rows, columns, expit(odds[rows, columns].astype(np.float64)))


def stretches(count: int) -> list[slice]:
    """Return the stretches of a list: the first 50, then as many as came before.

    >>> stretches(230)[2]
    slice(100, 200, None)
    """
    ends = [0]
    while ends[-1] < count:
        ends.append(min(max(FIRST_STRETCH, 2 * ends[-1]), count))
    return [slice(*ends_of) for ends_of in pairwise(ends)]


def marked_checks(count: int, *, per_stretch: int = 50, seed: int = 0) -> NDArray[np.bool_]:
    """Mask (count,) of the suspects that a person should check: random ones of each stretch."""
    rng = np.random.default_rng(seed)
    marked = np.zeros(count, dtype=bool)
    for stretch in stretches(count):
        size = stretch.stop - stretch.start
        marked[stretch.start + rng.choice(size, min(per_stretch, size), replace=False)] = True
    return marked


def promise_suspects(
    marked: NDArray[np.bool_] | Sequence[bool],
    confirmed: Mapping[int, bool],
    *,
    level: float,
    confidence: float = 0.95,
) -> SuspectPromise:
    """Return how many suspects from the top of a list hold at most a share ``level`` of false ones.

    ``confirmed`` says by rank whether a marked suspect is a mistake; what a person cannot tell
    counts as false. A stretch with marked suspects that nobody answered ends the list.
    """
    from scipy.stats import hypergeom  # slow to import, and seldom needed

    if not 0 < level < 1 or not 0 < confidence < 1:
        raise ValueError(f"level and confidence must lie in (0, 1), got {level} and {confidence}")
    chosen = np.flatnonzero(np.asarray(marked))
    count = checked = false = 0
    looked: list[tuple[int, int, int]] = []
    for stretch in stretches(len(marked)):
        own = [rank for rank in chosen.tolist() if stretch.start <= rank < stretch.stop]
        if not own or any(rank not in confirmed for rank in own):
            break
        size, seen = stretch.stop - stretch.start, sum(not confirmed[rank] for rank in own)
        looked.append((size, len(own), seen))
        too_many = floor(level * size + 1e-9) + 1
        if float(hypergeom.cdf(seen, size, min(too_many, size), len(own))) > 1 - confidence:
            break
        count, checked, false = stretch.stop, checked + len(own), false + seen
    return SuspectPromise(count, level, confidence, checked, false, tuple(looked))
