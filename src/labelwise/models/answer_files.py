"""Answers about photos as files, wherever they are written.

    JSON    {"path": ..., "labels": [...], "probs": {label: probability}}, or path and error
    CSV     path, labels, error, then one column of probabilities per label
    Parquet path, labels, probs (in the order of the metadata), error

A caution is ``caution`` in JSON and a column of CSV behind ``error``. In CSV a text that a
spreadsheet would take for a formula is quoted by an apostrophe.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labelwise.base.files import replacing
from labelwise.base.text import as_cell

CAUTION = "caution"
WRITTEN = (".csv", ".jsonl", ".parquet")
ROWS = 1024  # that are written to Parquet at once
NOT_FINITE = "the model's logits are not finite numbers; its weights or the image may be damaged"


@dataclass(frozen=True)
class Answer:
    """What is said of one image: its labels, surest first, and probabilities; or an error."""

    row: int
    id: str
    labels: tuple[str, ...] = ()
    probs: tuple[float, ...] = ()
    error: str | None = None
    caution: str | None = None


def _record(answer: Answer, names: Sequence[str]) -> dict[str, object]:
    if answer.error is not None:
        return {"path": answer.id, "error": answer.error}
    probs = dict(zip(names, answer.probs, strict=True))
    caution = {} if answer.caution is None else {"caution": answer.caution}
    return {"path": answer.id, "labels": answer.labels, "probs": probs, **caution}


def _cells(answer: Answer, names: Sequence[str], cautioned: bool) -> list[str]:
    lists = any("|" in name for name in names)
    text = json.dumps(answer.labels) if lists else "|".join(answer.labels)
    probs = [f"{p:.6g}" for p in answer.probs] or [""] * len(names)
    caution = [answer.caution or ""] if cautioned else []
    return [*map(as_cell, (answer.id, text, answer.error or "", *caution)), *probs]


@contextmanager
def answer_writer(
    path: Path, names: Sequence[str], *, cautioned: bool
) -> Iterator[Callable[[Answer], None]]:
    """Yield a function that writes an answer; the file is complete in the end, or not there."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            with _parquet(temporary, names, cautioned) as write:
                yield write
            return
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            rows = csv.writer(stream)
            if path.suffix == ".csv":
                caution = [CAUTION] if cautioned else []
                rows.writerow(["path", "labels", "error", *caution, *map(as_cell, names)])

            def write(answer: Answer) -> None:
                if path.suffix == ".csv":
                    rows.writerow(_cells(answer, names, cautioned))
                else:
                    stream.write(json.dumps(_record(answer, names), ensure_ascii=False) + "\n")

            yield write


@contextmanager
def _parquet(
    path: Path, names: Sequence[str], cautioned: bool
) -> Iterator[Callable[[Answer], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [("path", pa.string()), ("labels", pa.list_(pa.string()))]
    fields += [("probs", pa.list_(pa.float32()))]  # a row may have none, so not of a fixed size
    fields += [("error", pa.string()), *([(CAUTION, pa.string())] if cautioned else [])]
    schema = pa.schema(fields, metadata={"labelwise": json.dumps({"names": list(names)})})
    rows: list[dict[str, object]] = []
    with pq.ParquetWriter(path, schema) as file:

        def flush() -> None:
            file.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def write(answer: Answer) -> None:
            said = {"labels": list(answer.labels), "probs": list(answer.probs) or None}
            rows.append(said | {"path": answer.id, "error": answer.error, CAUTION: answer.caution})
            if len(rows) == ROWS:
                flush()

        yield write
        flush()
