"""``export --format openvino``: the ONNX file's graph in a folder that OpenVINO runs.

    model.xml, model.bin   the graph of the ONNX file
    labelwise.json         the metadata of the ONNX file, and the hashes of the other two

The folder is made from the ONNX graph, read back, and compared with the model on real pictures as
the file is. OpenVINO computes in float32 throughout, so that some pixels are a level off.

OpenVINO reports to its makers that it was imported, over the network and unasked, by a package of
its own; :func:`openvino_runtime` imports it without that package.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.export.assemble import PIXELS, UNSEALED, Facts, Input, assemble
from labelwise.export.checks import require_new_folder, require_pictures
from labelwise.export.network import INPUT, export_network
from labelwise.export.onnx_file import facts_of
from labelwise.export.parity import Parity, assert_parity
from labelwise.export.rules import default_thresholds
from labelwise.export.runtime import GraphModel, NodeValue, Part
from labelwise.models import ModelSpec, Predictor
from labelwise.pictures import ImageSource
from labelwise.system.files import replacing_folder
from labelwise.system.progress import Watch
from labelwise.system.text import one_line_of

__all__ = ["OpenVinoModel", "export_openvino", "openvino_runtime"]

REPORTER = "openvino_telemetry"
GRAPH, WEIGHTS, FACTS = "model.xml", "model.bin", "labelwise.json"
CLOSE, SELDOM = 0.01, 0.01  # of probabilities, and the share of entries that may differ by more
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


def export_openvino(
    predictor: Predictor,
    spec: ModelSpec,
    folder: Path,
    images: ImageSource,
    rows: Sequence[int],
    *,
    input: Input = "image",
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write a new folder once it agrees with the model; return its size and how it compares."""
    openvino = openvino_runtime()
    folder = Path(folder)
    require_new_folder(folder)
    require_pictures(rows)
    facts = facts_of(predictor, spec, input=input)
    graph = assemble(export_network(predictor.model, predictor.transform.size), facts)
    try:
        converted = openvino.Core().read_model(graph.SerializeToString())
    except Exception as error:  # OpenVINO's own classes have no common base but this
        raise LabelwiseError(
            f"OpenVINO cannot read this model ({one_line_of(error)[:300]}); use --format onnx"
        ) from None
    if "thresholds" in (one.name for one in graph.graph.input):
        _open_thresholds(openvino, converted, len(facts.space))
    for name, value in _model_info(facts).items():
        converted.set_rt_info(value, ["model_info", name])
    with replacing_folder(folder) as temporary:
        openvino.save_model(converted, temporary / GRAPH, compress_to_fp16=False)
        (temporary / FACTS).write_text(_sealed(facts, temporary), encoding="utf-8")
        written = OpenVinoModel.load(temporary)
        parity = assert_parity(written, predictor, images, rows, watch=watch)
        _assert_link_in_float32(written)
        size = sum(file.stat().st_size for file in temporary.iterdir())
    return size, parity


def _assert_link_in_float32(model: "OpenVinoModel") -> None:
    """Raise if the link is another one in float32 for logits that no compared photo may have had.

    Single entries may fall on the other side of a step.
    """
    if model.link is None:
        return
    logits = np.random.default_rng(0).normal(0, 6, (256, len(model.space))).astype(np.float32)
    expected = model.link(torch.from_numpy(logits).double()).numpy()
    apart = np.abs(model.decided(logits).probability - expected)
    if not (apart > CLOSE).mean() <= SELDOM:
        raise LabelwiseError(
            "nothing was written: OpenVINO computes in float32, in which the link "
            f"{model.link.kind!r} gives probabilities up to {apart.max():.2g} off for large "
            "logits; use --format onnx, or another calibrator"
        )


def _open_thresholds(openvino: Any, model: Any, labels: int) -> None:
    """Make the constant thresholds of a model an input of any length: the first K of [it, own].

    OpenVINO has no optional inputs: one of fixed shape that is not given is zeros, which would
    decide for every label; one of open shape is empty, which leaves the model's own.
    """
    ops = openvino.opset13
    own = _tensor(model, "thresholds")
    users = own.get_target_inputs()
    own.set_names(set())
    given = ops.parameter([-1], np.float64, name="thresholds")
    given.output(0).set_names({"thresholds"})
    chosen = ops.slice(ops.concat([given, own], 0), [0], [labels], [1], [0])
    for user in users:
        user.replace_source_output(chosen.output(0))
    model.add_parameters([given])
    model.validate_nodes_and_infer_types()


def _tensor(model: Any, name: str) -> Any:
    """Return the output of the node that gives the tensor of a name."""
    return next(one for node in model.get_ops() for one in node.outputs() if name in one.names)


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
            model.answers(np.zeros((1, 3, model.size, model.size), np.uint8))
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
        end = _tensor(part, "logits").get_node()
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
        pixels = openvino.opset13.result(_tensor(graph, PIXELS))
        image = [one for one in graph.get_parameters() if "image" in one.output(0).names]
        return self._compiled(openvino.Model([pixels], image), 1)  # decoders run side by side

    @cached_property
    def _network(self) -> Any:
        shape = [-1, 3, self.size, self.size]
        return self._compiled(self._after(PIXELS, shape, np.uint8), self.threads)

    @cached_property
    def _decision(self) -> Any:
        part = self._after("logits", [-1, len(self.space)], np.float32)
        return self._compiled(part, 1)

    def _after(self, name: str, shape: list[int], dtype: Any) -> Any:
        """Return the part of the graph after a tensor, which becomes its input."""
        openvino = openvino_runtime()
        graph = self.graph.clone()
        start = openvino.opset13.parameter(shape, dtype, name=name)
        users = _tensor(graph, name).get_target_inputs()
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
