"""Queries over an index: which photos, how probable, how many, how many of them wrong.

    asked = Asked(index, query, photos)
    found = asked.top(50)               or asked.cut(0.1): about a tenth of the list is wrong

Photos are ranked by the product of their labels' probabilities. Labels depend on each other, so
what is shown is calibrated as a query on held-out photos, whose answers are known. The wrong share
of a list is an estimate; a guarantee takes a person's answers (:mod:`labelwise.photos.lists`).
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from math import ceil, floor
from pathlib import Path
from typing import Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.base.files import read_regular
from labelwise.base.text import counted
from labelwise.decide import (
    LibraryCount,
    ListEstimate,
    NoEstimate,
    ScoredSplit,
    Statement,
    estimate_library_count,
    estimate_list,
    judge_cut,
)
from labelwise.errors import DataError, LabelwiseError
from labelwise.metrics.shift import audit_order
from labelwise.models.run_folder import RunFolder
from labelwise.photos.filters import EVERY_PHOTO, NearCopies, PhotoFilter, near_copies
from labelwise.photos.index import Index, KnownPhotos
from labelwise.photos.shift import LibraryLikeness, likeness_of
from labelwise.photos.store import Fact
from labelwise.photos.topk import Ranking, Rows, ranking_of
from labelwise.pictures.memory import BytesImages
from labelwise.queries import BoundQuery, CalibratedQuery, HitCount, Query, calibrate_query
from labelwise.queries.query import AllOf, literal_of
from labelwise.types import LabelSpace

Sort = Literal["score", "date"]
Scores = NDArray[np.float64]
FEWEST_ANSWERED = 30  # photos about a word, before it counts photos or leaves some out
LEAST_SCORE = float(np.finfo(np.float32).min)  # below: left out by a limit
MOST_BYTES = 256 << 20
TEXTS_FILE, MOST_FACTS = "words.json", 1 << 24  # of a run that began with words
KEYWORD, PHOTOS = "keyword:", "photos:"  # before the name of an album that lies in no folder


class HitRecord(TypedDict):
    """A photo that answers, as ``--json`` and MCP say it."""

    path: str
    probability: float
    labels: dict[str, float]
    taken: str | None
    copies: list[str]


class LikenessRecord(TypedDict):
    """Whether the library is like the held-out photos."""

    outcome: str
    sentence: str


class FoundRecord(TypedDict):
    """What is said of the photos of a query, for ``--json``, the API and MCP alike.

    ``expected`` of the photos match, between ``low`` and ``high``; ``untested`` says why there is
    no interval. Nothing is expected of words that nobody answered about.
    """

    query: str
    photos: int
    expected: float | None
    low: float | None
    high: float | None
    confidence: float | None
    untested: str | None
    above: int | None
    statement: dict[str, object] | None
    near_copies: str | None
    likeness: LikenessRecord


@dataclass(frozen=True)
class Hit:
    """A photo that answers: ``probability`` is of the query, ``reasons`` of the labels alone."""

    row: int
    probability: float
    reasons: dict[str, float]
    paths: tuple[str, ...]
    taken: str | None = None
    width: int | None = None
    height: int | None = None

    def record(self) -> HitRecord:
        first, *copies = self.paths
        return {
            "path": first,
            "probability": self.probability,
            "labels": self.reasons,
            "taken": self.taken,
            "copies": copies,
        }

    @property
    def why(self) -> dict[str, float]:
        return self.reasons if len(self.reasons) > 1 else {}


@dataclass(frozen=True, eq=False)
class Found:
    """The photos of a query with what is said of them.

    ``rows`` and ``scores`` are those of the list: the ``hits``, or all photos above a cut for a
    share of wrong ones, of which the ``statement`` is. ``above`` counts the photos at or above a
    cut, ``checked_on`` the held-out photos, ``positives`` those that match. ``answers`` made a
    model which began with words, None for a trained one; ``known`` is :attr:`IndexFacts.known`.
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
    statement: Statement | None = None
    copies: NearCopies | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.untested else (self.count.lower, self.count.upper)

    @property
    def copies_sentence(self) -> str:
        said = "" if self.copies is None else self.copies.sentence("the photos of this list")
        interval = "The interval takes each photo as one of its own."
        return said and f"{said[0].upper()}{said[1:]}. {interval}"

    @property
    def counted(self) -> str:
        those = f" {self.filter}" if self.filter else ""
        match = "matches" if self.photos == 1 else "match"
        photos = f"{counted(self.photos, 'photo')}{those}"
        if self.is_guess:
            return f"{photos}, those most like {self.query} first; {self.untested}"
        expected = f"about {round(self.count.expected):,} of {photos}"
        if self.interval is None:
            return f"{expected} {match} {self.query}; {self.untested}"
        low, high = floor(self.interval[0]), ceil(self.interval[1])
        interval = f"{self.count.confidence:.0%} interval: {low:,} to {high:,}"
        return f"{expected} {match} {self.query} ({interval})"

    @property
    def is_guess(self) -> bool:
        """Whether the model began with words, and nobody has answered about any of them."""
        return not self.positives and self.answers == 0

    def record(self) -> FoundRecord:
        low, high = self.interval or (None, None)
        outcome = self.likeness.likeness.outcome
        return {
            "query": self.query,
            "photos": self.photos,
            "expected": None if self.is_guess else self.count.expected,
            "low": low,
            "high": high,
            "confidence": None if low is None else self.count.confidence,
            "untested": self.untested or None,
            "above": self.above,
            "statement": None if self.statement is None else asdict(self.statement),
            "near_copies": self.copies_sentence or None,
            "likeness": {"outcome": outcome, "sentence": self.likeness.sentence()},
        }

    def sentence(self) -> str:
        text = self.counted
        if self.above is not None and (self.statement is None or self.statement.kind == "none"):
            text += f"; {self.above:,} {'is' if self.above == 1 else 'are'} above the cut"
        return text if self.statement is None else f"{text}. {self.statement.sentence}"

    @property
    def untested(self) -> str:
        """Why the count has no interval; empty where it has one."""
        outcome = self.likeness.likeness.outcome
        if not self.positives and self.answers == 0:
            return "not calibrated, so nobody can tell how many match: no answers yet"
        if not self.positives:
            why = "there are no held-out photos whose answer is known"
            if self.checked_on:
                why = f"none of the {self.checked_on:,} {self.known} photos matches"
            return f"never tested, so there is no interval: {why}"
        if outcome == "pictures differ":
            return f"no interval: these photos differ from the {self.known} ones"
        if outcome == "unknown" and self.answers is None:  # else own photos were set aside
            return f"no interval: these photos were not compared with the {self.known} ones"
        if outcome == "shares differ" and np.isnan(self.count.lower):
            frequent = f"more or less frequent than among the {self.known} photos"
            return f"no interval: labels are {frequent}"
        return ""


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
        ranking = ranking_of(self.bound, self.index.odds, self.gone)
        return RankedQuery(ranking, self._calibrated(self.index.held_out_photos, refit=True))

    @cached_property
    def own(self) -> RankedQuery:
        """The model's own ranking, as if nobody had said anything of a photo."""
        known = self.index.validation_photos
        return RankedQuery(
            self._own_ranking(self.gone),
            self._calibrated(self.index.held_out_photos, refit=False),
            None if known is None else self._calibrated(known, refit=False),
        )

    def _own_ranking(self, gone: Rows) -> Ranking:
        return ranking_of(self.bound, partial(self.index.odds, refit=False, corrected=False), gone)

    @cached_property
    def likeness(self) -> LibraryLikeness:
        if not self.filter:
            return likeness_of(self.index)
        return likeness_of(self.index, np.setdiff1d(np.arange(len(self.index)), self.gone))

    def _calibrated(self, photos: KnownPhotos | None, *, refit: bool) -> CalibratedQuery:
        columns = list(self.bound.columns)
        if photos is None:
            nothing = np.empty((0, len(columns)))
            return calibrate_query(self.bound, nothing, nothing, nothing)
        log_p, log_q = self.index.known_log_probs(photos, columns, refit=refit)
        known = photos.stored
        observed = None if known.observed is None else known.observed[:, columns]
        labels = known.majority[:, columns]
        return calibrate_query(self.bound, log_p, log_q, labels, observed, known.groups)

    def top(self, count: int = 50, *, at_least: float = 0.0, sort: Sort = "score") -> Found:
        """Return the ``count`` most probable photos, of at least this probability."""
        ranked = self.corrected
        least = ranked.held_out.score_at(_checked(at_least, sort))
        return self._found(ranked, ranked.ranking, least, count, sort)

    def cut(
        self, wrong_about: float, count: int = 50, *, at_least: float = 0.0, sort: Sort = "score"
    ) -> Found:
        """Return the list of which this share is estimated to be wrong; none without estimate."""
        least, ranking = self.own.held_out.score_at(_checked(at_least, sort)), self.own.ranking
        made = self._estimated(wrong_about, least)
        rows, hits, known = said_of(self.index, self.bound)
        wrong = rows[known & ~hits]
        if len(wrong):
            ranking = self._own_ranking(np.union1d(self.gone, wrong))
        if isinstance(made, ListEstimate):
            least = made.cut
            made = made.without(made.listed - ranking.count_at_least(least))
        return self._found(self.own, ranking, least, count, sort, made)

    def _found(
        self,
        ranked: RankedQuery,
        ranking: Ranking,
        least: float,
        count: int,
        sort: Sort,
        made: ListEstimate | NoEstimate | None = None,
    ) -> Found:
        index, listed = self.index, isinstance(made, ListEstimate)
        above = ranking.count_at_least(least) if least > -np.inf else None
        # By date, the newest photos above the cut come first, not the most probable ones.
        whole = above is not None and (listed or sort == "date")
        rows, scores = ranking.best(above or 0) if whole else ranking.best(count)
        statement = None if made is None else self._statement(made)
        if statement is not None and statement.kind == "none":
            least = np.inf  # a list of which nothing can be said is not shown as one
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
            count=self._count(ranked.held_out.count(ranking.scores)),
            above=above,
            checked_on=len(ranked.held_out.scores),
            positives=ranked.held_out.positives,
            likeness=self.likeness,
            filter=self.filter,
            answers=index.spec.answers,
            known=index.facts.known,
            statement=statement,
            copies=near_copies(index, rows) if listed else None,
        )

    @cached_property
    def splits(self) -> tuple[ScoredSplit, ScoredSplit] | None:
        """The photos that set a cut, and those that judge it; None without any that are known."""
        if self.index.held_out_photos is None:
            return None
        test, setting = _split(self.own.held_out), self.own.tuning
        if setting is not None:
            return _split(setting), test
        half = audit_order("halves", np.arange(len(test.scores))) % 2 == 0
        first, other = (ScoredSplit(test.scores[own], test.present[own]) for own in (half, ~half))
        return first, other

    @cached_property
    def _library(self) -> Scores:
        return self.own.ranking.scores_at_least(LEAST_SCORE).astype(np.float64)

    def _count(self, expected: HitCount) -> HitCount:
        """Return the count by rates that label shift leaves alone, where shares of labels moved."""
        if self.likeness.likeness.outcome != "shares differ":
            return expected
        made = self.splits and estimate_library_count(*self.splits, self._library)
        if not isinstance(made, LibraryCount):
            return replace(expected, lower=np.nan, upper=np.nan)
        return HitCount(made.count, made.low, made.high, made.confidence)

    def _estimated(self, wrong_about: float, least: float) -> ListEstimate | NoEstimate:
        if not 0 < wrong_about < 1:
            raise DataError(f"wrong_about must lie between 0 and 1, got {wrong_about:g}")
        if self.splits is None:
            return NoEstimate("the model has no test photos")
        if not len(self._library):
            return NoEstimate("no photo passes the query")
        made = estimate_list(*self.splits, self._library, wrong_at_most=wrong_about)
        if isinstance(made, NoEstimate) or made.cut >= least:
            return made
        if not (self._library >= least).any():
            return NoEstimate("no photo is as probable as that")
        return judge_cut(*self.splits, self._library, least)

    def _statement(self, made: ListEstimate | NoEstimate) -> Statement:
        if isinstance(made, NoEstimate):
            return Statement("none", f"No estimate: {made.reason}; audit a list instead.")
        known = "test" if self.index.facts.may_promise else "validation"
        outcome = self.likeness.likeness.outcome
        different = {"pictures differ": "differ from", "unknown": "were not compared with"}
        if how := different.get(outcome):
            words = f"No estimate: your photos {how} the {known} photos; audit the list."
            return Statement("none", words)
        stated = made.stated(known)
        if stated.kind == "none":
            return stated
        moved = " but for the shares of labels" if outcome == "shares differ" else ""
        compared = f"Your photos look like the {known} photos{moved}; whether labels mean the same"
        return replace(stated, sentence=f"{stated.sentence} {compared} there, only answers tell.")


