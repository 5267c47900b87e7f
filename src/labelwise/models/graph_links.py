"""Links and rules as ONNX operators: links by calling them, rules written one by one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, zip_longest
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from labelwise.base.array_api import Symbol
from labelwise.base.arrays import Values
from labelwise.decide import Rule
from labelwise.decide.rules import AtMost, ExpectedF, OnePerGroup, Threshold, TopK, WithParents
from labelwise.errors import SettingsError
from labelwise.links import Link

Value = str  # the name of a tensor of the graph
Constant = float | Sequence["Constant"] | Values

Side = int | str | None
Typed = tuple[str, str, *tuple[Side, ...]] | ValueInfoProto  # the name, type and sides of a value


def _kind(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class Graph:
    """Nodes and constants in the order they are written; names carry the part they belong to.

        y = graph.op("Add", x, 1.0)          a number or array becomes a constant

    Everything after the network's logits is computed in float64, as links and rules are fitted, so
    that a probability falls on the same side of its threshold as in Python. ONNX has no log1p and
    no expm1; the classic forms are exact to a few units in the last place:

        log1p(x) = x log(1 + x) / ((1 + x) - 1)            x where 1 + x = 1
        expm1(x) = x (e^x - 1) / log(e^x)                  x where e^x = 1, -1 where e^x - 1 = -1

    A graph for the body of an ``If`` or a ``Loop`` is made from the ``outer`` one, whose values it
    sees.
    """

    def __init__(self, outer: "Graph | None" = None) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        # What is written twice is one node.
        self._constants: dict[tuple[np.dtype, tuple[int, ...], bytes], Value] = {}
        self._results: dict[tuple[str, ...], list[Value]] = {}
        self._scope: list[str] = outer._scope if outer else []
        self._count: Iterator[int] = outer._count if outer else count()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Write nodes whose names begin with ``name``: an error can then say where it is."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def constant(self, value: Constant, dtype: str | None = None) -> Value:
        """Return a constant tensor; Python floats are float64 and integers int64."""
        array = np.array(value, dtype=dtype, order="C")
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.name("constant")
            self.constants.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def op(self, kind: str, *inputs: Value | Constant, **attributes: Any) -> Value:
        """Add a node; return the name of its output."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(
        self, kind: str, *inputs: Value | Constant, outputs: int, **attributes: Any
    ) -> list[Value]:
        """Add a node of several outputs; return their names."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        key = (kind, *names, repr(attributes))
        bodies = any(isinstance(value, GraphProto) for value in attributes.values())
        if bodies or key not in self._results:
            self._results[key] = results = [self.name(kind) for _ in range(outputs)]
            node = helper.make_node(kind, names, results, name=self.name(kind), **attributes)
            self.nodes.append(node)
        return self._results[key]

    def named(self, value: Value, name: str) -> Value:
        self.nodes.append(helper.make_node("Identity", [value], [name], name=self.name(name)))
        return name

    def cast(self, value: Value, dtype: str) -> Value:
        return self.op("Cast", value, to=_kind(dtype))

    def body(self, name: str, inputs: list[Typed], outputs: list[Typed]) -> GraphProto:
        ends = [
            helper.make_tensor_value_info(v[0], _kind(v[1]), v[2:]) if isinstance(v, tuple) else v
            for v in (*inputs, *outputs)
        ]
        begin, end = ends[: len(inputs)], ends[len(inputs) :]
        return helper.make_graph(self.nodes, name, begin, end, self.constants)

    def name(self, what: str) -> str:
        return "/".join([*self._scope, f"{what}_{next(self._count)}"])

    # Elementary functions, each of float64 values.

    def where(self, condition: Value, yes: Value | float, no: Value | float) -> Value:
        return self.op("Where", condition, yes, no)

    def log1p(self, x: Value) -> Value:
        one_more = self.op("Add", x, 1.0)
        none = self.op("Equal", one_more, 1.0)
        rest = self.where(none, 1.0, self.op("Sub", one_more, 1.0))
        exact = self.op("Mul", self.op("Log", one_more), self.op("Div", x, rest))
        # At -1 the logarithm is -inf and x / -1 is 1; at +inf the quotient is not a number.
        exact = self.where(self.op("IsInf", x), x, exact)
        return self.where(none, x, exact)

    def expm1(self, x: Value) -> Value:
        e = self.op("Exp", x)
        less = self.op("Sub", e, 1.0)
        none, all_ = self.op("Equal", less, 0.0), self.op("Equal", less, -1.0)
        logarithm = self.where(self.op("Or", none, all_), 1.0, self.op("Log", e))
        exact = self.op("Div", self.op("Mul", less, x), logarithm)
        return self.where(none, x, self.where(all_, -1.0, exact))

    def log(self, x: Value) -> Value:
        none = self.op("Equal", x, 0.0)  # logs of 0 differ by runtime
        return self.where(none, -np.inf, self.op("Log", self.where(none, 1.0, x)))

    def logaddexp(self, a: Value, b: Value) -> Value:
        """Return ``log(exp(a) + exp(b))``; -inf where both are."""
        most, least = self.op("Max", a, b), self.op("Min", a, b)
        gone = self.op("Equal", most, -np.inf)
        apart = self.op("Sub", self.where(gone, 0.0, least), self.where(gone, 0.0, most))
        return self.where(gone, most, self.op("Add", most, self.log1p(self.op("Exp", apart))))

    def clip(self, x: Value, low: float | None, high: float | None) -> Value:
        if low is not None:
            x = self.op("Max", x, low)
        return x if high is None else self.op("Min", x, high)


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
    with g.part(rule.kind):
        match rule:
            case Threshold():
                if thresholds is None:
                    raise ValueError("a threshold rule needs an input for its thresholds")
                return g.op("GreaterOrEqual", probs, thresholds)
            case TopK():
                return _top_k(g, rule.k, probs)
            case AtMost():
                chosen = write_rule(g, rule.rule, probs, thresholds)
                return g.op("And", chosen, _top_k(g, rule.k, probs))
            case WithParents():
                return _with_parents(g, rule, write_rule(g, rule.rule, probs, thresholds))
            case OnePerGroup():
                return _one_per_group(g, rule, probs, write_rule(g, rule.rule, probs, thresholds))
            case ExpectedF():
                return _expected_f(g, rule.beta, probs)
    raise SettingsError(f"the rule {rule.kind!r} cannot be written as ONNX operators")


def _ranked(g: Graph, probs: Value) -> tuple[Value, Value]:
    """Write the probabilities from largest to least, and their columns; ties keep their order."""
    labels = g.op("Slice", g.op("Shape", probs), [-1], [2**31], [0])
    ranked, order = g.ops("TopK", probs, labels, axis=-1, largest=1, sorted=1, outputs=2)
    return ranked, order


def _first(g: Graph, probs: Value, order: Value, sizes: Value) -> Value:
    """Write the sets of the first ``sizes`` (N, 1) labels in ``order`` (N, K)."""
    places = g.op("Range", 0, g.op("Gather", g.op("Shape", probs), -1), 1)
    nowhere = g.op("Mul", order, 0)
    chosen = g.cast(g.op("Less", g.op("Add", nowhere, places), sizes), "int64")
    return g.cast(g.op("ScatterElements", nowhere, order, chosen, axis=-1), "bool")


def _top_k(g: Graph, k: int, probs: Value) -> Value:
    _, order = _ranked(g, probs)
    return _first(g, probs, order, g.constant([[k]]))


def _with_parents(g: Graph, rule: WithParents, sets: Value) -> Value:
    columns = np.arange(len(rule.parents))
    for parent in rule.tree.parents_upward:
        any_below = g.cast(g.op("Gather", sets, rule.tree.below(parent), axis=-1), "int64")
        any_below = g.cast(g.op("ReduceMax", any_below, [-1], keepdims=1), "bool")
        sets = g.op("Or", sets, g.op("And", any_below, columns == parent))
    return sets


def _one_per_group(g: Graph, rule: OnePerGroup, probs: Value, sets: Value) -> Value:
    for group in (*rule.exactly_one, *rule.at_most_one):
        columns = list(group)
        best = g.op("ArgMax", g.op("Gather", probs, columns, axis=-1), axis=-1, keepdims=1)
        first = g.cast(g.op("Equal", g.constant([list(range(len(columns)))]), best), "int64")
        if group not in rule.exactly_one:
            chosen = g.cast(g.op("Gather", sets, columns, axis=-1), "int64")
            first = g.op("Mul", first, g.op("ReduceMax", chosen, [-1], keepdims=1))
        index = g.op("Expand", g.constant([columns]), g.op("Shape", first))
        sets = g.cast(g.op("ScatterElements", g.cast(sets, "int64"), index, first, axis=-1), "bool")
    return sets


def _with(g: Graph, law: Value, p: Value) -> Value:
    """Write the law (N, M) of a count and one more label of probability ``p`` (N, 1)."""
    shifted = g.op("Slice", g.op("Pad", law, [0, 1, 0, 0], 0.0), [0], [-1], [-1])
    return g.op("Add", g.op("Mul", law, g.op("Sub", 1.0, p)), g.op("Mul", shifted, p))


def _expected_f(g: Graph, beta: float, probs: Value) -> Value:
    ranked, order = _ranked(g, probs)
    columns = g.op("Unsqueeze", g.op("Transpose", ranked, perm=[1, 0]), [-1])  # (K, N, 1)
    labels = g.op("Gather", g.op("Shape", columns), 0)
    mean = g.op("ReduceSum", ranked, [-1], keepdims=1)  # (N, 1)
    counts = g.op("Range", 0, _law_length(g, mean, labels), 1)
    start = g.cast(g.op("Equal", counts, 0), "float64")
    nothing = g.op("Add", g.op("Mul", mean, 0.0), start)  # (N, M): surely no label

    tails = _tails(g, columns, nothing)  # (K + 1, N, M), from all labels to none
    # No label chosen: right if there is none.
    alone = g.op("Slice", g.op("Gather", tails, 0), [0], [1], [-1])
    body = _one_more_label(g, beta, columns, tails, g.cast(counts, "float64"), mean)
    none = g.cast(g.op("Mul", mean, 0.0), "int64")
    go = g.constant(True, "bool")
    _, _, sizes = g.ops("Loop", labels, go, nothing, alone, none, body=body, outputs=3)
    return _first(g, probs, order, sizes)


def _law_length(g: Graph, mean: Value, labels: Value) -> Value:
    """Write M, the length of the laws: P(more than mean + t labels) <= 1e-12, or all labels.

    Bernstein: P <= exp(-t^2 / (2 mean + 2 t / 3)), solved for t at the largest mean.
    """
    third = float(DROPPED) / 6
    most = g.op("ReduceMax", mean, keepdims=0)
    spread = g.op("Sqrt", g.op("Add", g.op("Mul", most, float(DROPPED)), third**2))
    longest = g.cast(g.op("Ceil", g.op("Add", most, g.op("Add", spread, third))), "int64")
    return g.op("Add", g.op("Min", longest, labels), 1)


def _one_more_label(
    g: Graph, beta: float, columns: Value, tails: Value, counts: Value, mean: Value
) -> GraphProto:
    """Write the body of the loop over sizes: the expected F of one label more."""
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
    law, column, whole = ("float64", None, None), ("float64", None, 1), ("int64", None, 1)
    return step.body(
        "one more label",
        [(at, "int64"), (more, "bool"), (hits, *law), (best, *column), (size, *whole)],
        [(another, "bool"), (grown, *law), (new_best, *column), (new_size, *whole)],
    )


def _tails(g: Graph, columns: Value, nothing: Value) -> Value:
    """Write the laws (K + 1, N, M) of the number of labels beyond the first 0, 1, ..., K."""
    inner = Graph(g)
    longer, sides = _with(inner, "ef_law", "ef_p"), ("float64", None, None)
    body = inner.body(
        "one label",
        [("ef_law", *sides), ("ef_p", "float64", None, 1)],
        [(longer, *sides), (inner.named(longer, "ef_laws"), *sides)],
    )
    _, laws = g.ops(
        "Scan",
        nothing,
        columns,
        num_scan_inputs=1,
        scan_input_directions=[1],
        scan_output_directions=[1],
        body=body,
        outputs=2,
    )
    return g.op("Concat", laws, g.op("Unsqueeze", nothing, [0]), axis=0)


Column = int | slice | Sequence[int] | None
Rows = EllipsisType | slice


class Traced(Symbol):
    """An array (..., K) of a graph: NumPy's functions write nodes instead of computing."""

    def __init__(self, g: Graph, value: Value, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.g, self.value, self.shape = g, value, shape
        self.dtype: np.dtype = np.dtype(dtype)

    device = "cpu"

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: "Operand", **options: object
    ) -> object:
        if ufunc not in UFUNCS or method != "__call__" or options:
            return NotImplemented
        kind = np.result_type(*(x.dtype for x in inputs if isinstance(x, Traced)))
        values = [x.value if isinstance(x, Traced) else np.asarray(x, kind) for x in inputs]
        result, shape = UFUNCS[ufunc](self.g, *values), _broadcast(*map(_shape, inputs))
        return self._new(result, shape, bool if ufunc in COMPARES else kind)

    def __array_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: "tuple[Traced, ...]",
        options: dict[str, object],
    ) -> object:
        own = getattr(self, f"_{function.__name__}", None)
        if own is None:  # ``np.max(x)`` is ``x.max()``
            own, args = getattr(args[0], function.__name__, None), args[1:]
        return NotImplemented if own is None else own(*args, **options)

    def _new(
        self, value: Value, shape: tuple[int, ...], dtype: DTypeLike | None = None
    ) -> "Traced":
        return Traced(self.g, value, shape, self.dtype if dtype is None else dtype)

    def _given(self, value: "Operand", dtype: str = "float64") -> Value:
        return value.value if isinstance(value, Traced) else self.g.constant(value, dtype)

    def _where(self, condition: "Operand", yes: "Operand", no: "Operand") -> "Traced":
        values = self._given(condition, "bool"), self._given(yes), self._given(no)
        shape = _broadcast(*map(_shape, (condition, yes, no)))
        return self._new(self.g.op("Where", *values), shape, np.float64)

    def _full_like(self, array: "Traced", value: float) -> "Traced":
        shape = self.g.op("Shape", array.value)
        return array._new(self.g.op("Expand", float(value), shape), array.shape)

    def _zeros_like(self, array: "Traced") -> "Traced":
        return self._full_like(array, 0.0)

    def _concatenate(self, parts: "Sequence[Traced]", axis: int) -> "Traced":
        parts = [part for part in parts if part.shape[-1]]
        whole = self.g.op("Concat", *(part.value for part in parts), axis=-1)
        return self._new(whole, (*self.shape[:-1], sum(part.shape[-1] for part in parts)))

    def _argmax(self, array: "Traced", axis: int, keepdims: bool) -> "Traced":
        value = self.g.op("ArgMax", array.value, axis=-1, keepdims=1)
        return array._new(value, (*array.shape[:-1], 1), int)

    def _sort(self, array: "Traced", axis: int) -> "Traced":
        count = [array.shape[-1]]
        ranked, _ = self.g.ops("TopK", array.value, count, axis=-1, largest=0, outputs=2)
        return array._new(ranked, array.shape)

    def _searchsorted(self, edges: np.ndarray, array: "Traced") -> "Traced":
        """Write how many of the rising ``edges`` (E,), or (..., E), lie below each number."""
        below = self.g.op("Greater", self.g.op("Unsqueeze", array.value, [-1]), edges)
        counted = self.g.op("ReduceSum", self.g.cast(below, "float32"), [-1], keepdims=0)
        # Summed as int64, OpenVINO 2026.4 errs on x86_64.
        return array._new(self.g.cast(counted, "int64"), array.shape, int)

    def _take_along_axis(self, table: np.ndarray, index: "Traced", axis: int) -> "Traced":
        first = np.arange(len(table))[:, None] * table.shape[1]
        place: Traced = index + first
        return place.taken_from(table.reshape(-1))

    def taken_from(self, table: np.ndarray) -> "Traced":
        return self._new(self.g.op("Gather", table, self.value), self.shape, table.dtype)

    def search_rows(self, knots: np.ndarray) -> "Traced":
        return self._searchsorted(knots[:, None, :], self)

    def max(self, axis: int = -1, keepdims: bool = False) -> "Traced":
        return self._reduced("ReduceMax", keepdims)

    def sum(self, axis: int = -1, keepdims: bool = False) -> "Traced":
        if self.shape[-1]:
            return self._reduced("ReduceSum", keepdims)
        rows = self.g.op("Slice", self.g.op("Shape", self.value), [0], [-1], [0])
        return self._new(self.g.op("Expand", 0.0, rows), self.shape[:-1])

    def any(self, axis: int = -1) -> "Traced":
        most = self._new(self.g.cast(self.value, "int64"), self.shape).max()
        return self._new(self.g.cast(most.value, "bool"), most.shape)

    def _reduced(self, kind: str, keepdims: bool) -> "Traced":
        value = self.g.op(kind, self.value, [-1], keepdims=int(keepdims))
        return self._new(value, (*self.shape[:-1], 1) if keepdims else self.shape[:-1])

    def cumsum(self, axis: int = -1) -> "Traced":
        return self._new(self.g.op("CumSum", self.value, len(self.shape) - 1), self.shape)

    def clip(self, min: float | None = None, max: float | None = None) -> "Traced":
        ends = (None if end is None else self.dtype.type(end) for end in (min, max))
        return self._new(self.g.clip(self.value, *ends), self.shape)

    def reshape(self, *shape: int | tuple[int, ...]) -> "Traced":
        sides = tuple(int(side) for side in np.hstack(shape))
        return self._new(self.g.op("Reshape", self.value, sides), sides)

    T = property(
        lambda self: self._new(self.g.op("Transpose", self.value, perm=[1, 0]), self.shape[::-1])
    )

    def __getitem__(self, key: tuple[Rows, Column] | tuple[Rows, Column, None]) -> "Traced":
        """Write some of the columns, which come after all rows: ``[..., columns]``."""
        result, columns = self, key[1]
        if isinstance(columns, slice):
            start, end, _ = columns.indices(self.shape[-1])
            part = self.g.op("Slice", self.value, [start], [end], [-1])
            result = self._new(part, (*self.shape[:-1], end - start))
        elif columns is not None:
            index = np.asarray(columns, np.int64)
            gathered = self.g.op("Gather", self.value, index, axis=-1)
            result = self._new(gathered, (*self.shape[:-1], *index.shape))
        if columns is None or len(key) == 3:
            return self._new(self.g.op("Unsqueeze", result.value, [-1]), (*result.shape, 1))
        return result

    def __setitem__(self, key: tuple[Rows, slice | int], value: "Traced") -> None:
        _, columns = key
        if not isinstance(columns, slice):
            value, columns = value[..., None], slice(columns, columns + 1)
        parts = [self[:, : columns.start], value, self[:, columns.stop :]]
        self.value = self._concatenate(parts, axis=-1).value


