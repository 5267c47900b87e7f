"""Promise: a statement about risk that was tested on photos of its own, and can be tested again.

    recall      share of an image's labels that are chosen, mean over images that carry a label
    precision   share of the chosen labels that are right, mean over images that get a label
    f           F-beta of the image's set, mean over all images; 1 where both sets are empty
    tags        share of right ones among all chosen labels of all images together
    list        share of right ones among the images that a list holds
    answers     share of right answers among the images that are not left to a person

Any label chosen for an image without labels is wrong, and its empty set is right. A promise holds
on photos exchangeable with those it was made on, if these fitted neither weights nor link nor rule;
with probability ``confidence`` over the draw of those photos. Photos in groups are exchangeable
only by whole groups: the groups are tested, each counting the same. Its kind says what it is about:

    tested     photos like the held-out ones, in the long run; of a rule, or a list of 0.1
    checked    this list; a person answered about photos of it that were drawn at random
    expected   such lists on average, without a confidence. Receipts of version 0.2 have it
    sure       this list, if the library's photos are like the held-out ones. Likewise
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Mask, Numbers, Values, require_finite
from labelwise.base.bounds import ratio_interval
from labelwise.base.groups import Groups
from labelwise.base.special import bdtrc
from labelwise.base.text import counted
from labelwise.decide.arrays import Answers, read_answers
from labelwise.decide.estimate import exact_count_bounds
from labelwise.errors import DataError, SettingsError
from labelwise.types import nearest

Verdict = Literal["kept", "broken", "cannot tell"]
Kind = Literal["tested", "expected", "sure", "checked"]
What = Literal["recall", "precision", "f", "tags", "list", "answers"]
WORDS = {
    "recall": "of the labels of an image are found, on average over images that carry one",
    "precision": "of the chosen labels are right, on average over images that get one",
    "f": "is the mean F1 of the sets, over all images",
    "tags": "of all chosen labels together are right",
    "list": "of the images on the list are right",
    "answers": "of the answered images are right",
}
ONE_LABEL = {
    "recall": "of the images that carry this label are found",
    "precision": "of the images that get this label carry it",
}


@dataclass(frozen=True)
class Promise:
    """What is promised at which level, with which confidence, on how many and which photos.

    ``labels`` is empty where it concerns all labels; ``observed`` is the value on the photos it
    was made on, of which ``counted`` entered the test; ``photos_digest`` is of their ids.
    ``at_most`` is the most labels an image gets, where the promise depends on it. A list has
    ``listed`` photos, of which a person ``checked`` some; ``n`` is 0 where no held-out photo was
    needed. Where photos come in groups, ``groups`` were counted, ``over_photos`` is the value if
    each photo counts the same, and ``design_effect`` how many photos say no more than one
    independent photo would.
    """

    what: What
    level: float
    confidence: float | None
    n: int
    counted: int
    observed: float
    photos: str
    made: str
    test: str
    labels: tuple[str, ...] = ()
    at_most: int | None = None
    photos_digest: str = ""
    kind: Kind = "tested"
    listed: int | None = None
    checked: int | None = None
    groups: int | None = None
    over_photos: float | None = None
    design_effect: float | None = None

    def __post_init__(self) -> None:
        words = ("promise", self.what, get_args(What)), ("kind", self.kind, get_args(Kind))
        for name, value, known in words:
            if value not in known:
                raise SettingsError(f"unknown {name} {value!r}{nearest(str(value), known)}")
        if (self.confidence is None) != (self.kind == "expected"):
            got = f"{self.confidence} for {self.kind!r}"
            raise SettingsError(f"only an expected promise is without a confidence, got {got}")
        sure = 0.5 if self.confidence is None else self.confidence
        for name, share in (("level", self.level), ("confidence", sure)):
            if not isinstance(share, int | float) or not 0 < share < 1:
                raise SettingsError(f"a promise's {name} must lie between 0 and 1, got {share}")
        object.__setattr__(self, "labels", tuple(self.labels))

    def spec(self) -> dict[str, object]:
        return {**asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "Promise":
        names = {field.name for field in fields(cls)}
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        unknown, missing = sorted(set(spec) - names), sorted(needed - set(spec))
        if unknown or missing:
            wrong = (
                f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}"
            )
            raise SettingsError(f"a promise must hold {', '.join(sorted(names))}; {wrong}")
        try:
            require_finite(spec, "promise")
            for name in ("n", "counted", "observed"):
                float(spec[name])
            return cls(**spec)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"a promise cannot be read: {error}") from None

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, query: str = "") -> str:
        if self.kind != "tested":
            return self._list_in_words(query)
        words, among, whose, groups, over = WORDS[self.what], "", "", "", ""
        if self.labels:
            words = ONE_LABEL.get(self.what, words) if len(self.labels) == 1 else words
            more = f" and {len(self.labels) - 3} more" if len(self.labels) > 3 else ""
            whose = f" ({', '.join(self.labels[:3])}{more})"
        if self.groups is not None:
            among = ", and over groups, each counting the same"
            groups = f" in {self.groups:,} groups"
            if self.design_effect is not None:
                worth = self.counted / max(self.design_effect or 1.0, 1.0)
                groups += f", as good as {worth:,.0f} independent ones"
        if self.over_photos is not None:
            over = f" (over photos {self.over_photos:.1%})"
        return (
            f"promised with {self.confidence:.0%} confidence: at least {self.level:.1%} "
            f"{words}{among}{whose}; made on {self.n:,} photos ({self.photos}), "
            f"{self.counted:,} counted{groups}, value there {self.observed:.1%}{over}"
        )

    def _list_in_words(self, query: str) -> str:
        wrong, listed = percent(1 - self.level), counted(self.listed or 0, "photo")
        if self.kind == "expected":
            text = (
                f"on average over searches like this, at most {wrong} of a list is wrong, where a "
                f"search that is refused counts as none; this one has {listed} and may be "
                "better or worse"
            )
        elif self.kind == "checked":
            those = f"at least {100 * self.level:.3g} % of these {listed} match"
            if self.listed == 1:
                those = "this photo matches"
            sure = f"{100 * (self.confidence or 0):.3g} % confidence"
            if self.test == "known":
                sure = "known, not estimated"
            checked = counted(self.checked or 0, "photo")
            text = f"{those}{query and f' {query}'}: {sure}, {checked} checked"
        else:
            text = (
                f"with {percent(self.confidence or 0)} confidence at most {wrong} of this list of "
                f"{listed} is wrong"
            )
        if self.n:
            among = "" if self.groups is None else f" in {self.groups:,} groups"
            held_out = "held-out one" if self.n == 1 else f"{self.n:,} held-out ones"
            text += f"; it holds if these photos are like the {held_out}{among}"
        return text


def promised_today(what: What, level: float, confidence: float, **facts: Any) -> Promise:
    """Return a promise that was made today."""
    return Promise(what, level, confidence, made=datetime.now(UTC).date().isoformat(), **facts)


def check_levels(level: float, confidence: float, scope: str = "shared") -> None:
    """Raise where a level, confidence or scope cannot be used."""
    if not 0 < level < 1 or not 0 < confidence < 1:
        raise SettingsError(
            f"level and confidence must lie strictly between 0 and 1, got {level} and {confidence}"
        )
    if scope not in ("shared", "label"):
        raise SettingsError(f"scope must be 'shared' or 'label', got {scope!r}")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Photos that fitted nothing, with probabilities and labels (N, K), to make a promise on."""

    answers: Answers
    names: tuple[str, ...]
    ids: tuple[str, ...] | None = None
    photos: str = "photos"
    groups: Groups | None = None

    @classmethod
    def read(
        cls,
        probs: Array,
        labels: Array,
        observed: Array | None = None,
        *,
        names: Sequence[str] | None = None,
        ids: Iterable[str] | None = None,
        fitted_on: Iterable[str] = (),
        photos: str = "photos",
        groups: Groups | None = None,
    ) -> "Evidence":
        """Check the arrays, and that no photo is among those of the ids ``fitted_on``."""
        answers = read_answers(probs, labels, observed)
        rows, columns = answers.probs.shape
        named = tuple(names) if names is not None else tuple(f"label {k}" for k in range(columns))
        own = None if ids is None else tuple(map(str, ids))
        if len(named) != columns or (own is not None and len(own) != rows):
            raise ValueError(f"names and ids must fit probs of shape {(rows, columns)}")
        used = set(fitted_on)
        if used and own is None:
            raise ValueError("fitted_on can only be compared with ids; give both")
        shared = [name for name in own or () if name in used]
        if shared:
            raise DataError(
                f"a promise needs photos that fitted nothing, but {len(shared):,} of {rows:,} were "
                f"used for fitting, first {shared[0]!r}; keep a share of them apart for the promise"
            )
        if groups is not None and len(groups) != rows:
            raise ValueError(f"groups must be those of {rows} photos, got {len(groups)}")
        return cls(answers, named, own, photos, groups)

    def __len__(self) -> int:
        return len(self.answers.probs)

    @property
    def digest(self) -> str:
        return "" if self.ids is None else ids_digest(self.ids)

    def rows(self, chosen: NDArray[np.intp]) -> "Evidence":
        ids = None if self.ids is None else tuple(self.ids[i] for i in chosen)
        groups = None if self.groups is None else self.groups.take(chosen)
        return replace(self, answers=self.answers[chosen], ids=ids, groups=groups)

    def columns(self, chosen: Sequence[int]) -> "Evidence":
        columns = list(chosen)
        names = tuple(self.names[k] for k in columns)
        return replace(self, answers=self.answers[:, columns], names=names)

    def divided(self, share: float, seed: int) -> tuple["Evidence", "Evidence"]:
        each = Groups(np.arange(len(self)), len(self)) if self.groups is None else self.groups
        first, others = each.divided(share, seed)
        return self.rows(first), self.rows(others)


