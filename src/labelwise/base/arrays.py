"""The one contract of arrays: numpy or torch, any device, any float type.

    scores, logits, probs   (N, K) numbers
    labels                  (N, K) present 1, absent 0, in between where soft labels are allowed
    observed                (N, K) which labels are known: boolean, or integers or floats 0 and 1

Half precision is read as float32, which is exact. Where a label is not observed it may hold
anything. Torch, which takes seconds to import, is imported only where a tensor is made.

Plain data brings numbers too: a link, a rule or a promise with a NaN answers "none" to all. Each
must be finite in float32, which is how links keep theirs, and whole ones such that arrays take
them. One that was written as text or as true would not be seen on that walk, so what was made of
the data is compared with it.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.floating]  # of any width
Values: TypeAlias = NDArray[np.bool_ | np.integer | np.floating]  # real numbers of any type

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from typing_extensions import TypeIs

    Array: TypeAlias = Values | Tensor
else:
    Array = Values


def is_tensor(array: object) -> "TypeIs[Tensor]":
    """Return whether an array is a tensor, without importing torch for the answer."""
    # Another thread may be importing torch just now; then there is no tensor yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(array, kind)


def to_numpy(array: Array) -> np.ndarray:
    """Return the array as numpy on the host; half precision as float32."""
    if is_tensor(array):
        values = array.detach()
        if values.is_floating_point() and values.element_size() == 2:
            values = values.float()
        return np.asarray(values.cpu().numpy())
    given = np.asarray(array)
    return given.astype(np.float32) if given.dtype == np.float16 else given


def to_tensor(array: Array, device: "torch.device | str | None" = None) -> "Tensor":
    """Return the array as a tensor, sharing memory where it can; half precision as float32."""
    import torch

    if isinstance(array, torch.Tensor):
        tensor = array.detach()
    else:
        values = np.asarray(array)
        # torch shares only what is writable and has strides it knows.
        if not values.flags.writeable or any(step < 0 for step in values.strides):
            values = values.copy()
        tensor = torch.from_numpy(values)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor if device is None else tensor.to(device)


def check_shapes(**arrays: Array | None) -> tuple[int, int]:
    """Return (N, K), which every given array must have; the first must be given."""
    given = {name: array for name, array in arrays.items() if array is not None}
    first, matrix = next(iter(given.items()))
    for name, array in given.items():
        if not isinstance(array, np.ndarray) and not is_tensor(array):
            way_out = f"got {type(array).__name__}; np.asarray makes one of lists and tables"
            raise TypeError(f"{name} must be a numpy array or a tensor, {way_out}")
        if array.ndim != 2:
            raise ValueError(f"{name} must be (N, K), got shape {tuple(array.shape)}")
        if array.shape != matrix.shape:
            shape, wrong = tuple(matrix.shape), tuple(array.shape)
            raise ValueError(f"{name} must have the shape of {first}, {shape}, got {wrong}")
    return matrix.shape[0], matrix.shape[1]


def as_mask(values: np.ndarray, name: str) -> Mask:
    """Return booleans; of numbers only 0 and 1 are taken.

    >>> as_mask(np.array([1.0, 0.0]), "observed")
    array([ True, False])
    """
    if str(values.dtype) in ("bool", "torch.bool"):
        return values
    chosen: Mask = values == 1
    odd = ~chosen & (values != 0)
    if odd.any():
        raise ValueError(f"{name} must be boolean, or 0 and 1, got {values[odd][0].item()}")
    return chosen


def mask_tensor(values: Array, name: str, device: "torch.device | str | None" = None) -> "Tensor":
    """Return booleans as a tensor; of numbers only 0 and 1 are taken."""
    tensor: Any = to_tensor(values, device)
    return as_mask(tensor, name)  # type: ignore[return-value]


def present_labels(labels: Values, observed: Mask | None) -> Mask:
    """Return where a label is observed and present; observed labels must be 0 or 1."""
    present: Mask = np.asarray(labels, np.bool_) if labels.dtype == np.bool_ else labels == 1
    if labels.dtype != np.bool_:
        odd = ~present & (labels != 0)
        odd = odd if observed is None else odd & observed
        if odd.any():
            way_out = f"got {labels[odd][0]}; cut soft labels first, as labels > 0.5"
            raise ValueError(f"labels must be 0 or 1 where they are observed, {way_out}")
    return present if observed is None else present & observed


def check_probabilities(values: Values, name: str) -> None:
    """Raise unless all values lie in [0, 1]; NaN does not."""
    if values.size and values.dtype != np.bool_:
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(f"{name} must lie in [0, 1], got values from {low} to {high}")


LARGEST = float(np.finfo(np.float32).max)
LARGEST_WHOLE = 2**53  # float64 holds all up to it; from 2**63 on arrays refuse them
DEEPEST = 32


def require_finite(value: object, what: str) -> None:
    """Raise ValueError unless every number in plain data is finite; the error names its place.

    >>> require_finite({"slope": [1.0, float("nan")]}, "link")
    Traceback (most recent call last):
        ...
    ValueError: every number of the link must be finite, got nan at 'slope.1'
    """
    for path, leaf in _leaves(value):
        if len(path) > DEEPEST:
            raise ValueError(f"the {what} must be at most {DEEPEST} levels deep")
        if isinstance(leaf, float) and not abs(leaf) <= LARGEST:
            raise ValueError(f"every number of the {what} must be finite, got {leaf}{_at(path)}")
        if isinstance(leaf, int) and abs(leaf) > LARGEST_WHOLE:
            got = f"an integer of {leaf.bit_length()} bits{_at(path)}"
            raise ValueError(f"every whole number of the {what} must be at most 2^53, got {got}")


def require_numbers(value: object, what: str) -> None:
    """Raise TypeError where plain data has text, true or false: each can be read as a number.

    >>> require_numbers([0.5, "1e999"], "value")
    Traceback (most recent call last):
        ...
    TypeError: value must be numbers, got '1e999'
    """
    for _, leaf in _leaves(value):
        if isinstance(leaf, bool | str):
            raise TypeError(f"{what} must be numbers, got {leaf!r:.60}")


def _leaves(value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield what plain data holds, each with its path, the last first; too deep, what is there."""
    waiting: list[tuple[tuple[str, ...], object]] = [((), value)]
    while waiting:
        path, inner = waiting.pop()
        if isinstance(inner, Mapping | list | tuple) and len(path) <= DEEPEST:
            pairs = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
            waiting += [((*path, str(key)), child) for key, child in pairs]
        else:
            yield path, inner


def require_as_stated(made: object, stated: object, what: str) -> None:
    """Raise ValueError where a number or truth value was made of something else in plain data.

    >>> require_as_stated({"crop": float("inf")}, {"crop": "1e999"}, "transform")
    Traceback (most recent call last):
        ...
    ValueError: the transform must have a number, got '1e999' at 'crop'
    """
    waiting: list[tuple[tuple[str, ...], object, object]] = [((), made, stated)]
    while waiting:
        path, value, given = waiting.pop()
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            waiting += [((*path, key), value[key], given[key]) for key in value if key in given]
        elif isinstance(value, list | tuple):
            many = given if isinstance(given, list | tuple) else [given] * len(value)
            pairs = enumerate(zip(value, many, strict=False))
            waiting += [((*path, str(key)), *pair) for key, pair in pairs]
        elif isinstance(value, bool | int | float) and _kind(value) != _kind(given):
            got = f"{given!r:.60}{_at(path)}"
            raise ValueError(f"the {what} must have {_kind(value)}, got {got}")


def _at(place: tuple[str, ...]) -> str:
    return f" at {'.'.join(place)!r}" if place else ""


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else "something else"
