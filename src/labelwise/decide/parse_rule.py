"""Rules by name: the text of settings and of the command line, turned into what fits the rule.

    auto                of expected-f, best-f-shared and best-f-shrunk, the best F over images
    0.5                 p >= 0.5                       top-4          the 4 most probable labels
    expected-f          the most expected F1           average-3      3 labels per image on average
    best-f              the best F1                    cost-1-5       false alarm 1, miss 5
    best-f-shrunk       the same per label, drawn to the shared one where positives are few
    precision-0.9       the most recall with it        recall-0.9     the most precision with it
    sensitivity-0.95    recall by its other name       specificity-0.9   the most recall with it
    false-alarms-5/1000 the most recall with at most 5 false alarms of a label per 1,000 photos
    false-alarms-2/day  the same per day, where the photos' times say how many a day has
    miss-rate-0.1       at most 10 % missed and        false-alarms-0.05
                        5 % false alarms expected on new images (conformal risk control)
    wrong-rate-0.1      at most 10 % of the    mean-f-0.5     F1 of 0.5 or more, both
                        chosen labels wrong                   expected on new images

Shares are also written as percentages: ``precision-90`` and ``precision-90%``. Tuned thresholds
are per label unless the text ends in ``-shared``; those of risk control are shared unless it ends
in ``-per-label``. The defaults are those of the functions that fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.decide.arrays import Answers, read_answers
from labelwise.decide.risk import control_f, control_false_alarms, control_precision, control_recall
from labelwise.decide.rules import ExpectedF, Rule, Threshold, TopK
from labelwise.decide.thresholds import (
    average_k,
    best_f,
    false_alarms_at,
    least_cost,
    precision_at,
    recall_at,
    shrunken_f,
    specificity_at,
)
from labelwise.errors import SettingsError
from labelwise.numeric.arrays import Array as Matrix
from labelwise.numeric.groups import Groups

Fit = Callable[[Matrix, Matrix, Matrix | None], Rule]

# The rule ``auto``: of three, the one with the best F over images by cross-validation.
#
#     expected-f       the set of most expected F1 of each image; needs no fit
#     best-f-shared    one threshold of best F1 for all labels
#     best-f-shrunk    a threshold of best F1 per label, drawn to the shared one
#
# F over images is the mean of each image's F1, over known labels; an image that has none and is
# given none counts 1. Rows are dealt into folds once, each rule is fitted without a fold and
# judged on it. The earlier of two equals is taken: it has fewer numbers to fit.


FOLDS = 5
MOST_ROWS = 5000  # are enough to tell the rules apart


def _expected(probs: Matrix, labels: Matrix, observed: Matrix | None) -> Rule:
    return ExpectedF()


CANDIDATES: Mapping[str, Fit] = {
    "expected-f": _expected,
    "best-f-shared": partial(best_f, scope="shared"),
    "best-f-shrunk": shrunken_f,
}


def image_f(sets: NDArray[np.bool_], answers: Answers) -> NDArray[np.float64]:
    """Return the F1 (N,) of each image's set over its known labels."""
    chosen = sets & (answers.present | answers.absent)
    both = 2.0 * (chosen & answers.present).sum(1)
    size = chosen.sum(1) + answers.present.sum(1)
    return np.where(size > 0, both / np.maximum(size, 1), 1.0)


def mean_f_of(
    fit: Fit, probs: Matrix, labels: Matrix, observed: Matrix | None = None
) -> float | None:
    """Return the F over images of a rule by cross-validation, None where it cannot be fitted."""
    answers = read_answers(probs, labels, observed)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(answers.probs))[:MOST_ROWS]
    known = (answers.present | answers.absent).astype(np.float64)
    scores = []
    for held in np.array_split(rows, min(FOLDS, len(rows))):
        others = np.setdiff1d(rows, held)
        try:
            with catch_warnings():
                simplefilter("ignore")  # of labels without a positive in a fold
                parts = (array[others] for array in (answers.probs, answers.present * 1.0, known))
                rule = fit(*parts)
        except ValueError:
            return None
        fold = Answers(answers.probs[held], answers.present[held], answers.absent[held])
        scores.append(image_f(np.asarray(rule(answers.probs[held])), fold))
    return float(np.concatenate(scores).mean())


def choose_rule(
    probs: Matrix, labels: Matrix, observed: Matrix | None = None
) -> tuple[str, dict[str, float]]:
    """Return the name of the best candidate, and the F over images of each that can be fitted."""
    scores = {
        name: score
        for name, fit in CANDIDATES.items()
        if (score := mean_f_of(fit, probs, labels, observed)) is not None
    }
    return max(scores, key=scores.__getitem__), scores


