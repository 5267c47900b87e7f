"""Networks of torch as ONNX graphs, and as eyes, which need no torch any more.

Torch's own exporters write the graph. What one writes is compared with the network on another batch
size before it is used. Tracing is tried first: it is a hundred times faster than capturing the
program (``dynamo``). With a batch of fixed size all that follows from sizes is computed then, which
a quantiser would round; else the size is left open.
"""

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import onnx
import torch
from onnx import ModelProto
from torch import Tensor, nn

from labelwise.base.files import replacing
from labelwise.base.text import first_line
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.eyes import Eye
from labelwise.eyes.eye import OPSET, PRETRAINED, StatedEye
from labelwise.eyes.session import open_session
from labelwise.learn.backbones import Backbone, create_backbone, create_classifier

CLOSE = 1e-3  # of random weights and input; exports are compared far more strictly, on pictures
Shape = tuple[int, int, int]  # channels, height, width


@contextmanager
def quiet() -> Iterator[None]:
    """Run a block without warnings and without log messages below errors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def written_graph(
    network: nn.Module,
    shape: Shape,
    source: str,
    outputs: Sequence[str],
    name: str,
    accept: Callable[[ModelProto], object] = lambda _: None,
) -> ModelProto:
    """Return the graph of a network in evaluation from images (N, *shape) to its outputs.

    ``source`` and ``outputs`` are the names of the values in the graph. A graph that ``accept``
    raises an error for is written in another way.
    """
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(2, *shape, generator=generator)
    other = torch.randn(3, *shape, generator=generator)
    with torch.no_grad():
        expected = [values.numpy() for values in network(other)]
    reasons = []
    for exporter in (_fixed, _traced, _captured):
        try:
            with quiet():
                proto = exporter(network, example, source, outputs)
            answers = open_session(proto).run(list(outputs), {source: other.numpy()})
            for answer, right, output in zip(answers, expected, outputs, strict=True):
                apart = float(np.abs(answer - right).max())
                if not apart <= CLOSE * max(1.0, float(np.abs(right).max())):
                    raise ValueError(f"{output} differ by {apart:.2g}")
            proto = _cleaned(proto)
            accept(proto)
        except Exception as error:  # exporters raise errors of every kind
            reasons.append(f"{exporter.__name__[1:]}: {first_line(error)[:200]}")
            continue
        return proto
    raise LabelwiseError(f"backbone {name!r} cannot be written as ONNX ({'; '.join(reasons)})")


def _fixed(network: nn.Module, example: Tensor, source: str, outputs: Sequence[str]) -> ModelProto:
    with TemporaryDirectory() as folder:  # what follows from constants is computed
        path = Path(folder) / "model.onnx"
        open_session(_traced(network, example, source, outputs, axes={}), simplified=path)
        proto = onnx.load(path)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]
    return proto


def _traced(
    network: nn.Module,
    example: Tensor,
    source: str,
    outputs: Sequence[str],
    axes: dict[str, dict[int, str]] | None = None,
) -> ModelProto:
    open_batch = {name: {0: "batch"} for name in (source, *outputs)}
    buffer: Any = io.BytesIO()  # which torch takes, though its annotation does not say so
    torch.onnx.export(
        network,
        (example,),
        buffer,
        dynamo=False,
        dynamic_axes=open_batch if axes is None else axes,
        opset_version=OPSET,
        input_names=[source],
        output_names=list(outputs),
    )
    return onnx.load_model_from_string(buffer.getvalue())


def _captured(
    network: nn.Module, example: Tensor, source: str, outputs: Sequence[str]
) -> ModelProto:
    program = torch.onnx.export(
        network,
        (example,),
        None,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        external_data=False,
        verbose=False,
        opset_version=OPSET,
        input_names=[source],
        output_names=list(outputs),
    )
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    return program.model_proto


def _cleaned(proto: ModelProto) -> ModelProto:
    graph = proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    renamed: dict[str, str] = {}
    kept = []
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        if node.op_type == "Identity" and node.input[0] in weights:
            renamed[node.output[0]] = node.input[0]
        else:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]
    del graph.metadata_props[:]
    return proto


# A network as an eye. Its features are what its own pooling makes of the feature map, and the
# maxima over places where that pooling is the mean. A classifier that is linear in these features
# gives the classes.


class _Outputs(nn.Module):
    def __init__(self, backbone: Backbone, classifier: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.backbone, self.classifier = backbone, classifier

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        maps = self.backbone(images)
        means = maps.mean(dim=(2, 3))
        maxima = (maps.amax(dim=(2, 3)),) if self.backbone.pooling == "mean" else ()
        if self.classifier is None:
            return means, *maxima
        return means, *maxima, nn.functional.linear(means, *self.classifier)


def write_eye(
    name: str, path: Path, *, weights: str | None = PRETRAINED, image_size: int | None = None
) -> Eye:
    """Write a network as an eye, an ONNX file and its JSON, and return it opened and checked."""
    classifier: tuple[Tensor, Tensor] | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same each time
        backbone = create_backbone(name, weights=weights, image_size=image_size).eval()
    if backbone.name == "identity":
        raise SettingsError("identity stands for stored features; name a network that sees photos")
    if backbone.classifier is not None and weights is not None:
        with suppress(SettingsError):  # its classifier is not there, or is not linear
            _, *layer = create_classifier(name, weights=weights, image_size=image_size)
            classifier = layer[0], layer[1]
    network = _Outputs(backbone, classifier).eval()
    outputs = ["means"] + ["maxima"] * (backbone.pooling == "mean")
    outputs += ["classes"] * (classifier is not None)
    widths = dict.fromkeys(outputs, backbone.channels)
    if classifier is not None:
        widths["classes"] = len(classifier[1])
    published = getattr(getattr(backbone, "network", None), "pretrained_cfg", {})
    origin = published.get("hf_hub_id") or published.get("url") or ""
    facts = {
        "format": 1,
        "name": name,
        "input": "images",
        "outputs": widths,
        "transform": backbone.transform.spec(),
        "licence": str(published.get("license") or "") if weights == PRETRAINED else "",
        "source": str(origin) if weights == PRETRAINED else str(weights or "random weights"),
    }

    def eye_of(graph: ModelProto) -> tuple[bytes, StatedEye, Eye]:
        content = graph.SerializeToString(deterministic=True)
        digest = hashlib.sha256(content).hexdigest()
        stated = StatedEye.model_validate({**facts, "sha256": digest})
        return content, stated, Eye.of(content, stated, path)

    size = backbone.transform.size
    graph = written_graph(network, (3, size, size), "images", outputs, name, eye_of)
    content, stated, eye = eye_of(graph)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    stated.save(path.with_suffix(".json"))
    return eye
