"""The pages that ask people: is this word in these photos, and are these tags right?

The order of photos is random for each word, or that of a guide with some photos set aside at
random. What one person has is not given to another while there is anything else.
"""

import asyncio
import hashlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, FastAPI, Query, Response
from pydantic import BaseModel, Field
from starlette.types import ASGIApp

from labelwise import __version__
from labelwise.answers.agreement import LabelAnswers, Tally, require_own
from labelwise.answers.audit_session import AuditSession, progress, statement
from labelwise.answers.log import Answer, AnswerLog
from labelwise.answers.session import EACH_TAG, UseQuestion
from labelwise.base.text import printable
from labelwise.errors import ImageError, LabelwiseError, SettingsError
from labelwise.photos.words import QuestionGuide, WordList, asking_order
from labelwise.pictures import Transform
from labelwise.pictures.sources import read_image_file
from labelwise.server import schemas
from labelwise.server.api import ERRORS, Side, add_session, answering
from labelwise.server.app import Front, add_errors, add_page
from labelwise.server.batching import Threads
from labelwise.server.schemas import Health, Strict
from labelwise.server.security import RefusedError
from labelwise.server.service import decoders_of
from labelwise.server.settings import ServeSettings

log = logging.getLogger("labelwise.server")

FindPhotos = Callable[[], Sequence[Path]]
Facts = tuple[int, ...] | None
Learn = Callable[[Mapping[str, Mapping[str, bool]]], QuestionGuide]
REST = 10  # of scans and exports, as a multiple of the time they take
READERS = 8  # of photos' files at the same time
RANDOM_ORDER = "Photos come in random order, so that guarantees can rest on every answer."
GUIDED_ORDER = (
    "Of five photos, four are those that the model learns most from. One was set aside at random: "
    "guarantees and counts rest on those alone."
)
ANY_TRANSFORM = Transform(32)  # decoders want one; thumbnails need none
Name = Annotated[str, Field(min_length=1, max_length=100)]
Who = Annotated[str, Query(min_length=1, max_length=100)]
Given = Literal["present", "absent", "unsure", "withdrawn"]


class LabellingView(BaseModel):
    """The words, and how far people have come."""

    words: list[Tally]
    photos: int
    answered: int
    order: str
    may_guess: bool
    table: str
    version: str = __version__


class AskedPhoto(schemas.ListedPhoto):
    """A photo that a person is asked about, with a run's guess if one is wanted and it has one."""

    guess: bool | None = None


class AskedPhotos(BaseModel):
    """Photos to look at for a word, of ``left``; the guide has learnt from so many answers."""

    label: str
    photos: list[AskedPhoto]
    left: int
    learnt_from: int | None = None


class AnswersIn(Strict):
    """What a person says of a word in some photos."""

    label: Annotated[str, Field(max_length=1000)]
    who: Name
    states: Annotated[dict[schemas.PhotoId, Given], Field(min_length=1, max_length=200)]


class Background:
    """Work in a thread of its own, once at a time, and once more if it was wanted meanwhile.

    Between two runs is a pause of ``rest`` times as long as the first took.
    """

    def __init__(
        self, what: str, work: Callable[[], None], rest: float = 0, *, at_start: bool = True
    ) -> None:
        self._what, self._work, self._thread, self._rest = what, work, Threads(1, what), rest
        self.at_start = at_start
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._wanted:
            self._wanted, started = False, time.monotonic()
            try:
                await self._thread.run(self._work)
            except LabelwiseError as error:
                log.warning("%s: %s", self._what, error)
            except Exception:  # people go on answering
                log.exception("%s failed", self._what)
            await asyncio.sleep(self._rest * (time.monotonic() - started))

    async def close(self) -> None:
        """Do no more; a run that is going on is waited for."""
        self._wanted = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.close(wait=True)


