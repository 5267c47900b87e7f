"""Formulas of probabilities, each written once for NumPy and torch.

Operations come from ``namespace(x)``, the array API of whichever library made ``x``. What the
array API lacks is here: each has torch's own kernel where there is one, which autograd knows, and
the same formula in NumPy. Torch is never imported for a NumPy array.
"""

# mypy: disable-error-code="no-any-return"

import sys
from abc import ABC, abstractmethod
from math import log
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from labelwise.base.arrays import is_tensor, to_numpy

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A", np.ndarray, "Tensor")

LINEAR = 20.0  # beyond it softplus(x) is x, as torch has it


class Symbol(NDArrayOperatorsMixin, ABC):
    """An array that stands for values computed elsewhere, which NumPy's functions take too."""

    @abstractmethod
    def search_rows(self, knots: np.ndarray) -> "Symbol":
        """Return :func:`search_rows` of itself."""

    @abstractmethod
    def taken_from(self, table: np.ndarray) -> "Symbol":
        """Return the numbers of a table (M,) that it is the places of."""


def is_traced(array: object) -> bool:
    """Return whether what is computed with an array is written down, so that it has no values."""
    if not is_tensor(array):
        return isinstance(array, Symbol)
    return bool(sys.modules["torch"].compiler.is_compiling())


def namespace(array: object) -> Any:
    """Return the array API namespace of a NumPy array or a tensor."""
    if not is_tensor(array):
        return np
    from array_api_compat import torch as torch_namespace

    return torch_namespace


def like(values: object, array: A) -> A:
    """Return numbers, an array or a tensor with the library, dtype and device of ``array``."""
    if is_tensor(array):
        import torch

        return torch.as_tensor(values, dtype=array.dtype, device=array.device)
    if isinstance(values, Symbol):
        return cast("A", values)
    return np.asarray(to_numpy(values) if is_tensor(values) else values, dtype=array.dtype)


def double(array: A) -> A:
    """Return the array in float64."""
    if isinstance(array, Symbol):
        return cast("A", array)
    return array.double() if is_tensor(array) else np.asarray(array, np.float64)


def log_sigmoid(x: A) -> A:
    """Return ``log(1 / (1 + exp(-x)))``, exact at both ends."""
    if is_tensor(x):
        from torch.nn.functional import logsigmoid

        return logsigmoid(x)
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def softplus(x: A) -> A:
    """Return ``log(1 + exp(x))``."""
    if is_tensor(x):
        from torch.nn import functional

        return functional.softplus(x)
    return np.where(x > LINEAR, x, np.log1p(np.exp(np.minimum(x, LINEAR))))


def logsumexp(x: A) -> A:
    """Return the log-sum-exp (..., 1) over the last axis."""
    if is_tensor(x):
        return x.logsumexp(dim=-1, keepdim=True)
    top = x.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return cast("A", safe_log(np.exp(x - top).sum(axis=-1, keepdims=True)) + top)


def safe_log(x: A) -> A:
    """Return ``log(x)``, -inf at 0 without a warning."""
    if is_tensor(x):
        return x.log()
    with np.errstate(divide="ignore"):
        return cast("A", np.log(x))  # x may be a symbol, which an export writes down


def log1mexp(log_p: A) -> A:
    """Return ``log(1 - exp(log_p))`` for ``log_p <= 0``: -inf at 0, exact near both ends."""
    xp = namespace(log_p)
    small = log_p > -log(2.0)
    near_zero = xp.where(small, log_p, -1.0)
    far = xp.where(small, -1.0, log_p)
    return xp.where(small, safe_log(-xp.expm1(near_zero)), xp.log1p(-xp.exp(far)))


def log_softmax_and_rest(values: A) -> tuple[A, A]:
    """Return log p and log(1 - p) of a softmax over the last dimension, both exact."""
    xp = namespace(values)
    log_p = values.log_softmax(dim=-1) if is_tensor(values) else values - logsumexp(values)
    columns = xp.arange(values.shape[-1], device=values.device)
    largest = columns == xp.argmax(log_p, axis=-1, keepdims=True)
    others = logsumexp(xp.where(largest, float("-inf"), log_p))
    return log_p, xp.where(largest, others, log1mexp(xp.where(largest, -1.0, log_p)))


def log_softplus(x: A) -> A:
    """Return ``log(softplus(x))``; below -30 it is x itself (relative error e^x / 2)."""
    xp = namespace(x)
    deep = x < -30
    return xp.where(deep, x, xp.log(softplus(xp.where(deep, 0.0, x))))


def search_rows(knots: A, x: A) -> A:
    """Return how many of the rising knots (L, M) of its row lie below each of ``x`` (L, n)."""
    if is_tensor(x):
        import torch

        return torch.searchsorted(knots, x.contiguous())
    if isinstance(x, Symbol):
        return cast("A", x.search_rows(knots))
    return np.array([*map(np.searchsorted, knots, x)]).reshape(x.shape)


def taken(table: A, index: A) -> A:
    """Return the numbers of a table (M,) at the places ``index`` (...)."""
    places: Any = index
    return cast("A", places.taken_from(table) if isinstance(index, Symbol) else table[places])
