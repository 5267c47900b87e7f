"""Queries over an index: which photos, how probable, how many, how many of them wrong.

Photos are ranked by the product of their labels' probabilities, the labels being independent given
the photo. They are not quite, so what is shown is calibrated: the same query is asked of the photos
that the model was not trained on, whose answers are known, and its probability is fitted there.

    asked = Asked(index, query, photos)
    found = asked.top(50)               or asked.cut(0.1): at most a tenth of the list is wrong
    receipts.add(index, found)
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, floor
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.log import Answer
from labelwise.decide import (
    ListCheck,
    ListToCheck,
    Promise,
    PromisedList,
    list_to_check,
    prior_of,
)
from labelwise.errors import DataError
from labelwise.photos.duplicates import NearCopies, near_copies
from labelwise.photos.filters import EVERY_PHOTO, PhotoFilter
from labelwise.photos.index import Index
from labelwise.photos.probabilities import KnownPhotos
from labelwise.photos.shift import LibraryLikeness, likeness_of, promise_photos
from labelwise.photos.store import Fact
from labelwise.photos.topk import Ranking, ranking_of
from labelwise.retrieval import BoundQuery, CalibratedQuery, HitCount, Query, calibrate_query
from labelwise.retrieval.expression import AllOf, literal_of
from labelwise.system.files import read_regular
from labelwise.system.text import counted
from labelwise.types import LabelSpace

Sort = Literal["score", "date"]
Scores = NDArray[np.float64]
Rows = NDArray[np.int64]
LEAST_CHECKED = 0.2  # probability of a photo on a list that is worth checking
MOST_BYTES = 256 << 20


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
class WaysOut:
    """What would work where no list can be promised.

    ``larger`` is a share for which a promise could be made. Or a person checks about ``checks``
    photos of the best ``listed``.
    """

    larger: float | None = None
    checks: int | None = None
    listed: int | None = None

    def sentence(self, how: str = "") -> str:
        """Return the ways in words, empty where there is none; ``how`` says how to check."""
        ways = []
        if self.larger is not None:
            ways.append(f"{self.larger:g} works")
        if self.checks is not None:
            ways.append(f"check about {self.checks} photos of the best {self.listed:,}{how}")
        return " or ".join(ways)


@dataclass(frozen=True, eq=False)
class Found:
    """The photos of a query with what is said of them.

    ``rows`` and ``scores`` are those of the list: the ``hits``, or all photos that are promised.
    ``above`` counts the photos at or above the cut, where there is one; ``checked_on`` the held-out
    photos, and ``positives`` those among them that match: the probabilities rest on them.
    ``promise`` is of the list above the cut; where it is refused, all photos are shown.
    ``likeness`` says whether the library is like the held-out photos, as all of this supposes;
    ``copies`` are the near-duplicates on a promised list. ``answers`` are those that made a model
    which began with words, None for a trained one; ``known`` is :attr:`IndexFacts.known`.
    """

    query: str
    hits: tuple[Hit, ...]
    rows: Rows = field(compare=False)
    scores: NDArray[np.float32] = field(compare=False)
    photos: int
    count: HitCount
    above: int | None
    checked_on: int
    positives: int
    likeness: LibraryLikeness
    filter: PhotoFilter
    answers: int | None
    known: str
    promise: PromisedList | None = None
    ways: WaysOut = WaysOut()
    copies: NearCopies | None = None

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
        return self.refusal(": labelwise audit")

    def refusal(self, how: str = "") -> str:
        """Return why nothing is promised and what would work; ``how`` says how to check."""
        why = "" if self.promise is None else self.promise.refused
        ways = self.ways.sentence(how) if why else ""
        return f"{why}; {ways}" if ways else why

    @property
    def likeness_sentence(self) -> str:
        """Whether the library is like the held-out photos; empty where a refusal says it."""
        said = self.likeness.sentence()
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
        said = (self.promised, self.refused)
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


@dataclass(frozen=True, eq=False)
class RankedQuery:
    """A ranking of photos by a query, calibrated on held-out photos and on ``tuning`` ones."""

    ranking: Ranking
    held_out: CalibratedQuery
    tuning: CalibratedQuery | None = None


class Asked:
    """A query asked of the photos of an index that pass a filter."""

    def __init__(self, index: Index, query: Query, photos: PhotoFilter = EVERY_PHOTO) -> None:
        self.index, self.query, self.filter = index, query, photos
        self.bound = index.bound(query)
        self.gone = index.store.dead_rows()
        if photos:
            self.gone = np.union1d(self.gone, photos.left_out(index))
        self.photos = len(index) - len(self.gone)

    @cached_property
    def corrected(self) -> RankedQuery:
        """The ranking after what people said of photos."""
        ranking = ranking_of(self.bound, self.index.odds, self.gone)
        return RankedQuery(ranking, self._calibrated(self.index.held_out_photos, refit=True))

    @cached_property
    def own(self) -> RankedQuery:
        """The model's own ranking, as if nobody had said anything: held-out photos have no answers.

        A promised list is of this ranking, without the photos that somebody called wrong.
        """
        odds_of = partial(self.index.odds, refit=False, corrected=False)
        known = self.index.validation_photos
        return RankedQuery(
            ranking_of(self.bound, odds_of, self.gone),
            self._calibrated(self.index.held_out_photos, refit=False),
            None if known is None else self._calibrated(known, refit=False),
        )

    @cached_property
    def likeness(self) -> LibraryLikeness:
        """Whether the library is like the held-out photos."""
        return likeness_of(self.index)

    def _calibrated(self, photos: KnownPhotos | None, *, refit: bool) -> CalibratedQuery:
        """Return the query's probability as labelled photos have it; the product without any."""
        columns = list(self.bound.columns)
        if photos is None:
            nothing = np.empty((0, len(columns)))
            return calibrate_query(self.bound, nothing, nothing, nothing)
        log_p, log_q = self.index.known_log_probs(photos, columns, refit=refit)
        observed = None if photos.observed is None else photos.observed[:, columns]
        labels = photos.majority[:, columns]
        return calibrate_query(self.bound, log_p, log_q, labels, observed, photos.groups)

    def top(self, count: int = 50, *, at_least: float = 0.0, sort: Sort = "score") -> Found:
        """Return the ``count`` most probable photos, of at least this probability."""
        ranked = self.corrected
        least = ranked.held_out.score_at(_checked(at_least, sort))
        return self._found(ranked, ranked.ranking, least, count, sort)

    def cut(
        self,
        wrong_at_most: float,
        count: int = 50,
        *,
        at_least: float = 0.0,
        sort: Sort = "score",
    ) -> Found:
        """Return the list of which at most this share is wrong, on average over such searches.

        ``count`` photos of it are hits. Where there can be no such list, all photos are shown and
        ``refused`` says what would work.
        """
        ranked = self.own
        least = ranked.held_out.score_at(_checked(at_least, sort))
        made, ways = self._promised(wrong_at_most, least)
        ranking = self._without_wrong()
        if made.promise is not None:
            least = max(least, made.threshold)
            above = ranking.count_at_least(least)
            promised = replace(made.promise, listed=above)
            made = replace(made, threshold=least, promise=promised, listed=above)
        found = self._found(ranked, ranking, least, count, sort, made=made)
        return replace(found, ways=ways)

    def _found(
        self,
        ranked: RankedQuery,
        ranking: Ranking,
        least: float,
        count: int,
        sort: Sort,
        made: PromisedList | None = None,
    ) -> Found:
        index, promised = self.index, made is not None and made.promise is not None
        above = ranking.count_at_least(least) if least > -np.inf else None
        # By date, the newest photos above the cut come first, not the most probable ones.
        whole = above is not None and (promised or sort == "date")
        rows, scores = ranking.best(above or 0) if whole else ranking.best(count)
        rows, scores = rows[scores >= least], scores[scores >= least]
        shown = slice(None) if sort == "date" else slice(count)
        probs = ranked.held_out.probs(scores[shown].astype(np.float64))
        labels = [index.space.names[column] for column in self.bound.columns]
        labels = labels if len(labels) < len(index.space) else []
        hits = hits_of(index, labels, rows[shown], probs, made is None)
        if sort == "date":
            hits.sort(key=lambda hit: hit.taken or "", reverse=True)
        return Found(
            query=str(self.query),
            hits=tuple(hits[:count]),
            rows=rows,
            scores=scores,
            photos=self.photos,
            count=ranking.expected(ranked.held_out),
            above=above,
            checked_on=len(ranked.held_out.scores),
            positives=ranked.held_out.positives,
            likeness=self.likeness,
            filter=self.filter,
            answers=index.spec.answers,
            known=index.facts.known,
            promise=made,
            copies=near_copies(index, rows) if promised else None,
        )

    def _without_wrong(self) -> Ranking:
        """Return the model's ranking without the photos that somebody called wrong."""
        rows, hits, known = said_of(self.index, self.bound)
        wrong = rows[known & ~hits]
        if not len(wrong):
            return self.own.ranking
        odds_of = partial(self.index.odds, refit=False, corrected=False)
        return ranking_of(self.bound, odds_of, np.union1d(self.gone, wrong))

    def _promised(self, wrong_at_most: float, least: float) -> tuple[PromisedList, WaysOut]:
        """Return the list that can be promised, or why there is none and what would work."""
        refusal, own = f"no list can be promised for {self.query}", self.own
        try:
            promise_photos(self.index, self.likeness)
        except DataError as error:
            why = f"{refusal}: {str(error).rstrip('.')}"
            untested = PromisedList(np.inf, None, why, tested=False)
            return untested, self._ways_to_check(wrong_at_most, alone=True)
        made = own.held_out.cut(own.ranking, wrong_at_most, least=least, tuning=own.tuning)
        if made.promise is not None:
            return made, WaysOut()
        works = own.held_out.least_wrong(own.ranking, wrong_at_most, least, own.tuning)
        larger = works if works is not None and works > wrong_at_most else None
        ways = replace(self._ways_to_check(wrong_at_most), larger=larger)
        why = f"{refusal}: {made.refused}"
        if ways == WaysOut():
            why = f"{why}; more held-out photos would help"
        return replace(made, refused=why), ways

    def _ways_to_check(self, wrong_at_most: float, *, alone: bool = False) -> WaysOut:
        """Return how many photos a person would check, where that would do."""
        chosen = self.list_to_check(wrong_at_most)
        more = None
        if chosen is not None:
            more = self.check_of(chosen, wrong_at_most, alone=alone).more()
        if chosen is None or more is None:
            return WaysOut()
        return WaysOut(checks=max(more, 1), listed=chosen.length)

    @property
    def _may_join(self) -> bool:
        """Whether held-out photos may join a check: photo by photo like those of the library."""
        return self.own.tuning is not None and self.own.held_out.groups is None

    def list_to_check(
        self, wrong_at_most: float, *, cut: float | None = None, top: int | None = None
    ) -> ListToCheck | None:
        """Return which list a person should check: down to ``cut``, or ``top`` photos, or our own.

        It is set by photos other than the held-out ones, where there are any. None where no list
        is likely to pass.
        """
        own = self.own
        told = own.tuning or own.held_out
        lowest = LEAST_CHECKED if cut is None else cut
        if top is None:
            scores = own.ranking.scores_at_least(told.score_at(lowest))
        else:
            _, scores = own.ranking.best(top)
        probs = told.probs(scores.astype(np.float64))
        if top is None and cut is None:
            joined = len(own.held_out.scores) if self._may_join else 0
            chosen = list_to_check(probs, wrong_at_most, held_out=joined / max(self.photos, 1))
            if chosen is None:
                return None
            length = int(np.searchsorted(-scores, -scores[chosen.length - 1], side="right"))
            return ListToCheck(length, chosen.prior)
        if not len(scores):
            return None
        return ListToCheck(len(scores), prior_of(float(1 - probs.mean())))

    def check_of(
        self,
        chosen: ListToCheck,
        wrong_at_most: float,
        *,
        confidence: float = 0.95,
        place: int = 0,
        alone: bool = False,
    ) -> ListCheck:
        """Return the check of a list before its first answer.

        The held-out photos join unless they are all there is to set the list by, they come in
        groups, or the answers are to stand ``alone``.
        """
        joined, wrong = 0, 0
        if self._may_join and not alone:
            held_out, lowest = self.own.held_out, self.own.ranking.lowest_of(chosen.length)
            above = held_out.scores.astype(np.float32) >= np.float32(lowest)
            joined, wrong = int(above.sum()), int((above & ~held_out.hits).sum())
        return ListCheck(
            chosen.length,
            wrong_at_most,
            confidence,
            held_out=joined,
            held_out_wrong=wrong,
            prior=chosen.prior,
            place=place,
        )


