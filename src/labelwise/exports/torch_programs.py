"""``export --format torch-export``: a program of torch, from scaled pixels to decided labels.

    pixels uint8 (N, 3, size, size), N any -> {"logits", "probability", "label", "none"}
    (of a model of bands: their values, float32 (N, bands, size, size))

as in an ONNX file; a model that only ranks gives logits alone. The ``.pt2`` file has ``model.json``
among its extra files, and is compared with the model before it is written. torch loads such files
by unpickling, which runs code of their writer: labelwise writes them and runs none.
"""

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.base.files import replacing, replacing_folder
from labelwise.base.progress import Watch
from labelwise.base.text import first_line, one_line, one_line_of
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.links import (
    default_thresholds,
    require_exportable,
    require_new_folder,
    require_pictures,
)
from labelwise.exports.onnx_file import assemble, export_network, facts_of, quiet
from labelwise.exports.parity import MAX_LOGIT, Parity, assert_parity, assert_program_parity
from labelwise.models import MODEL_FILE, ModelSpec, Predictor
from labelwise.models.graph_file import UNSEALED, Input
from labelwise.models.graph_model import (
    FACTS,
    GRAPH,
    WEIGHTS,
    GraphAnswers,
    OpenVinoModel,
    digest,
    openvino_runtime,
    tensor_of,
)
from labelwise.pictures import ImageSource
from labelwise.pictures.loading import input_of

# ``export --format openvino``: the ONNX file's graph in a folder that OpenVINO runs.
#
#     model.xml, model.bin   the graph of the ONNX file
#     labelwise.json         the metadata of the ONNX file, and the hashes of the other two
#
# OpenVINO computes in float32 throughout, so that some pixels are a level off.


CLOSE, SELDOM = 0.01, 0.01  # of probabilities, and the share of entries that may differ by more


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
    facts = facts_of(predictor, spec, input=input, open_thresholds=True)
    graph = assemble(export_network(predictor.model, predictor.transform.size), facts)
    try:
        converted = openvino.Core().read_model(graph.SerializeToString())
    except Exception as error:  # OpenVINO's own classes have no common base but this
        raise LabelwiseError(
            f"OpenVINO cannot read this model ({one_line_of(error)[:300]}); use --format onnx"
        ) from None
    if "thresholds" in (value.name for value in graph.graph.input):
        _open_thresholds(openvino, converted, len(facts.space))
    # What OpenVINO's own tools look for, which know one threshold at most.
    info = {"labels": json.dumps(facts.space.names, ensure_ascii=False), "multilabel": "True"}
    thresholds = default_thresholds(facts.rule, len(facts.space))
    if thresholds is not None and len(set(thresholds.tolist())) == 1:
        info["confidence_threshold"] = f"{thresholds[0]:g}"
    for name, value in info.items():
        converted.set_rt_info(value, ["model_info", name])
    with replacing_folder(folder) as temporary:
        openvino.save_model(converted, temporary / GRAPH, compress_to_fp16=False)
        hashes = {name: digest((temporary / name).read_bytes()) for name in (GRAPH, WEIGHTS)}
        stated = json.dumps({**facts.metadata(), "files": hashes}, indent=2, ensure_ascii=False)
        text = f"{stated}\n"
        text = text.replace(UNSEALED, digest(text.encode()))
        (temporary / FACTS).write_text(text, encoding="utf-8")
        written = OpenVinoModel.load(temporary)
        parity = assert_parity(written, predictor, images, rows, watch=watch)
        _assert_link_in_float32(written)
        size = sum(file.stat().st_size for file in temporary.iterdir())
    return size, parity


def _assert_link_in_float32(model: "OpenVinoModel") -> None:
    """Raise if the link is another one in float32, for logits that no photo may have had."""
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
    own = tensor_of(model, "thresholds")
    users = own.get_target_inputs()
    own.set_names(set())
    given = ops.parameter([-1], np.float64, name="thresholds")
    given.output(0).set_names({"thresholds"})
    chosen = ops.slice(ops.concat([given, own], 0), [0], [labels], [1], [0])
    for user in users:
        user.replace_source_output(chosen.output(0))
    model.add_parameters([given])
    model.validate_nodes_and_infer_types()


# ``export --format executorch``: a program for phones, from scaled pixels to decided labels.
#
#     pixels uint8 (N, 3, size, size), N up to 15 -> logits, probability, label, none, in this order
#     (of a model of bands: their values, float32 (N, bands, size, size))
#
# as in a program of torch.export, lowered to XNNPACK where that has its operators. A ``.pte`` file
# has a second method, ``model``, which gives the description of the model as JSON. It is compared
# with the model one picture at a time and 15 as one batch, for which ExecuTorch sets memory apart.


OUTPUTS = ("logits", "probability", "label", "none")
MOST = 15  # pictures in one batch
COMPILER = "FLATC_EXECUTABLE"  # where ExecuTorch looks for the one that its wheel brings


def require_executorch() -> None:
    """Raise with what to install, unless ExecuTorch is there."""
    if find_spec("executorch") is None:
        raise SettingsError(
            "--format executorch needs the package 'executorch' for your torch; see docs/export.md"
        )


