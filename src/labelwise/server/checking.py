"""Checks of lists in the page: the sessions of the index, kept open while people answer.

To open a session ranks the whole library, so the last few are kept. What people answered stands in
the index, not in a session: one that was dropped is opened again where it was left.
"""

from collections import OrderedDict
from dataclasses import asdict

from labelwise.errors import DataError
from labelwise.photos.checking import CheckSession, CheckState, PhotoToCheck
from labelwise.photos.receipts import Receipt, receipts_of, verify_lists
from labelwise.retrieval import Query
from labelwise.server.library import Library, photo_name
from labelwise.server.schemas import (
    CheckAnswerIn,
    CheckIn,
    CheckQuestion,
    CheckView,
    ListedPhoto,
    ReceiptsView,
    ReceiptView,
    StatementView,
)

KEPT = 16  # sessions
SHOWN = 48  # photos of a promised list


class ListChecks:
    """The checks of a library's lists; its methods run in the library's thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._sessions: OrderedDict[tuple[object, ...], CheckSession] = OrderedDict()

    def begin(self, asked: CheckIn) -> CheckView:
        """Begin a check, or resume it."""
        session = self._session(asked)
        return self._view(asked, session, session.state())

    def answer(self, given: CheckAnswerIn) -> CheckView:
        """Note an answer about the photo that is asked about now."""
        session = self._session(given.checked)
        photo = session.next_photo()
        if photo is None or photo.row != self._library.row(given.photo):
            raise DataError(
                "this photo is not the one asked about now: it was answered already, or is not of "
                "this list; ask for the next one"
            )
        return self._view(given.checked, session, session.answer(photo, given.answer))

    def undo(self, asked: CheckIn) -> CheckView:
        """Take the last answer about the query back."""
        session = self._session(asked)
        return self._view(asked, session, session.undo())

    def _session(self, asked: CheckIn) -> CheckSession:
        index = self._library.index
        query = Query.parse(asked.q, index.space, index.taxonomy)
        photos = (len(index), len(index.store.dead_rows()))
        key = (str(query), asked.wrong_at_most, asked.top, asked.answers, asked.who, photos)
        if key not in self._sessions:
            self._sessions[key] = CheckSession(
                index,
                query,
                wrong_at_most=asked.wrong_at_most,
                top=asked.top,
                answers=asked.answers,
                who=asked.who,
            )
            if len(self._sessions) > KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _view(self, asked: CheckIn, session: CheckSession, state: CheckState) -> CheckView:
        promise, check, said = state.promise, state.check, state.statement
        hopeless = state.more is None and check.checked > 0
        photo = None if promise is not None or hopeless else session.next_photo()
        after = None if photo is None else session.photo_after(photo)
        kept = [] if promise is None else session.left()[:SHOWN].tolist()
        ids = self._library.ids([one.row for one in (photo, after) if one is not None] + kept)
        paths = self._library.index.store.paths_of(kept)
        return CheckView(
            query=asked.q,
            wrong_at_most=asked.wrong_at_most,
            listed=check.listed,
            left=check.left,
            checked=check.checked,
            more=state.more,
            shorter=None if promise is not None else state.shorter,
            statement=None if said is None else StatementView(**asdict(said)),
            sentence=state.sentence(),
            question=None if photo is None else _question(photo, ids[photo.row]),
            following=None if after is None else ids[after.row],
            photos=[ListedPhoto(id=ids[row], name=photo_name(paths[row])) for row in kept],
        )


def _question(photo: PhotoToCheck, photo_id: str) -> CheckQuestion:
    listed = ListedPhoto(id=photo_id, name=photo_name(photo.paths))
    return CheckQuestion(photo=listed, repeated=photo.repeated)


def _withdrawn(receipt: Receipt) -> str:
    """Return why a receipt that was withdrawn no longer stands."""
    if receipt.is_of_tags:
        return "tags are no longer held to answers"
    return "an answer it rests on was taken back"


def receipts_view(library: Library) -> ReceiptsView:
    """Return what was promised of lists, and whether people's answers bear it out."""
    verified = verify_lists(library.index)
    verdicts = verified.by_number
    views = []
    for one in reversed(receipts_of(library.index)):
        verdict = verdicts.get(one.number)
        views.append(
            ReceiptView(
                number=one.number,
                query=one.title,
                kind=one.promise.kind,
                text=str(one.promise),
                method=one.promise.test,
                listed=one.promise.listed or 0,
                who=one.who,
                at=one.at,
                withdrawn=one.withdrawn,
                photos=one.photos,
                weights=one.weights,
                link=one.link,
                held_out=one.held_out,
                verdict="cannot tell" if verdict is None else verdict.verdict,
                told=_withdrawn(one) if verdict is None else str(verdict),
            )
        )
    return ReceiptsView(receipts=views, together=str(verified.together))
