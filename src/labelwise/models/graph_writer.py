"""An exported file as it is written: resize, network, link and rule, with onnx and NumPy alone."""

from dataclasses import dataclass
from math import floor, pi

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from labelwise import __version__
from labelwise.eyes.eye import OPSET
from labelwise.links import Link
from labelwise.models.graph_file import INPUT, PIXELS, Facts
from labelwise.models.graph_links import (
    Graph,
    Typed,
    Value,
    default_thresholds,
    write_link,
    write_rule,
)
from labelwise.pictures import Transform
from labelwise.pictures.transform import THIN

# A picture of any size to the network's pixels, as ONNX operators: PIL's resize, then the crop.
#
# ``image`` uint8 (H, W, 3) -> uint8 (3, size, size): PIL's arithmetic (see
# :mod:`labelwise.pictures.transform`) as matrix products with weights of 22 bits. All numbers are
# integers below 2^53, so float64 products are exact, and the pixels are PIL's. Only the rows and
# columns that remain after the crop are computed.
#
# Pictures whose height PIL scales first are turned before, and turned back after.

BITS = 2.0**22
BLOCK = 8  # output columns computed at once
RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def write_resize(g: Graph, transform: Transform, image: Value) -> Value:
    """Write the uint8 pixels (3, size, size) of a picture (H, W, 3)."""
    with g.part("resize"):
        if transform.crop is not None:  # as ``Transform``, cut the ends of very long ones off
            sides = g.op("Slice", g.op("Shape", image), [0], [2], [0])
            longest = g.op("Mul", g.op("ReduceMin", sides, keepdims=1), THIN)
            start = g.op("Max", g.op("Div", g.op("Sub", sides, longest), 2), 0)
            image = g.op("Slice", image, start, g.op("Sub", sides, start), [0, 1])
        shape = g.op("Shape", image)
        height, width = g.op("Gather", shape, 0), g.op("Gather", shape, 1)
        tall, wide = _scaled(g, transform, height, width)
        # Whether PIL scales the height first.
        twice = g.op("Mul", g.op("Max", g.op("Sub", width, wide), 0), 2)
        turn = g.op("Greater", g.op("Sub", height, tall), twice)
        planes = _turned(g, turn, g.op("Transpose", image, perm=[2, 0, 1]), None)
        first, second = (
            _Axis(
                g.op("Where", turn, *lengths),
                scaled := g.op("Where", turn, *targets),
                _offset(g, scaled, transform.size),
            )
            for lengths, targets in (
                ((height, width), (tall, wide)),
                ((width, height), (wide, tall)),
            )
        )
        return _turned(g, turn, _resized(g, transform, planes, second, first), transform)


@dataclass(frozen=True)
class _Axis:
    """One side of a picture: its length, the length it is scaled to, where the crop begins."""

    length: Value
    scaled: Value
    offset: Value


def _turned(g: Graph, turn: Value, planes: Value, transform: Transform | None) -> Value:
    """Write the planes (3, H, W), as (3, W, H) if ``turn`` holds."""
    sides = [None, None] if transform is None else [transform.size, transform.size]
    yes, no = Graph(g), Graph(g)
    outputs = yes.op("Transpose", planes, perm=[0, 2, 1]), no.op("Identity", planes)
    turned, upright = ([(name, "uint8", 3, *sides)] for name in outputs)
    branches = yes.body("turned", [], turned), no.body("upright", [], upright)
    return g.op("If", turn, then_branch=branches[0], else_branch=branches[1])


def _resized(g: Graph, transform: Transform, planes: Value, rows: _Axis, columns: _Axis) -> Value:
    if transform.interpolation == "nearest":
        taken = g.op("Gather", planes, _nearest(g, rows, transform.size), axis=1)
        return g.op("Gather", taken, _nearest(g, columns, transform.size), axis=2)
    narrow = _scaled_across(g, transform, planes, columns)  # (3, H, size)
    turned = g.op("Transpose", narrow, perm=[0, 2, 1])
    return g.op("Transpose", _scaled_across(g, transform, turned, rows), perm=[0, 2, 1])


def _scaled(g: Graph, transform: Transform, height: Value, width: Value) -> tuple[Value, Value]:
    if transform.crop is None:
        return g.constant(transform.size), g.constant(transform.size)
    short = floor(transform.size / transform.crop)

    def long(side: Value, other: Value) -> Value:
        return g.op("Max", g.op("Div", g.op("Mul", side, short), other), short)

    # The shorter side's own quotient is exactly ``short``.
    least = g.op("Min", height, width)
    return long(height, least), long(width, least)