@dataclass(frozen=True)
class Check:
    """A promise on new photos: the verdict, the value with its interval, and how many counted."""

    verdict: Verdict
    value: float
    lower: float
    upper: float
    counted: int
    groups: int | None = None

    def __str__(self) -> str:
        among = "" if self.groups is None else f" in {self.groups:,} groups"
        return (
            f"{self.verdict}: {self.value:.1%} on {self.counted:,} new photos{among} "
            f"({self.lower:.1%} to {self.upper:.1%})"
        )


def check_promise(
    promise: Promise,
    sets: NDArray[np.bool_],
    labels: Array,
    observed: Array | None = None,
    *,
    names: Sequence[str] = (),
    ids: Iterable[str] | None = None,
    groups: Groups | None = None,
) -> Check:
    """Return whether the sets (N, K) that the promised rule gives on new photos keep the promise.

    Kept and broken are each said with the promise's own confidence. ``list`` and ``answers`` take
    the rows listed or answered, as sets of one column. Photos in ``groups`` are tested by group.
    """
    if promise.confidence is None:
        raise DataError("an expected promise is of such lists on average; one cannot break it")
    if ids is not None and promise.photos_digest == ids_digest(ids):
        raise DataError("these are the photos the promise was made on; check it on new ones")
    answers = read_answers(np.asarray(sets, dtype=np.float64), labels, observed)
    if promise.labels:
        missing = sorted(set(promise.labels) - set(names))
        if missing:
            raise DataError(f"the promise speaks of {missing[0]!r}{nearest(missing[0], names)}")
        answers = answers[:, [list(names).index(name) for name in promise.labels]]
    losses, counts = tally(promise.what, answers, answers.probs >= 0.5)
    photos, number = int(np.count_nonzero(counts)), None
    most = (promise.at_most or answers.probs.shape[1]) if promise.what == "tags" else 1
    if groups is not None:
        losses, counts = groups.ratios(losses, counts), groups.counted(counts)
        most, number = 1, int(np.count_nonzero(counts))
    losses, counts = losses[counts > 0], counts[counts > 0]
    lower, upper = ratio_interval(losses, counts, most, promise.confidence)
    value, low, high = 1 - float(losses.sum() / max(counts.sum(), 1e-9)), 1 - upper, 1 - lower
    verdict: Verdict = "cannot tell"
    if len(losses) and low >= promise.level:
        verdict = "kept"
    elif len(losses) and high < promise.level:
        verdict = "broken"
    return Check(verdict, value, low, high, photos, number)