def export_executorch(
    predictor: Predictor,
    spec: ModelSpec,
    path: Path,
    images: ImageSource,
    rows: Sequence[int],
    *,
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write a ``.pte`` file once it agrees with the model; return its size and how it compares."""
    require_executorch()
    description = _description(predictor, spec, Path(path), rows, "executorch", ".pte")
    content = _lowered(picture_program(predictor), description)
    program = LoadedProgram(content)

    parity = _compared(program, predictor, images, rows, watch)
    whole = [input_of(images, rows[n % len(rows)], predictor.transform) for n in range(MOST)]
    together = torch.stack(whole)
    gap = float((program(together)["logits"] - predictor.logits(together)).abs().max())
    if not gap <= MAX_LOGIT:
        far = f"{gap:.2g} apart, more than {MAX_LOGIT:g}"
        raise LabelwiseError(f"nothing was written: logits of a batch of {MOST} are {far}")
    with replacing(Path(path)) as temporary:
        return temporary.write_bytes(content), parity


def _description(
    predictor: Predictor, spec: ModelSpec, path: Path, rows: Sequence[int], kind: str, suffix: str
) -> str:
    if path.suffix != suffix:
        raise SettingsError(f"--format {kind} writes a file that ends in {suffix}, got {path}")
    require_exportable(predictor)
    require_pictures(rows)
    return json.dumps(spec.model_dump(mode="json"), ensure_ascii=False)


def _compared(
    program: Callable[[Tensor], dict[str, Tensor]],
    predictor: Predictor,
    images: ImageSource,
    rows: Sequence[int],
    watch: Watch | None,
) -> Parity:
    def answers(pixels: Tensor) -> GraphAnswers:
        with torch.no_grad():
            return GraphAnswers(**{name: value.numpy() for name, value in program(pixels).items()})

    return assert_program_parity(answers, predictor, images, rows, watch=watch)


class LoadedProgram:
    """The program of a ``.pte`` file's bytes: pixels to its outputs by name."""

    def __init__(self, content: bytes) -> None:
        from executorch.runtime import Runtime, Verification

        with quiet():
            self.program = Runtime.get().load_program(content, verification=Verification.Minimal)
            self._forward = self.program.load_method("forward")

    def __call__(self, pixels: Tensor) -> dict[str, Tensor]:
        # ExecuTorch reads the memory of its input in the order of the axes, whatever the strides.
        answers = self._forward.execute([pixels.contiguous()])
        return dict(zip(OUTPUTS, answers, strict=False))  # a model that only ranks gives the first


def _lowered(program: torch.export.ExportedProgram, description: str) -> bytes:
    with quiet(), _compiler_found():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        parts, methods = [XnnpackPartitioner()], {"model": description}
        try:
            edge = to_edge_transform_and_lower(program, partitioner=parts, constant_methods=methods)
            return bytes(edge.to_executorch().buffer)
        except Exception as error:  # whatever the lowering of an operator may raise
            reason = f"({one_line(first_line(error))[:200]}); use --format onnx"
            raise LabelwiseError(f"ExecuTorch cannot lower this model {reason}") from None


@contextmanager
def _compiler_found() -> Iterator[None]:
    package = find_spec("executorch")
    places = [] if package is None else package.submodule_search_locations or []
    paths = (Path(folder) / "data/bin/flatc" for folder in places)
    own = next((path for path in paths if path.is_file()), None)
    if COMPILER in os.environ or own is None:
        yield
        return
    os.environ[COMPILER] = str(own)
    try:
        yield
    finally:
        del os.environ[COMPILER]


class _Answers(nn.Module):
    """Pixels to answers, as :func:`labelwise.models.scoring.scored` gives them."""

    mean: Tensor
    std: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model, self.link, self.rule = predictor.model, predictor.link, predictor.rule
        mean, std = predictor.transform.statistics()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        logits: Tensor = self.model((pixels - self.mean) / self.std).logits
        if self.link is None:
            return {"logits": logits}
        probability = self.link(logits.double()).float()
        label = self.rule(probability)
        none = self.link.log_none(logits.double()).exp().float()
        return {"logits": logits, "probability": probability, "label": label, "none": none}


def export_program(
    predictor: Predictor,
    spec: ModelSpec,
    path: Path,
    images: ImageSource,
    rows: Sequence[int],
    *,
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write a ``.pt2`` file once it agrees with the model; return its size and how it compares."""
    description = _description(predictor, spec, Path(path), rows, "torch-export", ".pt2")
    buffer = io.BytesIO()
    program = picture_program(predictor)
    with quiet():
        torch.export.save(program, buffer, extra_files={MODEL_FILE: description})
        buffer.seek(0)
        loaded = torch.export.load(buffer).module()  # written a moment ago, by this process
    parity = _compared(loaded, predictor, images, rows, watch)
    with replacing(Path(path)) as temporary:
        return temporary.write_bytes(buffer.getvalue()), parity


def picture_program(predictor: Predictor) -> torch.export.ExportedProgram:
    """Return the program of a model from scaled pixels to its answers."""
    size, channels = predictor.transform.size, predictor.transform.channels
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (2, channels, size, size), generator=generator)
    return captured_program(_Answers(predictor), pixels.to(predictor.transform.dtype))


def captured_program(answers: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Return the program of a module that takes batches of any size."""
    shapes, answers = ({0: torch.export.Dim("batch", min=1)},), answers.eval().cpu()
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(answers, (example,), dynamic_shapes=shapes)
    except Exception as error:  # whatever the code of a network may raise
        reason = f"({one_line(first_line(error))[:200]}); use --format onnx"
        raise LabelwiseError(f"this model cannot be captured by torch.export {reason}") from None
