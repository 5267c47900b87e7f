"""Every rule of the catalogue as ONNX operators: probabilities (N, K) to label sets (N, K).

``Threshold`` reads its thresholds from a value of the graph that has the fitted ones as its
default; the other rules have none. ``ExpectedF`` walks over the sizes as its Python form does: the
laws of the number of labels beyond the s most probable ones are all built first, the law of hits
among them grows by one label per step, and the walk ends where no larger set can be better. Laws
are cut where a chance of 1e-12 of more labels remains, by Bernstein's bound on their number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from labelwise.decide import Rule
from labelwise.errors import SettingsError
from labelwise.exports.graph import Graph, Value

DROPPED = -2 * np.log(1e-12)  # twice the exponent of the chance that is neglected


def default_thresholds(rule: Rule, num_labels: int) -> np.ndarray | None:
    """Return the (K,) thresholds of a rule that has any."""
    values = rule.thresholds(num_labels)
    return None if values is None else np.array(values, dtype=np.float64)


def write_rule(g: Graph, rule: Rule, probs: Value, thresholds: Value | None) -> Value:
    """Write a rule on float64 probabilities; return the boolean label sets."""
    if rule.kind not in RULE_OPS:
        raise SettingsError(f"the rule {rule.kind!r} cannot be written as ONNX operators")
    with g.part(rule.kind):
        return RULE_OPS[rule.kind](g, rule, probs, thresholds)


def _threshold(g: Graph, rule: Any, probs: Value, thresholds: Value | None) -> Value:
    if thresholds is None:
        raise ValueError("a threshold rule needs an input for its thresholds")
    return str(g.op("GreaterOrEqual", probs, thresholds))


def _ranked(g: Graph, probs: Value) -> tuple[Value, Value]:
    """Write the probabilities from largest to least, and their columns; ties keep their order."""
    labels = g.op("Slice", g.op("Shape", probs), [-1], [2**31], [0])
    ranked, order = g.op("TopK", probs, labels, axis=-1, largest=1, sorted=1, outputs=2)
    return ranked, order


def _first(g: Graph, probs: Value, order: Value, sizes: Value) -> Value:
    """Write the sets of the first ``sizes`` (N, 1) labels in ``order`` (N, K)."""
    places = g.op("Range", 0, g.op("Gather", g.op("Shape", probs), -1), 1)
    nowhere = g.op("Mul", order, 0)
    chosen = g.cast(g.op("Less", g.op("Add", nowhere, places), sizes), "int64")
    sets = g.op("ScatterElements", nowhere, order, chosen, axis=-1)
    return g.cast(sets, "bool")


def _top_k(g: Graph, rule: Any, probs: Value, thresholds: Value | None) -> Value:
    _, order = _ranked(g, probs)
    return _first(g, probs, order, g.constant([[rule.k]]))


def _at_most(g: Graph, rule: Any, probs: Value, thresholds: Value | None) -> Value:
    chosen = write_rule(g, rule.rule, probs, thresholds)
    return str(g.op("And", chosen, _top_k(g, rule, probs, None)))


def _with_parents(g: Graph, rule: Any, probs: Value, thresholds: Value | None) -> Value:
    sets = write_rule(g, rule.rule, probs, thresholds)
    columns = np.arange(len(rule.parents))
    for parent, below in rule.tree.families():
        any_below = g.cast(g.op("Gather", sets, below, axis=-1), "int64")
        any_below = g.cast(g.op("ReduceMax", any_below, [-1], keepdims=1), "bool")
        sets = g.op("Or", sets, g.op("And", any_below, columns == parent))
    return sets


def _one_per_group(g: Graph, rule: Any, probs: Value, thresholds: Value | None) -> Value:
    sets = write_rule(g, rule.rule, probs, thresholds)
    for group in (*rule.exactly_one, *rule.at_most_one):
        columns = list(group)
        own = g.op("Gather", probs, columns, axis=-1)
        best = g.op("ArgMax", own, axis=-1, keepdims=1)
        first = g.cast(g.op("Equal", g.constant([list(range(len(columns)))]), best), "int64")
        if group not in rule.exactly_one:
            chosen = g.cast(g.op("Gather", sets, columns, axis=-1), "int64")
            first = g.op("Mul", first, g.op("ReduceMax", chosen, [-1], keepdims=1))
        place = g.op("Expand", g.constant([columns]), g.op("Shape", first))
        whole = g.op("ScatterElements", g.cast(sets, "int64"), place, first, axis=-1)
        sets = g.cast(whole, "bool")
    return sets


def _with(g: Graph, law: Value, p: Value) -> Value:
    """Write the law (N, M) of a count and one more label of probability ``p`` (N, 1)."""
    shifted = g.op("Slice", g.op("Pad", law, [0, 1, 0, 0], 0.0), [0], [-1], [-1])
    stay = g.op("Mul", law, g.op("Sub", 1.0, p))
    return str(g.op("Add", stay, g.op("Mul", shifted, p)))


def _expected_f(g: Graph, rule: Any, probs: Value, thresholds: Value | None) -> Value:
    ranked, order = _ranked(g, probs)
    columns = g.op("Unsqueeze", g.op("Transpose", ranked, perm=[1, 0]), [-1])  # (K, N, 1)
    labels = g.op("Gather", g.op("Shape", columns), 0)
    mean = g.op("ReduceSum", ranked, [-1], keepdims=1)  # (N, 1)
    counts = g.op("Range", 0, _law_length(g, mean, labels), 1)
    start = g.cast(g.op("Equal", counts, 0), "float64")
    nothing = g.op("Add", g.op("Mul", mean, 0.0), start)  # (N, M): surely no label

    tails = _tails(g, columns, nothing)  # (K + 1, N, M), from all labels to none
    empty = g.op("Gather", tails, 0)
    alone = g.op("Slice", empty, [0], [1], [-1])  # no label chosen: right if there is none
    body = _one_more_label(g, rule.beta, columns, tails, g.cast(counts, "float64"), mean)
    none = g.cast(g.op("Mul", mean, 0.0), "int64")
    go = g.constant(True, "bool")
    _, _, sizes = g.op("Loop", labels, go, nothing, alone, none, body=body, outputs=3)
    return _first(g, probs, order, sizes)


def _law_length(g: Graph, mean: Value, labels: Value) -> Value:
    """Write M, the length of the laws: P(more than mean + t labels) <= 1e-12, or all labels.

    Bernstein: P <= exp(-t^2 / (2 mean + 2 t / 3)), solved for t at the largest mean.
    """
    third = float(DROPPED) / 6
    most = g.op("ReduceMax", mean, keepdims=0)
    spread = g.op("Sqrt", g.op("Add", g.op("Mul", most, float(DROPPED)), third**2))
    longest = g.cast(g.op("Ceil", g.op("Add", most, g.op("Add", spread, third))), "int64")
    return str(g.op("Add", g.op("Min", longest, labels), 1))


def _one_more_label(
    g: Graph, beta: float, columns: Value, tails: Value, counts: Value, mean: Value
) -> GraphProto:
    """Write the body of the loop over sizes: the expected F of one label more.

    It carries the law of hits (N, M) among the labels so far, the best expected F (N, 1) and its
    size (N, 1), and goes on while a larger set could be better for some image.
    """
    gain, square = 1.0 + beta**2, float(beta) ** 2
    step = Graph(g)
    at, more, hits, best, size = "ef_at", "ef_more", "ef_hits", "ef_best", "ef_size"
    number = step.op("Add", at, 1)
    real = step.cast(number, "float64")
    grown = _with(step, hits, step.op("Gather", columns, at))
    rest = step.op("Gather", tails, number)
    present = step.op("Unsqueeze", counts, [1])
    together = step.op("Add", present, step.op("Unsqueeze", counts, [0]))
    below = step.op("Add", real, step.op("Mul", together, square))
    weights = step.op("Div", step.op("Mul", present, gain), below)  # (M, M)
    inside = step.op("Mul", step.op("MatMul", grown, weights), rest)
    score = step.op("ReduceSum", inside, [-1], keepdims=1)
    better = step.op("Greater", score, best)
    new_best = step.where(better, score, best)
    new_size = step.op("Where", better, step.op("Add", step.op("Mul", size, 0), number), size)
    bound = step.op("Mul", mean, gain)
    reach = step.op("Mul", new_best, step.op("Add", real, 1.0))
    open_ = step.cast(step.op("LessOrEqual", reach, bound), "int64")
    another = step.cast(step.op("ReduceMax", open_, keepdims=0), "bool")
    double, whole = TensorProto.DOUBLE, TensorProto.INT64
    return step.body(
        "one more label",
        [
            helper.make_tensor_value_info(at, whole, []),
            helper.make_tensor_value_info(more, TensorProto.BOOL, []),
            helper.make_tensor_value_info(hits, double, [None, None]),
            helper.make_tensor_value_info(best, double, [None, 1]),
            helper.make_tensor_value_info(size, whole, [None, 1]),
        ],
        [
            helper.make_tensor_value_info(another, TensorProto.BOOL, []),
            helper.make_tensor_value_info(grown, double, [None, None]),
            helper.make_tensor_value_info(new_best, double, [None, 1]),
            helper.make_tensor_value_info(new_size, whole, [None, 1]),
        ],
    )


def _tails(g: Graph, columns: Value, nothing: Value) -> Value:
    """Write the laws (K + 1, N, M) of the number of labels beyond the first 0, 1, ..., K."""
    one = Graph(g)
    law, p = "ef_law", "ef_p"
    longer = _with(one, law, p)
    double = TensorProto.DOUBLE
    body = one.body(
        "one label",
        [
            helper.make_tensor_value_info(law, double, [None, None]),
            helper.make_tensor_value_info(p, double, [None, 1]),
        ],
        [
            helper.make_tensor_value_info(longer, double, [None, None]),
            helper.make_tensor_value_info(one.named(longer, "ef_laws"), double, [None, None]),
        ],
    )
    _, laws = g.op(
        "Scan",
        nothing,
        columns,
        num_scan_inputs=1,
        scan_input_directions=[1],
        scan_output_directions=[1],
        body=body,
        outputs=2,
    )
    return str(g.op("Concat", laws, g.op("Unsqueeze", nothing, [0]), axis=0))


RULE_OPS: dict[str, Callable[[Graph, Any, Value, Value | None], Value]] = {
    "at-most": _at_most,
    "threshold": _threshold,
    "top-k": _top_k,
    "expected-f": _expected_f,
    "with-parents": _with_parents,
    "one-per-group": _one_per_group,
}
