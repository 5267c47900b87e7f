"""``export --format torch-export``: a program of torch, from scaled pixels to decided labels.

    pixels uint8 (N, 3, size, size), N any -> {"logits", "probability", "label", "none"}
    (of a model of bands: their values, float32 (N, bands, size, size))

as in an ONNX file; a model that only ranks gives logits alone. The ``.pt2`` file holds the
description of the model as ``model.json`` among its extra files. It is loaded again and compared
with the model on real pictures before it is written.

torch loads such files by unpickling, which runs what whoever wrote them put there. So labelwise
writes them, for programs that are given files by people they trust, and runs none itself.
"""

import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.checks import require_exportable, require_pictures
from labelwise.exports.parity import Parity, assert_program_parity
from labelwise.exports.quiet import quiet
from labelwise.models import MODEL_FILE, ModelSpec, Predictor
from labelwise.models.graph_model import NodeValue
from labelwise.pictures import ImageSource
from labelwise.system.files import replacing
from labelwise.system.progress import Watch
from labelwise.system.text import first_line, one_line


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
    path = Path(path)
    if path.suffix != ".pt2":
        raise SettingsError(f"--format torch-export writes a file that ends in .pt2, got {path}")
    require_exportable(predictor)
    require_pictures(rows)
    buffer = io.BytesIO()
    description = json.dumps(spec.model_dump(mode="json"), ensure_ascii=False)
    program = picture_program(predictor)
    with quiet():
        torch.export.save(program, buffer, extra_files={MODEL_FILE: description})
        buffer.seek(0)
        loaded = torch.export.load(buffer).module()  # written a moment ago, by this process
    parity = assert_program_parity(
        loaded, partial(_node_values, loaded), predictor, images, rows, watch=watch
    )
    content = buffer.getvalue()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return len(content), parity


class _Nodes(torch.fx.Interpreter):
    """Runs a program and keeps what its nodes give."""

    def __init__(self, program: torch.fx.GraphModule) -> None:
        super().__init__(program)
        self.values: list[NodeValue] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.dtype == torch.float32 and n.op != "get_attr":
            self.values.append((n.name, str(n.target), value.detach().numpy().copy()))
        return value


def _node_values(program: torch.fx.GraphModule, pixels: Tensor) -> list[NodeValue]:
    nodes = _Nodes(program)
    with torch.no_grad():
        nodes.run(pixels)
    return nodes.values


def picture_program(predictor: Predictor) -> torch.export.ExportedProgram:
    """Return the program of a model from scaled pixels to its answers."""
    return captured_program(_Answers(predictor), _example(predictor))


def _example(predictor: Predictor) -> Tensor:
    size, channels = predictor.transform.size, predictor.transform.channels
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (2, channels, size, size), generator=generator)
    return pixels.to(predictor.transform.dtype)


def captured_program(answers: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Return the program of a module that takes batches of any size."""
    batch = torch.export.Dim("batch", min=1)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                answers.eval().cpu(), (example,), dynamic_shapes=({0: batch},)
            )
    except Exception as error:  # whatever the code of a network may raise
        raise LabelwiseError(
            "this model cannot be captured by torch.export "
            f"({one_line(first_line(error))[:200]}); use --format onnx"
        ) from None
