"""Answers of an exported ``.onnx`` file by its graph alone, without torch.

Importing torch takes two seconds of processor time and 200 MB, and a file that begins with a
picture holds all that follows: resize, network and link. So its own outputs are the answers,
and each core decodes and answers pictures of its own: one thread per picture computes more of them
than threads that wait for each other. Every answer is checked against the link that the metadata
names, and labels are chosen by the rule it names. What needs more than answers (indexes,
evaluations, shards, another taxonomy) and a file that cannot be used go to
:mod:`labelwise.models.scoring`, which gives the reason, too.
"""

import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.calibration.link_specs import link_from_spec
from labelwise.decide import Rule
from labelwise.decide.specs import rule_from_spec
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Link
from labelwise.models.answer_rows import NOT_FINITE, Answer
from labelwise.models.graph_file import FORMAT, is_whole, open_session
from labelwise.pictures import ImageSource
from labelwise.pictures.prefetch import available_cores, by_threads
from labelwise.pictures.worker import reason_of
from labelwise.system.text import first_line
from labelwise.types import LabelSpace

AGREES = 1e-5  # the median over labels and pictures
ALL_AGREE = 1e-4  # every label: a steep line, computed in float32, rounds to some 1e-5
OUTPUTS = ["logits", "probability"]
WANTED = {"labelwise_format": str(FORMAT), "input": "image", "answers": "probabilities"}


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
    names: tuple[str, ...]
    link: Link
    rule: Rule
    caution: str | None

    @staticmethod
    def of(path: Path) -> "OnnxAnswers | None":
        """Return the answers of a file, None if it is of another kind or cannot be used."""
        try:
            content = path.read_bytes()
            session = open_session(content, threads=1, name=str(path))
            facts: dict[str, str] = session.get_modelmeta().custom_metadata_map
        except Exception:  # scoring opens it again, and says what is wrong
            return None
        plain = all(facts.get(key) == value for key, value in WANTED.items())
        takes = [one.name for one in session.get_inputs()]
        if not plain or takes != ["image"] or not is_whole(content, facts.get("sha256", "")):
            return None
        try:
            names = _label_names(json.loads(facts["labels"]))
            link = link_from_spec(json.loads(facts["link"]))
            shape = link(np.zeros((1, len(names)))).shape
            rule = rule_from_spec(json.loads(facts["rule"]))
            chosen = rule(np.zeros((1, len(names))))
        except (LabelwiseError, LookupError, TypeError, ValueError, RecursionError):
            return None
        shapes = {one.name: tuple(one.shape) for one in session.get_outputs()}
        whole = all(shapes.get(name) == chosen.shape == (1, len(names)) for name in OUTPUTS)
        if shape != (1, len(names)) or not whole:
            return None
        return OnnxAnswers(session, str(path), names, link, rule, facts.get("caution"))

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
        try:
            found = self.session.run(OUTPUTS, {"image": picture})
        except Exception as error:  # onnxruntime's own classes have no common base but this
            reason = first_line(error)[:300]
            return Answer(row, name, error=f"{name}: {self.file} cannot be run on it: {reason}")
        if any(one.shape != (1, len(self.names)) for one in found):
            raise CheckpointError(f"{self.file} must answer for {len(self.names)} labels")
        logits, probs = (one[0] for one in found)
        if not np.isfinite(logits).all():
            return Answer(row, name, error=f"{name}: {NOT_FINITE}")
        apart = float(np.abs(probs - self.link(logits[None].astype(np.float64))[0]).max())
        require_agreement(self.file, apart, ALL_AGREE)
        order = np.lexsort((-logits, -probs))  # in float32, high probabilities may be equal
        chosen = self.rule(probs[None])[0]
        labels = tuple(self.names[column] for column in order if chosen[column])
        return Answer(row, name, labels, tuple(probs.tolist()), caution=self.caution)


def _label_names(names: Any) -> tuple[str, ...]:
    """Return the names in a file's metadata, a ValueError or TypeError if these cannot be some."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("labels must be a list of text")
    "".join(names).encode()  # half a character cannot be written
    return LabelSpace(tuple(names)).names
