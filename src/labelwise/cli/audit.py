"""``labelwise audit``: are these labels right? Any tags, a list of photos, or past guarantees."""

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.command import verb
from labelwise.cli.index import index_and_query
from labelwise.cli.options import Options
from labelwise.cli.text import ask, caution, complain, next_steps, say
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.answers.log import Answer
    from labelwise.decide import Check, Promise
    from labelwise.photos import VerifiedLists
    from labelwise.photos.checking import CheckSession, CheckState

WIDTH = 24
OF_A_QUERY = ("wrong_at_most", "answers_at_most", "distinct", "text", "encoder", "like")
OF_A_LIST = (*OF_A_QUERY, "confidence", "at_least", "top", "who")
OF_GUARANTEES = ("ask", "receipts", "strict", "json")


@verb(
    "photos right_at_least confidence per_tag page csv answers again out who wrong_at_most "
    "answers_at_most",
    more="at_least top ask scores data trust seed distinct strict json text like encoder receipts "
    "host port token_file allow_host open",
    examples=("audit tags.csv --photos photos/ --page", "audit photos.index 'dog, -beach'"),
)
def audit(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="TAGS|INDEX|RUN", help="Tags of any kind; photos.index if omitted."),
    ] = None,
    query: Annotated[
        str | None, typer.Argument(help="Check the list of this query, as 'dog, -beach'.")
    ] = None,
    *,
    given: Options,
) -> None:
    """Find out which tags can be trusted, or check a list of photos or past guarantees.

    TAGS is a label table, a score file, JSON Lines of a language model, Label Studio predictions,
    COCO results (--data instances.json), several annotators (--trust NAME) or a folder of photos
    with keywords. Answer y (the tag is right), n, u (cannot be told), undo or stop; the next call
    goes on. --page asks in the browser; --csv writes questions for a spreadsheet, and --answers
    takes them back. -o names the folder of the results (TAGS.audit). --again RECEIPT tests what
    another audit kept.

    INDEX QUERY asks about photos of the list, drawn at random, until at most --wrong-at-most (0.1)
    of it is wrong with --confidence (0.95). Answer y (it matches), n, u (cannot be told), undo or
    stop; the next call goes on. --answers-at-most says how many answers you are willing to give
    (30): the more, the longer the list. --answers takes a CSV of path and answer instead. Photos
    found wrong leave the list, which -o writes.

    --like ALBUM, a folder or keyword:NAME, asks about its --top (50) suggestions in the same way.

    INDEX alone checks each list and tag that was guaranteed: --ask 30 -o questions.csv writes which
    photos to answer, and --answers takes them back. RUN checks its guarantees on its test photos,
    or on labelled photos with --answers. Exit status 1 where more guarantees are broken than may
    be.
    """
    from labelwise.cli.audit_tags import OF_TAGS, audit_tags, means_tags

    alone = given.text is None and given.like is None
    if query is None and alone and means_tags(place, given):
        given.refuse("it is for the list of a query", *OF_A_QUERY)
        given.refuse("it is for past guarantees", "receipts", "strict", "json")
        audit_tags(place, given)
        return
    given.refuse("it is for tags: leave out the query", *OF_TAGS)
    if place is not None and query is None and alone:
        is_index = (place / "index.json").is_file()
        if is_index or (place / "model.json").is_file():
            given.refuse("it is for the list of a query", *OF_A_LIST)
            _guarantees(place, given, is_index=is_index)
            return
    given.refuse("it is for past guarantees: leave out the query", *OF_GUARANTEES)
    _check_list(*index_and_query(place, query, alone=alone), given)


