"""Answers to queries over an index: which photos, how probable, how many, how many of them wrong.

Photos are ranked by the product of their labels' probabilities, the labels being independent given
the photo. They are not quite, so what is shown is calibrated: the same query is asked of the photos
that the model was not trained on, whose answers are known, and its probability is fitted there.
``wrong_at_most`` cuts the list where those photos allow a promise: see
:mod:`labelwise.decide.promised_lists`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Promise, PromisedList, percent
from labelwise.errors import DataError
from labelwise.photos.asked import AskedQuery, said_wrong
from labelwise.photos.filters import EVERY_PHOTO, PhotoFilter
from labelwise.photos.index import Index
from labelwise.photos.likeness import LibraryLikeness, likeness_of
from labelwise.photos.near_copies import NearCopies, knows_looks, near_copies
from labelwise.photos.rankings import Ranking, ranking_of
from labelwise.retrieval import HitCount, ListKind, Query
from labelwise.system.text import counted

Sort = Literal["score", "date"]
Scores = NDArray[np.float64]
MOST_BOUNDED = 0.5  # a share; a bound above it says too little to be shown


@dataclass(frozen=True)
class Hit:
    """A photo that answers: where it lies, how probable it is, and the labels' probabilities.

    ``probability`` is of the whole query, calibrated as a query. ``reasons`` are the probabilities
    that the model gives the labels by themselves, so of a single label there are two numbers.
    """

    row: int
    probability: float
    reasons: dict[str, float]
    paths: tuple[str, ...]
    taken: str | None = None
    width: int | None = None
    height: int | None = None

    @property
    def why(self) -> dict[str, float]:
        """What is shown beside the probability: the labels, where they are several."""
        return self.reasons if len(self.reasons) > 1 else {}


@dataclass(frozen=True)
class ListBoundShare:
    """A share of a list that may be wrong, held with a confidence for all cuts at once."""

    share: float
    confidence: float

    def __str__(self) -> str:
        return (
            f"with {percent(self.confidence)} confidence at most {percent(self.share)} of the "
            "photos above the cut are wrong, whichever cut you pick; it holds if they are like the "
            "held-out ones"
        )


@dataclass(frozen=True)
class WaysOut:
    """What would work where no list can be promised.

    ``larger`` is a share for which an expected promise could be made; ``expected``: one could be
    made of the share that was asked for. Or a person checks about ``checks`` photos of the best
    ``listed``.
    """

    larger: float | None = None
    expected: bool = False
    checks: int | None = None
    listed: int | None = None

    def sentence(self, how: str = "") -> str:
        """Return the ways in words, empty where there is none; ``how`` says how to check."""
        ways = []
        if self.larger is not None:
            ways.append(f"{self.larger:g} works")
        elif self.expected:
            ways.append("an expected promise works")
        if self.checks is not None:
            ways.append(f"check about {self.checks} photos of the best {self.listed:,}{how}")
        return " or ".join(ways)


@dataclass(frozen=True)
class Found:
    """The best photos, and how many of all photos are expected to answer.

    ``above`` counts the photos at or above the cut, where there is one; ``checked_on`` the held-out
    photos, and ``positives`` those among them that answer: the probabilities rest on them.
    ``promise`` is of the list above the cut; where it is refused, all photos are shown.
    ``bounded`` is the share of the list above ``at_least`` that may be wrong, whatever the cut.
    ``likeness`` says whether the library is like the held-out photos, as all of this supposes;
    ``copies`` are the near copies on a list that is promised, where photos' looks are known.
    ``declined`` is the share asked of an expected list that the held-out photos refused.
    ``answers`` are those that made a model which began with words, None for a trained one;
    ``known`` is what the held-out photos are called: see :attr:`IndexFacts.known`.
    """

    query: str
    hits: tuple[Hit, ...]
    photos: int
    count: HitCount
    above: int | None = None
    promise: PromisedList | None = None
    checked_on: int = 0
    positives: int = 0
    bounded: ListBoundShare | None = None
    ways: WaysOut = WaysOut()
    likeness: LibraryLikeness | None = None
    filter: PhotoFilter = EVERY_PHOTO
    copies: NearCopies | None = None
    declined: float | None = None
    answers: int | None = None
    known: str = "held-out"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval of the count; None where no known answer stands behind it."""
        return None if self.untested else (self.count.lower, self.count.upper)

    @property
    def promised(self) -> Promise | None:
        """The promise of the list, where one was asked for and could be made."""
        return None if self.promise is None else self.promise.promise

    @property
    def refused(self) -> str:
        """Why nothing is promised, and what would work; empty where nothing was refused."""
        return self.refusal(": labelwise check")

    def refusal(self, how: str = "") -> str:
        """Return why nothing is promised and what would work; ``how`` says how to check."""
        why = "" if self.promise is None else self.promise.refused
        ways = self.ways.sentence(how) if why else ""
        return f"{why}; {ways}" if ways else why

    @property
    def likeness_sentence(self) -> str:
        """Whether the library is like the held-out photos; empty where a refusal says it."""
        said = "" if self.likeness is None else self.likeness.sentence()
        if said and self.filter:
            said += " That is of all photos of the index."
        return "" if said.rstrip(".") in self.refused else said

    @property
    def copies_sentence(self) -> str:
        """How many photos of a promised list are near copies; empty where none are known."""
        said = "" if self.copies is None else self.copies.sentence("the photos of this list")
        if not said:
            return ""
        return f"{said[0].upper()}{said[1:]}. The promise takes each photo as one of its own."

    @property
    def counted(self) -> str:
        """How many photos match, in words and whole photos."""
        those = f" {self.filter}" if self.filter else ""
        match = "matches" if self.photos == 1 else "match"
        expected = f"about {round(self.count.expected):,} of {counted(self.photos, 'photo')}{those}"
        if self.interval is None:
            return f"{expected} {match} {self.query}; {self.untested}"
        low, high = floor(self.interval[0]), ceil(self.interval[1])
        interval = f"{self.count.confidence:.0%} interval: {low:,} to {high:,}"
        return f"{expected} {match} {self.query} ({interval})"

    def sentence(self) -> str:
        """Return all that can be said of the list: how many match, and its promise or why not."""
        text = self.counted
        if self.above is not None:
            text += f"; {self.above:,} {'is' if self.above == 1 else 'are'} above the cut"
        said = (self.promised, self.refused, self.bounded)
        return "; ".join([text, *(str(one) for one in said if one)])

    @property
    def untested(self) -> str:
        """Why the count has no interval; empty where held-out photos that match tested it."""
        if self.positives:
            return ""
        if self.answers == 0:
            return "not calibrated, so there is no interval: no answers yet"
        why = "there are no held-out photos of which the answer is known"
        if self.checked_on:
            why = f"none of the {self.checked_on:,} {self.known} photos matches"
        return f"never tested, so there is no interval: {why}"