def ids_digest(ids: Iterable[str]) -> str:
    """Return a hash of ids in any order."""
    text = "\n".join(sorted(map(str, ids)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def percent(share: float) -> str:
    """Return a share in words, without digits that say nothing.

    >>> percent(0.1), percent(0.125)
    ('10%', '12.5%')
    """
    return f"{100 * share:.3g}%"


def losses_of(
    what: What, hits: Numbers, chosen: Numbers, held: Values, known: Mask
) -> tuple[Numbers, Numbers]:
    """Return losses and weights of images; their sums' ratio is the risk, labels weigh tags."""
    if what == "tags":
        return chosen - hits, chosen
    if what == "recall":
        weights, losses = held > 0, 1 - hits / np.maximum(held, 1)
    elif what == "f":
        total = chosen + held
        weights, losses = known, np.where(total > 0, 1 - 2 * hits / np.maximum(total, 1), 0.0)
    else:
        weights, losses = chosen > 0, (chosen - hits) / np.maximum(chosen, 1)
    weighing = np.broadcast_to(weights, losses.shape).astype(np.float64)
    return losses * weighing, weighing


def tally(what: What, answers: Answers, sets: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """Return losses and weights (N,) of images with these sets."""
    hits, chosen = (sets & answers.present).sum(1), (sets & answers.known).sum(1)
    sizes = hits.astype(np.float64), chosen.astype(np.float64), answers.present.sum(1)
    return losses_of(what, *sizes, answers.judged)


# Of L listed photos floor(alpha L) may be wrong. If x of t photos drawn from them at random are
# wrong, the number W of wrong ones lies between
#
#     the least W with P(Hypergeometric(L, W, t) >= x) > MISJUDGED
#     the most W with  P(Hypergeometric(L, W, t) <= x) > DOUBTED
#
# and a promise is broken where the first exceeds floor(alpha L), kept where the second does not. Of
# m lists promised with confidence 1 - delta, b are broken, if the promises hold and are
# independent, with chance P(Binomial(m, delta + MISJUDGED) >= b).

MISJUDGED = 0.01
DOUBTED = 0.05
SIGNIFICANT = 0.05  # chance of as many broken promises below which they did not hold
TOLERANCE = 1e-9


@dataclass(frozen=True)
class ListAnswers:
    """Answers about the photos of a list: all of them, and those of the photos drawn at random."""

    right: int
    wrong: int
    drawn: int
    drawn_wrong: int

    def __post_init__(self) -> None:
        if not 0 <= self.drawn_wrong <= min(self.drawn, self.wrong):
            raise ValueError(f"of the wrong photos, {self.drawn_wrong} cannot have been drawn")
        if self.drawn > self.right + self.wrong:
            raise ValueError(f"{self.drawn} drawn photos must be among those answered")


@dataclass(frozen=True)
class ListVerdict:
    """Whether a list kept its promise: between ``least`` and ``most`` of its photos are wrong.

    ``share`` is the estimate of the wrong share, None without a drawn photo; ``more`` is how many
    more photos it takes if all are right, 0 where it is settled.
    """

    verdict: Verdict
    promise: Promise
    answers: ListAnswers
    least: int
    most: int
    share: float | None
    more: int

    @property
    def certain(self) -> bool:
        """Whether enough photos were answered that no chance is left."""
        listed = self.promise.listed or 0
        allowed = _allowed(self.promise)
        return self.answers.wrong > allowed or self.answers.right >= listed - allowed

    def __str__(self) -> str:
        known, listed = self.answers, self.promise.listed or 0
        answered = known.right + known.wrong
        seen = f"{known.drawn_wrong:,} of {known.drawn:,} photos drawn from it are wrong"
        if known.drawn < answered:
            seen += f", {known.wrong:,} of {answered:,} answered in all"
        if not answered:
            seen = "no photo of it was answered"
        over = " on average over searches" if self.promise.kind == "expected" else ""
        wrong = f"{self.least:,}" + (f" to {self.most:,}" if self.most > self.least else "")
        tail = f"; {self.more:,} more right answers would tell" if self.more else ""
        return (
            f"{self.verdict}: {seen}; {wrong} of its {listed:,} photos are wrong, "
            f"{percent(1 - self.promise.level)} may be{over}{tail}"
        )


@dataclass(frozen=True)
class KeptLists:
    """How many of the lists that can be judged kept their promise, and what that says of them all.

    ``allowed`` is how many broken ones the promises let one expect, and ``chance`` that of as many
    as there are, or more, if they hold.
    """

    told: int
    kept: int
    untold: int
    allowed: float
    chance: float

    @property
    def verdict(self) -> Verdict:
        """Whether the promises hold together: kept where no more are broken than allowed."""
        broken = self.told - self.kept
        if broken and self.chance <= SIGNIFICANT + TOLERANCE:
            return "broken"
        return "kept" if self.told and broken <= self.allowed + TOLERANCE else "cannot tell"

    def __str__(self) -> str:
        broken = self.told - self.kept
        parts = {
            f"kept in {self.kept:,} of {self.told:,}": self.told,
            f"promises that hold break {broken:,} or more of {self.told:,} with chance "
            f"{self.chance:.2g}, if they are independent": broken,
            f"{self.untold:,} cannot be decided yet": self.untold,
        }
        return "; ".join(text for text, said in parts.items() if said) or "nothing was promised"


def judge_list(promise: Promise, answers: ListAnswers) -> ListVerdict:
    """Return what answers about the photos of a list say of its promise."""
    listed = promise.listed
    if promise.what != "list" or listed is None:
        raise DataError(f"only a promise of a list can be judged by its photos, got {promise.what}")
    if answers.right + answers.wrong > listed:
        raise DataError(f"a list of {listed:,} photos cannot have more answers than that")
    least, most = _between(listed, answers)
    share = answers.drawn_wrong / answers.drawn if answers.drawn else None
    if answers.right + answers.wrong == listed:
        share = answers.wrong / listed
    allowed, more = _allowed(promise), 0
    verdict: Verdict = "cannot tell"
    if promise.kind == "expected":
        pass
    elif least > allowed:
        verdict = "broken"
    elif most <= allowed:
        verdict = "kept"
    else:  # how many more drawn photos settle it, if all of them are right
        rest = range(1, listed - answers.right - answers.wrong + 1)

        def settled(more: int) -> bool:
            right, drawn = answers.right + more, answers.drawn + more
            return _between(listed, replace(answers, right=right, drawn=drawn))[1] <= allowed

        position = bisect_left(rest, True, key=settled)
        more = rest[position] if position < len(rest) else 0
    return ListVerdict(verdict, promise, answers, least, most, share, more)


def judge_lists(verdicts: Sequence[ListVerdict]) -> KeptLists:
    """Return how many lists kept their promise, and the chance of as many broken ones."""
    told = [verdict for verdict in verdicts if verdict.verdict != "cannot tell"]
    kept = sum(verdict.verdict == "kept" for verdict in told)
    worst = max(
        (1 - (own.promise.confidence or 0) + MISJUDGED * (not own.certain) for own in told),
        default=0.0,
    )
    broken = len(told) - kept
    chance = float(bdtrc(broken - 1, len(told), worst)) if broken else 1.0
    return KeptLists(len(told), kept, len(verdicts) - len(told), worst * len(told), chance)


def _allowed(promise: Promise) -> int:
    return int((1 - promise.level) * (promise.listed or 0) + TOLERANCE)


def _between(listed: int, answers: ListAnswers) -> tuple[int, int]:
    low, high = answers.wrong, listed - answers.right
    if not answers.drawn:
        return low, high
    drawn = answers.drawn_wrong, answers.drawn, listed
    least, _ = exact_count_bounds(*drawn, 1 - 2 * MISJUDGED)
    _, most = exact_count_bounds(*drawn, 1 - 2 * DOUBTED)
    least = max(least, low)
    return least, max(least, min(most, high))
