"""The audit of any tags: in the terminal, on a page, or through a spreadsheet."""

import secrets
import signal
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from shlex import quote

import typer

from labelwise.answers.audit_session import (
    EACH_TAG,
    KEPT,
    PAGE,
    RANDOM_PHOTOS,
    RECEIPT,
    TAGS,
    TRAIN,
    AuditSession,
    AuditSettings,
    TagQuestion,
    progress,
    read_receipt,
    statement,
)
from labelwise.answers.log import AnswerLog, answer_of
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted, from_cell
from labelwise.cli.command import flag_of, refuse_overwriting
from labelwise.cli.index import default_index
from labelwise.cli.options import Options
from labelwise.cli.text import ask, complain, next_steps, say, tell
from labelwise.contrib.tag_sources import tags_to_audit
from labelwise.errors import DataError, SettingsError
from labelwise.report.audit import write_audit
from labelwise.tables.rows import read_csv_rows

OF_TAGS = (
    *("photos", "right_at_least", "per_tag", "page", "csv", "again", "seed", "scores", "data"),
    *("trust", "host", "port", "token_file", "allow_host", "open"),
)
OF_THE_PAGE = ("host", "port", "token_file", "allow_host", "open")
QUESTIONS = 50  # of a spreadsheet
LOG = "answers.jsonl"


def means_tags(place: Path | None, given: Options) -> bool:
    """Return whether tags are meant, and not past guarantees of an index or a run."""
    asked = any(getattr(given, name) not in (None, False) for name in OF_TAGS)
    if asked or place is None or place.is_dir():
        return asked
    return place.exists() or bool(place.suffix) or not default_index(None).is_dir()


def audit_tags(place: Path | None, given: Options) -> None:
    """Ask until the tags can be guaranteed, or the person stops; write what was found."""
    if not given.page:
        given.refuse("it belongs to --page", *OF_THE_PAGE)
    else:
        given.refuse("the page asks by itself", "csv", "answers")
    out = Path(given.out or f"{_name(place, given)}.audit")
    if given.out is None:
        refuse_overwriting(out)
    session = _session(place, out, given)
    tell(*session.table.notes)
    if given.answers is not None:
        _read_answers(session, Path(given.answers), given.who or getuser())
    elif given.page:
        _serve(session, out, given)
    elif given.csv is None:
        _ask(session, given.who or getuser())
    else:
        _write_questions(session, given.csv, given, _command(place, given, out))
        return
    write_audit(session, out)
    say(statement(session))
    say(f"{out / PAGE} shows every tag, {out / TAGS} has the figures")
    verdict = session.verdict()
    if given.csv is not None and session.batch(1):
        _write_questions(session, given.csv, given, _command(place, given, out))
    elif verdict.guaranteed and not session.settings.again:
        next_steps(
            *(f"train {out / TRAIN}", f"tag {out} --xmp", f"audit --again {out / RECEIPT} --page")
        )
    elif not verdict.guaranteed and not verdict.finished:
        more = "" if given.answers is None else f" --csv {_next_name(Path(given.answers))}"
        next_steps(f"{_command(place, given, out)}{more}")


def _name(place: Path | None, given: Options) -> str:
    if given.again is not None:
        return f"{given.again.resolve().parent.name.removesuffix('.audit')}-again"
    if place is None:
        raise SettingsError("name the tags: labelwise audit TAGS --photos PHOTOS")
    return place.resolve().with_suffix("").name or "tags"


def _next_name(path: Path) -> Path:  # questions-2.csv after questions.csv
    stem, _, number = path.stem.rpartition("-")
    is_later = bool(stem) and number.isdecimal()
    return path.with_stem(f"{stem}-{int(number) + 1}" if is_later else f"{path.stem}-2")


def _command(place: Path | None, given: Options, out: Path) -> str:
    words = ["audit", *([] if place is None else [str(place)]), "-o", str(out)]
    texts = ("again", "photos", "trust", "data", "scores", "at_least")
    for name in (*texts, "right_at_least", "confidence", "seed"):
        value = getattr(given, name)
        if value is not None:
            words += [flag_of(name), str(value) if name in texts else f"{value:g}"]
    if place is not None and place.is_dir() and given.right_at_least is None:
        words += ["--right-at-least", "0.9"]  # else past guarantees would be meant
    return " ".join(map(quote, words)) + (" --per-tag" if given.per_tag else "")