def answer(
    index: Index,
    query: Query,
    *,
    top: int = 50,
    at_least: float = 0.0,
    wrong_at_most: float | None = None,
    promise: ListKind = "expected",
    confidence: float | None = None,
    sort: Sort = "score",
    photos: PhotoFilter = EVERY_PHOTO,
) -> Found:
    """Return the ``top`` photos of a query, the most probable first.

    ``at_least`` is the least probability of a photo that is listed. ``wrong_at_most`` cuts the
    list where at most that share of it is wrong: ``promise="expected"`` on average over such
    searches, ``"sure"`` for this list with ``confidence`` (0.95). The promise is of the list that
    both cuts leave; where there can be none, all photos are shown and ``refused`` says what would
    work. ``sort="date"`` lists the newest photos above these cuts first. Photos that do not pass
    the filter are as if they were not in the index.
    """
    if not 0 <= at_least <= 1:
        raise DataError(f"a probability must lie between 0 and 1, got {at_least}")
    for name, value, known in (("sort", sort, Sort), ("promise", promise, ListKind)):
        if value not in get_args(known):
            raise DataError(f"{name} must be {' or '.join(get_args(known))}, got {value!r}")
    if confidence is not None and (wrong_at_most is None or promise == "expected"):
        raise DataError("only a sure promise has a confidence; leave it out, or ask to be sure")
    own = wrong_at_most is not None
    asked = AskedQuery.of(index, query, own=own, photos=photos)
    ranking, cut, made, ways = asked.ranking, asked.score_at(at_least), None, WaysOut()
    if wrong_at_most is not None:
        made, ways = _promised(asked, wrong_at_most, promise, confidence, cut)
        if made.promise is not None:
            cut = max(cut, made.threshold)
        ranking = _without_wrong(asked)
    above = ranking.count_at_least(cut) if cut > -np.inf else None
    if made is not None and made.promise is not None:
        promised = replace(made.promise, listed=above)
        made = replace(made, threshold=cut, promise=promised, listed=above or 0)
    # By date, the newest photos above the cut come first, not the most probable ones.
    rows, scores = ranking.best(above if sort == "date" and above is not None else top)
    kept = scores >= cut
    labels = [index.space.names[column] for column in asked.bound.columns]
    probs = asked.held_out.probs(scores[kept].astype(np.float64))
    shown = labels if len(labels) < len(index.space) else []
    hits = hits_of(index, shown, rows[kept], probs, not own)
    copies = None
    if made is not None and made.promise is not None and knows_looks(index):
        listed, listed_scores = ranking.best(above or 0)
        copies = near_copies(index, listed[listed_scores >= cut])
    if sort == "date":
        hits.sort(key=lambda hit: hit.taken or "", reverse=True)
    return Found(
        str(query),
        tuple(hits[:top]),
        asked.photos,
        ranking.expected(asked.held_out),
        above,
        made,
        len(asked.held_out.scores),
        asked.held_out.positives,
        None if own or not above else _bounded(index, query, at_least, above, photos),
        ways,
        likeness_of(index),
        photos,
        copies,
        wrong_at_most if _declined(made, promise) else None,
        index.spec.answers,
        index.facts.known,
    )