def _offset(g: Graph, scaled: Value, size: int) -> Value:
    """Write where the middle begins: half of what is cut off, rounded to even as Python does."""
    half = g.op("Div", g.cast(g.op("Sub", scaled, size), "float64"), 2.0)
    return g.cast(g.op("Round", half), "int64")


def _nearest(g: Graph, axis: _Axis, size: int) -> Value:
    """Write the inputs (size,) nearest to the kept outputs; PIL adds step to step as it goes."""
    scale = g.op("Div", g.cast(axis.length, "float64"), g.cast(axis.scaled, "float64"))
    rest = g.op("Unsqueeze", g.op("Sub", axis.scaled, 1), [0])
    steps = g.op(
        "Concat",
        g.op("Unsqueeze", g.op("Mul", scale, 0.5), [0]),
        g.op("Expand", scale, rest),
        axis=0,
    )
    start = g.op("Unsqueeze", axis.offset, [0])
    kept = g.op("Slice", g.op("CumSum", steps, 0), start, g.op("Add", start, size), [0])
    return g.op("Min", g.cast(g.op("Floor", kept), "int64"), g.op("Sub", axis.length, 1))


def _scaled_across(g: Graph, transform: Transform, planes: Value, axis: _Axis) -> Value:
    """Write planes (3, n, size) of planes (3, n, length), ``BLOCK`` columns at a time."""
    size = transform.size
    blocks = -(-size // BLOCK)
    body = Graph(g)
    number, go_on = (body.name(what) for what in ("number", "go_on"))
    first = body.op("Add", axis.offset, body.op("Mul", number, BLOCK))
    start, end, weights = _weights(body, transform, axis, first)
    near = body.cast(body.op("Slice", planes, start, end, [2]), "float64")
    sums = body.op("MatMul", near, body.op("Transpose", weights, perm=[1, 0]))
    rounded = body.op("Floor", body.op("Div", body.op("Add", sums, BITS / 2), BITS))
    outputs = body.op("Identity", go_on), body.cast(body.clip(rounded, 0.0, 255.0), "uint8")
    loop = body.body(
        "block",
        [(number, "int64"), (go_on, "bool")],
        [(outputs[0], "bool"), (outputs[1], "uint8", 3, None, BLOCK)],
    )
    always = g.constant(np.array(True))
    parts = g.op("Transpose", g.op("Loop", blocks, always, body=loop), perm=[1, 2, 0, 3])
    return g.op("Slice", g.op("Reshape", parts, [3, 0, blocks * BLOCK]), [0], [size], [2])


def _weights(
    g: Graph, transform: Transform, axis: _Axis, first: Value
) -> tuple[Value, Value, Value]:
    """Write the weights (BLOCK, inputs) of outputs from ``first`` on, and their inputs' range."""
    kind = transform.interpolation
    count = g.cast(axis.length, "float64")
    scale = g.op("Div", count, g.cast(axis.scaled, "float64"))
    spread = g.op("Max", scale, 1.0)
    reach = g.op("Mul", spread, RADIUS[kind])
    # Twice the places are whole: OpenVINO 2026.4 adds a fraction to a cast integer as integers.
    places = g.cast(g.op("Add", 2 * np.arange(BLOCK) + 1, g.op("Mul", first, 2)), "float64")
    center = g.op("Unsqueeze", g.op("Mul", places, g.op("Div", scale, 2.0)), [1])
    low = g.op("Floor", g.op("Max", g.op("Add", g.op("Sub", center, reach), 0.5), 0.0))
    high = g.op("Min", g.op("Floor", g.op("Add", g.op("Add", center, reach), 0.5)), count)
    start = g.cast(g.op("ReduceMin", low, keepdims=0), "int64")
    end = g.cast(g.op("ReduceMax", high, keepdims=0), "int64")
    taps = g.cast(g.op("Range", start, end, 1), "float64")
    inside = g.op("And", g.op("GreaterOrEqual", taps, low), g.op("Less", taps, high))
    distance = g.op("Abs", g.op("Add", g.op("Sub", taps, center), 0.5))
    weights = g.where(inside, _filter(g, kind, g.op("Div", distance, spread)), 0.0)
    share = g.op("Div", weights, g.op("ReduceSum", weights, [1], keepdims=1))
    whole = g.op("Mul", share, BITS)
    size = g.op("Floor", g.op("Add", g.op("Abs", whole), 0.5))  # half away from zero
    first_of, end_of = g.op("Unsqueeze", start, [0]), g.op("Unsqueeze", end, [0])
    return first_of, end_of, g.op("Mul", g.op("Sign", whole), size)


def _filter(g: Graph, kind: str, x: Value) -> Value:
    if kind == "bilinear":
        return g.clip(g.op("Sub", 1.0, x), 0.0, None)
    if kind == "lanczos":
        sinc = g.op("Mul", _sinc(g, x), _sinc(g, g.op("Div", x, 3.0)))
        return g.where(g.op("Less", x, 3.0), sinc, 0.0)
    a, square = -0.5, g.op("Mul", x, x)
    near = g.op("Sub", g.op("Mul", x, a + 2.0), a + 3.0)
    near = g.op("Add", g.op("Mul", near, square), 1.0)
    far = g.op("Add", g.op("Mul", g.op("Sub", x, 5.0), x), 8.0)
    far = g.op("Mul", g.op("Sub", g.op("Mul", far, x), 4.0), a)
    return g.where(g.op("Less", x, 1.0), near, g.where(g.op("Less", x, 2.0), far, 0.0))


def _sinc(g: Graph, x: Value) -> Value:
    zero = g.op("Equal", x, 0.0)
    angle = g.op("Mul", g.where(zero, 1.0, x), pi)
    return g.where(zero, 1.0, g.op("Div", g.op("Sin", angle), angle))


# One ONNX file from pixels to decided labels, with all that describes it in its metadata.
#
#     image uint8 (H, W, 3)   -> resize -+
#     pixels uint8 (N, 3, S, S) ---------+-> normalise -> network -> logits -> link -> rule
#     bands float32 (N, n, S, S), named ``pixels`` too, in their own units -> normalise -> ...
#
#     inputs    ``image`` or ``pixels``; with ``open_thresholds`` also ``thresholds`` (K,) float64,
#               optional, if the rule has any
#     outputs   ``logits`` (N, K), ``probability`` (N, K), ``label`` (N, K) bool, ``none`` (N,)
#               ``logits`` and ``ranking`` (N, K) of columns, best first, if the model only ranks
#
# It is read back by ``models.graph_file``.

IR_VERSION = 10
LOGITS = "network_logits"


def assemble(network: ModelProto, facts: Facts) -> ModelProto:
    """Return the whole model around the graph of a network."""
    g, labels = Graph(), len(facts.space)
    if facts.input == "image":
        inputs: list[Typed] = [("image", "uint8", "height", "width", 3)]
        resized = write_resize(g, facts.transform, "image")
        g.named(g.op("Unsqueeze", resized, [0]), PIXELS)
    else:
        inputs = [facts.pixels_info("batch")]
    with g.part("normalise"):
        mean, std = facts.transform.mean_and_std
        normalised = g.op("Div", g.op("Sub", g.cast(PIXELS, "float32"), mean), std)
    g.nodes.append(helper.make_node("Identity", [normalised], [INPUT], name="network/input"))
    g.nodes.extend(network.graph.node)
    g.constants.extend(network.graph.initializer)
    g.nodes.append(helper.make_node("Identity", [LOGITS], ["logits"], name="network/output"))
    batch = 1 if facts.input == "image" else "batch"
    outputs: list[Typed] = [("logits", "float32", batch, labels)]
    if facts.link is None:
        _, order = g.ops("TopK", "logits", [labels], axis=-1, outputs=2)
        g.named(order, "ranking")
        outputs.append(("ranking", "int64", batch, labels))
    else:
        inputs += _write_decision(g, facts, facts.link, labels)
        outputs += [
            ("probability", "float32", batch, labels),
            ("label", "bool", batch, labels),
            ("none", "float32", batch),
        ]
    model = helper.make_model(
        g.body("labelwise", inputs, outputs),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="labelwise",
        producer_version=__version__,
        ir_version=IR_VERSION,
    )
    model.graph.value_info.extend(network.graph.value_info)
    helper.set_model_props(model, facts.metadata())
    onnx.checker.check_model(model)
    return model


def _write_decision(g: Graph, facts: Facts, link: Link, labels: int) -> list[Typed]:
    """Write what follows the logits; return the inputs it takes: the thresholds, if open."""
    with g.part("link"):
        probs, none = write_link(g, link, g.cast("logits", "float64"), labels)
    thresholds = default_thresholds(facts.rule, labels)
    if thresholds is not None:
        g.constants.append(numpy_helper.from_array(thresholds, "thresholds"))
    given = None if thresholds is None else "thresholds"
    with g.part("rule"):
        g.named(write_rule(g, facts.rule, probs, given), "label")
    g.named(g.cast(probs, "float32"), "probability")
    g.named(g.cast(none, "float32"), "none")
    return [(given, "float64", labels)] if given and facts.open_thresholds else []