def _checked(at_least: float, sort: str) -> float:
    if not 0 <= at_least <= 1:
        raise DataError(f"a probability must lie between 0 and 1, got {at_least}")
    if sort not in get_args(Sort):
        raise DataError(f"sort must be {' or '.join(get_args(Sort))}, got {sort!r}")
    return at_least


def answer(
    index: Index,
    query: Query,
    *,
    top: int = 50,
    at_least: float = 0.0,
    wrong_at_most: float | None = None,
    sort: Sort = "score",
    photos: PhotoFilter = EVERY_PHOTO,
) -> Found:
    """Return the ``top`` photos of a query, cut where at most ``wrong_at_most`` of them are wrong.

    ``sort="date"`` lists the newest photos above the cuts first. Photos that do not pass the filter
    are as if they were not in the index.
    """
    asked = Asked(index, query, photos)
    if wrong_at_most is None:
        return asked.top(top, at_least=at_least, sort=sort)
    return asked.cut(wrong_at_most, top, at_least=at_least, sort=sort)


def labels_told(bound: BoundQuery, space: LabelSpace, answer: Answer) -> dict[str, Fact]:
    """Return what an answer to "does it match the query?" says of single labels.

    Where all labels of a query must be there or not, yes tells them all, and no tells the label of
    a query that has only one.
    """
    parts = bound.expression.parts if isinstance(bound.expression, AllOf) else (bound.expression,)
    literals = [one for one in map(literal_of, parts) if one is not None]
    if bound.limits or len(literals) < len(parts) or answer == "unsure":
        return {}
    if answer == "no" and len(literals) > 1:
        return {}
    states: tuple[Fact, Fact] = ("absent", "present")
    return {
        space.names[int(label)]: states[bool(wanted) == (answer == "yes")]
        for label, wanted in literals
    }


