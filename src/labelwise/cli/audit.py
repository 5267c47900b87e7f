"""``labelwise audit``: are these labels right? Any tags, a list of photos, or past guarantees."""

import json
from pathlib import Path
from shlex import quote

import typer

from labelwise.answers.log import Answer
from labelwise.base.files import replacing
from labelwise.base.text import counted
from labelwise.cli.index import index_and_query
from labelwise.cli.options import Options
from labelwise.cli.text import ask, caution, next_steps, say
from labelwise.decide import Check, Promise
from labelwise.errors import DataError, SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, model_changed, read_list_answers, receipts_of, verify_lists
from labelwise.photos.lists import (
    ANSWERS,
    CheckSession,
    CheckState,
    name_of,
    write_list_questions,
)
from labelwise.photos.prevalence import read_answers
from labelwise.photos.query import photos_like_album
from labelwise.queries import Query
from labelwise.scores import read_run, score_data
from labelwise.tables.load import load_for_labels

WIDTH = 24
OF_A_QUERY = ("wrong_at_most", "answers_at_most", "distinct", "text", "encoder", "like")
OF_A_LIST = (*OF_A_QUERY, "confidence", "at_least", "top", "who")
OF_GUARANTEES = ("ask", "receipts", "strict", "json")


def audit(place: Path | None, query: str | None, given: Options) -> None:
    """Find out which tags can be trusted, or check a list of photos or past guarantees."""
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
        mend = "end its list with --top, and leave out --at-least and --distinct"
        flag = "--text" if album is None else "--like"
        raise SettingsError(f"{flag} has no probabilities: {mend}")
    with Index(place) as index:
        caution(model_changed(index))
        options = {"wrong_at_most": given.get("wrong_at_most", 0.1), "who": given.who}
        options["confidence"] = given.get("confidence", 0.95)
        if text is not None:
            from labelwise.photos.words import FreeText  # with torch

            free_text = FreeText.of(index, given.encoder)
            caution(free_text.doubt(text))
            session = free_text.check(index, text, top or 0, **options)
        elif album is not None:
            hits = photos_like_album(index, album, top or 50)
            session = CheckSession.of_ranked(index, name_of("album", album), hits, **options)
        else:
            asked = Query.parse(query or "", index.space, index.taxonomy)
            options |= {"answers": given.answers_at_most or ANSWERS, "distinct": given.distinct}
            session = CheckSession(index, asked, cut=cut, top=top, **options)
        what, count = query or text or f"the album {album}", counted(len(session.rows), "photo")
        say(f"does each photo match {what}? The list has {count}")
        told: dict[int, Answer] | None = None
        if given.answers is not None:
            said = read_answers(Path(given.answers))
            told = {index.row_of(path): word for path, word in said.items()}
        state = _answered(session, told, given.answers)
        say(str(state))
        if state.promise is not None and given.out is not None:
            rows = session.left().tolist()
            paths = index.store.paths_of(rows)
            lines = "".join(f"{paths[row][0]}\n" for row in rows)
            with replacing(given.target) as temporary:
                temporary.write_bytes(lines.encode("utf-8", "surrogateescape"))
            say(f"the list: {given.out}")
    named = quote(query or "")
    if query is None:
        ranked = f"--text {quote(text)}" if text is not None else f"--like {quote(album or '')}"
        named = f"{ranked} --top {top or 50}"
    if state.promise is None or given.out is None:
        next_steps(f"audit {place} {named}{' -o list.txt' if state.promise else ''}")


def _answered(
    session: CheckSession, told: dict[int, Answer] | None, table: str | None
) -> CheckState:
    state = session.state()
    while state.promise is None and (
        told is not None or state.more is not None or not state.check.checked
    ):
        photo = session.next_photo()
        if photo is None:
            break
        if told is None:
            done, more = state.check.checked, state.more
            if more is None:
                say(f"{done:,} checked")
            else:
                bar = "#" * round(WIDTH * done / max(done + more, 1))
                say(f"[{bar:.<{WIDTH}}] {done:,} checked, about {more:,} more")
            word = ask(f"{photo.paths[0]}{' (again)' if photo.repeated else ''}")
        elif photo.row in told:
            word = told[photo.row]
        else:
            say(f"{table} has no answer for {photo.paths[0]}; add it and run this again")
            word = "stop"
        if word == "stop":
            break
        state = session.undo() if word == "undo" else session.answer(photo, word)
    return state


def _guarantees(place: Path, given: Options, *, is_index: bool) -> None:
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
    with Index(folder) as index:
        if given.receipts:
            for receipt in receipts_of(index):
                say(json.dumps(receipt.spec()))
            return False
        if given.ask is not None:
            photos = counted(write_list_questions(index, given.target, given.ask), "photo")
            say(f"wrote {given.out}: {photos} to answer with yes, no or unsure")
            next_steps(f"audit {folder} --answers {given.out}")
            return False
        told = None if given.answers is None else read_list_answers(index, Path(given.answers))
        verified = verify_lists(index, told)
    together, lists = verified.together, []
    for receipt, verdict in verified.lists:
        promise = receipt.promise
        if not given.json:
            say(f"receipt {receipt.number}, {receipt.query} ({promise.kind}): {verdict}")
        facts = {"receipt": receipt.number, "query": receipt.query, "kind": promise.kind}
        facts |= {"verdict": verdict.verdict, "text": str(verdict), "listed": promise.listed}
        facts |= {"wrong_at_least": verdict.least, "wrong_at_most": verdict.most}
        lists.append(facts | {"drawn": verdict.answers.drawn})
    if given.json:
        told_together = {"verdict": together.verdict, "text": str(together)}
        say(json.dumps({"lists": lists, "together": told_together}))
    else:
        say(str(together))
        if not given.answers:
            next_steps(f"audit {folder} --ask 30 -o questions.csv")
    broken = any(verdict.verdict == "broken" for _, verdict in verified.lists)
    return together.verdict == "broken" or (given.strict and broken)


def _of_run(folder: Path, given: Options) -> bool:
    run = RunFolder(folder)
    pairs: list[tuple[Check, Promise]] = []
    if not run.spec.promises:
        mend = "train it with --guarantee precision=0.9"
        raise DataError(f"{folder} has no guarantee to check; {mend}")
    if given.answers is not None:
        table = load_for_labels(given.answers, run.spec.labels, check_files=True)
        scores, notes = score_data(folder, table)
        caution(*notes)
        pairs = scores.checks()
    elif "test" in run.splits:
        pairs = read_run(folder, "test").checks()
    if not pairs and given.answers is None:
        raise DataError(f"{folder} has no held-out photos; give labelled photos with --answers")
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
