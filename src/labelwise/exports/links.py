"""Every link of the catalogue as ONNX operators: log p, log(1 - p), log-odds and log P(none).

The formulas are those of the links themselves, in the same order of operations. ``LINK_OPS`` has
one writer for each kind of link; what a writer does not define follows from ``log_probs``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from labelwise.decide import Rule
from labelwise.errors import SettingsError
from labelwise.exports.graph import Graph, Value
from labelwise.links import LARGEST_LOG_Q, LEAST_LAMBDA, Link
from labelwise.taxonomy import FAR

# Every rule of the catalogue as ONNX operators: probabilities (N, K) to label sets (N, K).
#
# ``Threshold`` reads its thresholds from a value of the graph that has the fitted ones as its
# default; the other rules have none. ``ExpectedF`` walks over the sizes as its Python form does:
# the laws of the number of labels beyond the s most probable ones are all built first, the law of
# hits among them grows by one label per step, and the walk ends where no larger set can be better.
# Laws are cut where a chance of 1e-12 of more labels remains, by Bernstein's bound on their number.


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
        index = g.op("Expand", g.constant([columns]), g.op("Shape", first))
        whole = g.op("ScatterElements", g.cast(sets, "int64"), index, first, axis=-1)
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
    inner = Graph(g)
    law, p = "ef_law", "ef_p"
    longer = _with(inner, law, p)
    double = TensorProto.DOUBLE
    body = inner.body(
        "one label",
        [
            helper.make_tensor_value_info(law, double, [None, None]),
            helper.make_tensor_value_info(p, double, [None, 1]),
        ],
        [
            helper.make_tensor_value_info(longer, double, [None, None]),
            helper.make_tensor_value_info(inner.named(longer, "ef_laws"), double, [None, None]),
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


Pair = tuple[Value, Value]
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class LinkOps:
    """How a kind of link is written; each function takes the graph, the link and the logits."""

    log_probs: Callable[[Graph, Any, Value], Pair]
    log_odds: Callable[[Graph, Any, Value], Value] | None = None
    log_none: Callable[[Graph, Any, Value], Value] | None = None


def write_link(g: Graph, link: Link, logits: Value) -> tuple[Value, Value]:
    """Write a link; return the probabilities (N, K) and the probability of no label (N,)."""
    ops = _ops(link)
    with g.part(link.kind):
        log_p, log_q = ops.log_probs(g, link, logits)
        if ops.log_none is None:
            log_none = g.op("ReduceSum", log_q, [-1], keepdims=1)
        else:
            log_none = ops.log_none(g, link, logits)
    return g.op("Exp", log_p), g.op("Squeeze", g.op("Exp", log_none), [-1])


def _ops(link: Link) -> LinkOps:
    if link.kind not in LINK_OPS:
        raise SettingsError(f"the link {link.kind!r} cannot be written as ONNX operators")
    return LINK_OPS[link.kind]


def _log_probs(g: Graph, link: Link, logits: Value) -> Pair:
    with g.part(link.kind):
        return _ops(link).log_probs(g, link, logits)


def _log_odds(g: Graph, link: Link, logits: Value) -> Value:
    write = _ops(link).log_odds
    if write is not None:
        with g.part(link.kind):
            return write(g, link, logits)
    log_p, log_q = _log_probs(g, link, logits)
    return str(g.op("Sub", log_p, log_q))


def _log_none(g: Graph, link: Link, logits: Value) -> Value:
    """Write the log (N, 1) of the probability that no label is present."""
    write = _ops(link).log_none
    if write is not None:
        with g.part(link.kind):
            return write(g, link, logits)
    return str(g.op("ReduceSum", _log_probs(g, link, logits)[1], [-1], keepdims=1))


def _of_log_odds(g: Graph, odds: Value) -> Pair:
    return g.log_sigmoid(odds), g.log_sigmoid(g.op("Neg", odds))


def _limited(g: Graph, link: Any, logits: Value) -> Value:
    """Write the log-odds that a calibrator reads, cut at its limit."""
    odds = logits if link.link is None else _log_odds(g, link.link, logits)
    return g.clip(odds, -float(link.limit), float(link.limit))


def _numbers(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


# Links that objectives bring.


def _softmax_and_rest(g: Graph, values: Value) -> Pair:
    log_p = g.op("Sub", values, g.logsumexp(values))
    largest = g.op("ArgMax", log_p, axis=-1, keepdims=1)
    columns = g.op("Range", 0, g.op("Gather", g.op("Shape", log_p), -1), 1)
    top = g.op("Equal", columns, largest)
    others = g.logsumexp(g.where(top, -np.inf, log_p))
    return log_p, g.where(top, others, g.log1mexp(g.where(top, -1.0, log_p)))


def _softmax(g: Graph, link: Any, logits: Value) -> Pair:
    return _softmax_and_rest(g, g.op("Div", logits, float(link.temperature)))


def _softmax_none(g: Graph, link: Any, logits: Value) -> Value:
    first = g.op("Slice", logits, [0], [1], [-1])
    return str(g.op("Add", g.op("Mul", first, 0.0), -np.inf))


def _with_none(g: Graph, logits: Value) -> Value:
    zero = g.op("Mul", g.op("Slice", logits, [0], [1], [-1]), 0.0)
    return str(g.op("Concat", logits, zero, axis=-1))


def _softmax_or_none(g: Graph, link: Any, logits: Value) -> Pair:
    log_p, log_q = _softmax_and_rest(g, _with_none(g, logits))
    return g.op("Slice", log_p, [0], [-1], [-1]), g.op("Slice", log_q, [0], [-1], [-1])


def _spa_odds(g: Graph, link: Any, logits: Value) -> Value:
    present, absent = link.present, link.absent
    at_zero = log(absent.k * present.zeta / (present.k * absent.zeta))
    rise = g.softplus(g.op("Mul", g.op("Sub", logits, float(absent.b)), -float(absent.k)))
    fall = g.softplus(g.op("Mul", g.op("Sub", logits, float(present.b)), float(present.k)))
    return str(g.op("Add", g.op("Sub", at_zero, rise), fall))


def _phi_odds(g: Graph, link: Any, logits: Value) -> Value:
    focusing = link.focusing
    full = focusing.weight_grad == "full"
    fall = _log_h(g, g.op("Neg", logits), focusing.gamma_pos, full)
    if focusing.margin == 0:
        return str(g.op("Sub", _log_h(g, logits, focusing.gamma_neg, full), fall))
    q = g.op("Sub", g.op("Exp", g.log_sigmoid(logits)), float(focusing.margin))
    above = g.op("Greater", q, 0.0)
    rise = _log_h_of_probability(g, g.where(above, q, 0.5), focusing.gamma_neg, full)
    return g.where(above, g.op("Sub", rise, fall), -np.inf)


def _focal_margin_odds(g: Graph, link: Any, logits: Value) -> Value:
    log_p, log_q = g.log_sigmoid(logits), g.log_sigmoid(g.op("Neg", logits))
    if link.lam is None:
        rise = g.op("Add", g.op("Add", log_p, log_q), _log_h(g, logits, link.gamma, True))
    else:
        last = g.op("Add", log_q, log(3))
        if link.lam > LEAST_LAMBDA:
            last = g.logaddexp(last, g.constant(log(2 * link.lam - 3)))
        rise = g.op("Add", g.op("Add", g.op("Mul", log_p, 2.0), log_q), last)
    below = g.op("Sub", float(link.margin), logits)
    sides = g.op("Add", g.log_sigmoid(below), g.log_sigmoid(g.op("Neg", below)))
    return str(g.op("Sub", rise, g.op("Add", sides, _log_h(g, below, link.gamma, True))))


def _log_h(g: Graph, logits: Value, gamma: float, full: bool) -> Value:
    log_h, log_p = g.softplus(logits), g.log_sigmoid(logits)
    if gamma == 0:
        return log_h
    if full:
        deep = g.op("Less", logits, -30.0)
        log_softplus = g.where(deep, logits, g.op("Log", g.softplus(g.where(deep, 0.0, logits))))
        more = g.op("Sub", g.op("Add", log_softplus, log(gamma)), log_p)
        log_h = g.logaddexp(log_h, more)
    return str(g.op("Add", g.op("Mul", log_p, float(gamma)), log_h))


def _log_h_of_probability(g: Graph, q: Value, gamma: float, full: bool) -> Value:
    log_h, log_q = g.op("Neg", g.log1p(g.op("Neg", q))), g.op("Log", q)
    if gamma == 0:
        return str(log_h)
    if full:
        more = g.op("Sub", g.op("Add", g.op("Log", log_h), log(gamma)), log_q)
        log_h = g.logaddexp(log_h, more)
    return str(g.op("Add", g.op("Mul", log_q, float(gamma)), log_h))


def _quasibinary(g: Graph, link: Any, logits: Value, most: float = 0.0) -> Pair:
    log_q = g.op("Sub", logits, link.spec()["log_normalizer"])
    log_p = g.clip(log_q, None, most)
    return log_p, g.log1mexp(log_p)


def _quasibinary_odds(g: Graph, link: Any, logits: Value) -> Value:
    return str(g.op("Sub", *_quasibinary(g, link, logits, LARGEST_LOG_Q)))


# Links that calibrators fit.


def _platt(g: Graph, link: Any, logits: Value) -> Value:
    scaled = g.op("Mul", _limited(g, link, logits), _numbers(link.slope))
    return str(g.op("Add", scaled, _numbers(link.offset)))


def _averaged(g: Graph, link: Any, logits: Value) -> Pair:
    u = _limited(g, link, logits)
    shares = np.log(link.weight / link.weight.sum())
    sums: list[Value] = []
    for slope, offset, share in zip(link.slope, link.offset, shares.tolist(), strict=True):
        z = g.op("Add", g.op("Mul", u, _numbers(slope)), _numbers(offset))
        pair = [g.op("Add", log_p, share) for log_p in _of_log_odds(g, z)]
        sums = [g.logaddexp(a, b) for a, b in zip(sums, pair, strict=True)] if sums else pair
    return sums[0], sums[1]


def _beta(g: Graph, link: Any, logits: Value) -> Value:
    rise, fall = _of_log_odds(g, _limited(g, link, logits))
    up = g.op("Mul", rise, _numbers(link.a))
    down = g.op("Mul", fall, _numbers(link.b))
    return str(g.op("Add", g.op("Sub", up, down), _numbers(link.c)))


def _of_probability(g: Graph, p: Value) -> Pair:
    return g.op("Log", p), g.log1p(g.op("Neg", p))


def _count_below(g: Graph, u: Value, edges: np.ndarray) -> Value:
    """Write how many of the rising ``edges`` (E,) or (K, E) lie below each of ``u`` (N, K)."""
    below = g.op("Greater", g.op("Unsqueeze", u, [-1]), edges)
    counted = g.op("ReduceSum", g.cast(below, "float32"), [-1], keepdims=0)
    return g.cast(counted, "int64")  # summed as int64, OpenVINO 2026.4 errs on x86_64


def _taken(g: Graph, table: np.ndarray, column: Value) -> Value:
    """Write ``table[k, column[n, k]]``; a table of one row serves every label."""
    rows, width = table.shape
    first = np.arange(rows, dtype=np.int64) * width
    return str(g.op("Gather", table.reshape(-1), g.op("Add", column, first)))


def _histogram(g: Graph, link: Any, logits: Value) -> Pair:
    u = _limited(g, link, logits)
    bins = _count_below(g, u, _numbers(link.edges))
    return _of_probability(g, _taken(g, _numbers(link.levels), bins))


def _curve(g: Graph, u: Value, knots: np.ndarray, levels: np.ndarray) -> Value:
    """Write each column of ``u`` (N, K) on its curve, or on the one curve there is."""
    right = g.op("Max", _count_below(g, u, knots), 1)
    right = g.op("Min", right, knots.shape[1] - 1)
    left = g.op("Sub", right, 1)
    start, low = _taken(g, knots, left), _taken(g, levels, left)
    width = g.op("Max", g.op("Sub", _taken(g, knots, right), start), TINY)
    share = g.clip(g.op("Div", g.op("Sub", u, start), width), 0.0, 1.0)
    rise = g.op("Sub", _taken(g, levels, right), low)
    return str(g.op("Add", low, g.op("Mul", rise, share)))


def _isotonic(g: Graph, link: Any, logits: Value) -> Pair:
    u = _limited(g, link, logits)
    knots, levels = _numbers(link.knots), _numbers(link.levels)
    p = shared = _curve(g, u, knots[:1], levels[:1])
    if len(link.shares):
        own = _curve(g, u, knots[1:], levels[1:])
        shift = g.op("Mul", g.op("Sub", shared, own), _numbers(link.shares))
        p = g.op("Add", own, shift)
    return _of_probability(g, p)


def _log_scale(g: Graph, log_q0: Value, ratio: float) -> Value:
    return g.log1p(g.op("Mul", g.op("Exp", log_q0), ratio - 1))


def _zero_share(g: Graph, link: Any, logits: Value) -> Pair:
    ratio = float(link.ratio)
    log_p, log_q = _log_probs(g, link.link, logits)
    log_q0 = g.op("Min", _log_none(g, link.link, logits), log_q)
    scale = _log_scale(g, log_q0, ratio)
    if ratio >= 1:
        more = g.op("Add", log_q0, log(ratio - 1)) if ratio > 1 else g.constant(-np.inf)
        rest = g.logaddexp(log_q, more)
    else:
        gone = g.op("Equal", log_q, -np.inf)
        apart = g.op("Sub", log_q0, g.where(gone, 0.0, log_q))
        fewer = g.op("Add", log_q, g.log1p(g.op("Mul", g.op("Exp", apart), ratio - 1)))
        rest = g.where(gone, log_q, fewer)
    low = g.clip(g.op("Sub", log_p, scale), None, 0.0)
    return low, g.clip(g.op("Sub", rest, scale), None, 0.0)


def _zero_share_none(g: Graph, link: Any, logits: Value) -> Value:
    log_q0 = _log_none(g, link.link, logits)
    shifted = g.op("Sub", g.op("Add", log_q0, log(link.ratio)), _log_scale(g, log_q0, link.ratio))
    return g.clip(shifted, None, 0.0)


def _consistent(g: Graph, link: Any, logits: Value) -> Pair:
    """Write :func:`labelwise.links.consistent_log_probs`: from the deepest parents up."""
    log_p, log_q = _log_probs(g, link.link, logits)
    given = g.op("Sub", log_p, log_q)
    columns = np.arange(len(link.tree.parent))
    child = [child for child, _ in link.tree.upward]
    parent = [parent for _, parent in link.tree.upward]
    if not child:
        return log_p, log_q
    above = g.op("Greater", *(g.op("Gather", given, of, axis=-1) for of in (child, parent)))
    wrong = g.cast(g.op("ReduceMax", g.cast(above, "int64"), [-1], keepdims=1), "bool")
    value = g.clip(given, -FAR, FAR)
    for top, below in link.tree.families():
        under = g.op("Gather", value, below, axis=-1)
        falling, _ = g.op("TopK", under, [len(below)], axis=-1, outputs=2)
        block = g.op("Concat", g.op("Gather", value, [top], axis=-1), falling, axis=-1)
        means = g.op("Div", g.op("CumSum", block, 1), np.arange(1.0, len(below) + 2))
        level = g.op("ReduceMax", means, [-1], keepdims=1)
        inside = g.constant(np.isin(columns, below))
        value = g.where(inside, g.op("Min", value, level), value)
        value = g.where(g.constant(columns == top), level, value)
    moved = g.op("And", wrong, g.op("Not", g.op("Equal", value, given)))
    rise, fall = _of_log_odds(g, value)
    return g.where(moved, rise, log_p), g.where(moved, fall, log_q)


def _consistent_none(g: Graph, link: Any, logits: Value) -> Value:
    if link.link.couples_labels:
        return _log_none(g, link.link, logits)
    tops = g.op("Gather", _consistent(g, link, logits)[1], link.tree.tops, axis=-1)
    return str(g.op("ReduceSum", tops, [-1], keepdims=1))


def _put(g: Graph, values: Value, columns: tuple[int, ...], own: Value) -> Value:
    """Write ``values`` (N, K) with some columns replaced by ``own`` (N, n)."""
    index = g.op("Expand", g.constant([list(columns)]), g.op("Shape", own))
    return str(g.op("ScatterElements", values, index, own, axis=-1))


def _grouped(g: Graph, link: Any, logits: Value) -> Pair:
    log_p, log_q = _log_probs(g, link.link, logits)
    odds = g.clip(g.op("Sub", log_p, log_q), -FAR, FAR)
    for group in link.columns.groups:
        own = g.op("Gather", odds, list(group), axis=-1)
        if group in link.columns.exactly_one:
            pair = _softmax_and_rest(g, own)
        else:
            whole = _softmax_and_rest(g, _with_none(g, own))
            rise, fall = (g.op("Slice", side, [0], [-1], [-1]) for side in whole)
            pair = (rise, fall)
        log_p, log_q = _put(g, log_p, group, pair[0]), _put(g, log_q, group, pair[1])
    return log_p, log_q


def _grouped_none(g: Graph, link: Any, logits: Value) -> Value:
    log_p, log_q = _log_probs(g, link.link, logits)
    odds = g.clip(g.op("Sub", log_p, log_q), -FAR, FAR)
    rest: Value = g.constant([[FAR * len(link.columns.exactly_one)]])
    for group in link.columns.groups:
        own = g.op("Gather", odds, list(group), axis=-1)
        log_q = _put(g, log_q, group, g.op("Mul", own, 0.0))
        if group in link.columns.at_most_one:
            rest = g.op("Add", rest, g.logsumexp(_with_none(g, own)))
    return str(g.op("Sub", g.op("ReduceSum", log_q, [-1], keepdims=1), rest))


def _by_odds(odds: Callable[[Graph, Any, Value], Value], *, both: bool = False) -> LinkOps:
    """Return the writer of a link whose log-odds have a formula.

    With ``both`` the log-odds are written by this formula too, not as log p - log(1 - p): as the
    link itself computes them.
    """
    return LinkOps(lambda g, link, v: _of_log_odds(g, odds(g, link, v)), odds if both else None)


LINK_OPS: dict[str, LinkOps] = {
    "sigmoid": _by_odds(lambda g, link, v: v, both=True),
    "weighted-sigmoid": _by_odds(
        lambda g, link, v: g.op("Sub", v, g.constant(link.log_weights)), both=True
    ),
    "softmax": LinkOps(_softmax, log_none=_softmax_none),
    "softmax-or-none": LinkOps(
        _softmax_or_none, log_none=lambda g, link, v: g.op("Neg", g.logsumexp(_with_none(g, v)))
    ),
    "spa": _by_odds(_spa_odds, both=True),
    "phi": _by_odds(_phi_odds, both=True),
    "focal-margin": _by_odds(_focal_margin_odds, both=True),
    "quasibinary": LinkOps(_quasibinary, _quasibinary_odds),
    "temperature": _by_odds(lambda g, link, v: g.op("Div", _limited(g, link, v), link.temperature)),
    "platt": _by_odds(_platt),
    "averaged": LinkOps(_averaged),
    "beta": _by_odds(_beta),
    "histogram": LinkOps(_histogram),
    "isotonic": LinkOps(_isotonic),
    "zero share": LinkOps(_zero_share, log_none=_zero_share_none),
    "consistent": LinkOps(_consistent, log_none=_consistent_none),
    "grouped": LinkOps(_grouped, log_none=_grouped_none),
}
