"""Quasibinary classifier: Liao, Gavves, Oh and Snoek, eqs. 10 to 13.

    log C  = logsumexp of all logits of the batch - log N       N labels in the batch   (eq. 10)
    log q  = z - log C                                                                  (eq. 12)
    loss   = (1/B) sum_{i,k} -y log q + max(log q, 0)            (eq. 11, which is maximised)
    p      = min(exp(z) / mean C, 1)

Adding a constant to all logits changes nothing, so a link that has seen no batch cannot answer. Eq.
13 is an exponential average (momentum 0.9), kept as log C.

The gradient, with V entries at q > 1, for the three ways to treat C inside the penalty:

    literal    (q - y + [q > 1] - (V/N) q) / B     sums to 0
    detached   (q - y + [q > 1]) / B               sums to V/B > 0
    centred    (q - y + [q > 1] - V/(B K)) / B     sums to 0

"literal" turns the likelihood's sign where V > N. "detached" pushes all logits down without end: it
stops with an error once log C is below -10. "centred" has neither fault.
"""

from math import isfinite, log, log1p
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from labelwise.errors import TrainingError
from labelwise.learn.objectives.base import (
    Objective,
    masked_logsumexp,
    masked_mean,
    one_of,
    reviewed_rows,
)
from labelwise.links import Link, QuasibinaryLink
from labelwise.types import Outputs, Targets

Penalty = Literal["literal", "detached", "centred"]
TestNormalizer = Literal["precise", "moving"]
_DRIFTED = -10.0  # sound runs start near 0 and rise


def log_normalizer(logits: Tensor, labels: Tensor, observed: Tensor | None = None) -> Tensor:
    """Return the scalar ``log C`` of a batch; +inf if no label is observed in it."""
    if observed is None:
        observed = torch.ones_like(logits, dtype=torch.bool)
    total = masked_logsumexp(logits.flatten(), observed.flatten(), 0)
    return total - torch.where(observed, labels, 0.0).sum().log()


def quasibinary_loss(
    logits: Tensor,
    labels: Tensor,
    log_c: Tensor,
    observed: Tensor | None = None,
    penalty: Penalty = "literal",
) -> Tensor:
    """Return the (B, K) terms ``-y log q + max(log q, 0)``; ``log_c`` carries its gradient."""
    log_q = logits - log_c
    excess = log_q if penalty == "literal" else logits - log_c.detach()
    if penalty == "centred":
        mean = masked_mean(logits, observed)
        excess = excess - (mean - mean.detach())
    terms = relu(excess) - labels * log_q
    return terms if observed is None else torch.where(observed, terms, 0.0)


class TrackedLink(QuasibinaryLink, nn.Module):
    """The link in training: its normaliser is a buffer that follows the batches."""

    log_normalizer: Tensor

    def __init__(self, log_normalizer: float | None = None, momentum: float = 0.9) -> None:
        nn.Module.__init__(self)
        start = torch.nan if log_normalizer is None else log_normalizer
        self.register_buffer("log_normalizer", torch.tensor(start, dtype=torch.float64))
        self.set_momentum(momentum)

    @torch.no_grad()
    def track(self, log_c: Tensor) -> None:
        """Move the average of C towards a batch's; a batch without labels (+inf) moves nothing."""
        old = self.log_normalizer
        new = moving_average(old, log_c.to(old), self.momentum)
        self.log_normalizer.copy_(torch.where(log_c.isfinite().to(old.device), new, old))


def moving_average(log_average: Tensor, log_value: Tensor, momentum: float) -> Tensor:
    """Return ``log(momentum C + (1 - momentum) C_t)`` from logarithms; the first value if NaN."""
    moved = torch.logaddexp(log_average + log(momentum), log_value + log1p(-momentum))
    return torch.where(log_average.isnan(), log_value, moved)


def precise_normalizer(
    logits: Tensor, labels: Tensor, observed: Tensor | None = None
) -> QuasibinaryLink:
    """Return the link with the training set's exact C, from logits in eval mode."""
    log_c = log_normalizer(logits.double(), labels.double(), observed).item()
    if not isfinite(log_c):
        raise ValueError("precise_normalizer needs at least one observed label, got none")
    return QuasibinaryLink(log_c)


class Quasibinary(Objective):
    """Quasibinary loss of a batch; in training it keeps the normaliser of its link.

    ``test_normalizer`` is the C of the deployed link: "precise" computes it once more over the
    training images after training, "moving" keeps the moving average, as the paper does.
    ``log_c`` is that of the last training batch, for the journal.
    """

    link: TrackedLink
    log_c: Tensor
    couples_batch = True
    soft_labels = True

    def __init__(
        self,
        *,
        penalty: Penalty = "literal",
        momentum: float = 0.9,
        test_normalizer: TestNormalizer = "precise",
    ) -> None:
        super().__init__(TrackedLink(momentum=momentum))
        self.register_buffer("log_c", torch.tensor(torch.nan), persistent=False)
        self.test_normalizer = one_of("test_normalizer", test_normalizer, TestNormalizer)
        self.penalty = one_of("penalty", penalty, Penalty)

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        logits, labels, observed = outputs.logits, targets.labels, targets.observed
        log_c = log_normalizer(logits, labels, observed)
        if self.training:
            self.link.track(log_c.detach())
            self.log_c.copy_(log_c.detach())
            detached = self.penalty == "detached" and not torch.compiler.is_compiling()
            if detached and log_c < _DRIFTED:
                raise TrainingError(
                    "quasibinary's detached penalty has pushed all logits down together (log C "
                    f"must stay above {_DRIFTED}, got {log_c.item():.1f}) and will collapse; use "
                    "penalty='centred' or 'literal'"
                )
        # A batch that has no label has the average, or a log C without penalty.
        known = self.link.log_normalizer.to(logits)
        other = torch.where(known.isnan(), logits.detach().amax(), known)
        log_c = torch.where(log_c.isfinite(), log_c, other)
        terms = quasibinary_loss(logits, labels, log_c, observed, self.penalty)
        return masked_mean(terms.sum(dim=1), reviewed_rows(observed))

    def start_logits(self, priors: Tensor) -> Tensor:
        # There is no normaliser yet, but a common shift of all logits changes nothing.
        return priors.double().log()

    def final_link(self, logits: Tensor, labels: Tensor, observed: Tensor | None = None) -> Link:
        if self.test_normalizer == "moving":
            return QuasibinaryLink(self.link.log_normalizer.item(), self.link.momentum)
        return precise_normalizer(logits, labels, observed)
