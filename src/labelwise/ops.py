"""Stable primitives shared by links, objectives, rules and metrics."""

from math import log

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["log1mexp", "log_softplus", "masked_mean", "select_top_n"]


def log1mexp(log_p: Tensor) -> Tensor:
    """Return ``log(1 - exp(log_p))`` for ``log_p <= 0``: -inf at 0, exact near both ends."""
    small = log_p > -log(2.0)
    near_zero = torch.where(small, log_p, -1.0)
    far = torch.where(small, -1.0, log_p)
    return torch.where(small, torch.log(-torch.expm1(near_zero)), torch.log1p(-torch.exp(far)))


def log_softplus(x: Tensor) -> Tensor:
    """Return ``log(softplus(x))``; below -30 it is x itself (relative error e^x / 2)."""
    deep = x < -30
    return torch.where(deep, x, softplus(torch.where(deep, 0.0, x)).log())


def masked_mean(values: Tensor, observed: Tensor | None) -> Tensor:
    """Return the mean over observed entries; 0, still connected to the graph, if there are none."""
    if observed is None:
        return values.sum() / max(values.numel(), 1)
    weights = observed.to(values.dtype)
    return torch.where(observed, values, 0.0).sum() / weights.sum().clamp(min=1)


def select_top_n(scores: Tensor, n: int) -> Tensor:
    """Return a boolean mask of exactly ``n`` largest entries of the whole array."""
    chosen = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    chosen[scores.flatten().topk(n).indices] = True
    return chosen.view(scores.shape)