def _session(place: Path | None, out: Path, given: Options) -> AuditSession:
    for name in ("right_at_least", "confidence"):
        value = getattr(given, name)
        if value is not None and not 0 < value < 1:
            asked = f"{flag_of(name)} is a share between 0 and 1, such as 0.9"
            raise SettingsError(f"{asked}; got {value:g}")
    log = AnswerLog(out / LOG)
    level = {"right_at_least": given.right_at_least, "confidence": given.confidence}
    seed, photos = given.seed, given.photos
    if given.again is not None:
        if place is not None or given.per_tag or given.right_at_least is not None:
            raise SettingsError("--again takes the tags and the level from the receipt alone")
        facts = read_receipt(given.again)
        photos = given.again.parent  # where its paths start
        place = photos / KEPT
        level = {"right_at_least": facts["right_at_least"]}
        level["confidence"] = given.confidence or facts["confidence"]
        begun = log.notes("audit")
        if seed is None:  # never that of the first audit
            seed = begun[0]["seed"] if begun else secrets.randbelow(1 << 31)
        if seed == facts["seed"]:
            raise SettingsError(f"--seed {seed} is that of the receipt; leave it out")
    settings = AuditSettings(
        **{name: value for name, value in level.items() if value is not None},
        per_tag=given.per_tag,
        seed=seed or 0,
        random_photos=given.get("ask", RANDOM_PHOTOS),
        again=given.again is not None,
    )
    if place is None:
        raise SettingsError("name the tags: labelwise audit TAGS --photos PHOTOS")
    how = {name: getattr(given, name) for name in ("at_least", "trust", "data")}
    table, folder = tags_to_audit(place, photos, kind=given.scores, **how)
    table.require_usable(folder)
    return AuditSession(table, folder, log, settings)


def _ask(session: AuditSession, who: str) -> None:
    say("Is the tag right? y yes, n no, d don't know, u undo, s stop; answers are kept at once")
    while (question := session.question(who)) is not None:
        say(progress(session))
        photo = session.folder / question.photo
        if question.tag != EACH_TAG:
            word: str = ask(f"{photo}\n  Does it show: {question.tag}?")
        else:
            word = _ask_all(question, photo)
        if word == "stop":
            return
        if word == "undo":
            back = session.undo(who)
            say("nothing to take back" if back is None else f"taken back: {back.photo}, {back.tag}")
        elif question.tag != EACH_TAG:
            session.record([session.line(question.photo, question.tag, word, who)])
        else:
            try:
                session.record([session.shown_line(question.photo, shown_of(word), who)])
            except DataError as error:
                complain(str(error))


def _ask_all(question: TagQuestion, photo: Path) -> str:
    say(f"The tags: {', '.join(question.listed)}")
    say(f"{photo}\n  It is tagged {', '.join(question.tagged) or 'none of them'}.")
    text = "  What else does it show? (as: dog, ?car; -cat takes a tag back)"
    try:
        return str(typer.prompt(text, default="none")).strip()
    except typer.Abort:
        return "stop"


def shown_of(text: str) -> dict[str, str]:
    """Return yes, no or unsure by tag.

    >>> shown_of("dog, -cat, ?car"), shown_of("none")
    ({'dog': 'yes', 'cat': 'no', 'car': 'unsure'}, {})
    """
    signs = {"-": "no", "!": "no", "?": "unsure"}
    words = [word.strip() for word in text.split(",") if word.strip()]
    if [word.lower() for word in words] == ["none"]:
        return {}
    plain = (word[1:].strip() if word[0] in signs else word for word in words)
    return {tag: signs.get(word[0], "yes") for tag, word in zip(plain, words, strict=True)}


def _write_questions(session: AuditSession, path: Path, given: Options, command: str) -> None:
    questions = session.batch(given.get("top", QUESTIONS))
    if not questions:
        say("there is nothing left to ask")
        next_steps(command)
        return
    rows = [(asked.photo, asked.tag, "", ", ".join(asked.listed)) for asked in questions]
    write_csv(path, ["path", "tag", "answer", "tags"], rows)
    say(f"so far: {progress(session)}")
    say(f"wrote {path}: {counted(len(questions), 'question')} to answer with yes, no or unsure")
    if any(question.listed for question in questions):
        say("where the tag is *, name all tags of the last column that the photo shows, or none;")
        say("-cat says that a tag it has is wrong, ?car that you cannot tell")
    next_steps(f"{command} --answers {path}")


def _read_answers(session: AuditSession, path: Path, who: str) -> None:
    """Log the answers of a spreadsheet: all of them, or none where one cannot be read."""
    lines = []
    for number, row in enumerate(read_csv_rows(path, ("path", "tag", "answer")), start=2):
        photo, tag, said = (from_cell(row[name]) for name in ("path", "tag", "answer"))
        if not said.strip():
            continue
        try:
            if tag == EACH_TAG:
                lines.append(session.shown_line(photo, shown_of(said), who))
            else:
                lines.append(session.line(photo, tag, answer_of(said), who))
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    session.record(lines)
    say(f"{path}: {counted(sum(line is not None for line in lines), 'new answer')}")


def _serve(session: AuditSession, out: Path, given: Options) -> None:
    from labelwise.cli.serve import run_until_stopped, server_settings

    settings = server_settings(given)
    from labelwise.server import create_audit_app

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # results are written after it
        run_until_stopped(create_audit_app(session, out, settings), settings, given)
