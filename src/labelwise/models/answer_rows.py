"""The answer for one photo, as a line of JSON and as a row of CSV, wherever answers are written.

    JSON    {"path": ..., "labels": [...], "probs": {label: probability}}, or path and error
    CSV     path, labels, error, then one column of probabilities per label

Where a caution must stand beside the probabilities, JSON has it as ``caution``, and CSV in a column
of that name behind ``error``. In CSV a text that a spreadsheet would take for a formula is quoted
by an apostrophe.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.system.text import as_cell

CAUTION = "caution"
NOT_FINITE = "the model's logits are not finite numbers; its weights or the image may be damaged"


@dataclass(frozen=True)
class Answer:
    """What is said of one image: its labels, surest first, and probabilities; or an error.

    ``caution`` is what must stand beside the probabilities, None if nothing must.
    """

    row: int
    id: str
    labels: tuple[str, ...] = ()
    probs: tuple[float, ...] = ()
    error: str | None = None
    caution: str | None = None


def json_record(answer: Answer, names: Sequence[str]) -> dict[str, Any]:
    """Return what stands in JSON Lines for an answer."""
    if answer.error is not None:
        return {"path": answer.id, "error": answer.error}
    probs = dict(zip(names, answer.probs, strict=True))
    record = {"path": answer.id, "labels": answer.labels, "probs": probs}
    return record if answer.caution is None else record | {"caution": answer.caution}


def csv_header(names: Sequence[str], *, cautioned: bool = False) -> list[str]:
    """Return the names of the columns; ``cautioned``: with one for what must stand beside them."""
    caution = [CAUTION] if cautioned else []
    return ["path", "labels", "error", *caution, *map(as_cell, names)]


def csv_row(answer: Answer, names: Sequence[str], *, cautioned: bool = False) -> list[str]:
    """Return the cells of an answer."""
    lists = any("|" in name for name in names)
    text = json.dumps(answer.labels) if lists else "|".join(answer.labels)
    probs = [f"{p:.6g}" for p in answer.probs] or [""] * len(names)
    caution = [answer.caution or ""] if cautioned else []
    return [*map(as_cell, (answer.id, text, answer.error or "", *caution)), *probs]