def _declined(made: PromisedList | None, kind: ListKind) -> bool:
    """Return whether held-out photos were asked for an expected list, and refused it."""
    return made is not None and made.promise is None and made.tested and kind == "expected"


def listed_rows(index: Index, query: Query, found: Found) -> NDArray[np.int64]:
    """Return all photos of the list that an answer promises something of, the best first."""
    if found.promise is None or found.promised is None:
        raise DataError(f"nothing is promised of a list of {query}")
    asked = AskedQuery.of(index, query, own=True, photos=found.filter)
    rows, scores = _without_wrong(asked).best(found.above or 0)
    return rows[scores >= found.promise.threshold]


def _without_wrong(asked: AskedQuery) -> Ranking:
    """Return the ranking without the photos that somebody called wrong."""
    wrong = said_wrong(asked.index, asked.bound)
    if not len(wrong):
        return asked.ranking
    gone = np.union1d(asked.dead, wrong)
    return ranking_of(asked.index, asked.bound, gone, refit=False, corrected=False)


def _promised(
    asked: AskedQuery,
    wrong_at_most: float,
    kind: ListKind,
    confidence: float | None,
    least: float,
) -> tuple[PromisedList, WaysOut]:
    """Return the list that can be promised, or why there is none and what would work."""
    refusal = f"no list can be promised for {asked.query}"
    try:
        asked.index.promise_photos()  # refuses where the held-out photos fitted something
    except DataError as error:
        why = f"{refusal}: {str(error).rstrip('.')}"
        untested = PromisedList(np.inf, None, why, tested=False)
        return untested, _ways_to_check(asked, wrong_at_most, alone=True)
    made = asked.held_out.cut(
        asked.ranking,
        wrong_at_most,
        kind=kind,
        confidence=0.95 if confidence is None else confidence,
        least=least,
        tuning=asked.tuning,
    )
    if made.promise is not None:
        return made, WaysOut()
    works = asked.held_out.least_wrong(asked.falling, wrong_at_most, least, asked.tuning)
    ways = replace(
        _ways_to_check(asked, wrong_at_most),
        larger=works if works is not None and works > wrong_at_most else None,
        expected=works is not None and works <= wrong_at_most,
    )
    why = f"{refusal}: {made.refused}"
    if ways == WaysOut():
        why = f"{why}; more held-out photos would help"
    return replace(made, refused=why), ways