def _shape(x: "Operand") -> tuple[int, ...]:
    return x.shape if isinstance(x, Traced) else np.shape(x)


Operand = Traced | Values | float


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    sides = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return tuple(next((side for side in some if side != 1), 1) for some in sides)[::-1]


def _node(kind: str) -> Callable[..., Value]:
    return lambda g, *values: g.op(kind, *values)


COMPARES = (np.equal, np.not_equal, np.less, np.greater, np.isfinite)
UFUNCS: dict[np.ufunc, Callable[..., Value]] = {
    np.absolute: _node("Abs"),
    np.add: _node("Add"),
    np.divide: _node("Div"),
    np.equal: _node("Equal"),
    np.exp: _node("Exp"),
    np.expm1: Graph.expm1,
    np.greater: _node("Greater"),
    np.isfinite: lambda g, x: g.op("Not", g.op("Or", g.op("IsInf", x), g.op("IsNaN", x))),
    np.less: _node("Less"),
    np.log: Graph.log,
    np.log1p: Graph.log1p,
    np.logaddexp: Graph.logaddexp,
    np.minimum: _node("Min"),
    np.multiply: _node("Mul"),
    np.negative: _node("Neg"),
    np.not_equal: lambda g, *values: g.op("Not", g.op("Equal", *values)),
    np.subtract: _node("Sub"),
}


def write_link(g: Graph, link: Link, logits: Value, labels: int) -> tuple[Value, Value]:
    """Write a link; return the probabilities (N, K) and the probability of no label (N,)."""
    given: Any = Traced(g, logits, (-1, labels), np.float64)
    with g.part(link.kind):
        try:
            return np.exp(link.log_probs(given)[0]).value, np.exp(link.log_none(given)).value
        except TypeError as error:
            raise SettingsError(
                f"the link {link.kind!r} cannot be written as ONNX operators: {error}"
            ) from None
