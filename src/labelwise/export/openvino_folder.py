"""``export --format openvino``: a folder that OpenVINO runs, from scaled pixels to decided labels.

    model.xml, model.bin   pixels uint8 (N, 3, size, size), N any -> the outputs of the ONNX file
    labelwise.json         the metadata of the ONNX file, and the hashes of the other two

The folder is made from the ONNX graph, read back, and compared with the model on real pictures
before it is kept. It begins with scaled pixels, because OpenVINO computes in float32 where the
file's resize needs more: pixels that it scales are up to a hundred levels off. For the same reason
thresholds, float64 in the ONNX file, are constants here.

OpenVINO reports to its makers that it was imported, over the network and unasked, by a package of
its own; :func:`openvino_runtime` imports it without that package.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.backbones import Transform
from labelwise.data import ImageSource
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.export.assemble import PIXELS, UNSEALED, Facts, assemble
from labelwise.export.network import export_network
from labelwise.export.onnx_file import facts_of
from labelwise.export.parity import Parity, assert_program_parity
from labelwise.export.rules import default_thresholds
from labelwise.export.runtime import GraphAnswers, checked_logits
from labelwise.files import replacing_folder
from labelwise.links import Link
from labelwise.plain import one_line
from labelwise.predictor import ModelSpec, Predictor
from labelwise.progress import Watch
from labelwise.types import LabelSpace

__all__ = ["OpenVinoModel", "export_openvino", "openvino_runtime"]

REPORTER = "openvino_telemetry"
GRAPH, WEIGHTS, FACTS = "model.xml", "model.bin", "labelwise.json"
OUTPUTS = ("logits", "probability", "label", "none")


def openvino_runtime() -> Any:
    """Return the package ``openvino``, kept from its telemetry; raise with what to install."""
    hidden = "openvino" not in sys.modules and REPORTER not in sys.modules
    if hidden:
        sys.modules[REPORTER] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import openvino
    except ImportError as error:
        raise SettingsError(
            f"OpenVINO's format needs the package {error.name!r}: pip install 'labelwise[openvino]'"
        ) from None
    finally:
        if hidden:
            del sys.modules[REPORTER]
    return openvino


def export_openvino(
    predictor: Predictor,
    spec: ModelSpec,
    folder: Path,
    images: ImageSource,
    rows: Sequence[int],
    *,
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write a new folder once it agrees with the model; return its size and how it compares."""
    openvino = openvino_runtime()
    folder = Path(folder)
    if folder.exists():
        raise SettingsError(f"{folder} is there already; name a new folder, or remove it")
    if not len(rows):
        raise SettingsError("an export is compared with its model on pictures; none were given")
    facts = facts_of(predictor, spec, input=PIXELS)
    graph = assemble(export_network(predictor.model, predictor.transform.size), facts)
    try:
        converted = openvino.Core().read_model(graph.SerializeToString())
    except Exception as error:  # OpenVINO's own classes have no common base but this
        raise LabelwiseError(
            f"OpenVINO cannot read this model ({one_line(str(error))[:300]}); use --format onnx"
        ) from None
    for name, value in _model_info(facts).items():
        converted.set_rt_info(value, ["model_info", name])
    with replacing_folder(folder) as temporary:
        openvino.save_model(converted, temporary / GRAPH, compress_to_fp16=False)
        (temporary / FACTS).write_text(_sealed(facts, temporary), encoding="utf-8")
        written = OpenVinoModel.load(temporary)
        parity = assert_program_parity(
            written.program, predictor, images, rows, watch, "OpenVINO computes it otherwise"
        )
        size = sum(file.stat().st_size for file in temporary.iterdir())
    return size, parity


def _model_info(facts: Facts) -> dict[str, str]:
    """Return what OpenVINO's own tools look for, which know one threshold at most."""
    info = {"labels": json.dumps(facts.space.names, ensure_ascii=False), "multilabel": "True"}
    thresholds = default_thresholds(facts.rule, len(facts.space))
    if thresholds is not None and len(set(thresholds.tolist())) == 1:
        info["confidence_threshold"] = f"{thresholds[0]:g}"
    return info


def _sealed(facts: Facts, folder: Path) -> str:
    hashes = {name: _digest((folder / name).read_bytes()) for name in (GRAPH, WEIGHTS)}
    text = json.dumps({**facts.metadata(), "files": hashes}, indent=2, ensure_ascii=False) + "\n"
    return text.replace(UNSEALED, _digest(text.encode()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, eq=False)
class OpenVinoModel:
    """An exported folder; a :class:`~labelwise.scoring.Scorer`."""

    compiled: Any
    facts: Facts
    name: str = "the exported model"

    @staticmethod
    def load(folder: str | Path, *, threads: int | None = None) -> "OpenVinoModel":
        """Return the model in a folder; it must be whole and written by labelwise."""
        openvino = openvino_runtime()
        folder = Path(folder)
        facts = _read_facts(folder)
        core = openvino.Core()
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        try:
            compiled = core.compile_model(core.read_model(folder / GRAPH), "CPU", options)
        except Exception as error:  # OpenVINO's own classes have no common base but this
            raise CheckpointError(
                f"{folder} cannot be run by OpenVINO: {one_line(str(error))[:300]}"
            ) from None
        model = OpenVinoModel(compiled, facts, str(folder))
        model.answers(np.zeros((1, 3, facts.transform.size, facts.transform.size), np.uint8))
        return model

    @property
    def transform(self) -> Transform:
        """How a picture becomes the input of the network."""
        return self.facts.transform

    @property
    def space(self) -> LabelSpace:
        """The labels."""
        return self.facts.space

    @property
    def link(self) -> Link | None:
        """The link that the folder holds."""
        return self.facts.link

    @property
    def rule(self) -> Rule:
        """The rule that the folder holds."""
        return self.facts.rule

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def answers(self, pixels: NDArray[np.uint8]) -> GraphAnswers:
        """Return all outputs for pixels (n, 3, size, size)."""
        found = self.compiled({PIXELS: np.ascontiguousarray(pixels)})
        if self.link is None:
            return GraphAnswers(found["logits"].copy(), ranking=found["ranking"].copy())
        logits, probability, label, none = (found[name].copy() for name in OUTPUTS)
        return GraphAnswers(logits, probability, label.astype(np.bool_), none)

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of uint8 pixels, if the link is what the folder says it is."""
        return checked_logits(self.answers(inputs.cpu().numpy()), self.link, self.name)

    def program(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return all outputs for pixels as tensors, by name."""
        answers = self.answers(pixels.numpy())
        named = ((name, getattr(answers, name)) for name in OUTPUTS)
        return {name: torch.from_numpy(value) for name, value in named if value is not None}


def _read_facts(folder: Path) -> Facts:
    """Return what a folder says of itself, if its files are those that were written."""
    try:
        text = (folder / FACTS).read_text(encoding="utf-8")
        contents = {name: (folder / name).read_bytes() for name in (GRAPH, WEIGHTS)}
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise _damaged(folder / FACTS) from None
    try:
        metadata = json.loads(text)
        hashes, digest = metadata.pop("files"), metadata["sha256"]
        if _digest(text.replace(digest, UNSEALED, 1).encode()) != digest:
            raise _damaged(folder / FACTS)
        for name, content in contents.items():
            if _digest(content) != hashes[name]:
                raise _damaged(folder / name)
        return Facts.read(metadata)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _damaged(folder / FACTS) from None


def _damaged(file: Path) -> CheckpointError:
    return CheckpointError(
        f"{file} is damaged or was changed after it was written; copy or export it again"
    )
