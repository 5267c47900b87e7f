"""Backbone and head as an ONNX graph, by torch's own exporters, of which none is trusted.

The exporter that traces is tried first: it is a hundred times faster than the one that captures
the program (``dynamo``), which is there for networks the first cannot take. It traces a batch of a
fixed size, and all that follows from sizes alone is computed then, such as the padding of some
networks; a quantiser would round the numbers it is computed from. Where the size of the batch has
become a number too, as in transformers, it traces again with one that is left open. What either
writes is compared with the network itself on random input of another batch size before it is used.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import onnx
import torch
from onnx import ModelProto
from torch import Tensor, nn

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.models import Model, Predictor
from labelwise.models.graph_file import INPUT, OPSET, open_session, simplified
from labelwise.networks.heads import LinearHead
from labelwise.system.text import first_line

# Other libraries' notes to programmers, kept from users.


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


# A model whose classifier does the work of its link, for programs that know no links.
#
#     sigma(slope (W x + b) + offset)  =  sigma((slope W) x + (slope b + offset))
#     softmax of (W x + b) / T         =  softmax of (W / T) x + b / T
#
# Other programs take a sigmoid or a softmax of the logits, whichever ``problem_type`` names. Under
# temperature and Platt scaling these are the model's own probabilities once the numbers are folded
# into the weights; curves (SPA, isotonic, beta) and links that couple labels cannot be folded.


def folded(predictor: Predictor) -> tuple[Predictor, str]:
    """Return the predictor with its link folded into its linear head; raise if that cannot be."""
    head = predictor.model.head
    if not isinstance(head, LinearHead):
        raise SettingsError(f"only a linear head can take in a link, got {type(head).__name__}")
    slope, offset, link, problem_type = _line(predictor.link, len(predictor.space))
    classifier = deepcopy(head.classifier)
    weight, bias = classifier.weight, classifier.bias
    with torch.no_grad():
        device = weight.device
        weight.copy_(slope.to(device)[:, None] * weight.double())
        bias.copy_(slope.to(device) * bias.double() + offset.to(device))
    new = LinearHead(classifier.in_features, classifier.out_features).to(device)
    new.classifier = classifier
    mirrored, crops = predictor.model.mirrored, predictor.model.crops
    model = Model(predictor.model.backbone, new, mirrored=mirrored, crops=crops)
    return replace(predictor, model=model.eval(), link=link), problem_type


def _line(link: Link | None, labels: int) -> tuple[Tensor, Tensor, Link, str]:
    """Return the slope and offset (K,) to fold, what remains of the link, and how it is asked."""
    if link is None:
        raise SettingsError("the model ranks labels and has no probabilities; calibrate it first")
    if isinstance(link, Softmax) and labels > 1:
        slope = torch.full((labels,), 1 / link.temperature, dtype=torch.float64)
        return slope, torch.zeros_like(slope), Softmax(), "single_label_classification"
    line = link.slope_and_offset(labels)
    if line is None:
        raise SettingsError(
            f"the link {link.kind!r} is not a sigmoid or softmax of scaled and shifted logits; "
            "`labelwise train --method bce --set calibrate=platt` gives one that is"
        )
    slope, offset = (torch.from_numpy(np.ascontiguousarray(coefficients)) for coefficients in line)
    return slope, offset, Sigmoid(), "multi_label_classification"


LOGITS = "network_logits"
CLOSE = 1e-3  # of random weights and input; the real check, on pictures, is far stricter


class _Logits(nn.Module):
    """The logits of a model, alone."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images).logits
        return logits


def export_network(model: Model, size: int) -> ModelProto:
    """Return the graph from normalised pixels (N, C, size, size) to logits (N, K)."""
    network = _Logits(model).eval().cpu()
    generator = torch.Generator().manual_seed(0)
    channels = model.backbone.transform.channels
    example = torch.randn(2, channels, size, size, generator=generator)
    other = torch.randn(3, channels, size, size, generator=generator)
    with torch.no_grad():
        expected = network(other).numpy()
    reasons = []
    for exporter in (_fixed, _traced, _captured):
        try:
            with quiet():
                proto = exporter(network, example)
            (answers,) = open_session(proto).run([LOGITS], {INPUT: other.numpy()})
        except Exception as error:  # exporters raise errors of every kind
            reasons.append(f"{exporter.__name__[1:]}: {first_line(error)[:200]}")
            continue
        apart = float(np.abs(answers - expected).max())
        if apart <= CLOSE * max(1.0, float(np.abs(expected).max())):
            return _cleaned(proto)
        reasons.append(f"{exporter.__name__[1:]}: logits differ by {apart:.2g}")
    raise LabelwiseError(
        f"backbone {model.backbone.name!r} cannot be written as ONNX ({'; '.join(reasons)})"
    )


def _fixed(network: nn.Module, example: Tensor) -> ModelProto:
    proto: ModelProto = simplified(_traced(network, example, axes={}))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]
    return proto


def _traced(
    network: nn.Module, example: Tensor, axes: dict[str, dict[int, str]] | None = None
) -> ModelProto:
    open_batch = {INPUT: {0: "batch"}, LOGITS: {0: "batch"}}
    buffer: Any = io.BytesIO()  # which torch takes, though its annotation does not say so
    torch.onnx.export(
        network,
        (example,),
        buffer,
        dynamo=False,
        opset_version=OPSET,
        input_names=[INPUT],
        output_names=[LOGITS],
        dynamic_axes=open_batch if axes is None else axes,
    )
    return onnx.load_model_from_string(buffer.getvalue())


def _captured(network: nn.Module, example: Tensor) -> ModelProto:
    program = torch.onnx.export(
        network,
        (example,),
        None,
        dynamo=True,
        opset_version=OPSET,
        input_names=[INPUT],
        output_names=[LOGITS],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        external_data=False,
        verbose=False,
    )
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    return program.model_proto


def _cleaned(proto: ModelProto) -> ModelProto:
    """Return the graph without copies of weights and without what exporters note for themselves."""
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
