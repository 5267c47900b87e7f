"""Link: a map from logits to probabilities.

    log_probs(v) -> (log p, log(1 - p))       the one primitive
    p            =  exp(log p)
    log-odds u   =  log p - log(1 - p)

The pair is primitive because log loss, the label-pair regulariser, calibration on log-odds and
query ranking all need exactly it. A link describes itself completely in plain data (``spec``),
so that it can be saved with a model and in the metadata of a predictions file. Each formula is
written once: a tensor gives tensors, on its device and with its gradient, NumPy gives NumPy.
"""

# mypy: disable-error-code="no-any-return"
# Arithmetic of NumPy arrays of any dtype is Any to mypy.

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from math import isnan, log
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import numpy as np

from labelwise.base.array_api import (
    A,
    double,
    is_traced,
    like,
    log1mexp,
    log_sigmoid,
    log_softmax_and_rest,
    log_softplus,
    logsumexp,
    namespace,
    safe_log,
    softplus,
)
from labelwise.base.arrays import Numbers, is_tensor, require_finite, require_numbers, to_numpy
from labelwise.base.text import one_line_of
from labelwise.errors import CheckpointError, SettingsError, require
from labelwise.taxonomy import FAR, AttributeColumns, LabelTree
from labelwise.types import nearest

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Link(ABC):
    """A map from logits to probabilities; subclasses give ``log_probs`` and their ``spec``."""

    kind: ClassVar[str]
    couples_labels: bool = False  # whether p depends on the logits of other labels too
    exclusive: AttributeColumns | None = None  # groups that the probabilities obey

    def of_label(self, column: int) -> "Link":
        """Return the link of one label's logits (..., 1); for links that couple no labels."""
        return self

    def label_log_probs(self, column: int, read: Callable[[int], A], labels: int) -> tuple[A, A]:
        """Return the pair (n,) of one of ``labels``; ``read`` gives logits (n,) that it needs."""
        if self.couples_labels:
            columns = [read(k) for k in range(labels)]
            log_p, log_q = self.log_probs(namespace(columns[0]).stack(columns, axis=1))
            return log_p[:, column], log_q[:, column]
        log_p, log_q = self.of_label(column).log_probs(read(column)[:, None])
        return log_p[:, 0], log_q[:, 0]

    @abstractmethod
    def log_probs(self, logits: A) -> tuple[A, A]:
        """Return ``(log p, log(1 - p))``, each shaped like ``logits``."""

    def __call__(self, logits: A) -> A:
        return namespace(logits).exp(self.log_probs(logits)[0])

    def decision_probs(self, logits: A) -> A:
        """Return the probabilities that rules are fitted to and applied to, in float32.

        They are computed in float64 whatever the logits are, so that a threshold fitted between two
        of them stays between them, and rounded, so that one that was given as 0.3 is 0.3 again.
        """
        probs = self(double(logits))
        return probs.float() if is_tensor(probs) else probs.astype(np.float32)

    def log_odds(self, logits: A) -> A:
        log_p, log_q = self.log_probs(logits)
        return log_p - log_q

    def log_none(self, logits: A) -> A:
        """Return log P(no label) (...), labels being independent unless the link knows better."""
        return self.log_probs(logits)[1].sum(-1)

    def logits_at(self, probs: A) -> A:
        """Return the logits (float64) of probabilities, by bisection; for uncoupled labels."""
        xp = namespace(probs)
        if not ((probs > 0) & (probs < 1)).all():
            raise ValueError(f"probs must lie strictly between 0 and 1, got {probs.tolist()}")
        probs = double(probs)
        goal = probs.logit() if is_tensor(probs) else xp.log(probs / (1 - probs))
        low, high = xp.full_like(goal, -1e3), xp.full_like(goal, 1e3)
        for _ in range(80):
            middle = (low + high) / 2
            below = self.log_odds(middle) < goal
            low, high = xp.where(below, middle, low), xp.where(below, high, middle)
        return (low + high) / 2

    def slope_and_offset(self, labels: int) -> tuple[Numbers, Numbers] | None:
        """Return (K,) numbers with ``p = sigma(slope v + offset)``, None for another curve."""
        return None

    def spec(self) -> dict[str, object]:
        """Return the constructor's arguments as plain data (numbers, lists, nested links)."""
        given = {name: getattr(self, name) for name in signature(type(self)).parameters}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in given.items()}


