"""``export --format torch-export``: a program of torch, from scaled pixels to decided labels.

    pixels uint8 (N, 3, size, size), N any -> {"logits", "probability", "label", "none"}
    (of a model of bands: their values, float32 (N, bands, size, size))

as in an ONNX file; a model that only ranks gives logits alone. The ``.pt2`` file has ``model.json``
among its extra files, and is compared with the model before it is written. torch loads such files
by unpickling, which runs code of their writer: labelwise writes them and runs none.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from labelwise.base.files import replacing
from labelwise.base.progress import Watch
from labelwise.base.text import first_line, one_line
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.parity import Parity, assert_program_parity
from labelwise.exports.requirements import require_exportable, require_pictures
from labelwise.learn.graphs import quiet
from labelwise.learn.predictor import Predictor
from labelwise.models import MODEL_FILE, ModelSpec
from labelwise.models.graph_model import GraphAnswers
from labelwise.pictures import ImageSource


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
    if path.suffix != ".pt2":
        raise SettingsError(f"--format torch-export writes a file that ends in .pt2, got {path}")
    require_exportable(predictor)
    require_pictures(rows)
    description = json.dumps(spec.model_dump(mode="json"), ensure_ascii=False)
    buffer, program = io.BytesIO(), picture_program(predictor)
    with quiet():
        torch.export.save(program, buffer, extra_files={MODEL_FILE: description})
        buffer.seek(0)
        loaded = torch.export.load(buffer).module()  # written a moment ago, by this process

    def answers(pixels: Tensor) -> GraphAnswers:
        with torch.no_grad():
            return GraphAnswers(**{name: value.numpy() for name, value in loaded(pixels).items()})

    parity = assert_program_parity(answers, predictor, images, rows, watch=watch)
    with replacing(path) as temporary:
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