RULE_EXAMPLES = (
    "auto, 0.5, best-f, expected-f, top-4, average-3, precision-0.9, recall-0.9, cost-1-5, "
    "sensitivity-0.95, specificity-0.9, false-alarms-5/1000, "
    "miss-rate-0.1, false-alarms-0.05, wrong-rate-0.1, mean-f-0.5"
)
AUTO = "auto"
RISK_CONTROL = ("miss-rate", "false-alarms", "wrong-rate", "mean-f")
DAY = "day"
SCOPES = {"-shared": "shared", "-per-label": "label"}
SCOPE_WORDS = {"shared": "one for all labels", "label": "per label"}


SHARES_AT: dict[str, tuple[Callable[..., Rule], str]] = {
    "precision": (precision_at, "precision"),
    "recall": (recall_at, "recall"),
    "sensitivity": (recall_at, "recall"),
    "specificity": (specificity_at, "specificity"),
}


@dataclass(frozen=True)
class RuleFit:
    """What a rule's text means: in words, and how it is fitted. ``fixed`` rules need no fit.

    What rules ``by_group`` expect of new images they expect of new groups, where there are some.
    """

    text: str
    words: str
    fit: Fit
    fixed: Rule | None = None
    by_group: bool = False

    def __call__(
        self,
        probs: Matrix,
        labels: Matrix,
        observed: Matrix | None = None,
        groups: Groups | None = None,
    ) -> Rule:
        """Return the rule fitted to probabilities and labels (N, K)."""
        try:
            if groups is not None and self.by_group:
                fit: Any = self.fit  # of RISK_CONTROL, which takes groups
                fitted: Rule = fit(probs, labels, observed, groups=groups)
                return fitted
            return self.fit(probs, labels, observed)
        except ValueError as error:
            raise SettingsError(f"rule {self.text!r} cannot be fitted: {error}") from None

    def with_words(
        self,
        probs: Matrix,
        labels: Matrix,
        observed: Matrix | None = None,
        groups: Groups | None = None,
    ) -> tuple[Rule, str]:
        """Return the fitted rule and what it is in words; ``auto`` says what it chose and why."""
        if self.text != AUTO:
            by_group = groups is not None and self.by_group
            words = f"{self.words}, over groups" if by_group else self.words
            return self(probs, labels, observed, groups), words
        name, scores = choose_rule(probs, labels, observed)
        chosen = find_rule(name)
        others = ", ".join(
            f"{other} {score:.3f}" for other, score in scores.items() if other != name
        )
        beside = f", {others}" if others else ""
        why = f"chosen by F over images in cross-validation: {name} {scores[name]:.3f}{beside}"
        return chosen(probs, labels, observed), f"{chosen.words} ({why})"


def find_rule(text: str, photos_per_day: float | None = None) -> RuleFit:
    """Return what fits the rule of a text; rules per day need ``photos_per_day``.

    >>> find_rule("top-4").fixed, find_rule("precision-90").words
    (TopK(k=4), 'precision 0.9, per label')
    """
    base, scope = text.strip(), None
    for suffix, value in SCOPES.items():
        if base.endswith(suffix):
            base, scope = base.removesuffix(suffix), value
    kind, _, number = base.rpartition("-")
    try:
        tuned = _tuned(base, kind, number, photos_per_day)
        if tuned is not None:
            fit, words = tuned
            used = scope or signature(fit).parameters["scope"].default
            words = f"{words}, {SCOPE_WORDS[used]}"
            return RuleFit(text, words, partial(fit, scope=used), by_group=_by_group(kind, number))
        whole = _whole(base, kind, number)
        if whole is not None and scope is None:
            return RuleFit(text, *whole, by_group=_by_group(kind, number))
    except ValueError as error:
        raise SettingsError(f"rule {text!r}: {error}") from None
    raise SettingsError(
        f"unknown rule {text!r}; use one like {RULE_EXAMPLES} "
        "(tuned thresholds: per label, or with -shared one for all labels)"
    )


def fit_rule(
    text: str,
    probs: Matrix,
    labels: Matrix,
    observed: Matrix | None = None,
    groups: Groups | None = None,
    photos_per_day: float | None = None,
) -> tuple[Rule, str]:
    """Return the rule of a text, fitted to held-out rows, and what it is in words."""
    return find_rule(text, photos_per_day).with_words(probs, labels, observed, groups)


def _by_group(kind: str, number: str) -> bool:
    return kind in RISK_CONTROL and "/" not in number