class OddsLink(Link):
    """A link whose log-odds have a formula; ``p`` is their sigmoid."""

    @abstractmethod
    def log_odds(self, logits: A) -> A: ...

    def log_probs(self, logits: A) -> tuple[A, A]:
        odds = self.log_odds(logits)
        return log_sigmoid(odds), log_sigmoid(-odds)


class Sigmoid(OddsLink):
    """``p = 1 / (1 + exp(-v))``, the proper link of cross-entropy."""

    kind = "sigmoid"

    def log_odds(self, logits: A) -> A:
        return logits

    def slope_and_offset(self, labels: int) -> tuple[Numbers, Numbers]:
        return np.ones(labels), np.zeros(labels)


class WeightedSigmoid(OddsLink):
    """``log odds = v - log w``: the proper link of cross-entropy with weights on present labels."""

    kind = "weighted-sigmoid"

    def __init__(self, weights: Sequence[float]) -> None:
        self.log_weights: Numbers = np.log(np.asarray(weights, np.float64))

    def log_odds(self, logits: A) -> A:
        return logits - like(self.log_weights, logits)

    def slope_and_offset(self, labels: int) -> tuple[Numbers, Numbers]:
        return np.ones(labels), -np.broadcast_to(self.log_weights, labels)

    def of_label(self, column: int) -> "WeightedSigmoid":
        own = self.log_weights if self.log_weights.size == 1 else self.log_weights[[column]]
        return WeightedSigmoid(np.exp(own).reshape(-1).tolist())

    def spec(self) -> dict[str, object]:
        return {"weights": np.exp(self.log_weights).tolist()}


