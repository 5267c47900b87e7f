"""The audit of any tags: in the terminal, on a page, or through a spreadsheet."""

import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import typer

from labelwise.answers.audit_session import (
    KEPT,
    LEVELS,
    PAGE,
    RANDOM_PHOTOS,
    RECEIPT,
    TAGS,
    TRAIN,
    AuditSession,
    AuditSettings,
    noted_level,
    noted_seed,
    progress,
    read_receipt,
    statement,
    within,
)
from labelwise.answers.log import AnswerLog, answer_of
from labelwise.answers.session import EACH_TAG, UseQuestion
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted, from_cell
from labelwise.cli.serve import run_until_stopped
from labelwise.cli.text import ask, complain, next_name, next_steps, quoted, say, tell
from labelwise.contrib.tag_sources import tags_to_audit
from labelwise.errors import DataError, SettingsError
from labelwise.report.audit import write_audit
from labelwise.tables.rows import parse_json, require_file
from labelwise.tables.tabular import read_csv_rows

if TYPE_CHECKING:
    from labelwise.server import ServeSettings

JSON_LINES = (".jsonl", ".ndjson")


def open_session(
    place: Path | None,
    log_file: Path,
    *,
    again: Path | None,
    photos: Path | None,
    right_at_least: float | None,
    confidence: float | None,
    per_tag: bool,
    seed: int | None,
    ask: int | None,
    scores: Literal["logits", "probs"] | None,
    at_least: float | None,
    trust: str | None,
    data: str | None,
    skip_broken: bool,
) -> AuditSession:
    """Return an audit of tags, or of those of a receipt ``again``; its answers are in a log."""
    for flag, share in (("--right-at-least", right_at_least), ("--confidence", confidence)):
        if share is not None and not 0 < share < 1:
            asked = f"{flag} is a share between 0 and 1, such as 0.9"
            raise SettingsError(f"{asked}; got {share:g}")
    log, root = AnswerLog(log_file), None
    if again is not None:
        if place is not None or per_tag or right_at_least is not None:
            raise SettingsError("--again takes the tags and the level from the receipt alone")
        receipt = read_receipt(again)
        root = photos or again.parent / str(receipt.get("photos_below", "/"))
        photos = again.parent  # where its paths start
        place, right_at_least = photos / KEPT, receipt["right_at_least"]
        confidence = confidence or receipt["confidence"]
        if seed is None:  # never that of the first audit
            seed = noted_seed(log)
            seed = secrets.randbelow(1 << 31) if seed is None else seed
        if seed == receipt["seed"]:
            raise SettingsError(f"--seed {seed} is that of the receipt; leave it out")
    levels = (right_at_least, confidence, per_tag or None)
    level: dict[str, Any] = dict(zip(LEVELS, levels, strict=True))
    if again is None and (noted := noted_level(log)):  # what was asked for last
        for name, last in zip(LEVELS, noted, strict=True):
            level[name] = last if level[name] is None else level[name]
        seed = noted_seed(log) if seed is None else seed
    settings = AuditSettings(
        **{name: value for name, value in level.items() if value is not None},
        seed=seed or 0,
        random_photos=ask or RANDOM_PHOTOS,
        again=again is not None,
    )
    if place is None:
        raise SettingsError("name the tags: labelwise audit TAGS --photos PHOTOS")
    with TemporaryDirectory() as temporary:
        source = _whole_lines(place, Path(temporary)) if skip_broken else place
        try:
            table, folder = tags_to_audit(
                source, photos, kind=scores, at_least=at_least, trust=trust, data=data
            )
        except DataError as error:
            if "remove the line" in str(error) and place.suffix.lower() in JSON_LINES:
                raise DataError(f"{error}, or leave it out with --skip-broken") from None
            raise
    table = within(table, folder, root)
    table.require_usable(folder)
    session = AuditSession(table, folder, log, settings)
    tell(*session.table.notes)
    return session


def _whole_lines(source: Path, folder: Path) -> Path:
    """Return a copy, in a folder, of the JSON Lines that are whole objects; count the others."""
    if source.suffix.lower() not in JSON_LINES:
        raise SettingsError(f"--skip-broken leaves out lines of JSON Lines; {source} holds none")
    copy, broken = folder / source.name, list[int]()
    with require_file(source).open("rb") as lines, copy.open("wb") as kept:
        for number, line in enumerate(lines, start=1):
            try:
                is_object = isinstance(parse_json(line, source.name), dict)
            except DataError:
                is_object = False
            if is_object:
                kept.write(line)
            elif line.strip():
                broken.append(number)
    if broken:
        complain(f"left out {counted(len(broken), 'broken line')}, first line {broken[0]}")
    return copy


