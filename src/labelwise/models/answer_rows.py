"""The answer for one photo, as a line of JSON and as a row of CSV, wherever answers are written.

    JSON    {"path": ..., "labels": [...], "probs": {label: probability}}, or path and error
    CSV     path, labels, error, then one column of probabilities per label

In CSV a text that a spreadsheet would take for a formula is quoted by an apostrophe.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.system.text import as_cell

__all__ = ["NOT_FINITE", "Answer", "csv_header", "csv_row", "json_record"]

NOT_FINITE = "the model's logits are not finite numbers; its weights or the image may be damaged"


@dataclass(frozen=True)
class Answer:
    """What is said of one image: its labels, surest first, and probabilities; or an error."""

    row: int
    id: str
    labels: tuple[str, ...] = ()
    probs: tuple[float, ...] = ()
    error: str | None = None


def json_record(answer: Answer, names: Sequence[str]) -> dict[str, Any]:
    """Return what stands in JSON Lines for an answer."""
    if answer.error is not None:
        return {"path": answer.id, "error": answer.error}
    probs = dict(zip(names, answer.probs, strict=True))
    return {"path": answer.id, "labels": answer.labels, "probs": probs}


def csv_header(names: Sequence[str]) -> list[str]:
    """Return the names of the columns."""
    return ["path", "labels", "error", *map(as_cell, names)]


def csv_row(answer: Answer, names: Sequence[str]) -> list[str]:
    """Return the cells of an answer."""
    lists = any("|" in name for name in names)
    text = json.dumps(answer.labels) if lists else "|".join(answer.labels)
    probs = [f"{p:.6g}" for p in answer.probs] or [""] * len(names)
    return [*map(as_cell, (answer.id, text, answer.error or "")), *probs]
