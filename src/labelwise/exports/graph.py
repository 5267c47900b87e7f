"""Graph: an ONNX graph written operator by operator, and the elementary functions it lacks.

    y = graph.op("Add", x, 1.0)          a number or array becomes a constant

Everything after the network's logits is computed in float64, as links and rules are fitted, so
that a probability falls on the same side of its threshold as in Python. ONNX has no log1p and no
expm1; the classic forms are exact to a few units in the last place:

    log1p(x) = x log(1 + x) / ((1 + x) - 1)            x where 1 + x = 1
    expm1(x) = x (e^x - 1) / log(e^x)                  x where e^x = 1, -1 where e^x - 1 = -1
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from labelwise.errors import SettingsError
from labelwise.models import Predictor

# What every export refuses before it begins.


def require_exportable(
    predictor: Predictor, *, rgb_for: str | None = None, full_scale: bool = False
) -> None:
    """Raise if a model reads stored features.

    ``rgb_for`` names what only models of 8-bit RGB have; with ``full_scale`` a model is refused
    that decodes JPEGs in a way that no program beside it does.
    """
    transform = predictor.transform
    if predictor.model.backbone.name == "identity":
        raise SettingsError(
            "this model reads stored features, not pictures, so there is nothing to export"
        )
    if full_scale and transform.reduced_jpeg:
        raise SettingsError(
            "this model decodes large JPEGs at a reduced scale (reduced_jpeg), which the program "
            "that runs an exported file does not; train without it, or give --input pixels, "
            "already decoded and scaled"
        )
    if rgb_for is not None and transform.bands is not None:
        raise SettingsError(
            f"{rgb_for} is for models of 8-bit RGB, and this one takes "
            f"{transform.channels} bands; export it with --format onnx, openvino or "
            "torch-export, and --input pixels"
        )


def require_pictures(rows: Sequence[int]) -> None:
    """Raise if there is no picture to compare an export with its model on."""
    if not len(rows):
        raise SettingsError("an export is compared with its model on pictures; none were given")


def require_new_folder(folder: Path) -> None:
    """Raise if there is a file or folder of this name already."""
    if folder.exists():
        raise SettingsError(f"{folder} is there already; name a new folder, or remove it")


Value = str  # the name of a tensor of the graph
Constant = float | int | Sequence[Any] | NDArray[Any]

KINDS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}


class Graph:
    """Nodes and constants in the order they are written; names carry the part they belong to.

    A graph for the body of an ``If`` or a ``Loop`` is made from the ``outer`` one, whose values it
    sees.
    """

    def __init__(self, outer: "Graph | None" = None) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._made: dict[Any, Any] = {}  # what is written twice is one node
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
        if key not in self._made:
            self._made[key] = self.name("constant")
            self.constants.append(numpy_helper.from_array(array, self._made[key]))
        return str(self._made[key])

    def op(self, kind: str, *inputs: Value | Constant, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a tuple of names if it has several."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        key = kind, *names, outputs, repr(attributes)
        bodies = any(isinstance(value, GraphProto) for value in attributes.values())
        if bodies or key not in self._made:
            results = [self.name(kind) for _ in range(outputs)]
            node = helper.make_node(kind, names, results, name=self.name(kind), **attributes)
            self.nodes.append(node)
            self._made[key] = results[0] if outputs == 1 else tuple(results)
        return self._made[key]

    def named(self, value: Value, name: str) -> Value:
        """Give a value a name of its own, for an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=self.name(name)))
        return name

    def cast(self, value: Value, dtype: str) -> Value:
        return str(self.op("Cast", value, to=KINDS[dtype]))

    def body(self, name: str, inputs: list[Any], outputs: list[Any]) -> GraphProto:
        """Return the finished graph with typed inputs and outputs."""
        return helper.make_graph(self.nodes, name, inputs, outputs, self.constants)

    def name(self, what: str) -> str:
        """Return a name that no other value or node has."""
        return "/".join([*self._scope, f"{what}_{next(self._count)}"])

    # Elementary functions, each of float64 values.

    def where(self, condition: Value, yes: Value | float, no: Value | float) -> Value:
        return str(self.op("Where", condition, yes, no))

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
        return x if high is None else str(self.op("Min", x, high))