def _ways_to_check(asked: AskedQuery, wrong_at_most: float, *, alone: bool = False) -> WaysOut:
    """Return how many photos a person would check, where that would do."""
    chosen = asked.list_to_check(wrong_at_most)
    if chosen is None:
        return WaysOut()
    more = asked.check_of(chosen, wrong_at_most, alone=alone).more()
    if more is None:
        return WaysOut()
    return WaysOut(checks=max(more, 1), listed=chosen.length)


def _bounded(
    index: Index, query: Query, at_least: float, above: int, photos: PhotoFilter
) -> ListBoundShare | None:
    """Return how wrong the list above a cut may be, where held-out photos can say so."""
    try:
        index.promise_photos()
    except DataError:
        return None
    asked = AskedQuery.of(index, query, own=True, photos=photos)
    if asked.held_out.groups is not None:  # the bound counts single photos
        return None
    cut = asked.score_at(at_least)
    listed = asked.ranking.count_at_least(cut)
    bound = asked.bound_of_lists(cut)
    share = bound.wrong_at_most(cut, listed)
    # Of a list that corrections have changed, nothing is known but how it was before them.
    if listed != above or share >= MOST_BOUNDED:
        return None
    return ListBoundShare(share, bound.confidence)


def nearest_photos(index: Index, row: int, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like one of the index: equal copies of it, and similar ones.

    The probability of a similar photo is the cosine of the embeddings, which is not a probability.
    """
    near = index.look_alikes.nearest(index.store.embeddings()[row], count, without=[row])
    similar = hits_of(index, (), *near)
    (own,) = hits_of(index, (), np.array([row]), np.ones(1))
    return [replace(own, paths=(path,)) for path in own.paths[1:]], similar


def photos_along(
    index: Index,
    direction: NDArray[np.float64],
    count: int,
    *,
    query: Query | None = None,
    at_least: float = 0.5,
) -> list[Hit]:
    """Return the photos whose features lie farthest along a direction (D,), farthest first.

    With a query, only photos that have at least the probability ``at_least`` for it. The
    probability of a hit is the cosine, which is not a probability.
    """
    rows = None
    if query is not None:
        asked = AskedQuery.of(index, query, own=False)
        cut = asked.score_at(at_least)
        rows, scores = asked.ranking.best(asked.ranking.count_at_least(cut))
        rows = rows[scores >= cut]
    found, cosines = index.look_alikes.along(direction, count, rows)
    return hits_of(index, (), found, cosines)


def hits_of(
    index: Index,
    labels: Sequence[str],
    rows: NDArray[np.int64],
    probs: Scores,
    refit: bool = True,
) -> list[Hit]:
    """Return photos as hits, with the probabilities of some labels as reasons."""
    paths = index.store.paths_of(rows.tolist())
    contents = index.store.contents_of(rows.tolist())
    columns = {name: index.space.column(name) for name in labels}
    odds = {name: index.odds(k, refit=refit).log_p.values for name, k in columns.items()}
    hits = []
    for row, chance in zip(rows.tolist(), probs.tolist(), strict=True):
        reasons = {name: float(np.exp(values[row])) for name, values in odds.items()}
        one = contents[row]
        facts = (one.taken, one.width, one.height)
        hits.append(Hit(row, chance, reasons, tuple(paths[row]), *facts))
    return hits
