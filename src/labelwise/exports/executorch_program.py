"""``export --format executorch``: a program for phones, from scaled pixels to decided labels.

    pixels uint8 (N, 3, size, size), N up to 15 -> logits, probability, label, none, in this order
    (of a model of bands: their values, float32 (N, bands, size, size))

as in a program of torch.export, which is lowered to XNNPACK where that has its operators and to
ExecuTorch's own kernels elsewhere. The ``.pte`` file has a second method, ``model``, which gives
the description of the model as JSON. The file is loaded by ExecuTorch and compared with the model
on real pictures before it is written, one at a time and 15 as one batch: ExecuTorch sets the memory
of its input apart beforehand, which is that of 15 where a program takes any number.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.checks import require_exportable, require_pictures
from labelwise.exports.parity import MAX_LOGIT, Parity, assert_program_parity
from labelwise.exports.quiet import quiet
from labelwise.exports.torch_program import picture_program
from labelwise.models import ModelSpec, Predictor
from labelwise.models.graph_model import NodeValue
from labelwise.pictures import ImageSource
from labelwise.pictures.inputs import input_of
from labelwise.system.files import replacing
from labelwise.system.progress import Watch
from labelwise.system.text import first_line, one_line

OUTPUTS = ("logits", "probability", "label", "none")
MOST = 15  # pictures in one batch
COMPILER = "FLATC_EXECUTABLE"  # where ExecuTorch looks for the one that its wheel brings


def require_executorch() -> None:
    """Raise with what to install, unless ExecuTorch is there."""
    if find_spec("executorch") is None:
        raise SettingsError(
            "--format executorch needs the package 'executorch' of the version that goes with "
            "torch, such as 1.1 with torch 2.10; see docs/export.md"
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
    path = Path(path)
    if path.suffix != ".pte":
        raise SettingsError(f"--format executorch writes a file that ends in .pte, got {path}")
    require_exportable(predictor)
    require_pictures(rows)
    description = json.dumps(spec.model_dump(mode="json"), ensure_ascii=False)
    content = _lowered(picture_program(predictor), description)
    program = LoadedProgram(content)

    def values(pixels: Tensor) -> list[NodeValue]:
        return [("forward", "ExecuTorch", program(pixels)["logits"].numpy())]

    parity = assert_program_parity(program, values, predictor, images, rows, watch=watch)
    whole = [input_of(images, rows[n % len(rows)], predictor.transform) for n in range(MOST)]
    _assert_batch(program, predictor, torch.stack(whole))
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return len(content), parity


class LoadedProgram:
    """The program of a ``.pte`` file's bytes: pixels to its outputs by name."""

    def __init__(self, content: bytes) -> None:
        from executorch.runtime import Runtime, Verification

        with quiet():
            self._program = Runtime.get().load_program(content, verification=Verification.Minimal)
            self._forward = self._program.load_method("forward")

    @property
    def model(self) -> dict[str, Any]:
        """The description of the model."""
        (text,) = self._program.load_method("model").execute([])
        described: dict[str, Any] = json.loads(text)
        return described

    def __call__(self, pixels: Tensor) -> dict[str, Tensor]:
        # ExecuTorch reads the memory of its input in the order of the axes, whatever the strides.
        answers = self._forward.execute([pixels.contiguous()])
        return dict(zip(OUTPUTS, answers, strict=False))  # a model that only ranks gives the first


def _lowered(program: torch.export.ExportedProgram, description: str) -> bytes:
    with quiet(), _compiler_found():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        try:
            edge = to_edge_transform_and_lower(
                program,
                partitioner=[XnnpackPartitioner()],
                constant_methods={"model": description},
            )
            return bytes(edge.to_executorch().buffer)
        except Exception as error:  # whatever the lowering of an operator may raise
            raise LabelwiseError(
                "ExecuTorch cannot lower this model "
                f"({one_line(first_line(error))[:200]}); use --format onnx"
            ) from None


@contextmanager
def _compiler_found() -> Iterator[None]:
    """Let ExecuTorch find the compiler of its own wheel, though its folder is not on the PATH."""
    package = find_spec("executorch")
    places = [] if package is None else package.submodule_search_locations or []
    own = [place for place in (Path(one) / "data/bin/flatc" for one in places) if place.is_file()]
    if COMPILER in os.environ or not own:
        yield
        return
    os.environ[COMPILER] = str(own[0])
    try:
        yield
    finally:
        del os.environ[COMPILER]


def _assert_batch(program: LoadedProgram, predictor: Predictor, pixels: Tensor) -> None:
    """Raise unless pictures in one batch get the logits that the model gives them."""
    found = program(pixels)["logits"]
    gap = float((found - predictor.logits(pixels)).abs().max())
    if not gap <= MAX_LOGIT:
        raise LabelwiseError(
            f"nothing was written: logits of a batch of {len(pixels)} are {gap:.2g} apart, more "
            f"than {MAX_LOGIT:g}"
        )
