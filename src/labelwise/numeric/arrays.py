"""The one contract of arrays: numpy or torch, any device, any float type.

    scores, logits, probs   (N, K) numbers
    labels                  (N, K) present 1, absent 0, in between where soft labels are allowed
    observed                (N, K) which labels are known: boolean, or integers or floats 0 and 1

Half precision is read as float32, which is exact. Where a label is not observed it may hold
anything. Torch, which takes seconds to import, is imported only where a tensor is made.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from typing_extensions import TypeIs

    Array: TypeAlias = NDArray[Any] | Tensor
else:
    Array = NDArray[Any]
Mask: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.float64]


def is_tensor(array: object) -> "TypeIs[Tensor]":
    """Return whether an array is a tensor, without importing torch for the answer."""
    # Another thread may be importing torch just now; then there is no tensor yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(array, kind)


def to_numpy(array: Array) -> NDArray[Any]:
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


def as_mask(values: NDArray[Any], name: str) -> Mask:
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


def present_labels(labels: NDArray[Any], observed: Mask | None) -> Mask:
    """Return where a label is observed and present; observed labels must be 0 or 1."""
    present: Mask = labels
    if labels.dtype != np.bool_:
        present = labels == 1
        odd = ~present & (labels != 0)
        odd = odd if observed is None else odd & observed
        if odd.any():
            way_out = f"got {labels[odd][0]}; cut soft labels first, as labels > 0.5"
            raise ValueError(f"labels must be 0 or 1 where they are observed, {way_out}")
    return present if observed is None else present & observed


def check_probabilities(values: NDArray[Any], name: str) -> None:
    """Raise unless all values lie in [0, 1]; NaN does not."""
    if values.size and values.dtype != np.bool_:
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(f"{name} must lie in [0, 1], got values from {low} to {high}")