def _tuned(
    base: str, kind: str, number: str, photos_per_day: float | None
) -> tuple[Callable[..., Rule], str] | None:
    """Return the fit of thresholds, shared or per label."""
    if base == "best-f":
        return best_f, "threshold of best F1"
    if base.startswith("cost-"):
        false_alarm, miss = _numbers(base.removeprefix("cost-"), 2)
        if false_alarm <= 0 or miss <= 0:
            raise ValueError(f"costs must be positive, got {false_alarm:g} and {miss:g}")
        words = f"least cost, a false alarm {false_alarm:g} and a miss {miss:g}"
        return partial(least_cost, false_alarm=false_alarm, miss=miss), words
    if kind in SHARES_AT:
        share = _share(number, most=1.0)
        fit, name = SHARES_AT[kind]
        return partial(fit, **{name: share}), f"{kind} {share:g}"
    if kind == "false-alarms" and "/" in number:
        return _alarms(number, photos_per_day)
    if kind == "miss-rate":
        share = _share(number)
        return partial(control_recall, miss_rate=share), f"expected miss rate at most {share:g}"
    if kind == "false-alarms":
        share = _share(number)
        return partial(control_false_alarms, rate=share), (
            f"expected false alarms at most {share:g} of the absent labels"
        )
    return None


def _alarms(number: str, photos_per_day: float | None) -> tuple[Callable[..., Rule], str]:
    """Return the fit of so many false alarms per number of photos, or per day."""
    count, _, unit = number.partition("/")
    alarms = _number(count)
    if unit == DAY:
        if photos_per_day is None:
            raise ValueError(
                "false alarms per day need the time of each row; use a table with a column 'time', "
                "or count them per photos, as in false-alarms-5/1000"
            )
        photos, words = photos_per_day, f"per day, at {photos_per_day:,.4g} photos a day"
    else:
        photos = _number(unit)
        words = f"per {photos:,g} photos"
    if not (0 < alarms < float("inf") and 0 < photos < float("inf")):
        raise ValueError(f"false alarms and photos must be positive numbers, got {number}")
    fit = partial(false_alarms_at, per_photo=alarms / photos)
    return fit, f"at most {alarms:g} false alarms {words}"


def _whole(base: str, kind: str, number: str) -> tuple[str, Fit, Rule | None] | None:
    """Return the words and the fit of a rule for all labels, and the rule if it needs no fit."""
    if kind == "average":
        (k,) = _numbers(number, 1)
        if k <= 0:
            raise ValueError(f"labels per image must be positive, got {k:g}")
        return f"{k:g} labels per image on average", partial(_average, k=k), None
    if kind == "wrong-rate":
        share = _share(number)
        words = f"expected share of wrong labels at most {share:g}"
        return words, partial(control_precision, wrong_rate=share), None
    if kind == "mean-f":
        share = _share(number)
        return f"expected F1 of at least {share:g}", partial(control_f, level=share), None
    if base == AUTO:
        return "the best F over images by cross-validation", _auto, None
    if base == "best-f-shrunk":
        return "threshold of best F1, per label, drawn to one for all labels", shrunken_f, None
    if base == "expected-f":
        rule: Rule = ExpectedF()
        words = "the set of most expected F1"
    elif kind == "top":
        if not number.isdecimal():
            raise ValueError(f"the number of labels must be whole, got {number!r}")
        rule, words = TopK(int(number)), f"the {int(number)} most probable labels"
    else:
        try:
            rule, words = Threshold(float(base)), f"p >= {base}"
        except ValueError:
            return None
    return words, lambda probs, labels, observed: rule, rule


def _auto(probs: Matrix, labels: Matrix, observed: Matrix | None) -> Rule:
    name, _ = choose_rule(probs, labels, observed)
    return find_rule(name)(probs, labels, observed)


def _average(probs: Matrix, labels: Matrix, observed: Matrix | None, *, k: float) -> Rule:
    return average_k(probs, k)


def _numbers(text: str, count: int) -> list[float]:
    parts = text.split("-")
    if len(parts) != count:
        raise ValueError(f"it must hold {count} number(s) separated by '-', got {text!r}")
    return [_number(number) for number in parts]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"it must hold a number, got {text!r}") from None


def _share(text: str, most: float = 0.9999999) -> float:
    """Return a share in (0, 1]; from 1 to 100, or with a percent sign, it is a percentage."""
    value = _number(text.removesuffix("%"))
    share = value / 100 if text.endswith("%") or value > 1 else value
    if not 0 < share <= most:
        raise ValueError(f"a share such as 0.9 or 90% must lie in (0, 1], got {text}")
    return share