def _split(known: CalibratedQuery) -> ScoredSplit:
    """Return the photos of a query that no limit leaves out, in 32 bits as the library's are."""
    rows = np.arange(len(known.scores)) if known.groups is None else known.groups.one_of_each()
    scores = known.scores[rows].astype(np.float32).astype(np.float64)
    kept = scores >= LEAST_SCORE
    return ScoredSplit(scores[kept], known.hits[rows][kept])


def _checked(at_least: float, sort: str) -> float:
    if not 0 <= at_least <= 1:
        raise DataError(f"a probability must lie between 0 and 1, got {at_least}")
    if sort not in get_args(Sort):
        raise DataError(f"sort must be {' or '.join(get_args(Sort))}, got {sort!r}")
    return at_least


def guess_of(name: str) -> str:
    """Return why photos are neither counted nor left out by a word that nobody answered about."""
    few = f"fewer than {FEWEST_ANSWERED} photos were answered about {name!r}"
    return f"{few}, so its probabilities are a guess: they rank photos, and count or exclude none"


def not_answered(index: Index, names: Iterable[str]) -> list[str]:
    """Return the labels that began as words, and that few photos were answered about.

    Their probabilities are a guess: they rank photos, and cannot count them or leave any out.
    """
    spec = index.spec
    guessed = names if spec.answers == 0 else [name for name in names if name in spec.unanswered]
    if spec.answers is None:
        return []
    column, of = index.space.column, index.corrections.of
    known = {n: sum(c.state in ("present", "absent") for c in of(column(n))) for n in guessed}
    return [name for name, photos in known.items() if photos < FEWEST_ANSWERED]