def _check_list(place: Path, query: str | None, given: Options) -> None:
    """Ask about photos of a list until it can be guaranteed."""
    from labelwise.errors import SettingsError
    from labelwise.photos import Index, model_changed
    from labelwise.photos.checking import CheckSession
    from labelwise.photos.prevalence import read_answers
    from labelwise.photos.query import ANSWERS, photos_like_album
    from labelwise.photos.receipts import name_of_album
    from labelwise.photos.words import FreeText
    from labelwise.retrieval import Query

    cut, top, text, album = given.at_least, given.top, given.text, given.like
    if cut is not None and top is not None:
        raise SettingsError("--at-least and --top both end the list; give one of them")
    if cut is not None and not 0 <= cut <= 1:
        raise SettingsError(f"--at-least must be a probability between 0 and 1, got {cut}")
    if sum(choice is not None for choice in (query, text, album)) != 1:
        raise SettingsError(
            "give a query such as 'dog, -beach', or --text TEXT, or --like ALBUM, and not both"
        )
    if text is None and given.encoder is not None:
        raise SettingsError("--encoder is an option of --text")
    if given.answers_at_most is not None and (top is not None or cut is not None):
        raise SettingsError("--answers-at-most sets the length of the list; leave out --top")
    if query is None and (cut is not None or given.distinct or (top is None and album is None)):
        raise SettingsError(
            f"--{'text' if album is None else 'like'} has no probabilities: end its list with "
            "--top, and leave out --at-least and --distinct"
        )
    with Index(place) as index:
        caution(model_changed(index))
        options = {
            "wrong_at_most": 0.1 if given.wrong_at_most is None else given.wrong_at_most,
            "confidence": 0.95 if given.confidence is None else given.confidence,
        }
        if text is not None:
            free_text = FreeText.of(index, given.encoder)
            caution(free_text.doubt(text))
            session = free_text.check(index, text, top or 0, who=given.who, **options)
        elif album is not None:
            hits = photos_like_album(index, album, top or 50)
            name = name_of_album(album)
            session = CheckSession.of_ranked(index, name, hits, who=given.who, **options)
        else:
            session = CheckSession(
                index,
                Query.parse(query or "", index.space, index.taxonomy),
                cut=cut,
                top=top,
                answers=given.answers_at_most or ANSWERS,
                distinct=given.distinct,
                who=given.who,
                **options,
            )
        count = counted(len(session.rows), "photo")
        what = query or text or f"the album {album}"
        say(f"does each photo match {what}? The list has {count}")
        if given.answers is None:
            state = _asked(session)
        else:
            told = read_answers(Path(given.answers))
            answers = {index.row_of(path): word for path, word in told.items()}
            state = _from_table(session, answers, given.answers)
        say(str(state))
        if state.promise is not None and given.out is not None:
            rows = session.left().tolist()
            paths = index.store.paths_of(rows)
            _write_list(given.target, [paths[row][0] for row in rows])
            say(f"the list: {given.out}")
    named = quote(query or "")
    if query is None:
        ranked = f"--text {quote(text)}" if text is not None else f"--like {quote(album or '')}"
        named = f"{ranked} --top {top or 50}"
    if state.promise is None:
        next_steps(f"audit {place} {named}")
    elif given.out is None:
        next_steps(f"audit {place} {named} -o list.txt")


def _asked(session: "CheckSession") -> "CheckState":
    """Ask until the list is guaranteed, all photos are answered, or the person stops."""
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


def _from_table(session: "CheckSession", answers: "dict[int, Answer]", path: str) -> "CheckState":
    """Answer from a table, in the order in which photos are drawn, as far as it goes."""
    state = session.state()
    while state.promise is None:
        photo = session.next_photo()
        if photo is None:
            break
        if photo.row not in answers:
            say(f"{path} has no answer for {photo.paths[0]}; add it and run this again")
            break
        state = session.answer(photo, answers[photo.row])
    return state


def _write_list(path: Path, photos: list[str]) -> None:
    from labelwise.system.files import replacing

    with replacing(path) as temporary:
        text = "".join(f"{photo}\n" for photo in photos)
        temporary.write_bytes(text.encode("utf-8", "surrogateescape"))


