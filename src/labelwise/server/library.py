"""The photos of an index as the page sees them: by id, the hash of their content, never by path.

What is shown is read from a file of the index that still has that content, and drawn again. One
thread works on the index; others read files.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from fastapi import Query as Option
from numpy.typing import NDArray

from labelwise.answers.session import UseQuestion
from labelwise.base.text import counted, printable
from labelwise.decide import Check, Promise, check_promise
from labelwise.errors import CheckpointError, DataError
from labelwise.metrics.shift import Alarm, audit_order, calibration_alarm
from labelwise.models import ModelSpec
from labelwise.photos import Index, questions
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.lists import (
    CheckSession,
    name_of,
    receipts_of,
    verify_lists,
)
from labelwise.photos.metadata import read_facts
from labelwise.photos.query import (
    KEYWORD,
    PHOTOS,
    Hit,
    Sort,
    answer,
    nearest_photos,
    photos_like_album,
)
from labelwise.photos.shift import LibraryLikeness, likeness_of
from labelwise.photos.store import Correction, PhotoFiles
from labelwise.queries import Query, complete
from labelwise.server import schemas
from labelwise.server.batching import Threads
from labelwise.server.security import RefusedError

if TYPE_CHECKING:
    from labelwise.photos.words import FreeText

READERS = 8  # of photos' files at the same time
COUNTED = 5_000_000  # pairs of photo and label, at most, that labels are counted on
LABELS_LISTED, NEWEST = 200, 24
SESSIONS_KEPT = 16  # of checks
SHOWN = 48  # photos of a promised list
LIKE, SUGGESTED = "like:", 50  # before an album that is asked for; photos like it
OPEN_AUDITS = 256  # per label, that an answer may be given to
ALBUM = "A folder, keyword:NAME, or photos:ID,ID with 16 digits of each id."

KEYWORDS, LAST = "Of the file or its side-car", "The cursor of the page before"

Thumbnail = Callable[[bytes, str, int], bytes]
Text = str | None
Top = Annotated[int, Option(ge=1, le=500)]
Share = Annotated[float, Option(ge=0, le=1)]


class Library:
    """An index behind one thread."""

    def __init__(self, folder: Path, spec: ModelSpec, thumbnail: Thumbnail) -> None:
        self.index = Index(folder)
        if self.index.spec.weights_sha256 != spec.weights_sha256:
            self.index.close()
            raise CheckpointError(f"{folder} was made with other weights; serve its own run")
        self.draw = thumbnail
        self._thread = Threads(1, "index")
        self.run = self._thread.run
        self._readers = Threads(READERS, "photo")  # a bucket may be slow, and hold up no search

    def close(self) -> None:
        self._readers.close(wait=False)
        self._thread.close(wait=True)
        self.index.close()

    # Photos

    def row(self, photo: str) -> int:
        row = self.index.store.rows_of_photos([photo]).get(photo)
        if row is None:
            raise RefusedError(404, "there is no photo with this id")
        return row

    def photo(self, photo: schemas.PhotoAddress) -> schemas.PhotoView:
        row = self.row(photo)
        content = self.index.store.contents_of([row])[row]
        paths = self.index.store.paths_of([row])[row]
        at = np.array([row])
        probs = np.exp(self.index.log_probs(at))[0]
        chosen, names = self.index.sets(at)[0], self.index.space.names
        corrected = {said.label: said.state for said in self.index.store.corrections(row=row)}
        labels = []
        for k in np.argsort(-probs, kind="stable").tolist():
            facts = {"label": names[k], "corrected": corrected.get(names[k])}
            labels.append(facts | {"probability": _share(probs[k]), "decided": bool(chosen[k])})
        facts = vars(content) | {"id": photo, "name": photo_name(paths), "labels": labels}
        facts |= {"copies": max(0, len(paths) - 1), "none": not chosen.any()}
        return schemas.PhotoView.model_validate(facts)

    async def original(self, photo: str) -> tuple[bytes, str]:
        files = await self.run(lambda: self.index.files_of(self.row(photo)))
        content, path = await self._readers.run(lambda: _content(files))
        return content, photo_name([path])

    async def facts(self, photo: schemas.PhotoAddress) -> schemas.PhotoFactsView:
        row = await self.run(lambda: self.row(photo))
        paths = await self.run(lambda: self.index.store.paths_of([row])[row])
        files = await self.run(lambda: self.index.files_of(row))
        facts = await self._readers.run(lambda: read_facts(_content(files)[0]))
        return schemas.PhotoFactsView(paths=list(map(printable, paths)), **asdict(facts))

    async def thumbnail(self, photo: str, side: int) -> bytes:
        files = await self.run(lambda: self.index.files_of(self.row(photo)))
        return await self._readers.run(lambda: self.draw(*_content(files), side))

    def similar(
        self, photo: schemas.PhotoAddress, count: Annotated[int, Option(ge=1, le=100)] = 12
    ) -> list[schemas.SimilarView]:
        return self._alike(nearest_photos(self.index, self.row(photo), count)[1])

    def _alike(self, hits: Sequence[Hit]) -> list[schemas.SimilarView]:
        ids, views = self.ids(hit.row for hit in hits), []
        for hit in hits:
            facts = {"id": ids[hit.row], "name": photo_name(hit.paths)}
            views.append(schemas.SimilarView(**facts, likeness=hit.probability))
        return views

    def ids(self, rows: Iterable[int]) -> dict[int, str]:
        return self.index.store.photos_of(rows)

    def listed(self, rows: Iterable[int]) -> list[schemas.ListedPhoto]:
        paths = self.index.store.paths_of(rows)
        ids = self.ids(paths)
        return [schemas.ListedPhoto(id=ids[row], name=photo_name(paths[row])) for row in paths]

    def overview(self) -> schemas.LibraryView:
        rows = alive = self.index.store.alive_rows()
        names = self.index.space.names
        if len(alive) > (most := max(1000, COUNTED // len(names))):
            rows = np.sort(np.random.default_rng(0).choice(alive, most, replace=False))
        given = self.index.sets(rows).sum(axis=0) * (len(alive) / max(1, len(rows)))
        order = np.argsort(-given, kind="stable")[:LABELS_LISTED].tolist()
        newest = self.index.store.database.execute(
            "SELECT row FROM contents WHERE alive = 1 ORDER BY taken DESC, row DESC LIMIT ?",
            (NEWEST,),
        )
        contents = self.index.store.contents_of([row for (row,) in newest])
        known = zip(self.listed(contents), contents.values(), strict=True)
        return schemas.LibraryView(
            photos=len(alive),
            counted=len(rows),
            labels=[schemas.LabelPhotos(label=names[k], photos=round(given[k])) for k in order],
            newest=[schemas.NewPhoto(**dict(photo), taken=one.taken) for photo, one in known],
        )

    # Queries

    def search(
        self,
        q: Annotated[str, Option(max_length=2000, description="As in dog, -beach")],
        top: Top = 50,
        at_least: Share = 0.0,
        wrong_about: Annotated[float | None, Option(gt=0, lt=1)] = None,
        wrong_at_most: Annotated[
            float | None, Option(gt=0, lt=1, deprecated=True, description="Until 0.5: wrong_about")
        ] = None,
        sort: Sort = "score",
        folder: Annotated[Text, Option(max_length=1000, description="Below it: 2023/june")] = None,
        since: Annotated[Text, Option(max_length=10, description="As in 2023-06-30")] = None,
        until: Annotated[Text, Option(max_length=10, description="As in 2023")] = None,
        camera: Annotated[Text, Option(max_length=100, description="Part of its name")] = None,
        rating: Annotated[int | None, Option(ge=1, le=5, description="At least")] = None,
        keyword: Annotated[list[str] | None, Option(max_length=20, description=KEYWORDS)] = None,
        distinct: Annotated[bool, Option(description="Take near copies as one photo.")] = False,
        cursor: Annotated[Text, Option(pattern=schemas.CURSOR, description=LAST)] = None,
    ) -> schemas.SearchAnswer:
        query, start = self.query(q), int(cursor or 0)
        words = tuple(keyword or ())
        photos = PhotoFilter(folder, since, until, camera, rating, words, distinct=distinct)
        answered = answer(
            self.index,
            query,
            top=start + top + 1,
            photos=photos,
            at_least=at_least,
            wrong_about=wrong_at_most if wrong_about is None else wrong_about,
            sort=sort,
        )
        shown = answered.hits[start : start + top]
        ids, hits = self.ids(hit.row for hit in shown), []
        for hit in shown:
            facts = vars(hit) | {"id": ids[hit.row], "name": photo_name(hit.paths)}
            facts |= {"probability": _share(hit.probability), "copies": max(0, len(hit.paths) - 1)}
            hits.append(facts)
        more = start + top if len(answered.hits) > start + top else None
        cursor = None if more is None else str(more)
        return schemas.SearchAnswer.model_validate(
            {**answered.record(), "hits": hits, "cursor": cursor}
        )

    def query(self, text: str) -> Query:
        return Query.parse(text, self.index.space, self.index.taxonomy)

    @cached_property
    def texts(self) -> "FreeText":
        """What scores texts; a model that did not begin with words has nothing that does."""
        from labelwise.photos.words import FreeText

        return FreeText.of(self.index)

    def text_search(
        self,
        text: Annotated[str, Option(min_length=1, max_length=1000)],
        q: Annotated[str, Option(max_length=2000, description="Only photos of this query.")] = "",
        top: Top = 50,
        at_least: Annotated[Share, Option(description="The least probability of the query.")] = 0.5,
    ) -> schemas.TextAnswer:
        index = self.index
        query = self.query(q) if q.strip() else None
        hits = self.texts.photos(index, text, top, query=query, at_least=at_least)
        return schemas.TextAnswer(
            text=text,
            query=None if query is None else str(query),
            at_least=None if query is None else at_least,
            doubt=self.texts.doubt(text),
            hits=self._alike(hits),
        )

    def album_search(
        self,
        album: Annotated[str, Option(min_length=1, max_length=2000, description=ALBUM)],
        top: Top = 50,
    ) -> schemas.TextAnswer:
        hits = self._alike(photos_like_album(self.index, album, top))
        return schemas.TextAnswer(
            text=_named(album), hits=hits, query=None, at_least=None, doubt=None
        )

    def complete(self, q: Annotated[str, Option(max_length=2000)] = "") -> list[str]:
        return complete(q, self.index.space, self.index.taxonomy)[:20]

    # Corrections

    def correct(self, photo: str, given: schemas.CorrectionsIn) -> schemas.PhotoView:
        """Note what a person says; return the photo as it is now, and what undoes it."""
        row = self.row(photo)
        before = {said.label: said for said in self.index.store.corrections(row=row)}
        sources: dict[str, dict[str, schemas.State]] = {}
        for label, state in given.labels.items():
            column = self.index.space.column(label)
            known = before.get(label)
            audited = known is not None and known.source == "audit"
            if given.source == "audit" and not audited and row not in self._drawn(column):
                raise DataError(f"this photo was not drawn to be audited for {label!r}; correct it")
            # Whoever changes an audited answer improves it; the photo stays in the sample.
            source = "audit" if audited or given.source == "audit" else "correction"
            sources.setdefault(source, {})[label] = state
        for source, states in sources.items():
            self.index.correct(row, {**states}, who=given.who or "page", source=source)
        states = {
            label: before[label].state if label in before else "withdrawn" for label in given.labels
        }
        return self.photo(photo).model_copy(update={"before": states})

    def review(
        self,
        by: Annotated[
            Literal["uncertain", "missing", "wrong", "value", "audit"],
            Option(description="audit: photos drawn at random, for the calibration alarm."),
        ] = "value",
        count: Annotated[int, Option(ge=1, le=200)] = 20,
        label: Annotated[list[str] | None, Option(max_length=100)] = None,
    ) -> schemas.Review:
        if by == "audit":
            if label:
                raise RefusedError(422, "an audit asks about every label; leave out label")
            asked = self._audit(count)
        else:
            found = questions(self.index, by, count, label)
            asked = [(q.row, q.label, q.probability, q.given) for q in found]
        rows = [row for row, *_ in asked]
        ids, paths = self.ids(rows), self.index.store.paths_of(rows)
        views, source = [], "audit" if by == "audit" else "correction"
        for row, name, probability, given in asked:
            said = {"label": name, "probability": _share(probability), "given": given}
            views.append(said | {"id": ids[row], "name": photo_name(paths[row]), "source": source})
        return schemas.Review.model_validate({"by": by, "questions": views})

    def _audit(self, count: int) -> list[tuple[int, str, float, bool]]:
        """Return questions about photos drawn at random, the least audited labels first."""
        names, audited = self.index.space.names, self._audited()
        least = sorted(range(len(names)), key=lambda k: len(audited.get(names[k], ())))[:count]
        turns = zip_longest(*([(row, k) for row in self._drawn(k)] for k in least))
        asked = [question for turn in turns for question in turn if question is not None][:count]
        probs = self.model_probs(np.array([row for row, _ in asked], np.int64))
        sets, own = self.index.spec.made_rule(probs), enumerate(asked)
        return [(row, names[k], float(probs[at, k]), bool(sets[at, k])) for at, (row, k) in own]

    # Is the model still right?

    def _audited(self, label: str | None = None) -> dict[str, list[Correction]]:
        by_label: dict[str, list[Correction]] = {}
        for correction in self.index.store.corrections(label):
            if correction.source == "audit":
                by_label.setdefault(correction.label, []).append(correction)
        return by_label

    def _drawn(self, column: int) -> list[int]:
        label = self.index.space.names[column]
        audited = [correction.row for correction in self._audited(label).get(label, ())]
        alive = self.index.store.alive_rows()
        rows = alive[~np.isin(alive, audited)]
        order, few = audit_order(label, rows), min(OPEN_AUDITS, len(rows))
        first = np.argpartition(order, few - 1)[:few] if few else rows
        return list(map(int, rows[first[np.argsort(order[first])]]))

    def model_probs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the model's own probabilities (n, K), before any correction."""
        columns = [self.index.store.column(k)[rows] for k in range(len(self.index.space))]
        return np.asarray(self.index.link(np.stack(columns, axis=1).astype(np.float64)))

    def alarms(self) -> list[Alarm]:
        audited, names, alarms = self._audited(), self.index.space.names, []
        told = {
            name: [said for said in audited.get(name, ()) if said.state in ("present", "absent")]
            for name in names
        }
        rows = np.unique(np.array([said.row for some in told.values() for said in some], np.int64))
        for name, some, probs in zip(names, told.values(), self.model_probs(rows).T, strict=True):
            own = probs[np.searchsorted(rows, [said.row for said in some])]
            present = [said.state == "present" for said in some]
            alarms.append(calibration_alarm(name, own, present, len(names)))
        return alarms

    def likeness(self) -> LibraryLikeness:
        return likeness_of(self.index)

    def check(self, promises: Sequence[Promise]) -> list[Check]:
        every = [said for some in self._audited().values() for said in some]
        corrections = [said for said in every if said.state != "unknown"]
        places = {row: at for at, row in enumerate(sorted({said.row for said in corrections}))}
        labels = np.zeros((len(places), len(self.index.space)), np.float32)
        told = np.zeros(labels.shape, np.bool_)
        for said in corrections:
            at = places[said.row], self.index.space.column(said.label)
            labels[at], told[at] = said.state == "present", True
        whole = told.all(axis=1)
        rows = np.array(list(places), np.int64)[whole]
        sets = np.array(self.index.spec.made_rule(self.model_probs(rows)), np.bool_)
        names = self.index.space.names
        return [check_promise(promise, sets, labels[whole], names=names) for promise in promises]

    def receipts(self) -> schemas.ReceiptsView:
        """Return what was promised of lists, and whether people's answers bear it out."""
        verified, views = verify_lists(self.index), []
        for receipt in reversed(receipts_of(self.index)):
            verdict, promise = verified.by_number.get(receipt.number), receipt.promise
            told = "an answer it rests on was taken back"  # where it was withdrawn
            facts = vars(receipt) | {"kind": promise.kind}
            facts |= {"text": str(promise), "method": promise.test, "listed": promise.listed or 0}
            facts["verdict"] = "cannot tell" if verdict is None else verdict.verdict
            facts["told"] = told if verdict is None else str(verdict)
            views.append(schemas.ReceiptView.model_validate(facts))
        return schemas.ReceiptsView(receipts=views, together=str(verified.together))


