"""Answers of an exported ``.onnx`` file by its graph alone, without torch.

Importing torch takes seconds and 200 MB, and a file that begins with a picture holds all that
follows. Every answer is checked against the link that the metadata names, and labels are chosen by
the rule it names. What needs more than answers, and a file that cannot be used, go to
:mod:`labelwise.models.scoring`.
"""

import csv
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import CheckpointError
from labelwise.links import require_link
from labelwise.models.graph_file import FORMAT, Facts, is_whole, open_session
from labelwise.pictures import ImageSource
from labelwise.pictures.prefetch import available_cores, by_threads
from labelwise.pictures.worker import reason_of
from labelwise.system.files import replacing
from labelwise.system.text import as_cell, first_line

# The answer for one photo, as JSON, CSV or Parquet, wherever answers are written.
#
#     JSON    {"path": ..., "labels": [...], "probs": {label: probability}}, or path and error
#     CSV     path, labels, error, then one column of probabilities per label
#     Parquet path, labels, probs (in the order of the metadata), error
#
# A caution is ``caution`` in JSON and a column of CSV behind ``error``. In CSV a text that a
# spreadsheet would take for a formula is quoted by an apostrophe.


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
            if path.suffix == ".jsonl":

                def write_line(answer: Answer) -> None:
                    record = json_record(answer, names)
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")

                yield write_line
                return
            rows = csv.writer(stream)
            rows.writerow(csv_header(names, cautioned=cautioned))
            yield lambda answer: rows.writerow(csv_row(answer, names, cautioned=cautioned))


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
    rows: list[dict[str, Any]] = []
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


AGREES = 1e-5  # the median over labels and pictures
ALL_AGREE = 1e-4  # every label: a steep line, computed in float32, rounds to some 1e-5
OUTPUTS = ["logits", "probability"]


def require_agreement(name: str, apart: float, at_most: float = AGREES) -> None:
    """Raise unless a graph's probabilities are so near to those of the link in its metadata."""
    if not apart <= at_most:
        raise CheckpointError(
            f"{name} must give the probabilities of the link in its metadata, got a "
            f"difference of {apart:.2g}; export it again"
        )


@dataclass(frozen=True, eq=False)
class OnnxAnswers:
    """A whole exported file that begins with a picture and ends with probabilities."""

    session: Any
    file: str
    facts: Facts

    @staticmethod
    def of(path: Path) -> "OnnxAnswers | None":
        """Return the answers of a file, None if it is of another kind or cannot be used."""
        try:
            content = path.read_bytes()
            session = open_session(content, threads=1, name=str(path))
            stated: dict[str, str] = session.get_modelmeta().custom_metadata_map
            facts = Facts.read(stated)
        except Exception:  # scoring opens it again, and says what is wrong
            return None
        takes = [node.name for node in session.get_inputs()]
        shapes = {output.name: tuple(output.shape) for output in session.get_outputs()}
        usable = (
            stated.get("labelwise_format") == str(FORMAT)
            and is_whole(content, stated.get("sha256", ""))
            and (facts.input, takes) == ("image", ["image"])
            and facts.link is not None
            and all(shapes.get(name) == (1, len(facts.space)) for name in OUTPUTS)
        )
        return OnnxAnswers(session, str(path), facts) if usable else None

    def score(self, images: ImageSource) -> Generator[Answer]:
        """Yield the answer for each image, in order; what cannot be read is one with its error."""
        cores = available_cores()

        def answered(row: int) -> Answer:
            try:
                picture = np.asarray(images.read(row, None))
            except Exception as error:
                return Answer(row, images.ids[row], error=reason_of(images.ids[row], error))
            return self._answer(row, images.ids[row], picture)

        yield from by_threads(range(len(images)), answered, cores, 2 * cores, "answer")

    def _answer(self, row: int, name: str, picture: NDArray[np.uint8]) -> Answer:
        names, link = self.facts.space.names, require_link(self.facts.link, self.file)
        try:
            outputs = self.session.run(OUTPUTS, {"image": picture})
        except Exception as error:  # onnxruntime's own classes have no common base but this
            reason = first_line(error)[:300]
            return Answer(row, name, error=f"{name}: {self.file} cannot be run on it: {reason}")
        if any(output.shape != (1, len(names)) for output in outputs):
            raise CheckpointError(f"{self.file} must answer for {len(names)} labels")
        logits, probs = (output[0] for output in outputs)
        if not np.isfinite(logits).all():
            return Answer(row, name, error=f"{name}: {NOT_FINITE}")
        apart = float(np.abs(probs - link(logits[None].astype(np.float64))[0]).max())
        require_agreement(self.file, apart, ALL_AGREE)
        order = np.lexsort((-logits, -probs))  # in float32, high probabilities may be equal
        chosen = self.facts.rule(probs[None])[0]
        labels = tuple(names[column] for column in order if chosen[column])
        return Answer(row, name, labels, tuple(probs.tolist()), caution=self.facts.caution)