def answer(
    index: Index,
    query: Query,
    *,
    top: int = 50,
    at_least: float = 0.0,
    wrong_about: float | None = None,
    sort: Sort = "score",
    photos: PhotoFilter = EVERY_PHOTO,
) -> Found:
    """Return the ``top`` photos of a query, cut where about ``wrong_about`` of them are wrong.

    Where that share cannot be estimated, no photo is listed, and the statement says why.
    ``sort="date"`` lists the newest photos above the cuts first.
    """
    if unknown := not_answered(index, query.unwanted):
        raise DataError(guess_of(unknown[0]))
    asked = Asked(index, query, photos)
    if wrong_about is None:
        return asked.top(top, at_least=at_least, sort=sort)
    return asked.cut(wrong_about, top, at_least=at_least, sort=sort)


def labels_told(bound: BoundQuery, space: LabelSpace, answer: str) -> dict[str, Fact]:
    """Return what an answer to "does it match the query?" says of single labels.

    Yes tells all labels that must be there or not; no tells the only label of a query.
    """
    parts = bound.expression.parts if isinstance(bound.expression, AllOf) else (bound.expression,)
    literals = [literal for literal in map(literal_of, parts) if literal is not None]
    told = answer == "yes" or (answer == "no" and len(literals) == 1)
    if bound.limits or len(literals) < len(parts) or not told:
        return {}
    states: tuple[Fact, Fact] = ("absent", "present")
    return {
        space.names[int(label)]: states[bool(wanted) == (answer == "yes")]
        for label, wanted in literals
    }


