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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from warnings import catch_warnings, simplefilter

import numpy as np

from labelwise.base.arrays import Array
from labelwise.base.groups import Groups
from labelwise.decide.arrays import read_answers
from labelwise.decide.rules import ExpectedF, Rule, Threshold, TopK
from labelwise.decide.thresholds import (
    average_k,
    best_f,
    control_f,
    control_false_alarms,
    control_precision,
    control_recall,
    false_alarms_at,
    least_cost,
    precision_at,
    recall_at,
    shrunken_f,
    specificity_at,
)
from labelwise.errors import SettingsError

Fit = Callable[..., Rule]  # of probabilities, labels and what is observed, or None

RULE_EXAMPLES = (
    "auto, 0.5, best-f, expected-f, top-4, average-3, precision-0.9, recall-0.9, cost-1-5, "
    "sensitivity-0.95, specificity-0.9, false-alarms-5/1000, "
    "miss-rate-0.1, false-alarms-0.05, wrong-rate-0.1, mean-f-0.5"
)
AUTO = "auto"
NAMED: dict[str, tuple[str, Fit | Rule]] = {
    AUTO: (
        "the best F over images by cross-validation",
        lambda *answers: find_rule(choose_rule(*answers)[0])(*answers),
    ),
    "best-f": ("threshold of best F1", best_f),
    "best-f-shrunk": ("threshold of best F1, per label, drawn to one for all labels", shrunken_f),
    "expected-f": ("the set of most expected F1", ExpectedF()),
}
SCOPES = {"-shared": "shared", "-per-label": "label"}
SCOPE_WORDS = {"shared": "one for all labels", "label": "per label"}
ALARMS = "expected false alarms at most {:g} of the absent labels"
SHARES: dict[str, tuple[Fit, str, str]] = {  # rules of one share: its argument, and the words
    "precision": (precision_at, "precision", "precision {:g}"),
    "recall": (recall_at, "recall", "recall {:g}"),
    "sensitivity": (recall_at, "recall", "sensitivity {:g}"),
    "specificity": (specificity_at, "specificity", "specificity {:g}"),
    "miss-rate": (control_recall, "miss_rate", "expected miss rate at most {:g}"),
    "false-alarms": (control_false_alarms, "rate", ALARMS),
    "wrong-rate": (control_precision, "wrong_rate", "expected share of wrong labels at most {:g}"),
    "mean-f": (control_f, "level", "expected F1 of at least {:g}"),
}

# The rule ``auto``: of three, the one with the best F over images by cross-validation. That is the
# mean of each image's F1, over known labels; an image that has none and is given none counts 1.
# The earlier of two equals is taken: it has fewer numbers to fit.
CANDIDATES = ("expected-f", "best-f-shared", "best-f-shrunk")
FOLDS = 5
MOST_ROWS = 5000  # are enough to compare the rules


def mean_f_of(fit: Fit, probs: Array, labels: Array, observed: Array | None = None) -> float | None:
    """Return the mean F1 of images by cross-validation; None where the rule cannot be fitted."""
    answers = read_answers(probs, labels, observed)
    rows = np.random.default_rng(0).permutation(len(answers.probs))[:MOST_ROWS]
    scores = []
    for held in np.array_split(rows, min(FOLDS, len(rows))):
        others, fold = answers[np.setdiff1d(rows, held)], answers[held]
        try:
            with catch_warnings():
                simplefilter("ignore")  # of labels without a positive in a fold
                rule = fit(others.probs, others.present * 1.0, others.known * 1.0)
        except ValueError:
            return None
        scores.append(fold.f1(np.asarray(rule(fold.probs))))
    return float(np.concatenate(scores).mean())


def choose_rule(
    probs: Array, labels: Array, observed: Array | None = None
) -> tuple[str, dict[str, float]]:
    """Return the name of the best candidate, and the F over images of each that can be fitted."""
    scores = {
        name: score
        for name in CANDIDATES
        if (score := mean_f_of(find_rule(name).fit, probs, labels, observed)) is not None
    }
    return max(scores, key=scores.__getitem__), scores


@dataclass(frozen=True)
class RuleFit:
    """What a rule's text means: in words, and how it is fitted. ``fixed`` rules need no fit."""

    text: str
    words: str
    fit: Fit
    fixed: Rule | None = None

    @property
    def by_group(self) -> bool:
        """Whether the fit takes ``groups``, so that its guarantee is about photos of new groups."""
        return "groups" in signature(self.fit).parameters

    def __call__(
        self,
        probs: Array,
        labels: Array,
        observed: Array | None = None,
        groups: Groups | None = None,
    ) -> Rule:
        grouped = {"groups": groups} if groups is not None and self.by_group else {}
        try:
            return self.fit(probs, labels, observed, **grouped)
        except ValueError as error:
            raise SettingsError(f"rule {self.text!r} cannot be fitted: {error}") from None


