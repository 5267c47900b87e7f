"""Stable primitives shared by objectives; formulas of links are in numeric.array_api."""

import torch
from torch import Tensor


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


def split_labels(labels: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the boolean masks (present, absent); an unobserved entry is in neither."""
    present = labels > 0.5
    if observed is None:
        return present, ~present
    return present & observed, ~present & observed


def reviewed_rows(observed: Tensor | None) -> Tensor | None:
    """Return which rows (B,) have anything observed; None means all of them."""
    return None if observed is None else observed.any(dim=1)


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the log-sum-exp over the masked entries along ``dim``.

    Where the mask is empty the result is finite, has no gradient and no meaning: ask
    ``mask.any(dim)``.
    """
    some = mask.any(dim=dim, keepdim=True)
    kept = torch.where(mask, values, float("-inf"))
    return torch.where(some, kept, 0.0).logsumexp(dim=dim)