class Softmax(Link):
    """``p = softmax(v / temperature)``; with several labels present these are not marginals."""

    kind = "softmax"
    couples_labels = True

    def __init__(self, temperature: float = 1.0) -> None:
        require(temperature > 0, f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    def log_probs(self, logits: A) -> tuple[A, A]:
        return log_softmax_and_rest(logits / self.temperature)

    def log_none(self, logits: A) -> A:
        return namespace(logits).full_like(logits[..., 0], float("-inf"))

    def logits_at(self, probs: A) -> A:
        return self.temperature * safe_log(double(probs))


LEAST_NONE = 1e-3  # the share of images without labels that biases start from, if there are none


def with_none(logits: A) -> A:
    """Return the logits (..., K + 1) with that of "none", 0, as the last."""
    xp = namespace(logits)
    return xp.concat([logits, xp.zeros_like(logits[..., :1])], axis=-1)


class SoftmaxOrNoneLink(Link):
    """``p = exp(v_k) / (1 + sum_j exp(v_j))``: the labels of an image sum to less than one."""

    kind = "softmax-or-none"
    couples_labels = True

    def log_probs(self, logits: A) -> tuple[A, A]:
        log_p, log_rest = log_softmax_and_rest(with_none(logits))
        return log_p[..., :-1], log_rest[..., :-1]

    def log_none(self, logits: A) -> A:
        return -logsumexp(with_none(logits))[..., 0]

    def logits_at(self, probs: A) -> A:
        shares = double(probs)
        return safe_log(shares) - safe_log((1 - shares.sum(-1)[..., None]).clip(LEAST_NONE))


@dataclass(frozen=True)
class Side:
    """Shape of one half of the SPA loss: scale 1/zeta, slope k, offset b."""

    zeta: float = 1.0
    k: float = 1.0
    b: float = 0.0

    def __post_init__(self) -> None:
        require(self.zeta > 0 and self.k > 0, f"zeta and k must be positive, got {self}")


CROSS_ENTROPY = Side()
EASY_NEGATIVES = Side(zeta=5.0, k=3.0, b=1.0)  # section 5.1: one setting, all datasets


class SoftplusOddsLink(OddsLink):
    """A link whose log-odds have a formula, with the logarithms of p by softplus."""

    def log_probs(self, logits: A) -> tuple[A, A]:
        odds = self.log_odds(logits)
        return -softplus(-odds), -softplus(odds)


class SPALink(SoftplusOddsLink):
    """The link under which SPA's loss is strictly proper, see :class:`~labelwise.SPA`."""

    kind = "spa"

    def __init__(
        self,
        present: Side | Mapping[str, float] = CROSS_ENTROPY,
        absent: Side | Mapping[str, float] = EASY_NEGATIVES,
    ) -> None:
        self.present = present if isinstance(present, Side) else Side(**present)
        self.absent = absent if isinstance(absent, Side) else Side(**absent)

    def log_odds(self, logits: A) -> A:
        present, absent = self.present, self.absent
        at_zero = log(absent.k * present.zeta / (present.k * absent.zeta))
        rise = softplus(-absent.k * (logits - absent.b))
        return at_zero - rise + softplus(present.k * (logits - present.b))

    def spec(self) -> dict[str, object]:
        return {"present": asdict(self.present), "absent": asdict(self.absent)}


WeightGrad = Literal["full", "detached"]


@dataclass(frozen=True)
class Focusing:
    """Exponents of the absent and the present half, probability margin, gradient of the weights."""

    gamma_neg: float = 4.0
    gamma_pos: float = 1.0
    margin: float = 0.05
    weight_grad: WeightGrad = "full"

    def __post_init__(self) -> None:
        if self.gamma_neg < 0 or self.gamma_pos < 0:
            raise ValueError(f"gamma_neg and gamma_pos must not be negative, got {self}")
        require(0 <= self.margin < 1, f"margin must lie in [0, 1), got {self.margin}")
        if self.weight_grad not in ("full", "detached"):
            raise ValueError(f"weight_grad must be 'full' or 'detached', got {self.weight_grad!r}")


class PhiLink(SoftplusOddsLink):
    """``phi`` of ``p``, see :mod:`labelwise.learn.objectives.cross_entropy`."""

    kind = "phi"

    def __init__(
        self,
        gamma_neg: float = 4.0,
        gamma_pos: float = 1.0,
        margin: float = 0.05,
        weight_grad: WeightGrad = "full",
    ) -> None:
        self.focusing = Focusing(gamma_neg, gamma_pos, margin, weight_grad)

    def log_odds(self, logits: A) -> A:
        focusing = self.focusing
        full = focusing.weight_grad == "full"
        fall = log_h(-logits, focusing.gamma_pos, full)
        if focusing.margin == 0:
            return log_h(logits, focusing.gamma_neg, full) - fall
        above, q = shifted(logits, focusing.margin)
        rise = _log_h_of_probability(q, focusing.gamma_neg, full)
        return namespace(logits).where(above, rise - fall, float("-inf"))

    def spec(self) -> dict[str, object]:
        return asdict(self.focusing)


def shifted(logits: A, margin: float) -> tuple[A, A]:
    """Return where p > m, and q = p - m there and 1/2 elsewhere, so that its log has a gradient."""
    p = logits.sigmoid() if is_tensor(logits) else np.exp(log_sigmoid(logits))
    above = p - margin > 0
    return above, namespace(logits).where(above, p - margin, 0.5)


def log_h(logits: A, gamma: float, full: bool) -> A:
    """Return ``log h(sigmoid(v); gamma)``, finite for every v."""
    loss = softplus(logits)
    if gamma == 0:
        return loss
    if full:
        more = log(gamma) + log_softplus(logits) - log_sigmoid(logits)
        loss = namespace(logits).logaddexp(loss, more)
    return gamma * log_sigmoid(logits) + loss


def _log_h_of_probability(q: A, gamma: float, full: bool) -> A:
    xp = namespace(q)
    loss: A = -xp.log1p(-q)
    if gamma == 0:
        return loss
    if full:
        loss = xp.logaddexp(loss, log(gamma) + xp.log(loss) - xp.log(q))
    return gamma * xp.log(q) + loss


LEAST_LAMBDA = 1.5


class FocalMarginLink(OddsLink):
    """The link of complete labels under a focal margin; ``lam`` of Hill's absent half, or none."""

    kind = "focal-margin"

    def __init__(
        self, gamma: float = 2.0, margin: float = 1.0, lam: float | None = LEAST_LAMBDA
    ) -> None:
        require(gamma >= 0, f"gamma must not be negative, got {gamma}")
        require(
            lam is None or lam >= LEAST_LAMBDA,
            f"lam must be at least {LEAST_LAMBDA}, or likelier labels cost less, got {lam}",
        )
        self.gamma, self.margin, self.lam = gamma, margin, lam
        if not (np.diff(self.log_odds(np.linspace(-40, 40, 1601))) > 0).all():
            raise ValueError(
                "the loss has no link where a higher logit does not mean a higher probability; "
                f"take gamma=2 and margin=1, got gamma={gamma}, margin={margin}, lam={lam}"
            )

    def log_odds(self, logits: A) -> A:
        fall = _log_slope(self.margin - logits, self.gamma)
        if self.lam is None:
            return _log_slope(logits, self.gamma) - fall
        return _log_hill_slope(logits, self.lam) - fall


def _log_slope(logits: A, gamma: float) -> A:
    """Return the log of the slope of ``p^gamma softplus(v)`` along v, finite for every v."""
    return log_sigmoid(logits) + log_sigmoid(-logits) + log_h(logits, gamma, full=True)


def _log_hill_slope(logits: A, lam: float) -> A:
    """Return ``log(p^2 (1 - p) (2 l - 3 p))``, the last factor as 2 l - 3 + 3 (1 - p)."""
    log_p, log_q = log_sigmoid(logits), log_sigmoid(-logits)
    last = log_q + log(3)
    if lam > LEAST_LAMBDA:
        xp = namespace(logits)
        last = xp.logaddexp(last, xp.full_like(last, log(2 * lam - 3)))
    return 2 * log_p + log_q + last


LARGEST_LOG_Q = -1e-6  # the largest log q with a log-odds


class QuasibinaryLink(Link):
    """``p = min(exp(z) / C, 1)``; ``log_normalizer`` is log of the average C, NaN at first."""

    kind = "quasibinary"
    log_normalizer: "Tensor | float"

    def __init__(self, log_normalizer: float | None = None, momentum: float = 0.9) -> None:
        self.log_normalizer = float("nan") if log_normalizer is None else float(log_normalizer)
        self.set_momentum(momentum)

    def set_momentum(self, momentum: float) -> None:
        require(0 < momentum < 1, f"momentum must lie in (0, 1), got {momentum}")
        self.momentum = momentum

    def log_probs(self, logits: A) -> tuple[A, A]:
        log_p = (logits - self._known(logits)).clip(max=0)
        return log_p, log1mexp(log_p)

    def log_odds(self, logits: A) -> A:
        log_p = (logits - self._known(logits)).clip(max=LARGEST_LOG_Q)
        return log_p - log1mexp(log_p)

    def logits_at(self, probs: A) -> A:
        # Before training only differences of logits mean anything, and C counts as 1.
        known = like(self.log_normalizer, double(probs))
        return safe_log(double(probs)) + like(0.0 if isnan(float(known)) else known, known)

    def spec(self) -> dict[str, object]:
        value = float(self.log_normalizer)
        return {"log_normalizer": None if isnan(value) else value, "momentum": self.momentum}

    def _known(self, logits: A) -> A:
        if not is_traced(logits) and isnan(float(self.log_normalizer)):
            raise ValueError(
                "a quasibinary link must have seen a batch with labels before it gives "
                "probabilities, got none; train it or use precise_normalizer(logits, labels)"
            )
        return like(self.log_normalizer, logits)


def consistent_log_probs(log_p: A, log_q: A, tree: LabelTree) -> tuple[A, A]:
    """Return the nearest pair (in KL divergence) in which no label is likelier than its parent."""
    given = log_p - log_q
    labels = len(tree.parent)
    if given.shape[-1] != labels:
        raise ValueError(f"the taxonomy is of {labels} labels, got {given.shape[-1]} columns")
    moved_odds = tree.consistent(given.reshape(-1, labels)).reshape(given.shape)
    xp, moved = namespace(log_p), moved_odds != given
    new_p, new_q = log_sigmoid(moved_odds), log_sigmoid(-moved_odds)
    return xp.where(moved, new_p, log_p), xp.where(moved, new_q, log_q)


class Consistent(Link):
    """The probabilities of ``link`` made consistent: no label is likelier than its parent.

    ``parents`` is the column of each label's parent, -1 where it has none. An image without any
    label is one without any label at the top: the others follow from these,

        P(none) = product over the labels k without a parent of (1 - p_k),

    unless ``link`` couples labels and so knows that probability itself.
    """

    kind = "consistent"
    couples_labels = True

    def __init__(self, link: Link, parents: Sequence[int]) -> None:
        self.link, self.parents = link, list(parents)
        self.tree = LabelTree(tuple(parents))

    def log_probs(self, logits: A) -> tuple[A, A]:
        return consistent_log_probs(*self.link.log_probs(logits), self.tree)

    def log_none(self, logits: A) -> A:
        if self.link.couples_labels:
            return self.link.log_none(logits)
        return self.log_probs(logits)[1][..., self.tree.tops].sum(-1)

    def label_log_probs(self, column: int, read: Callable[[int], A], labels: int) -> tuple[A, A]:
        if self.link.couples_labels:
            return super().label_log_probs(column, read, labels)
        family, tree = self.tree.family(column)
        pairs = [self.link.label_log_probs(k, read, labels) for k in family]
        stack = namespace(pairs[0][0]).stack
        log_p, log_q = (stack(side, axis=1) for side in zip(*pairs, strict=True))
        log_p, log_q = consistent_log_probs(log_p, log_q, tree)
        return log_p[:, family.index(column)], log_q[:, family.index(column)]


class Grouped(Link):
    """The probabilities of ``link`` within groups of labels that exclude each other.

    ``exactly_one`` and ``at_most_one`` are the columns of each group; the formulas stand in
    :mod:`labelwise.taxonomy`. No image is without a label where a group must have one.
    """

    kind = "grouped"
    couples_labels = True

    def __init__(
        self,
        link: Link,
        exactly_one: Sequence[Sequence[int]] = (),
        at_most_one: Sequence[Sequence[int]] = (),
    ) -> None:
        self.link = link
        self.columns = self.exclusive = AttributeColumns.of(exactly_one, at_most_one)
        self.exactly_one = [list(map(int, group)) for group in exactly_one]
        self.at_most_one = [list(map(int, group)) for group in at_most_one]

    def log_probs(self, logits: A) -> tuple[A, A]:
        log_p, log_q, odds = self._read(logits)
        free: list[int] = self._free(int(log_p.shape[-1]))
        inside = [column for group in self.columns.groups for column in group]
        back: list[int] = np.argsort(free + inside).tolist()
        parts = [(log_p[..., free], log_q[..., free])]
        parts += [log_softmax_and_rest(odds[..., list(g)]) for g in self.columns.exactly_one]
        for group in self.columns.at_most_one:
            pair = log_softmax_and_rest(with_none(odds[..., list(group)]))
            parts.append((pair[0][..., :-1], pair[1][..., :-1]))
        join = namespace(logits).concat
        present, absent = (join(side, axis=-1)[..., back] for side in zip(*parts, strict=True))
        return present, absent

    def log_none(self, logits: A) -> A:
        _, log_q, odds = self._read(logits)
        log_none = log_q[..., self._free(log_q.shape[-1])].sum(-1)
        for group in self.columns.at_most_one:
            log_none = log_none - logsumexp(with_none(odds[..., list(group)]))[..., 0]
        return log_none - FAR * len(self.columns.exactly_one)

    def _read(self, logits: A) -> tuple[A, A, A]:
        log_p, log_q = self.link.log_probs(logits)
        return log_p, log_q, (log_p - log_q).clip(-FAR, FAR)

    def _free(self, labels: int) -> list[int]:
        grouped = [column for group in self.columns.groups for column in group]
        if grouped and max(grouped) >= labels:
            raise ValueError(f"the groups reach column {max(grouped)}, got {labels}")
        return sorted({*range(labels)} - {*grouped})


def check_log_probs(log_p: A, log_q: A) -> tuple[A, A]:
    """Return a link's answer; one with a probability that is not a number is an error."""
    for wrong in (np.isnan(to_numpy(values)) for values in (log_p, log_q)):
        if wrong.any():
            raise CheckpointError(
                f"{int(wrong.sum()):,} of {wrong.size:,} probabilities are not "
                "numbers: the model's link is damaged; calibrate the model again"
            )
    return log_p, log_q


def require_link(link: Link | None, method: str) -> Link:
    """Return the link; a method that has none only ranks, and the error says what to do."""
    if link is None:
        raise SettingsError(
            f"{method} ranks labels and has no probabilities; calibrate it first on "
            "validation data with calibrate.platt(logits, labels, None)"
        )
    return link


def made_from_spec(spec: Mapping[str, object], kinds: Mapping[str, type[T]], what: str) -> T:
    """Return the link or rule that plain data describes, if all of its numbers are numbers."""
    try:
        require_finite(spec, what)
        return _made(spec, kinds, what)
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise SettingsError(f"the {what} cannot be made: {one_line_of(error)}") from None


def _made(spec: Mapping[str, object], kinds: Mapping[str, type[T]], what: str) -> T:
    kind = spec.get("kind") if isinstance(spec, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise SettingsError(f"unknown {what} {kind!r:.60}{nearest(str(kind), kinds)}")
    inner = spec.get(what)
    if inner is not None and not (isinstance(inner, Mapping) and "kind" in inner):
        raise TypeError(f"the {what} inside must be one with a kind, got {inner!r:.60}")
    arguments = {
        key: _made(value, kinds, what) if isinstance(value, Mapping) and "kind" in value else value
        for key, value in spec.items()
        if key != "kind"
    }
    parameters = signature(kinds[kind]).parameters.values()
    texts = {parameter.name for parameter in parameters if isinstance(parameter.default, str)}
    for key in arguments.keys() - texts:  # some are kept as they come
        require_numbers(arguments[key], key)
    return kinds[kind](**arguments)
