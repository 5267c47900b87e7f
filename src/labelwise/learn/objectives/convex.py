"""Convex losses of logits, as a solver needs them: value, gradient and curvature of all rows.

    CoinLoss    sum_i a_ik softplus(-v_ik) + c_ik softplus(v_ik)         one problem per label
    ShareLoss   - sum_i sum_k s_ik log softmax_k(v_i)                    one problem for all labels

``a`` weighs the presence of a label in a row and ``c`` its absence; a soft label y of weight w is
a = w y, c = w (1 - y), an unknown one a = c = 0. Where logits o_ik are known, what is sought is
added to them. ``s`` are the shares of a row's labels, and only labels that ``compete`` are in its
softmax, beside "none" with the logit 0 where there is one.

A label that is never present (or never absent) has its optimum at infinity. It gets half an entry
of what it lacks, spread over the rows, so that its logit comes to rest at the share 0.5 / N.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelwise.types import Targets

HALF = 0.5  # an entry, of what a label lacks


@dataclass(frozen=True, eq=False)
class Derivatives:
    """``gradient`` (N, K), second derivative ``times(u)``, mean ``curvature`` (1, K) of labels."""

    gradient: Tensor
    times: Callable[[Tensor], Tensor]
    curvature: Tensor


class ConvexLoss(ABC):
    """A convex sum over rows of logits (N, K): one problem if ``joint``, else one per column."""

    joint: bool

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """The number of labels K."""

    @abstractmethod
    def rows(self, logits: Tensor) -> Tensor:
        """Return the loss of each row: (N, K) by label, or (N, 1) if they are joint."""

    def sums(self, logits: Tensor) -> Tensor:
        """Return the loss (1, K) of each label, or (1, 1) if they are joint."""
        return self.rows(logits).sum(dim=0, keepdim=True)

    @abstractmethod
    def derivatives(self, logits: Tensor) -> Derivatives:
        """Return the first and second derivative by the logits."""

    @abstractmethod
    def prior(self) -> Tensor:
        """Return logits (K,) that are good if all rows get the same."""

    @abstractmethod
    def bounded(self) -> Self:
        """Return the loss with an optimum at finite logits for every label."""

    def columns(self, chosen: Tensor | slice) -> Self:
        if self.joint:
            raise TypeError("the labels of a softmax cannot be solved apart")
        return self._with_each(lambda values: values[:, chosen])

    def on(self, device: torch.device) -> Self:
        return self._with_each(lambda values: values.to(device))

    def to(self, like: Tensor) -> Self:
        return self._with_each(
            lambda values: values.to(like.device if values.dtype == torch.bool else like)
        )

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        changed = {name: change(value) for name, value in values.items() if torch.is_tensor(value)}
        return replace(self, **changed)  # type: ignore[type-var]

    def over_problems(self, values: Tensor) -> Tensor:
        """Return the sum of (D, K) values over each problem: (1, K), or (1, 1) if joint."""
        return values.sum(dim=(0, 1) if self.joint else 0, keepdim=True).reshape(1, -1)


@dataclass(frozen=True, eq=False)
class CoinLoss(ConvexLoss):
    """Weighted cross-entropy of the sigmoids of ``logits``, or of ``offset + logits``."""

    present: Tensor
    absent: Tensor
    offset: Tensor | None = None
    joint = False

    @staticmethod
    def of(targets: Targets) -> "CoinLoss":
        """Return the cross-entropy of the observed labels, which may be soft."""
        sides, observed = (targets.labels, 1 - targets.labels), targets.observed
        return CoinLoss(*(x if observed is None else torch.where(observed, x, 0.0) for x in sides))

    @property
    def num_labels(self) -> int:
        return self.present.shape[1]

    def rows(self, logits: Tensor) -> Tensor:
        # softplus(v) = max(v, 0) + softplus(-|v|): what a sure and right logit still costs is not
        # lost in a difference of large numbers
        logits = logits if self.offset is None else self.offset + logits
        wrong = self.present * (-logits).relu() + self.absent * logits.relu()
        return wrong + (self.present + self.absent) * softplus(-logits.abs())

    def derivatives(self, logits: Tensor) -> Derivatives:
        logits = logits if self.offset is None else self.offset + logits
        unlikely = (-logits.abs()).sigmoid()  # of p and 1 - p the smaller one, exact also near 0
        likely = 1 - unlikely
        positive = logits > 0
        gradient = self.absent * torch.where(positive, likely, unlikely)
        gradient -= self.present * torch.where(positive, unlikely, likely)
        second = (self.present + self.absent) * unlikely * likely
        return Derivatives(gradient, second.mul, second.mean(dim=0, keepdim=True))

    def prior(self) -> Tensor:
        if self.offset is not None:
            return self.offset.new_zeros(self.num_labels)
        return self.present.sum(dim=0).log() - self.absent.sum(dim=0).log()

    def bounded(self) -> Self:
        known = self.present + self.absent > 0
        known = known | ~known.any(dim=0)  # of a label of which nothing is known: all rows
        share = HALF * known / known.sum(dim=0).clamp(min=1)
        present = self.present + share * (self.present.sum(dim=0) == 0)
        absent = self.absent + share * (self.absent.sum(dim=0) == 0)
        return replace(self, present=present, absent=absent)


@dataclass(frozen=True, eq=False)
class ShareLoss(ConvexLoss):
    """Cross-entropy between shares of labels and a softmax over the labels that compete.

    ``none`` (N,) is the share of "no label", or None where the softmax has no such answer. Logits
    are divided by ``temperature``.
    """

    shares: Tensor
    compete: Tensor | None = None
    none: Tensor | None = None
    temperature: float = 1.0
    joint = True

    @staticmethod
    def of(targets: Targets, *, temperature: float = 1.0, none: bool = False) -> "ShareLoss":
        """Return the loss: a row's weight of one is shared by its labels, or "none" if asked."""
        labels, observed = targets.labels, targets.observed
        if observed is not None:
            labels = torch.where(observed, labels, 0.0)
        total = labels.sum(dim=1, keepdim=True)
        shares = labels / torch.where(total > 0, total, 1.0)
        empty = total[:, 0] == 0
        if observed is not None:
            empty &= observed.any(dim=1)
        return ShareLoss(shares, observed, empty.to(labels) if none else None, temperature)

    @property
    def num_labels(self) -> int:
        return self.shares.shape[1]

    def _log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p (N, K), 0 where a label does not compete, and log p (N,) of none."""
        kept = scaled = logits / self.temperature
        if self.compete is not None:
            kept = scaled.masked_fill(~self.compete, float("-inf"))
        zero = torch.full_like(scaled[:, :1], float("-inf") if self.none is None else 0.0)
        total = torch.cat([kept, zero], dim=1).logsumexp(dim=1, keepdim=True)
        total = total.masked_fill(total.isinf(), 0.0)  # a row without any label
        log_p = scaled - total
        if self.compete is not None:
            log_p = log_p.masked_fill(~self.compete, 0.0)
        return log_p, -total[:, 0]

    def rows(self, logits: Tensor) -> Tensor:
        log_p, log_none = self._log_probs(logits)
        loss = -(self.shares * log_p).sum(dim=1, keepdim=True)
        return loss if self.none is None else loss - (self.none * log_none)[:, None]

    def derivatives(self, logits: Tensor) -> Derivatives:
        probs = self._log_probs(logits)[0].exp()
        probs = probs if self.compete is None else probs * self.compete
        total = self.shares.sum(dim=1, keepdim=True)
        total = total if self.none is None else total + self.none[:, None]
        expected = total / self.temperature * probs

        def times(values: Tensor) -> Tensor:
            spread = values - (probs * values).sum(dim=1, keepdim=True)
            return expected / self.temperature * spread

        return Derivatives(
            expected - self.shares / self.temperature,
            times,
            (expected / self.temperature * (1 - probs)).mean(dim=0, keepdim=True),
        )

    def prior(self) -> Tensor:
        logits = self.shares.sum(dim=0).log()
        none = logits.mean() if self.none is None else self.none.sum().log()
        return self.temperature * (logits - none)

    def bounded(self) -> Self:
        shares, compete, none = self.shares, self.compete, self.none
        rows = torch.ones_like(shares) if compete is None else compete.to(shares)
        spread = HALF * rows / rows.sum(dim=0).clamp(min=1)
        shares = shares + spread * (shares.sum(dim=0) == 0)
        if none is not None and not none.any():
            none = none + HALF / len(none)
        return replace(self, shares=shares, none=none)