def fit_rule(
    text: str,
    probs: Array,
    labels: Array,
    observed: Array | None = None,
    groups: Groups | None = None,
    photos_per_day: float | None = None,
) -> tuple[Rule, str]:
    """Return the rule of a text, fitted to held-out rows, and what it is in words."""
    fit = find_rule(text, photos_per_day)
    if text != AUTO:
        among = ", over groups" if groups is not None and fit.by_group else ""
        return fit(probs, labels, observed, groups), fit.words + among
    answers = read_answers(probs, labels, observed)
    if not answers.absent.any():  # then giving every label would look best
        noted = max(1.0, float(answers.present.sum() / max(len(answers.probs), 1)))
        chosen = find_rule(f"average-{noted:g}")
        why = "as many labels as are noted: none is known to be absent"
        return chosen(probs, labels, observed), f"{chosen.words} ({why})"
    best, scores = choose_rule(probs, labels, observed)
    chosen = find_rule(best)
    ranked = ", ".join(f"{name} {scores[name]:.3f}" for name in dict.fromkeys((best, *scores)))
    why = f"chosen by F over images in cross-validation: {ranked}"
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
    try:
        words, fit = _parsed(base, photos_per_day)
    except ValueError as error:
        raise SettingsError(f"rule {text!r}: {error}") from None
    if isinstance(fit, Rule) and not scope:
        return RuleFit(text, words, lambda probs, labels, observed: fit, fit)
    scoped = None if fit is None else signature(fit).parameters.get("scope")
    if fit is None or isinstance(fit, Rule) or (scope and not scoped):
        raise SettingsError(
            f"unknown rule {text!r}; use one like {RULE_EXAMPLES} "
            "(tuned thresholds: per label, or with -shared one for all labels)"
        )
    if scoped:
        scope = scope or scoped.default
        return RuleFit(text, f"{words}, {SCOPE_WORDS[scope]}", partial(fit, scope=scope))
    return RuleFit(text, words, fit)


def _parsed(base: str, photos_per_day: float | None) -> tuple[str, Fit | Rule | None]:
    """Return a rule in words, and its fit, or the rule if it is fixed; None if there is none."""
    kind, _, number = base.rpartition("-")
    if base in NAMED:
        return NAMED[base]
    if base.startswith("cost-"):
        false_alarm, miss = _numbers(base.removeprefix("cost-"), 2)
        if false_alarm <= 0 or miss <= 0:
            raise ValueError(f"costs must be positive, got {false_alarm:g} and {miss:g}")
        words = f"least cost, a false alarm {false_alarm:g} and a miss {miss:g}"
        return words, partial(least_cost, false_alarm=false_alarm, miss=miss)
    if kind == "false-alarms" and "/" in number:
        return _alarms(number, photos_per_day)
    if kind in SHARES:
        fit, name, words = SHARES[kind]
        tuned = fit in (precision_at, recall_at, specificity_at)
        share = _share(number, most=1.0 if tuned else 0.9999999)
        return words.format(share), partial(fit, **{name: share})
    if kind == "average":
        (k,) = _numbers(number, 1)
        if k <= 0:
            raise ValueError(f"labels per image must be positive, got {k:g}")
        return f"{k:g} labels per image on average", lambda probs, *_: average_k(probs, k)
    if kind == "top":
        if not number.isdecimal():
            raise ValueError(f"the number of labels must be whole, got {number!r}")
        return f"the {int(number)} most probable labels", TopK(int(number))
    try:
        return f"p >= {base}", Threshold(float(base))
    except ValueError:
        return "", None


def _alarms(number: str, photos_per_day: float | None) -> tuple[str, Fit]:
    count, _, unit = number.partition("/")
    alarms = _number(count)
    if unit == "day":
        if photos_per_day is None:
            way = "use a table with a column 'time', or say it per photos: false-alarms-5/1000"
            raise ValueError(f"false alarms per day need the time of each row; {way}")
        photos, words = photos_per_day, f"per day, at {photos_per_day:,.4g} photos a day"
    else:
        photos = _number(unit)
        words = f"per {photos:,g} photos"
    if not (0 < alarms < float("inf") and 0 < photos < float("inf")):
        raise ValueError(f"false alarms and photos must be positive numbers, got {number}")
    fit = partial(false_alarms_at, per_photo=alarms / photos)
    return f"at most {alarms:g} false alarms {words}", fit


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


def _share(text: str, most: float) -> float:
    """Return a share in (0, 1]; from 1 to 100, or with a percent sign, it is a percentage."""
    value = _number(text.removesuffix("%"))
    share = value / 100 if text.endswith("%") or value > 1 else value
    if not 0 < share <= most:
        raise ValueError(f"a share such as 0.9 or 90% must lie in (0, 1], got {text}")
    return share
