"""Answers of an exported ``.onnx`` file by its graph alone, without torch.

Importing torch takes two seconds of processor time and 200 MB, and a file that begins with a
picture holds all that follows: resize, network, link and rule. So its own outputs are the answers,
and each core decodes and answers pictures of its own: one thread per picture computes more of them
than threads that wait for each other. What needs more than answers (indexes, evaluations, shards,
another taxonomy) goes through :mod:`labelwise.models.scoring`; a file that cannot be used
is refused there, too, with the reason.
"""

import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.models.answer_rows import NOT_FINITE, Answer
from labelwise.models.onnx_sessions import open_session
from labelwise.pictures import ImageSource
from labelwise.pictures.ahead import available_cores, by_threads
from labelwise.pictures.work import reason_of

__all__ = ["FORMAT", "UNSEALED", "OnnxAnswers", "is_whole"]

FORMAT = 1
UNSEALED = "0" * 64
OUTPUTS = ["logits", "probability", "label"]
WANTED = {"labelwise_format": str(FORMAT), "input": "image", "answers": "probabilities"}


def is_whole(content: bytes, digest: str) -> bool:
    """Return whether the bytes of a file are those that were hashed when it was written."""
    whole = content.replace(digest.encode(), UNSEALED.encode(), 1) if len(digest) == 64 else b""
    return hashlib.sha256(whole).hexdigest() == digest


@dataclass(frozen=True, eq=False)
class OnnxAnswers:
    """A whole exported file that begins with a picture and ends with probabilities."""

    session: Any
    names: tuple[str, ...]
    caution: str | None

    @staticmethod
    def of(path: Path) -> "OnnxAnswers | None":
        """Return the answers of a file, None if it is of another kind or cannot be used."""
        try:
            content = path.read_bytes()
            session = open_session(content, threads=1, name=str(path))
        except Exception:  # scoring opens it again, and says what is wrong
            return None
        facts: dict[str, str] = session.get_modelmeta().custom_metadata_map
        plain = all(facts.get(key) == value for key, value in WANTED.items())
        names = _label_names(facts.get("labels", ""))
        columns = next(one.shape[-1] for one in session.get_outputs() if one.name == "logits")
        if not plain or len(names) != columns or not is_whole(content, facts.get("sha256", "")):
            return None
        return OnnxAnswers(session, names, facts.get("caution"))

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
        found = self.session.run(OUTPUTS, {"image": picture})
        logits, probs, chosen = (one[0] for one in found)
        if not np.isfinite(logits).all():
            return Answer(row, name, error=f"{name}: {NOT_FINITE}")
        order = np.lexsort((-logits, -probs))  # in float32, high probabilities may be equal
        labels = tuple(self.names[column] for column in order if chosen[column])
        return Answer(row, name, labels, tuple(probs.tolist()))


def _label_names(text: str) -> tuple[str, ...]:
    """Return the names in a file's metadata, none if it holds something else."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)