def said_of(index: Index, bound: BoundQuery) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the photos (n,) people spoke of, which of them answer a query, and which are told."""
    said = {column: index.corrections.of(column) for column in bound.columns}
    rows = sorted({one.row for some in said.values() for one in some})
    place = {row: at for at, row in enumerate(rows)}
    labels = np.zeros((len(rows), len(bound.columns)), np.float32)
    observed = np.zeros(labels.shape, np.bool_)
    for at, column in enumerate(bound.columns):
        for one in said[column]:
            if one.state in ("present", "absent"):
                entry = place[one.row], at
                labels[entry], observed[entry] = one.state == "present", True
    hits, known = bound.right(labels, observed)
    return np.array(rows, np.int64), np.asarray(hits), np.asarray(known)


def nearest_photos(index: Index, row: int, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like one of the index: equal copies of it, and similar ones.

    The probability of a similar photo is the cosine of the embeddings, which is not a probability.
    """
    near = index.embeddings.nearest(index.store.embeddings()[row], count, without=[row])
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
        ranked = Asked(index, query).corrected
        rows, _ = ranked.ranking.best(
            ranked.ranking.count_at_least(ranked.held_out.score_at(at_least))
        )
    found, cosines = index.embeddings.along(direction, count, rows)
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
    odds = {name: index.odds(k, refit=refit).log_p for name, k in columns.items()}
    hits = []
    for row, chance in zip(rows.tolist(), probs.tolist(), strict=True):
        reasons = {name: float(np.exp(values[row])) for name, values in odds.items()}
        one = contents[row]
        facts = (one.taken, one.width, one.height)
        hits.append(Hit(row, chance, reasons, tuple(paths[row]), *facts))
    return hits


