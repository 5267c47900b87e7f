"""A known change in how many images have none of the labels.

Say a share s of the images that a link was fitted on has no label, and in use it is s'. If the
images of each kind stay as they are, Bayes' rule gives

    r  = (s' / (1 - s')) / (s / (1 - s))
    p' = p / (1 - q0 + r q0)                 q0: the link's probability that no label is present

so that a larger share of empty images (r > 1) makes every label less likely, most of all where
the link already doubted that there is one. On data with the old share such probabilities are too
low: this is not a way to improve a model, only to use it elsewhere.
"""

from math import log
from typing import Any

import torch
from torch import Tensor

from labelwise.links import Link
from labelwise.numeric.arrays import Array, check_shapes, mask_tensor, to_tensor


class ZeroShare(Link):
    """``p' = p / (1 - q0 + ratio q0)``: ``ratio`` times the odds of no label."""

    kind = "zero share"

    def __init__(self, link: Link, ratio: float) -> None:
        super().__init__()
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio must be positive and finite, got {ratio}")
        self.link, self.ratio = link, ratio

    @property
    def couples_labels(self) -> bool:
        return True

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_q = self.link.log_probs(logits)
        log_q0 = torch.minimum(self.link.log_none(logits).unsqueeze(-1), log_q)
        log_scale = self._log_scale(log_q0)
        # 1 - p' = (q + (ratio - 1) q0) / scale
        if self.ratio >= 1:
            more = log(self.ratio - 1) if self.ratio > 1 else float("-inf")
            rest = torch.logaddexp(log_q, more + log_q0)
        else:
            rest = log_q + torch.log1p((self.ratio - 1) * (log_q0 - log_q).exp())
            rest = torch.where(log_q == float("-inf"), log_q, rest)
        # Rounding of the difference can leave it above 0.
        return (log_p - log_scale).clamp(max=0), (rest - log_scale).clamp(max=0)

    def log_none(self, logits: Tensor) -> Tensor:
        log_q0 = self.link.log_none(logits)
        return (log(self.ratio) + log_q0 - self._log_scale(log_q0)).clamp(max=0)

    def _log_scale(self, log_q0: Tensor) -> Tensor:
        return torch.log1p((self.ratio - 1) * log_q0.exp())

    def spec(self) -> dict[str, Any]:
        return {"link": self.link, "ratio": self.ratio}


def expect_zero_share(
    link: Link, labels: Array, share: float, observed: Array | None = None
) -> ZeroShare:
    """Return the link for data of which ``share`` has no label.

    ``labels`` (N, K) say what the share was where the link was fitted; images with nothing
    observed are left out.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie strictly between 0 and 1, got {share}")
    check_shapes(labels=labels, observed=observed)
    present = to_tensor(labels) > 0.5
    if observed is not None:
        seen = mask_tensor(observed, "observed", present.device)
        present = (present & seen)[seen.any(dim=1)]
    empty, count = int((~present.any(dim=1)).sum()), len(present)
    if not 0 < empty < count:
        raise ValueError(
            f"images with and without labels are needed to compare shares, "
            f"got {empty} without among {count}"
        )
    return ZeroShare(link, share / (1 - share) * (count - empty) / empty)
