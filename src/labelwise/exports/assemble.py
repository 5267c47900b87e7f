"""One ONNX file from pixels to decided labels, with all that describes it in its metadata.

    image uint8 (H, W, 3)   -> resize -+
    pixels uint8 (N, 3, S, S) ---------+-> normalise -> network -> logits -> link -> rule
    bands float32 (N, n, S, S), named ``pixels`` too, in their own units -> normalise -> ...

    inputs    ``image`` or ``pixels``; with ``open_thresholds`` also ``thresholds`` (K,) float64,
              optional, if the rule has any
    outputs   ``logits`` (N, K), ``probability`` (N, K), ``label`` (N, K) bool, ``none`` (N,)
              ``logits`` and ``ranking`` (N, K) of columns, best first, if the model only ranks

It is read back by ``models.graph_file``.
"""

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from labelwise import __version__
from labelwise.exports.graph import Graph
from labelwise.exports.links import write_link
from labelwise.exports.network import LOGITS
from labelwise.exports.pictures import write_normalise, write_resize
from labelwise.exports.rules import default_thresholds, write_rule
from labelwise.links import Link
from labelwise.models.graph_file import INPUT, OPSET, PIXELS, Facts

IR_VERSION = 10


def assemble(network: ModelProto, facts: Facts) -> ModelProto:
    """Return the whole model around the graph of a network."""
    g, labels = Graph(), len(facts.space)
    if facts.input == "image":
        inputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, ["height", "width", 3])]
        resized = write_resize(g, facts.transform, "image", exact=facts.exact_resize)
        g.named(g.op("Unsqueeze", resized, [0]), PIXELS)
    else:
        inputs = [facts.pixels_info("batch")]
    normalised = write_normalise(g, facts.transform, PIXELS)
    g.nodes.append(helper.make_node("Identity", [normalised], [INPUT], name="network/input"))
    g.nodes.extend(network.graph.node)
    g.constants.extend(network.graph.initializer)
    g.nodes.append(helper.make_node("Identity", [LOGITS], ["logits"], name="network/output"))
    batch = 1 if facts.input == "image" else "batch"
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, labels])]
    if facts.link is None:
        _, order = g.op("TopK", "logits", [labels], axis=-1, outputs=2)
        g.named(order, "ranking")
        outputs.append(helper.make_tensor_value_info("ranking", TensorProto.INT64, [batch, labels]))
    else:
        inputs += _write_decision(g, facts, facts.link, labels)
        outputs += [
            helper.make_tensor_value_info("probability", TensorProto.FLOAT, [batch, labels]),
            helper.make_tensor_value_info("label", TensorProto.BOOL, [batch, labels]),
            helper.make_tensor_value_info("none", TensorProto.FLOAT, [batch]),
        ]
    model = helper.make_model(
        g.body("labelwise", inputs, outputs),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="labelwise",
        producer_version=__version__,
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, facts.metadata())
    onnx.checker.check_model(model)
    return model


def _write_decision(g: Graph, facts: Facts, link: Link, labels: int) -> list[ValueInfoProto]:
    """Write what follows the logits; return the inputs it takes: the thresholds, if open."""
    inputs, rule = [], facts.rule
    with g.part("link"):
        probs, none = write_link(g, link, g.cast("logits", "float64"))
    thresholds = default_thresholds(rule, labels)
    if thresholds is not None:
        g.constants.append(numpy_helper.from_array(thresholds, "thresholds"))
    if thresholds is not None and facts.open_thresholds:
        inputs.append(helper.make_tensor_value_info("thresholds", TensorProto.DOUBLE, [labels]))
    with g.part("rule"):
        given = None if thresholds is None else "thresholds"
        g.named(write_rule(g, rule, probs, given), "label")
    g.named(g.cast(probs, "float32"), "probability")
    g.named(g.cast(none, "float32"), "none")
    return inputs