def _guarantees(place: Path, given: Options, *, is_index: bool) -> None:
    """Check what an index or a run guaranteed, now that answers are known."""
    from labelwise.errors import SettingsError

    if (given.ask is None) != (given.out is None):
        raise SettingsError("--ask N writes a table: give both --ask N and --out FILE")
    if sum((given.ask is not None, given.receipts, given.answers is not None)) > 1:
        raise SettingsError("--ask, --receipts and --answers do different things; give one")
    if given.ask is not None or given.receipts:
        given.refuse("--strict and --json are about verdicts", "strict", "json")
    if not is_index:
        given.refuse(f"{place} is not an index", "ask", "receipts", "strict")
    if _of_index(place, given) if is_index else _of_run(place, given):
        raise typer.Exit(1)


def _of_index(folder: Path, given: Options) -> bool:
    """Show how the lists of an index stand; return whether their guarantees are broken."""
    from labelwise.photos import Index, read_list_answers, receipts_of, verify_lists
    from labelwise.photos.receipts import write_list_questions

    with Index(folder) as index:
        if given.receipts:
            for receipt in receipts_of(index):
                say(json.dumps(receipt.spec()))
            return False
        if given.ask is not None:
            written = write_list_questions(index, given.target, given.ask)
            photos = counted(written, "photo")
            say(f"wrote {given.out}: {photos} to answer with yes, no or unsure")
            next_steps(f"audit {folder} --answers {given.out}")
            return False
        told = None
        if given.answers is not None:
            told = read_list_answers(index, Path(given.answers))
        verified = verify_lists(index, told)
    _show_lists(verified, given.json)
    if not given.json and not given.answers:
        next_steps(f"audit {folder} --ask 30 -o questions.csv")
    broken = any(verdict.verdict == "broken" for verdict in verified.by_number.values())
    return verified.together.verdict == "broken" or (given.strict and broken)


def _show_lists(verified: "VerifiedLists", as_json: bool) -> None:
    if as_json:
        lists = [
            {
                "receipt": receipt.number,
                "query": receipt.query,
                "kind": receipt.promise.kind,
                "verdict": verdict.verdict,
                "wrong_at_least": verdict.least,
                "wrong_at_most": verdict.most,
                "listed": receipt.promise.listed,
                "drawn": verdict.answers.drawn,
                "text": str(verdict),
            }
            for receipt, verdict in verified.lists
        ]
        together = {"verdict": verified.together.verdict, "text": str(verified.together)}
        say(json.dumps({"lists": lists, "together": together}))
        return
    for receipt, verdict in verified.lists:
        say(f"receipt {receipt.number}, {receipt.query} ({receipt.promise.kind}): {verdict}")
    say(str(verified.together))


def _of_run(folder: Path, given: Options) -> bool:
    """Show how the guarantees of a run stand; return whether one is broken."""
    pairs = _checked_run(folder, given.answers)
    if given.json:
        say(json.dumps([{"verdict": c.verdict, "text": str(c), **p.spec()} for c, p in pairs]))
    else:
        for check, promise in pairs:
            say(f"{check}; it was: {promise}")
        told = [check for check, _ in pairs if check.verdict != "cannot tell"]
        kept = sum(check.verdict == "kept" for check in told)
        say(f"kept in {kept} of {len(told)}; {len(pairs) - len(told)} cannot be told")
        if given.answers is None:
            next_steps(f"audit {folder} --answers NEW_PHOTOS.csv")
    return any(check.verdict == "broken" for check, _ in pairs)


def _checked_run(folder: Path, answers: str | None) -> "list[tuple[Check, Promise]]":
    from labelwise.data.load import load_for_labels
    from labelwise.errors import DataError
    from labelwise.models.run_folder import RunFolder
    from labelwise.scores import read_run, score_data

    run = RunFolder(folder)
    if not run.spec.promises:
        raise DataError(
            f"{folder} has no guarantee to check; train it with --guarantee precision=0.9"
        )
    if answers is None:
        checks = read_run(folder, "test").checks() if "test" in run.splits else []
        if not checks:
            raise DataError(f"{folder} has no held-out photos; give labelled photos with --answers")
        return checks
    table = load_for_labels(answers, run.spec.labels, check_files=True)
    scores, notes = score_data(folder, table)
    for note in notes:
        complain(note)
    return scores.checks()
