"""Answers that version 0.2 kept in five formats, as the facts of lines of an answer log."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labelwise.errors import DataError
from labelwise.system.text import first_line

AS_ANSWER = {word: word for word in ("yes", "no", "unsure", "undo")} | {
    "present": "yes", "absent": "no", "unknown": "unsure", "withdrawn": "undo", "undone": "undo",
}  # fmt: skip
Facts = Mapping[str, Any]
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def lines_of_labelling(content: bytes, path: Path) -> list[Facts] | None:
    """Return the answers of the labelling page, from a file of JSON lines; None of other files."""
    lines: list[Facts] = []
    for number, raw in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            record = json.loads(raw)
            texts = [text for text in record.values() if isinstance(text, str)]
            if len(texts) != 5 or set(record) != {"photo", "label", "state", "who", "at"}:
                raise ValueError(number)
            lines.append(_answer(record.pop("state"), record.pop("at"), "label", **record))
        except UNREADABLE:
            if not lines:
                return None
            raise DataError(f"{path}, line {number}: this is not an answer; take it out") from None
    table = path.with_suffix(".csv")
    if lines and table.is_file():
        digest = hashlib.sha256(table.read_bytes()).hexdigest()
        lines.append({"note": "export", "sha256": digest})
    return lines or None


def lines_of_run(path: Path) -> list[Facts]:
    """Return the answers of a run of words, from its Parquet file."""
    import pyarrow as pa  # not needed by those who have none
    import pyarrow.parquet as pq

    if not path.is_file():
        return []
    lines: list[Facts] = []
    try:
        for row in pq.read_table(path).to_pylist():
            more = {"draw": "aside"} if row["aside"] else {}
            said = dict.fromkeys(row["present"], "yes") | dict.fromkeys(row["absent"], "no")
            for label, answer in said.items():
                photo = {"photo": row["digest"].hex(), "label": label, "path": row["id"]}
                lines.append(_answer(answer, "", "label", who="unknown", **photo, **more))
    except (OSError, *UNREADABLE, pa.ArrowException) as error:
        raise DataError(
            f"{path} holds no answers that can be read ({first_line(error)}); move it away to "
            "start without them, or bring back a copy"
        ) from None
    return lines


def lines_of_index(
    folder: Path, select: Callable[[str], list[Any]], has_table: Callable[[str], bool]
) -> Iterator[Facts]:
    """Yield corrections, checked lists and samples of an index, from SQLite and samples.jsonl."""
    if has_table("corrections"):
        for photo, label, state, who, at, source in select(
            "SELECT lower(hex(hash)), label, state, who, at, source FROM corrections "
            "JOIN contents USING (row) ORDER BY id"
        ):
            yield _answer(state, at, source, photo=photo, label=label, who=who)
    if has_table("checked_lists"):
        for _, query, wrong, listed, cut, seed, at, *distinct in select(
            "SELECT * FROM checked_lists ORDER BY id"
        ):
            facts = {"wrong_at_most": wrong, "listed": listed, "cut": cut, "seed": seed, "at": at}
            yield {"note": "list", "query": query, **facts, "distinct": distinct == [1]}
    if has_table("check_answers"):
        for photo, query, answer, who, at in select(
            "SELECT lower(hex(hash)), query, answer, who, at FROM check_answers "
            "JOIN contents USING (row) ORDER BY id"
        ):
            yield _answer(answer, at, "list", photo=photo, label=query, who=who)
    samples = folder / "samples.jsonl"
    content = samples.read_bytes() if samples.is_file() else b""
    for number, raw in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            facts = json.loads(raw)
            kind = facts.pop("kind")
            if kind == "sample":
                yield {"note": "count", **facts}
                continue
            more = {"label": facts["query"], "who": facts["who"] or "unknown"}
            for photo, answer in facts["answers"].items():
                word, draw = answer or "undo", str(facts["seed"])
                yield _answer(word, facts["at"], "count", photo=photo, draw=draw, **more)
        except UNREADABLE:
            raise DataError(
                f"{samples}, line {number}: this cannot be read; bring the file back from a copy, "
                "or move it away to draw other photos"
            ) from None


def _answer(state: str, at: str, why: str, **more: str) -> Facts:
    return {"answer": AS_ANSWER[state], "when": at, "why": why, **more}