def _content(files: PhotoFiles) -> tuple[bytes, str]:
    content = files.read()
    if content is None:
        raise RefusedError(404, "the photo's file is gone or has changed; index the folder again")
    return content


def photo_name(paths: Sequence[str]) -> str:
    """Return what a photo is called: the last part of its first path, as printable text."""
    return printable(os.path.basename(paths[0])) if paths else "(no file)"


def _share(value: float) -> float:
    return min(1.0, max(0.0, float(value)))


class ListChecks:
    """Checks of a library's lists; runs in the library's thread.

    To open a session ranks the library, so the last few are kept. Answers are in the index.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._sessions: OrderedDict[tuple[object, ...], CheckSession] = OrderedDict()

    def begin(self, asked: schemas.CheckIn) -> schemas.CheckView:
        return self._view(asked)

    def answer(self, given: schemas.CheckAnswerIn) -> schemas.CheckView:
        """Note an answer about the photo that this person is asked about now."""
        session, who = self._session(given.checked), given.checked.who
        question = session.ask(who or session.who)
        if question is None or question.photo != given.photo:
            raise DataError("this photo is not the one asked about now; ask for the next one")
        session.answer(question, given.answer, who)
        return self._view(given.checked)

    def undo(self, asked: schemas.CheckIn) -> schemas.CheckView:
        self._session(asked).undo(asked.who or "")
        return self._view(asked)

    def _session(self, asked: schemas.CheckIn) -> CheckSession:
        index, of_album = self._library.index, asked.q.startswith(LIKE)
        query = None if of_album else self._library.query(asked.q)
        photos = (len(index), len(index.store.dead_rows()))
        name, wrong = str(query or asked.q), asked.wrong_at_most
        key = (name, wrong, asked.top, asked.answers, photos)
        if key not in self._sessions:
            if query is None:
                album = asked.q.removeprefix(LIKE)
                hits = photos_like_album(index, album, asked.top or SUGGESTED)
                made = CheckSession.of_ranked(
                    index, name_of("album", album), hits, wrong_at_most=wrong
                )
            else:
                made = CheckSession(
                    index, query, top=asked.top, answers=asked.answers, wrong_at_most=wrong
                )
            self._sessions[key] = made
            if len(self._sessions) > SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _view(self, asked: schemas.CheckIn) -> schemas.CheckView:
        library, session = self._library, self._session(asked)
        state, who = session.state(), asked.who or session.who
        promise, check = state.promise, state.check
        hopeless = state.more is None and check.checked > 0
        next_one = None if promise is not None or hopeless else session.ask(who)
        question, following = None, list[UseQuestion]()
        if next_one is not None:
            (listed,) = library.listed([session.row(next_one)])
            question = schemas.CheckQuestion(photo=listed, repeated=next_one.repeated)
            following = session.upcoming(who, next_one)
        facts = vars(check) | {"left": check.left, "more": state.more, "question": question}
        facts |= {"statement": state.statement, "sentence": state.sentence()}
        facts["query"] = _named(asked.q.removeprefix(LIKE)) if asked.q.startswith(LIKE) else asked.q
        facts["shorter"] = None if promise is not None else state.shorter
        facts["following"] = following[0].photo if following else None
        left = [] if promise is None else session.left()[:SHOWN].tolist()
        return schemas.CheckView.model_validate(facts | {"photos": library.listed(left)})


def _named(album: str) -> str:
    if album.startswith(PHOTOS):
        return f"the {counted(len(album.split(',')), 'photo')} you selected"
    return f"the album {album.removeprefix(KEYWORD)}"