def said_of(index: Index, bound: BoundQuery) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the photos (n,) people spoke of, which of them answer a query, and which are told."""
    said = {column: index.corrections.of(column) for column in bound.columns}
    rows = sorted({correction.row for some in said.values() for correction in some})
    position_of = {row: at for at, row in enumerate(rows)}
    labels = np.zeros((len(rows), len(bound.columns)), np.float32)
    observed = np.zeros(labels.shape, np.bool_)
    for at, column in enumerate(bound.columns):
        for correction in said[column]:
            if correction.state in ("present", "absent"):
                entry = position_of[correction.row], at
                labels[entry], observed[entry] = correction.state == "present", True
    hits, known = bound.right(labels, observed)
    return np.array(rows, np.int64), np.asarray(hits), np.asarray(known)


def nearest_photos(index: Index, row: int, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like one of the index: equal copies of it, and similar ones."""
    near = index.embeddings.nearest(index.store.embeddings()[row], count, without=[row])
    similar = hits_of(index, (), *near)
    (own,) = hits_of(index, (), np.array([row]), np.ones(1))
    return [replace(own, paths=(path,)) for path in own.paths[1:]], similar


def photos_along(
    index: Index,
    direction: Scores,
    count: int,
    *,
    query: Query | None = None,
    at_least: float = 0.5,
) -> list[Hit]:
    """Return the photos whose features lie farthest along a direction (D,), with the cosine as
    probability; of a query only those that have at least the probability ``at_least`` for it.
    """
    rows = None
    if query is not None:
        ranked = Asked(index, query).corrected
        above = ranked.ranking.count_at_least(ranked.held_out.score_at(at_least))
        rows, _ = ranked.ranking.best(above)
    return hits_of(index, (), *index.embeddings.along(direction, count, rows))


