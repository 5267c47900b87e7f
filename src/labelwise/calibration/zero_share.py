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

from labelwise.links import Link
from labelwise.numeric.array_api import A, namespace
from labelwise.numeric.arrays import Array, as_mask, check_shapes, to_numpy


class ZeroShare(Link):
    """``p' = p / (1 - q0 + ratio q0)``: ``ratio`` times the odds of no label."""

    kind = "zero share"

    def __init__(self, link: Link, ratio: float) -> None:
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio must be positive and finite, got {ratio}")
        self.link, self.ratio = link, ratio

    @property
    def couples_labels(self) -> bool:
        return True

    def log_probs(self, logits: A) -> tuple[A, A]:
        xp = namespace(logits)
        log_p, log_q = self.link.log_probs(logits)
        log_q0 = xp.minimum(self.link.log_none(logits)[..., None], log_q)
        log_scale = self._log_scale(log_q0)
        # 1 - p' = (q + (ratio - 1) q0) / scale
        if self.ratio >= 1:
            more = log(self.ratio - 1) if self.ratio > 1 else float("-inf")
            rest = xp.logaddexp(log_q, more + log_q0)
        else:
            gone = log_q == float("-inf")
            apart = log_q0 - xp.where(gone, 0.0, log_q)
            rest = xp.where(gone, log_q, log_q + xp.log1p((self.ratio - 1) * xp.exp(apart)))
        # Rounding of the difference can leave it above 0.
        return (log_p - log_scale).clip(max=0), (rest - log_scale).clip(max=0)

    def log_none(self, logits: A) -> A:
        log_q0 = self.link.log_none(logits)
        found: A = (log(self.ratio) + log_q0 - self._log_scale(log_q0)).clip(max=0)
        return found

    def _log_scale(self, log_q0: A) -> A:
        xp = namespace(log_q0)
        found: A = xp.log1p((self.ratio - 1) * xp.exp(log_q0))
        return found

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
    present = to_numpy(labels) > 0.5
    if observed is not None:
        seen = as_mask(to_numpy(observed), "observed")
        present = (present & seen)[seen.any(axis=1)]
    empty, count = int((~present.any(axis=1)).sum()), len(present)
    if not 0 < empty < count:
        raise ValueError(
            f"images with and without labels are needed to compare shares, "
            f"got {empty} without among {count}"
        )
    return ZeroShare(link, share / (1 - share) * (count - empty) / empty)
