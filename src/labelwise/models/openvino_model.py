"""A folder of ``export --format openvino`` as a scorer, run by OpenVINO in float32.

    model.xml, model.bin   the graph of the ONNX file
    labelwise.json         the metadata of the ONNX file, and the hashes of the other two

OpenVINO reports to its makers that it was imported, over the network and unasked, by a package of
its own; :func:`openvino_runtime` imports it without that package.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import CheckpointError, SettingsError
from labelwise.models.graph_file import INPUT, PIXELS, Facts
from labelwise.models.graph_model import GraphModel, NodeValue, Part
from labelwise.models.onnx_sessions import UNSEALED
from labelwise.models.run_folder import OPENVINO_FILES
from labelwise.system.text import one_line_of

REPORTER = "openvino_telemetry"
GRAPH, WEIGHTS, FACTS = OPENVINO_FILES
OUTPUTS = {PIXELS, "logits", "probability", "label", "none", "ranking"}


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


def tensor_of(model: Any, name: str) -> Any:
    """Return the output of the node that gives the tensor of a name."""
    return next(one for node in model.get_ops() for one in node.outputs() if name in one.names)


def digest(content: bytes) -> str:
    """Return the hash of a file's bytes."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, eq=False)
class OpenVinoModel(GraphModel):
    """An exported folder, run by OpenVINO in float32."""

    graph: Any
    facts: Facts
    name: str = "the exported model"
    threads: int | None = None

    @staticmethod
    def load(folder: str | Path, *, threads: int | None = None) -> "OpenVinoModel":
        """Return the model in a folder; it must be whole and written by labelwise."""
        openvino = openvino_runtime()
        folder = Path(folder)
        facts = _read_facts(folder)
        try:
            graph = openvino.Core().read_model(folder / GRAPH)
            model = OpenVinoModel(graph, facts, str(folder), threads)
            model.answers(facts.blank())
        except Exception as error:  # OpenVINO's own classes have no common base but this
            raise CheckpointError(
                f"{folder} cannot be run by OpenVINO: {one_line_of(error)[:300]}"
            ) from None
        return model

    def run(self, part: Part, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the outputs of a part of the graph by name."""
        found = getattr(self, f"_{part}").create_infer_request().infer(inputs)
        return {
            name: value
            for output, value in found.items()
            for name in output.names & OUTPUTS  # a tensor may have names of nodes too
        }

    def values(self, images: NDArray[np.float32]) -> Iterator[NodeValue]:
        """Yield what the nodes of the network give for normalised images, in order."""
        openvino = openvino_runtime()
        part = self._after(INPUT, [-1, *images.shape[1:]], np.float32)
        end = tensor_of(part, "logits").get_node()
        nodes = []
        for node in part.get_ordered_ops():
            if node.get_type_name() not in ("Parameter", "Constant", "Result"):
                nodes.append(node)
            if node == end:
                break
        shown = [one for one in nodes if one.get_output_element_type(0) == openvino.Type.f32]
        whole = openvino.Model(
            [openvino.opset13.result(node.output(0)) for node in shown], part.get_parameters()
        )
        found = self._compiled(whole, None).create_infer_request().infer({INPUT: images})
        for node, value in zip(shown, found.values(), strict=True):
            yield node.get_friendly_name(), node.get_type_name(), value

    @cached_property
    def _resize(self) -> Any:
        openvino = openvino_runtime()
        graph = self.graph.clone()
        pixels = openvino.opset13.result(tensor_of(graph, PIXELS))
        image = [one for one in graph.get_parameters() if "image" in one.output(0).names]
        return self._compiled(openvino.Model([pixels], image), 1)  # decoders run side by side

    @cached_property
    def _network(self) -> Any:
        blank = self.facts.blank()
        part = self._after(PIXELS, [-1, *blank.shape[1:]], blank.dtype.type)
        return self._compiled(part, self.threads)

    @cached_property
    def _decision(self) -> Any:
        part = self._after("logits", [-1, len(self.space)], np.float32)
        return self._compiled(part, 1)

    def _after(self, name: str, shape: list[int], dtype: Any) -> Any:
        """Return the part of the graph after a tensor, which becomes its input."""
        openvino = openvino_runtime()
        graph = self.graph.clone()
        start = openvino.opset13.parameter(shape, dtype, name=name)
        users = tensor_of(graph, name).get_target_inputs()
        ends = [one for one in graph.get_results() if name not in one.output(0).names]
        for user in users:
            user.replace_source_output(start.output(0))
        start.output(0).set_names({name})
        rest = [one for one in graph.get_parameters() if "thresholds" in one.output(0).names]
        return openvino.Model(ends, [start, *rest])

    def _compiled(self, model: Any, threads: int | None) -> Any:
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        return openvino_runtime().Core().compile_model(model, "CPU", options)


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
        hashes, sha256 = metadata.pop("files"), metadata["sha256"]
        if digest(text.replace(sha256, UNSEALED, 1).encode()) != sha256:
            raise _damaged(folder / FACTS)
        for name, content in contents.items():
            if digest(content) != hashes[name]:
                raise _damaged(folder / name)
        return Facts.read(metadata)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise _damaged(folder / FACTS) from None


def _damaged(file: Path) -> CheckpointError:
    return CheckpointError(
        f"{file} is damaged or was changed after it was written; copy or export it again"
    )