def photos_like(index: Index, photo: str, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like a file: equal copies of it, and similar ones.

    Of a file that is not indexed, the model of the index says how it looks.
    """
    row = index.store.row_of(photo)
    if row is not None:
        return nearest_photos(index, row, count)
    try:
        content, _ = read_regular(photo, MOST_BYTES)
    except OSError as error:
        raise DataError(
            f"{photo} is neither in {index.folder} nor a picture that can be read: "
            f"{error.strerror or error}"
        ) from None
    digest = hashlib.sha256(content).digest()
    known = index.store.rows_by_hash([digest]).get(digest)
    if known is not None and index.store.paths_of([known])[known]:
        copies, similar = nearest_photos(index, known, count)
        own = hits_of(index, (), np.array([known]), np.ones(1))
        return [*own, *copies], similar
    from labelwise.models.loading import load_model
    from labelwise.models.scoring import score
    from labelwise.pictures.memory import BytesImages

    projection = index.embeddings.projection
    if projection is None:
        raise DataError(f"{index.folder} keeps no looks of photos; index them again")
    model = load_model(index.facts.model)
    (part,) = score(model, BytesImages([content], [photo]), batch_size=1, embed=True)
    if part.failures or part.embeddings is None:
        raise DataError(part.failures[0].reason if part.failures else f"{photo} has no looks")
    (looks,) = projection(part.embeddings.numpy())
    return [], hits_of(index, (), *index.embeddings.nearest(looks, count))
