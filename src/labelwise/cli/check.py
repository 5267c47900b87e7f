"""``labelwise check``: a person checks photos of a list until it can be promised."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.asking import ask
from labelwise.cli.index import IndexOrQuery, index_and_query
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.photos.check_log import Answer
    from labelwise.photos.checking import CheckSession, CheckState
    from labelwise.photos.index import Index


WIDTH = 24


def check(
    folder: IndexOrQuery = None,
    query: Annotated[str | None, typer.Argument(help="As in 'dog, -beach', as for search.")] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Instead of a query: the photos most like this text, with --top. Only the answers "
            "count for its promise."
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="Of --text: the folder of the text's model, if it is elsewhere now."),
    ] = None,
    wrong_at_most: Annotated[
        float, typer.Option(help="Share of the list that may be wrong.")
    ] = 0.1,
    confidence: Annotated[float, typer.Option(help="Of the promise.")] = 0.95,
    cut: Annotated[
        float | None, typer.Option(help="Check the photos of at least this probability.")
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", "-n", min=1, help="Check the best so many photos.")
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Let only the answers count, for photos unlike the held-out ones."
        ),
    ] = False,
    distinct: Annotated[
        bool,
        typer.Option("--distinct", help="Take near copies as one photo: the earliest of them."),
    ] = False,
    answers: Annotated[
        Path | None,
        typer.Option(help="A CSV of path and answer (yes, no, unsure) instead of questions."),
    ] = None,
    who: Annotated[str | None, typer.Option(help="Who answers. Default: the user.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the promised list, one path per line."),
    ] = None,
) -> None:
    """Check a few photos of a list, to turn it into a promise.

    Photos are drawn at random; nothing is opened, their paths are shown. Answer y (it matches the
    query), n (it does not), u (cannot be told), undo or stop. Stop whenever you like: the next
    call goes on from there. Unless you choose the list, it is one that should take about 12
    answers. Photos found wrong leave the list.
    """
    from labelwise.cli.text import caution, say
    from labelwise.errors import SettingsError
    from labelwise.photos import Index, model_changed
    from labelwise.photos.answer_tables import read_answers
    from labelwise.photos.checking import CheckSession
    from labelwise.retrieval import Query

    place, query = index_and_query(folder, query, alone=text is None)
    if cut is not None and top is not None:
        raise SettingsError("--cut and --top both end the list; give one of them")
    if cut is not None and not 0 <= cut <= 1:
        raise SettingsError(f"--cut must be a probability between 0 and 1, got {cut}")
    if (query is None) == (text is None):
        raise SettingsError("give a query such as 'dog, -beach', or --text TEXT, and not both")
    if text is None and encoder is not None:
        raise SettingsError("--encoder is an option of --text")
    if text is not None and (top is None or cut is not None or alone or distinct):
        raise SettingsError(
            "--text has no probabilities: end its list with --top, and leave out --cut, --alone "
            "and --distinct"
        )
    with Index(place) as index:
        caution(model_changed(index))
        options = {"wrong_at_most": wrong_at_most, "confidence": confidence}
        if text is not None:
            from labelwise.photos.words import FreeText

            found = FreeText.of(index, encoder)
            caution(found.doubt(text))
            session = found.check(index, text, top or 0, who=who, **options)
        else:
            parsed = Query.parse(query or "", index.space, index.taxonomy)
            session = CheckSession(
                index, parsed, cut=cut, top=top, alone=alone, distinct=distinct, who=who, **options
            )
        count = counted(len(session.rows), "photo")
        say(f"does each photo match {text or query}? The list has {count}")
        given = (
            None
            if answers is None
            else {index.row_of(path): word for path, word in read_answers(answers).items()}
        )
        state = _asked(session) if given is None else _from_table(session, given, answers)
        say(str(state))
        if state.promise is not None and output is not None:
            _write(output, session, index)
            say(f"the list: {output}")


def _asked(session: "CheckSession") -> "CheckState":
    """Ask until the list is promised, all photos are answered, or the person stops."""
    from labelwise.cli.text import say

    state = session.state()
    while state.promise is None and (state.more is not None or state.check.checked == 0):
        photo = session.next_photo()
        if photo is None:
            break
        say(_bar(state))
        again = " (again)" if photo.repeated else ""
        word = ask(f"{photo.paths[0]}{again}")
        if word == "stop":
            break
        state = session.undo() if word == "undo" else session.answer(photo, word)
    return state


def _bar(state: "CheckState") -> str:
    """Return how far the check is, as a bar of text."""
    done, more = state.check.checked, state.more
    if more is None:
        return f"{done:,} checked"
    filled = round(WIDTH * done / max(done + more, 1))
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}] {done:,} checked, about {more:,} more"


def _from_table(
    session: "CheckSession", given: "dict[int, Answer]", path: Path | None
) -> "CheckState":
    """Answer from a table, in the order in which photos are drawn, as far as it goes."""
    from labelwise.cli.text import say

    state = session.state()
    while state.promise is None:
        photo = session.next_photo()
        if photo is None:
            break
        if photo.row not in given:
            say(f"{path} has no answer for {photo.paths[0]}; add it and run this again")
            break
        state = session.answer(photo, given[photo.row])
    return state


def _write(path: Path, session: "CheckSession", index: "Index") -> None:
    from labelwise.system.files import replacing

    rows = session.left().tolist()
    paths = index.store.paths_of(rows)
    with replacing(path) as temporary:
        text = "".join(f"{paths[row][0]}\n" for row in rows)
        temporary.write_bytes(text.encode("utf-8", "surrogateescape"))
