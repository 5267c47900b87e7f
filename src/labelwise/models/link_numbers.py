"""What the plain data of a link says in numbers alone, to hold a graph's probabilities to it.

    u            the logits, cut at +-limit
    sigmoid      p = sigma(u)
    temperature  p = sigma(u / T)
    platt        p = sigma(slope u + offset)
    beta         p = sigma(a log sigma(u) - b log sigma(-u) + c)
    histogram    p = level of the bin of u; a bin holds its upper edge
    isotonic     p = own(u) + share (shared(u) - own(u)), both linear between knots

Formulas of links are written once, in torch, which takes seconds to import. These are a second
hand for the links that most files have, and answer nothing by themselves: they only refuse a graph
that says something else than its metadata. For every other link there is no such curve.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.finite import require_finite, require_numbers
from labelwise.numeric.special import expit, log_expit

Numbers = NDArray[np.float64]
Curve = Callable[[NDArray[Any]], Numbers]

TINY = np.finfo(np.float64).tiny


def curve_of(spec: Any, labels: int) -> Curve | None:
    """Return the map from logits (K,) to probabilities, None if there is none or it does not fit.

    >>> curve_of({"kind": "sigmoid"}, 2)(np.zeros(2))
    array([0.5, 0.5])
    """
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if kind == "sigmoid" and spec.keys() == {"kind"}:
        return lambda logits: np.asarray(expit(logits.astype(np.float64)))
    if not isinstance(kind, str) or kind not in CURVES:
        return None
    keys, make = CURVES[kind]
    inside = spec.get("link") in (None, {"kind": "sigmoid"})
    if not inside or spec.keys() != {"kind", "link", "limit", *keys}:
        return None
    try:
        require_finite(spec, "link")
        require_numbers([spec[key] for key in ("limit", *keys)], "a link")
        limit, curve = float(_numbers(spec["limit"], ())), make(spec, labels)
    except (TypeError, ValueError):
        return None
    if limit <= 0:
        return None
    return lambda logits: np.asarray(curve(np.clip(logits.astype(np.float64), -limit, limit)))


def _numbers(value: Any, *shapes: tuple[int, ...]) -> Numbers:
    """Return numbers as links keep them, in float32, if they have one of the shapes."""
    found = np.asarray(value)
    if found.dtype.kind not in "fi" or found.shape not in shapes:
        raise ValueError(f"numbers must have one of the shapes {shapes}, got {found.shape}")
    return found.astype(np.float32).astype(np.float64)


def _require(holds: Any) -> None:
    if not np.all(holds):
        raise ValueError("such a link cannot be made")


def _temperature(spec: Mapping[str, Any], labels: int) -> Curve:
    temperature = float(np.asarray(spec["temperature"], np.float64))
    _require(_numbers(temperature, ()) > 0)
    return lambda u: np.asarray(expit(u / temperature))


def _platt(spec: Mapping[str, Any], labels: int) -> Curve:
    slope, offset = (_numbers(spec[key], (), (1,), (labels,)) for key in ("slope", "offset"))
    _require(slope > 0)
    return lambda u: np.asarray(expit(slope * u + offset))


def _beta(spec: Mapping[str, Any], labels: int) -> Curve:
    a, b, c = (_numbers(spec[key], (), (1,), (labels,)) for key in ("a", "b", "c"))
    _require((a >= 0) & (b >= 0))
    return lambda u: np.asarray(expit(a * log_expit(u) - b * log_expit(-u) + c))


def _histogram(spec: Mapping[str, Any], labels: int) -> Curve:
    edges = _numbers(spec["edges"], (len(spec["edges"]),))
    levels = _numbers(spec["levels"], *((rows, len(edges) + 1) for rows in (1, labels)))
    _require(np.diff(edges) >= 0)
    _require((levels > 0) & (levels < 1))
    rows = np.arange(labels) if len(levels) > 1 else 0
    return lambda u: levels[rows, np.searchsorted(edges, u)]


def _isotonic(spec: Mapping[str, Any], labels: int) -> Curve:
    shares = np.zeros(0) if spec["shares"] == [] else _numbers(spec["shares"], (labels,))
    shared, *own = [_line_segments(knots, levels) for knots, levels in spec["curves"]]
    _require(len(own) == len(shares))
    if not own:
        return shared

    def mixed(u: Numbers) -> Numbers:
        alone = np.array([curve(one) for curve, one in zip(own, u, strict=True)])
        return np.asarray(alone + shares * (shared(u) - alone))

    return mixed


def _line_segments(knots: Any, levels: Any) -> Curve:
    """Return the map that is linear between knots, and constant beyond its ends."""
    x, y = (_numbers(one, (len(knots),)) for one in (knots, levels))
    _require(len(x) > 0 and (np.diff(x) >= 0).all() and (np.diff(y) >= 0).all())
    _require((y > 0) & (y < 1))
    x, y = np.r_[x, x[-1]], np.r_[y, y[-1]]

    def curve(u: Numbers) -> Numbers:
        right = np.clip(np.searchsorted(x, u), 1, len(x) - 1)
        start, low = x[right - 1], y[right - 1]
        with np.errstate(over="ignore"):  # beyond the ends
            share = np.clip((u - start) / np.maximum(x[right] - start, TINY), 0, 1)
        return np.asarray(low + (y[right] - low) * share)

    return curve


CURVES: dict[str, tuple[set[str], Callable[[Mapping[str, Any], int], Curve]]] = {
    "temperature": ({"temperature"}, _temperature),
    "platt": ({"slope", "offset"}, _platt),
    "beta": ({"a", "b", "c"}, _beta),
    "histogram": ({"edges", "levels"}, _histogram),
    "isotonic": ({"curves", "shares"}, _isotonic),
}