def hits_of(
    index: Index, labels: Sequence[str], rows: Rows, probs: Scores, refit: bool = True
) -> list[Hit]:
    """Return photos as hits, with the probabilities of some labels as reasons."""
    paths = index.store.paths_of(rows.tolist())
    contents = index.store.contents_of(rows.tolist())
    odds = {name: index.odds(index.space.column(name), refit=refit).log_p for name in labels}
    hits = []
    for row, chance in zip(rows.tolist(), probs.tolist(), strict=True):
        reasons, own = {name: float(np.exp(odds[name][row])) for name in odds}, contents[row]
        shown = (tuple(paths[row]), own.taken, own.width, own.height)
        hits.append(Hit(row, chance, reasons, *shown))
    return hits


def photos_like(index: Index, photo: str, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like a file or an album: equal copies of it, and similar ones."""
    if os.path.isdir(photo) or photo.startswith(KEYWORD):
        return [], photos_like_album(index, photo, count)
    row = index.store.row_of(photo)
    if row is not None:
        return nearest_photos(index, row, count)
    try:
        content, _ = read_regular(photo, MOST_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{photo} is neither in {index.folder} nor readable: {reason}") from None
    digest = hashlib.sha256(content).digest()
    known = index.store.rows_by_hash([digest]).get(digest)
    if known is not None and index.store.paths_of([known])[known]:
        copies, similar = nearest_photos(index, known, count)
        return [*hits_of(index, (), np.array([known]), np.ones(1)), *copies], similar
    from labelwise.models.loading import load_model
    from labelwise.models.scoring import score

    projection = index.embeddings.projection
    if projection is None:
        raise DataError(f"{index.folder} keeps no looks of photos; index them again")
    model = load_model(index.facts.model)
    (scored,) = score(model, BytesImages([content], [photo]), batch_size=1, embed=True)
    if scored.failures or scored.embeddings is None:
        raise DataError(scored.failures[0].reason if scored.failures else f"{photo} has no looks")
    (looks,) = projection(scored.embeddings)
    return [], hits_of(index, (), *index.embeddings.nearest(looks, count))


def photos_like_album(index: Index, album: str, count: int) -> list[Hit]:
    """Return the photos most like those of a folder, ``keyword:NAME``, or ``photos:ID,ID``."""
    if album.startswith(PHOTOS):
        named = list[int]()
        for start in filter(None, album.removeprefix(PHOTOS).split(",")):
            if not re.fullmatch("[0-9a-f]{16,64}", start):
                raise DataError(f"{start!r} must be 16 to 64 hexadecimal digits of a photo's id")
            ends = [bytes.fromhex(start.ljust(64, digit)) for digit in "0f"]
            query = "SELECT row FROM contents WHERE hash BETWEEN ? AND ?"
            named += [row for (row,) in index.store.database.execute(query, ends)]
        rows = np.array(named, np.int64)
    else:
        own = PhotoFilter(folder=os.path.abspath(album) if os.path.isdir(album) else album)
        if album.startswith(KEYWORD):
            own = PhotoFilter(keywords=(album.removeprefix(KEYWORD),))
        rows = np.setdiff1d(np.arange(len(index)), own.left_out(index))
    rows = np.setdiff1d(rows, index.store.dead_rows())
    if not len(rows):
        raise DataError(f"no photo of {index.folder} is in the album {album!r}; index it first")
    return hits_of(index, (), *index.embeddings.like_album(rows, count, _knows_captions(index)))


def _knows_captions(index: Index) -> bool:
    """Return whether the model is a run that began with words and maps of captions."""
    run = Path(index.facts.model)
    try:
        facts = json.loads(read_regular(run / TEXTS_FILE, MOST_FACTS)[0])
        own = isinstance(facts, dict) and facts.get("captions") is True
        return own and RunFolder(run).spec.weights_sha256 == index.spec.weights_sha256
    except (OSError, ValueError, LabelwiseError):
        return False
