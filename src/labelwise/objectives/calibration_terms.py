"""Terms that ask for calibration while a head is trained, under the link of the objective.

p is the probability and u the log-odds of an entry, M the number of observed entries of a batch:

    MMCE   1 / M^2  sum_ij (y_i - p_i) (y_j - p_j) exp(-|p_i - p_j| / 0.4)     Kumar et al. 2018
    MDCA   mean over labels of |mean of y - mean of p|                         Hebbalaguppe 2022
    MbLS   mean of max(0, |u| - m),  m = 6                                     Liu et al. 2022

MMCE is the square, without the root: of independent labels its expectation is a quadratic form of
the errors (least at 0, as the kernel is positive definite) and a Brier score on the diagonal, so a
strictly proper loss stays so, under the same link. Sorted by p the kernel is a product of two
factors on either side, so that all pairs of a batch cost one sort.

MDCA (of two classes: DCA, Liang et al. 2020) moves the optimum: an absolute value asks for the
median of the mean label of a batch, which for a label rarer than about 0.7 / B is 0.

MbLS reads a label as two logits, u and 0. Within |u| <= m nothing changes; beyond, the optimum is
where p + w sign(u) is the true probability (w the weight, cross-entropy), so that no p leaves
[sigmoid(-m), sigmoid(m)] unless the truth is further than w outside: rare labels are called
likelier than they are.
"""

import torch
from torch import Tensor
from torch.nn.functional import relu

from labelwise.links import Link, require_link
from labelwise.numeric.ops import masked_mean
from labelwise.objectives.base import Term
from labelwise.types import Outputs, Targets

LARGEST = 1e6  # stands in for infinite log-odds


def kernel_calibration_error(
    probs: Tensor, labels: Tensor, weights: Tensor, width: float = 0.4
) -> Tensor:
    """Return the squared MMCE of entries (M,), of which those of weight 0 do not count."""
    order = probs.argsort()
    p, error = probs[order], (weights * (labels - probs))[order]
    up, down = torch.exp(p / width), torch.exp(-p / width)
    before = (error * up).cumsum(0) - error * up  # the entries with a smaller p
    pairs = (error.square() + 2 * error * down * before).sum()
    return pairs / weights.sum().clamp(min=1).square()


class MMCE(Term):
    """The squared maximum mean calibration error of all observed entries of a batch."""

    couples_batch = True

    def __init__(self, width: float = 0.4) -> None:
        super().__init__()
        if not width > 0.05:
            raise ValueError(f"width must be above 0.05, got {width}")
        self.width = width

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        probs = require_link(link, "MMCE's objective").log_probs(outputs.logits)[0].exp()
        seen = torch.ones_like(probs) if targets.observed is None else targets.observed.to(probs)
        return kernel_calibration_error(
            probs.flatten(), targets.labels.flatten(), seen.flatten(), self.width
        )


class MeanDifference(Term):
    """MDCA: how far the mean probability of a label is from its share in the batch, over labels."""

    couples_batch = True

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        probs = require_link(link, "MDCA's objective").log_probs(outputs.logits)[0].exp()
        gap = probs - targets.labels
        if targets.observed is None:
            return gap.mean(dim=0).abs().mean()
        count = targets.observed.sum(dim=0)
        means = torch.where(targets.observed, gap, 0.0).sum(dim=0) / count.clamp(min=1)
        return masked_mean(means.abs(), count > 0)


class LogitMargin(Term):
    """MbLS: what log-odds exceed a margin by, mean over the observed entries."""

    soft_labels = True

    def __init__(self, margin: float = 6.0) -> None:
        super().__init__()
        if margin < 0:
            raise ValueError(f"margin must not be negative, got {margin}")
        self.margin = margin

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        log_odds = require_link(link, "MbLS's objective").log_odds(outputs.logits)
        excess = relu(log_odds.clamp(-LARGEST, LARGEST).abs() - self.margin)
        return masked_mean(excess, targets.observed)