class PhotoPage(ABC):
    """A page that shows photos and asks about them; an id is the hash of a photo's path."""

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}  # of the photos that may be shown, by id
        self.gone: dict[str, Facts] = {}  # of those that could not be shown: the file then

    def path(self, photo: str) -> Path:
        if photo not in self.paths:
            raise RefusedError(404, "there is no photo with this id")
        return self.paths[photo]

    def is_there(self, photo: str) -> bool:
        """Return whether a photo could be shown, or its file is another one by now."""
        return photo not in self.gone or self.gone[photo] != file_facts(self.paths[photo])

    @abstractmethod
    def add_routes(self, api: APIRouter, thread: Threads) -> Sequence[Background]:
        """Add how questions are asked and answered, in one thread; return what works beside."""

    def finish(self) -> None:  # noqa: B027
        pass


class _Asking(PhotoPage):
    def __init__(
        self,
        photos: Sequence[Path],
        words: WordList,
        table: Path,
        guide: QuestionGuide | None,
        learn: Learn | None,
        find: FindPhotos | None,
    ) -> None:
        super().__init__()
        if table.suffix.lower() != ".csv":
            raise SettingsError(f"the answers are exported to a .csv file, got {table}")
        self.words, self.table, self.guide = words, table, guide
        self._learn, self._find = learn, find
        self.paths = {photo_id(path): path.absolute() for path in photos}
        self._found: Mapping[str, Path] = {}
        log = AnswerLog(table.with_suffix(".jsonl"))
        self.said = LabelAnswers(log, None if guide is None else guide.aside)
        require_own(log, table)
        log.append([])  # so that what cannot be written is said now
        self._drawn: dict[str, list[str]] = {}  # paths in random order, by word
        self._orders: dict[str, tuple[QuestionGuide | None, list[str]]] = {}
        self._handed: dict[tuple[str, str], str] = {}

    def look(self) -> None:
        if self._find is not None:
            self._found = {photo_id(photo): photo.absolute() for photo in self._find()}

    def _refresh(self) -> None:
        """Take in photos found and answers given since; an empty folder may be an absent disk."""
        self.said.refresh()
        if not self._found.keys() <= self.paths.keys():
            self.paths = {**self.paths, **self._found}
            self._drawn, self._orders = {}, {}

    def learn(self) -> None:
        if self._learn is not None:
            self.guide = self._learn(self.said.agreed)

    def export(self) -> None:
        if self.said.log.lines():
            self.said.export(self.table, self.words.names)

    def finish(self) -> None:
        try:
            self.export()
        except LabelwiseError as error:
            log.error("the answers are in %s, but: %s", self.said.log.path, error)

    def view(self) -> LabellingView:
        self._refresh()
        is_guided, tallies = self.guide is not None, self.said.tallies()
        return LabellingView(
            words=[tallies.get(word, Tally(word)) for word in self.words.names],
            photos=len(self.paths),
            answered=self.said.answered,
            order=GUIDED_ORDER if is_guided else RANDOM_ORDER,
            may_guess=is_guided,
            table=str(self.table),
        )

    def questions(
        self,
        label: Annotated[str, Query(max_length=1000)],
        who: Who,
        count: Annotated[int, Query(ge=1, le=100)] = 20,
        fresh: Annotated[bool, Query(description="Other photos than those before.")] = False,
        guesses: Annotated[bool, Query(description="With what the guiding run thinks.")] = False,
    ) -> AskedPhotos:
        """Return photos to ask about: first those the person has and did not answer."""
        self.words.space.column(label)
        self._refresh()
        guide = self.guide  # another thread may put a newer one in its place
        order = filter(self.is_there, self._order(label, guide))
        said = self.said
        waiting = [one for one in order if not said.is_answered(str(self.paths[one]), label)]

        def turn(photo: str) -> int:
            holder = self._handed.get((label, photo))
            if holder is None:
                return 0 if fresh else 1
            return (1 if fresh else 0) if holder == who else 2

        asked = []
        for photo in sorted(waiting, key=turn)[:count]:
            self._handed[label, photo], path = who, self.paths[photo]
            guess = guide.guess(label, str(path)) if guesses and guide else None
            asked.append(AskedPhoto(id=photo, name=printable(path.name), guess=guess))
        learnt = None if guide is None else guide.learnt_from
        return AskedPhotos(label=label, photos=asked, left=len(waiting), learnt_from=learnt)

    def _order(self, label: str, guide: QuestionGuide | None) -> list[str]:
        made_by, order = self._orders.get(label, (None, None))
        if order is None or made_by is not guide:
            if label not in self._drawn:
                self._drawn[label] = asking_order(label, map(str, self.paths.values()))
            drawn = self._drawn[label]
            answered = {path for path in drawn if self.said.is_answered(path, label)}
            paths = drawn if guide is None else guide.order(label, drawn, answered)
            order = [photo_id(Path(path)) for path in paths]
            self._orders[label] = guide, order
        return order

    def answer(self, given: AnswersIn) -> LabellingView:
        self.words.space.column(given.label)
        states = {str(self.path(photo)): state for photo, state in given.states.items()}
        self.said.add(given.label, states, given.who)
        return self.view()

    def add_routes(self, api: APIRouter, thread: Threads) -> Sequence[Background]:
        looking = Background("looking for photos", self.look, REST, at_start=False)
        learning = Background("fitting the guide of the questions", self.learn)
        exporting = Background("exporting the answers", self.export, REST)
        ask, after = answering(api, thread.run), [learning.want, exporting.want]
        words = "The words, and how far people have come"
        ask("/labelling", self.view, words, "labelling", after=[looking.want])
        ask("/questions", self.questions, "Photos to look at for a word")
        ask("/answers", self.answer, "Say whether a word is in photos", method="PUT", after=after)
        return [looking, learning, exporting]