def finish(
    session: AuditSession,
    out: Path,
    command: Callable[..., str],
    csv: Path | None,
    count: int,
    answers: str | None,
) -> None:
    """Write what was found, or further questions.

    ``command()`` goes on with the audit, ``command(level)`` tests another level.
    """
    if csv is not None and answers is None:
        _write_questions(session, csv, count, command())
        return
    write_audit(session, out)
    say(statement(session))
    say(f"{out / PAGE} shows every tag, {out / TAGS} has the figures")
    verdict = session.verdict()
    if csv is not None and session.batch(1):
        _write_questions(session, csv, count, command())
    elif verdict.guaranteed and not session.settings.again:
        train, receipt = quoted(out / TRAIN), quoted(out / RECEIPT)
        next_steps(f"train {train}", f"tag {quoted(out)} --xmp", f"audit --again {receipt} --page")
    elif not verdict.guaranteed and not verdict.finished:
        more = "" if answers is None else f" --csv {quoted(next_name(answers))}"
        next_steps(f"{command()}{more}")
    elif not verdict.guaranteed and not session.settings.again and verdict.right_at_least > 0.2:
        say("a lower level can be tested on the answers that are there")
        next_steps(command(round(verdict.right_at_least - 0.1, 4)))


def ask_all(session: AuditSession, who: str) -> None:
    """Ask in the terminal until the tags can be guaranteed, or the person stops."""
    say("Is the tag right? y yes, n no, d don't know, u undo, s stop; answers are kept at once")
    while (question := session.ask(who)) is not None:
        say(progress(session))
        photo = session.folder / question.photo
        if question.label != EACH_TAG:
            word: str = ask(f"{photo}\n  Does it show: {question.label}?")
        else:
            word = _ask_all(question, photo)
        if word == "stop":
            return
        if word == "undo":
            back = session.undo(who)
            say(
                "nothing to take back"
                if back is None
                else f"taken back: {back.photo}, {back.label}"
            )
        else:
            said = shown_of(word) if question.label == EACH_TAG else word
            try:
                session.answer(*question.key, said, who)
            except DataError as error:
                complain(str(error))


def _ask_all(question: UseQuestion, photo: Path) -> str:
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


def _write_questions(session: AuditSession, path: Path, count: int, command: str) -> None:
    questions = session.sheet(count)
    if not questions:
        say("there is nothing left to ask")
        next_steps(command)
        return
    rows = [(asked.photo, asked.label, "", ", ".join(asked.listed)) for asked in questions]
    write_csv(path, ["path", "tag", "answer", "tags"], rows)
    say(f"so far: {progress(session)}")
    say(f"wrote {path}: {counted(len(questions), 'question')} to answer with yes, no or unsure")
    if any(question.listed for question in questions):
        say("where the tag is *, name all tags of the last column that the photo shows, or none;")
        say("-cat says that a tag it has is wrong, ?car that you cannot tell")
    next_steps(f"{command} --answers {quoted(path)}")


def answer_file(session: AuditSession, path: Path, who: str) -> None:
    """Log the answers of a spreadsheet: all of them, or none where one cannot be read."""
    lines, keys = [], []
    for number, row in enumerate(read_csv_rows(path, ("path", "tag", "answer")), start=2):
        photo, tag, said = (from_cell(row[name]) for name in ("path", "tag", "answer"))
        if not said.strip():
            continue
        keys.append((photo, tag))
        try:
            word = shown_of(said) if tag == EACH_TAG else answer_of(said)
            lines.append(session.line(photo, tag, word, who))
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    session.record(lines)
    say(f"{path}: {session.count_of_sheet(keys).sentence()}")


def serve(session: AuditSession, out: Path, settings: "ServeSettings", open_page: bool) -> None:
    """Ask in the browser until Ctrl-C; results are written after it."""
    from labelwise.server import create_audit_app

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        run_until_stopped(create_audit_app(session, out, settings), settings, open_page)
