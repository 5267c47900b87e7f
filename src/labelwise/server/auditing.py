"""The page of an audit: one photo and one tag at a time; the labelling page shows it.

Every answer brings the next question with it, and the ids of the photos that may come after that,
so that a browser has loaded them before they are asked about.
"""

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp

from labelwise import __version__
from labelwise.answers.audit_outcome import progress, statement
from labelwise.answers.audit_session import EACH_TAG, AuditSession, TagQuestion
from labelwise.server.api import require_json
from labelwise.server.batching import Threads
from labelwise.server.labelling import (
    Background,
    Name,
    asking_app,
    file_facts,
    photo_id,
    shown_name,
)
from labelwise.server.library import PhotoNotFoundError
from labelwise.server.settings import ServeSettings

Word = Literal["yes", "no", "unsure"]
Tag = Annotated[str, Field(max_length=1000)]


class AuditQuestion(BaseModel):
    """Does this photo show the tag? Or, where tags are ``listed``, which of them does it show?"""

    id: str
    name: str
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


class AuditAnswer(BaseModel):
    """What a person says of a photo: of one tag, or by tag of all that were listed."""

    model_config = ConfigDict(extra="forbid")
    photo: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    who: Name
    label: Tag | None = None
    answer: Word | None = None
    shown: Annotated[dict[Tag, Word], Field(max_length=1000)] | None = None


class AuditUndo(BaseModel):
    """Who takes back the last answer."""

    model_config = ConfigDict(extra="forbid")
    who: Name


class _Auditing:
    def __init__(self, session: AuditSession, out: Path) -> None:
        self.session, self.out = session, out
        self._photos: dict[str, str] = {}  # those that were asked about, by id
        self.gone: dict[str, tuple[int, ...] | None] = {}

    def path(self, photo: str) -> Path:
        return self.session.folder.absolute() / self.photo(photo)

    def photo(self, photo: str) -> str:
        if photo not in self._photos:
            raise PhotoNotFoundError("there is no photo with this id")
        return self._photos[photo]

    def finish(self) -> None:
        """Leave the outcome to whoever started the server."""

    def state(self, who: str | None, back: TagQuestion | None = None) -> AuditState:
        gone = dict(self.gone)
        self.session.unreadable = {
            self._photos[one] for one, facts in gone.items() if facts == file_facts(self.path(one))
        }
        question = back or (None if who is None else self.session.question(who))
        following = [] if question is None else self.session.upcoming(who or "", question)
        return AuditState(
            statement=statement(self.session),
            progress=progress(self.session),
            folder=str(self.out),
            question=None if question is None else self._asked(question),
            ahead=[self._asked(one).id for one in following],
        )

    def _asked(self, question: TagQuestion) -> AuditQuestion:
        path = self.session.folder.absolute() / question.photo
        number = photo_id(path)
        self._photos[number] = question.photo
        return AuditQuestion(
            id=number,
            name=shown_name(path),
            label=None if question.tag == EACH_TAG else question.tag,
            tagged=list(question.tagged),
            listed=list(question.listed),
        )

    def answer(self, given: AuditAnswer) -> AuditState:
        photo = self.photo(given.photo)
        if given.label is not None:
            line = self.session.line(photo, given.label, given.answer or "", given.who)
        else:
            line = self.session.shown_line(photo, given.shown or {}, given.who)
        self.session.record([line])
        return self.state(given.who)

    def undo(self, given: AuditUndo) -> AuditState:
        return self.state(given.who, self.session.undo(given.who))


def create_audit_app(
    session: AuditSession, out: Path, settings: ServeSettings | None = None
) -> ASGIApp:
    """Return the application that asks people about the tags of an audit."""
    return asking_app(
        lambda: _Auditing(session, out), settings or ServeSettings(), _add_audit_routes
    )


def _add_audit_routes(api: APIRouter, auditing: _Auditing, thread: Threads) -> list[Background]:
    @api.get("/labelling", summary="How far the audit is")
    async def labelling() -> AuditState:
        return await thread.run(lambda: auditing.state(None))

    @api.get("/question", summary="What to ask a person now")
    async def question(
        who: Annotated[str, Query(min_length=1, max_length=100)],
    ) -> AuditState:
        return await thread.run(lambda: auditing.state(who))

    @api.put("/answer", summary="Say whether a photo shows a tag, or which of those listed")
    async def answer(request: Request, given: AuditAnswer) -> AuditState:
        require_json(request)
        return await thread.run(lambda: auditing.answer(given))

    @api.put("/undo", summary="Take back one's last answer")
    async def undo(request: Request, given: AuditUndo) -> AuditState:
        require_json(request)
        return await thread.run(lambda: auditing.undo(given))

    return []