def create_labelling_app(
    photos: Sequence[Path],
    words: WordList,
    table: Path,
    settings: ServeSettings | None = None,
    *,
    guide: QuestionGuide | None = None,
    learn: Learn | None = None,
    find: FindPhotos | None = None,
) -> ASGIApp:
    """Return the application that asks people about words in photos, and keeps what they say.

    ``learn`` makes a new guide of all answers, in the background; ``find`` lists the photos there
    are, each time someone opens the page.
    """
    return asking_app(lambda: _Asking(photos, words, table, guide, learn, find), settings)


def asking_app(make: Callable[[], PhotoPage], settings: ServeSettings | None) -> ASGIApp:
    """Return the application of a page that shows photos and asks about them."""
    settings = settings or ServeSettings()
    decoders = decoders_of(settings, ANY_TRANSFORM)
    try:
        asking = make()
        decoders.await_start()
    except BaseException:
        decoders.close()
        raise
    answers, readers = Threads(1, "answers"), Threads(READERS, "photo")
    api = APIRouter(prefix="/api/v1", responses=ERRORS)
    add_session(api, settings)
    background = asking.add_routes(api, answers)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for task in background:
            if task.at_start:
                task.want()  # answers of an earlier time
        try:
            yield
        finally:
            for task in background:
                await task.close()
            readers.close(wait=False)
            answers.close(wait=True)
            decoders.close()
            asking.finish()

    app = FastAPI(
        title="labelwise", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    add_errors(app)

    @api.get("/photos/{photo}/thumbnail", summary="A small picture, drawn again")
    async def thumbnail(photo: schemas.PhotoAddress, side: Side = 320) -> Response:
        path = asking.path(photo)
        facts = await readers.run(lambda: file_facts(path))
        try:
            content = await readers.run(
                lambda: decoders.thumbnail(read_image_file(path, path.name), path.name, side)
            )
        except ImageError as error:
            asking.gone[photo] = facts
            raise RefusedError(404, f"the photo cannot be shown: {error}") from None
        return Response(content, media_type="image/jpeg", headers={"cache-control": "no-cache"})

    @app.get("/health/{kind}", tags=["health"])
    async def health(kind: Literal["live", "ready"]) -> Health:
        return Health(status=kind)

    app.include_router(api)
    add_page(app, "label.html")
    return Front(app, settings)


def photo_id(path: Path) -> str:
    """Return the id of a photo: the hash of its path."""
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()


def file_facts(path: Path) -> Facts:
    """Return what tells a file from the one before; None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


# The page of an audit: one photo and one tag at a time; the labelling page shows it. Every answer
# brings the next question with it, and the ids of photos for the browser to load ahead.

Tag = Annotated[str, Field(max_length=1000)]


class AuditQuestion(schemas.ListedPhoto):
    """Does this photo show the tag? Or, where tags are ``listed``, which of them does it show?"""

    label: str | None
    tagged: list[str]
    listed: list[str]


class AuditState(BaseModel):
    """How far the audit is, and what to ask this person next; ``ahead`` are photos to load."""

    one_at_a_time: Literal[True] = True
    statement: str
    progress: str
    folder: str
    version: str = __version__
    question: AuditQuestion | None = None
    ahead: list[str] = []


class AuditUndo(Strict):
    """Who takes back the last answer."""

    who: Name


class AuditAnswer(Strict):
    """What a person says of a photo: of one tag, or by tag of all that were listed."""

    photo: schemas.PhotoId
    who: Name
    label: Tag | None = None
    answer: Answer | None = None
    shown: Annotated[dict[Tag, Answer], Field(max_length=1000)] | None = None


class _Auditing(PhotoPage):
    def __init__(self, session: AuditSession, out: Path) -> None:
        super().__init__()
        self.session, self.out = session, out
        self._photos: dict[str, str] = {}  # those that were asked about, by id

    def labelling(self) -> AuditState:
        return self.state(None)

    def question(self, who: Who) -> AuditState:
        return self.state(who)

    def state(self, who: str | None, back: UseQuestion | None = None) -> AuditState:
        self.session.unreadable = {
            self._photos[photo] for photo in list(self.gone) if not self.is_there(photo)
        }
        question = back or (None if who is None else self.session.ask(who))
        following = [] if question is None else self.session.upcoming(who or "", question)
        return AuditState(
            statement=statement(self.session),
            progress=progress(self.session),
            folder=str(self.out),
            question=None if question is None else self._asked(question),
            ahead=[self._asked(question).id for question in following],
        )

    def _asked(self, question: UseQuestion) -> AuditQuestion:
        path = self.session.folder.absolute() / question.photo
        number = photo_id(path)
        self._photos[number], self.paths[number] = question.photo, path
        return AuditQuestion(
            id=number,
            name=printable(path.name),
            label=None if question.label == EACH_TAG else question.label,
            tagged=list(question.tagged),
            listed=list(question.listed),
        )

    def answer(self, given: AuditAnswer) -> AuditState:
        self.path(given.photo)  # which must be known
        photo, session = self._photos[given.photo], self.session
        if given.label is not None:
            session.answer(photo, given.label, given.answer or "", given.who)
        else:
            session.answer(photo, EACH_TAG, given.shown or {}, given.who)
        return self.state(given.who)

    def undo(self, given: AuditUndo) -> AuditState:
        return self.state(given.who, self.session.undo(given.who))

    def add_routes(self, api: APIRouter, thread: Threads) -> Sequence[Background]:
        ask = answering(api, thread.run)
        ask("/labelling", self.labelling, "How far the audit is")
        ask("/question", self.question, "What to ask a person now")
        words = "Say whether a photo shows a tag, or which of those listed"
        ask("/answer", self.answer, words, method="PUT")
        ask("/undo", self.undo, "Take back one's last answer", method="PUT")
        return []


def create_audit_app(
    session: AuditSession, out: Path, settings: ServeSettings | None = None
) -> ASGIApp:
    """Return the application that asks people about the tags of an audit."""
    return asking_app(lambda: _Auditing(session, out), settings)
