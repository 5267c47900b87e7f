"""Convex losses of logits, as a solver needs them: value, gradient and curvature of all rows.

    CoinLoss    sum_i a_ik softplus(-v_ik) + c_ik softplus(v_ik)         one problem per label
    ShareLoss   - sum_i sum_k s_ik log softmax_k(v_i)                    one problem for all labels

``a`` weighs the presence of a label in a row and ``c`` its absence; a soft label y of weight w is
a = w y, c = w (1 - y), an unknown one a = c = 0. Where logits o_ik are known, what is sought is
added to them. ``s`` are the shares of a row's labels, and only labels that ``compete`` are in its
softmax, beside "none" with the logit 0 where there is one.

Few rows can be told apart without an error, which has its optimum at infinity. So ``bounded`` adds
to each label a quarter of a presence and of an absence, spread over its known rows, and half of one
that it lacks; to each answer of a softmax, a quarter or half of a share. A head then says no row is
surer than its N rows can show, and without features it says nearly (n + 0.25) / (N + 0.5).

Arrays are NumPy's or torch's, and all of a loss of the same library.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np

from labelwise.base.array_api import A, like, logsumexp, namespace, safe_log
from labelwise.base.arrays import Array, is_tensor

L = TypeVar("L", bound="ConvexLoss[Any]")

HALF, QUARTER = 0.5, 0.25  # entries more: of what a label lacks, and of what it has


@dataclass(frozen=True, eq=False)
class Derivatives(Generic[A]):
    """``gradient`` (N, K), second derivative ``times(u)``, mean ``curvature`` (1, K) of labels."""

    gradient: A
    times: Callable[[A], A]
    curvature: A


class ConvexLoss(ABC, Generic[A]):
    """A convex sum over rows of logits (N, K): one problem if ``joint``, else one per column."""

    joint: bool

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """The number of labels K."""

    @abstractmethod
    def rows(self, logits: A) -> A:
        """Return the loss of each row: (N, K) by label, or (N, 1) if they are joint."""

    def sums(self, logits: A) -> A:
        """Return the loss (1, K) of each label, or (1, 1) if they are joint."""
        loss: A = self.rows(logits).sum(0)[None]
        return loss

    @abstractmethod
    def derivatives(self, logits: A) -> Derivatives[A]:
        """Return the first and second derivative by the logits."""

    @abstractmethod
    def prior(self) -> A:
        """Return logits (K,) that are good if all rows get the same."""

    @abstractmethod
    def bounded(self) -> Self:
        """Return the loss with an optimum at finite logits for every label."""

    @abstractmethod
    def of_rows(self, rows: A) -> Self:
        """Return the loss of the rows (N,) that are true; the others weigh nothing."""

    def columns(self, chosen: A | slice) -> Self:
        """Return the loss of some labels."""
        if self.joint:
            raise TypeError("the labels of a softmax cannot be solved apart")
        return self.each(lambda values: values[:, chosen])

    def to(self, array: A) -> Self:
        """Return the loss in the library, dtype and device of an array; masks stay masks."""
        return self.each(lambda values: like(values, array > 0 if _is_mask(values) else array))

    def each(self, change: Callable[[Any], Any]) -> Self:
        """Return the loss with each of its arrays changed."""
        return self.joined([self], lambda parts: change(parts[0]))

    @staticmethod
    def joined(losses: "Sequence[L]", join: Callable[[list[Any]], Any]) -> "L":
        """Return the loss whose arrays are joined from those of several losses of one kind."""
        changed = {}
        for field in fields(losses[0]):  # type: ignore[arg-type]
            values = [getattr(loss, field.name) for loss in losses]
            if isinstance(values[0], np.ndarray) or is_tensor(values[0]):
                changed[field.name] = join(values)
        return replace(losses[0], **changed)  # type: ignore[type-var]

    def over_problems(self, values: A) -> A:
        """Return the sum of (D, K) values over each problem: (1, K), or (1, 1) if joint."""
        total: A = namespace(values).sum(values, axis=(0, 1) if self.joint else 0)
        return total.reshape(1, -1)


def _entries(total: A) -> A:
    """Return how many entries more each answer gets, whose entries have this total."""
    return QUARTER + (HALF - QUARTER) * like(total == 0, total)


def _is_mask(values: Array) -> bool:
    return "bool" in str(values.dtype)


@dataclass(frozen=True, eq=False)
class CoinLoss(ConvexLoss[A]):
    """Weighted cross-entropy of the sigmoids of ``logits``, or of ``offset + logits``."""

    present: A
    absent: A
    offset: A | None = None
    joint = False

    @staticmethod
    def of(labels: A, observed: A | None = None) -> "CoinLoss[A]":
        """Return the cross-entropy of the observed labels, which may be soft."""
        if observed is None:
            return CoinLoss(labels, 1 - labels)
        xp = namespace(labels)
        return CoinLoss(xp.where(observed, labels, 0.0), xp.where(observed, 1 - labels, 0.0))

    @property
    def num_labels(self) -> int:
        return int(self.present.shape[1])

    def rows(self, logits: A) -> A:
        # softplus(v) = max(v, 0) + log(1 + exp(-|v|)): what a sure and right logit still costs is
        # not lost in a difference of large numbers
        xp = namespace(logits)
        logits = logits if self.offset is None else self.offset + logits
        small = xp.exp(-xp.abs(logits))
        wrong = xp.where(logits > 0, self.absent, -self.present) * logits
        loss: A = wrong + (self.present + self.absent) * xp.log1p(small)
        return loss

    def derivatives(self, logits: A) -> Derivatives[A]:
        xp = namespace(logits)
        logits = logits if self.offset is None else self.offset + logits
        small = xp.exp(-xp.abs(logits))
        likely = 1 / (1 + small)
        unlikely = small * likely  # of p and 1 - p the smaller one, exact also near 0
        positive = logits > 0
        gradient = self.absent * xp.where(positive, likely, unlikely)
        gradient = gradient - self.present * xp.where(positive, unlikely, likely)
        second = (self.present + self.absent) * unlikely * likely

        def times(values: A) -> A:
            bent: A = second * values
            return bent

        return Derivatives(gradient, times, second.mean(0)[None])

    def prior(self) -> A:
        if self.offset is not None:
            start: A = self.offset[0] * 0
            return start
        xp = namespace(self.present)
        prior: A = xp.log(self.present.sum(0)) - xp.log(self.absent.sum(0))
        return prior

    def bounded(self) -> Self:
        known = self.present + self.absent > 0
        known = known | ~known.any(0)  # of a label of which nothing is known: all rows
        share = like(known, self.present) / known.sum(0).clip(min=1)
        present = self.present + share * _entries(self.present.sum(0))
        absent = self.absent + share * _entries(self.absent.sum(0))
        return replace(self, present=present, absent=absent)

    def of_rows(self, rows: A) -> Self:
        return replace(
            self, present=self.present * rows[:, None], absent=self.absent * rows[:, None]
        )


@dataclass(frozen=True, eq=False)
class ShareLoss(ConvexLoss[A]):
    """Cross-entropy between shares of labels and a softmax over the labels that compete.

    ``none`` (N,) is the share of "no label", or None where the softmax has no such answer. Logits
    are divided by ``temperature``.
    """

    shares: A
    compete: A | None = None
    none: A | None = None
    temperature: float = 1.0
    joint = True

    @staticmethod
    def of(
        labels: A, observed: A | None = None, *, temperature: float = 1.0, none: bool = False
    ) -> "ShareLoss[A]":
        """Return the loss: a row's weight of one is shared by its labels, or "none" if asked."""
        xp = namespace(labels)
        if observed is not None:
            labels = xp.where(observed, labels, 0.0)
        total = labels.sum(1)
        shares = labels / xp.where(total > 0, total, 1.0)[:, None]
        empty = total == 0
        if observed is not None:
            empty = empty & observed.any(1)
        return ShareLoss(shares, observed, like(empty, labels) if none else None, temperature)

    @property
    def num_labels(self) -> int:
        return int(self.shares.shape[1])

    def _log_probs(self, logits: A) -> tuple[A, A]:
        """Return log p (N, K), 0 where a label does not compete, and log p (N,) of none."""
        xp = namespace(logits)
        kept = scaled = logits / self.temperature
        if self.compete is not None:
            kept = xp.where(self.compete, scaled, float("-inf"))
        zero = xp.full_like(scaled[:, :1], float("-inf") if self.none is None else 0.0)
        total = logsumexp(xp.concat([kept, zero], axis=1))
        total = xp.where(xp.isinf(total), 0.0, total)  # a row without any label
        log_p = scaled - total
        if self.compete is not None:
            log_p = xp.where(self.compete, log_p, 0.0)
        return log_p, -total[:, 0]

    def rows(self, logits: A) -> A:
        log_p, log_none = self._log_probs(logits)
        loss: A = -(self.shares * log_p).sum(1)[:, None]
        return loss if self.none is None else loss - (self.none * log_none)[:, None]

    def derivatives(self, logits: A) -> Derivatives[A]:
        probs = namespace(logits).exp(self._log_probs(logits)[0])
        probs = probs if self.compete is None else probs * self.compete
        total = self.shares.sum(1)[:, None]
        total = total if self.none is None else total + self.none[:, None]
        expected = total / self.temperature * probs

        def times(values: A) -> A:
            spread = values - (probs * values).sum(1)[:, None]
            bent: A = expected / self.temperature * spread
            return bent

        curvature = (expected / self.temperature * (1 - probs)).mean(0)[None]
        return Derivatives(expected - self.shares / self.temperature, times, curvature)

    def prior(self) -> A:
        logits = safe_log(self.shares.sum(0))
        none = logits.mean() if self.none is None else safe_log(self.none.sum())
        prior: A = self.temperature * (logits - none)
        return prior

    def bounded(self) -> Self:
        xp, compete, none = namespace(self.shares), self.compete, self.none
        rows = xp.ones_like(self.shares) if compete is None else like(compete, self.shares)
        shares = self.shares + rows / rows.sum(0).clip(min=1) * _entries(self.shares.sum(0))
        none = None if none is None else none + _entries(none.sum()) / len(none)
        return replace(self, shares=shares, none=none)

    def of_rows(self, rows: A) -> Self:
        none = None if self.none is None else self.none * rows
        return replace(self, shares=self.shares * rows[:, None], none=none)
