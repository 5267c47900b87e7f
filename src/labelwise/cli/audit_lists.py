"""The audit of a list of photos in the terminal, and of past guarantees."""

from json import dumps
from pathlib import Path
from typing import Any

from labelwise.answers.log import Answer
from labelwise.base.files import replacing
from labelwise.base.text import counted
from labelwise.cli.command import as_typed
from labelwise.cli.text import ask, caution, next_steps, quoted, say
from labelwise.decide import Check, Promise
from labelwise.errors import DataError
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, model_changed, read_list_answers, receipts_of, verify_lists
from labelwise.photos.lists import ANSWERS, CheckSession, CheckState, name_of, write_list_questions
from labelwise.photos.prevalence import read_answers
from labelwise.photos.query import photos_like_album
from labelwise.queries import Query
from labelwise.scores import read_run, score_data
from labelwise.tables.load import load_for_labels

OF_A_LIST = (  # options that make it another list, or another question
    *("text", "like", "encoder", "distinct", "top", "at_least", "who"),
    *("wrong_at_most", "confidence", "answers_at_most"),
)

WIDTH = 24


def check_list(
    place: Path,
    query: str | None,
    *,
    text: str | None,
    encoder: Path | None,
    album: str | None,
    cut: float | None,
    top: int | None,
    wrong_at_most: float,
    confidence: float,
    who: str | None,
    answers_at_most: int | None,
    distinct: bool,
    answers: str | None,
    out: str | None,
) -> None:
    """Ask about photos of the list of a query, a text or an album, until it can be guaranteed."""
    with Index(place) as index:
        index.require_photos()
        caution(model_changed(index))
        options: dict[str, Any] = {"wrong_at_most": wrong_at_most, "who": who}
        options["confidence"] = confidence
        if text is not None:
            from labelwise.photos.words import FreeText

            free_text = FreeText.of(index, encoder)
            caution(free_text.doubt(text))
            session = free_text.check(index, text, top or 0, **options)
        elif album is not None:
            hits = photos_like_album(index, album, top or 50)
            session = CheckSession.of_ranked(index, name_of("album", album), hits, **options)
        else:
            asked = Query.parse(query or "", index.space, index.taxonomy)
            options |= {"answers": answers_at_most or ANSWERS, "distinct": distinct}
            session = CheckSession(index, asked, cut=cut, top=top, **options)
        what, count = query or text or f"the album {album}", counted(len(session.rows), "photo")
        say(f"does each photo match {what}? The list has {count}")
        told: dict[int, Answer] | None = None
        if answers is not None:
            told = {index.row_of(path): word for path, word in read_answers(Path(answers)).items()}
        state = _answered(session, told, answers)
        say(str(state))
        if state.promise is not None and out is not None:
            rows = session.left().tolist()
            paths = index.store.paths_of(rows)
            lines = "".join(f"{paths[row][0]}\n" for row in rows)
            with replacing(Path(out)) as temporary:
                temporary.write_bytes(lines.encode("utf-8", "surrogateescape"))
            say(f"the list: {out}")
    if state.promise is None or out is None:
        named = quoted(*[place] if query is None else (place, query)) + as_typed(*OF_A_LIST)
        next_steps(f"audit {named}{' -o list.txt' if state.promise else ''}")


def _answered(
    session: CheckSession, told: dict[int, Answer] | None, table: str | None
) -> CheckState:
    state = session.state()
    while state.promise is None and (
        told is not None or state.more is not None or not state.check.checked
    ):
        question = session.ask(session.who)
        if question is None:
            break
        path = session.path(question)
        if told is None:
            done, more = state.check.checked, state.more
            if more is None:
                say(f"{done:,} checked")
            else:
                bar = "#" * round(WIDTH * done / max(done + more, 1))
                say(f"[{bar:.<{WIDTH}}] {done:,} checked, about {more:,} more")
            word = ask(f"{path}{' (again)' if question.repeated else ''}")
        elif (row := session.row(question)) in told:
            word = told[row]
        else:
            say(f"{table} has no answer for {path}; add it and run this again")
            word = "stop"
        if word == "stop":
            break
        if word == "undo":
            session.undo()
            state = session.state()
        else:
            state = session.answer(question, word)
    return state


def check_lists_of_index(
    folder: Path,
    ask: int | None,
    out: str | None,
    receipts: bool,
    answers: str | None,
    strict: bool,
    as_json: bool,
) -> bool:
    """Show how the lists of an index stand; return whether their guarantees are broken."""
    with Index(folder) as index:
        if receipts:
            for receipt in receipts_of(index):
                say(dumps(receipt.spec()))
            return False
        if ask is not None and out is not None:
            photos = counted(write_list_questions(index, Path(out), ask), "photo")
            say(f"wrote {out}: {photos} to answer with yes, no or unsure")
            next_steps(f"audit {quoted(folder)} --answers {quoted(out)}")
            return False
        told = None if answers is None else read_list_answers(index, Path(answers))
        verified = verify_lists(index, told)
    together, lists = verified.together, []
    for receipt, verdict in verified.lists:
        promise = receipt.promise
        if not as_json:
            say(f"receipt {receipt.number}, {receipt.query} ({promise.kind}): {verdict}")
        record = {"receipt": receipt.number, "query": receipt.query, "kind": promise.kind}
        record |= {"verdict": verdict.verdict, "text": str(verdict), "listed": promise.listed}
        record |= {"wrong_at_least": verdict.least, "wrong_at_most": verdict.most}
        lists.append(record | {"drawn": verdict.answers.drawn})
    if as_json:
        all_lists = {"verdict": together.verdict, "text": str(together)}
        say(dumps({"lists": lists, "together": all_lists}))
    else:
        say(str(together))
        if not verified.lists:
            next_steps(f"audit {quoted(folder, index.space.names[0])} --top 20")
        elif not answers:
            next_steps(f"audit {quoted(folder)} --ask 30 -o questions.csv")
    broken = any(verdict.verdict == "broken" for _, verdict in verified.lists)
    return together.verdict == "broken" or (strict and broken)


def check_run(folder: Path, answers: str | None, as_json: bool) -> bool:
    """Show whether the guarantees of a run hold on other photos; return whether one is broken."""
    run = RunFolder(folder)
    pairs: list[tuple[Check, Promise]] = []
    if not run.spec.promises:
        mend = "train it with --guarantee precision=0.9"
        raise DataError(f"{folder} has no guarantee to check; {mend}")
    if answers is not None:
        table = load_for_labels(answers, run.spec.labels, check_files=True)
        scores, notes = score_data(folder, table)
        caution(*notes)
        pairs = scores.checks()
    elif "test" in run.splits:
        pairs = read_run(folder, "test").checks()
    if not pairs and answers is None:
        raise DataError(f"{folder} has no held-out photos; give labelled photos with --answers")
    if as_json:
        say(dumps([{"verdict": c.verdict, "text": str(c), **p.spec()} for c, p in pairs]))
    else:
        for check, promise in pairs:
            say(f"{check}; it was: {promise}")
        told = [check for check, _ in pairs if check.verdict != "cannot tell"]
        kept = sum(check.verdict == "kept" for check in told)
        say(f"kept in {kept} of {len(told)}; {len(pairs) - len(told)} cannot be told")
        if answers is None:
            next_steps(f"audit {quoted(folder)} --answers NEW_PHOTOS.csv")
    return any(check.verdict == "broken" for check, _ in pairs)
