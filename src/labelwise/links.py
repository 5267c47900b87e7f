"""Link: a map from logits to probabilities.

    log_probs(v) -> (log p, log(1 - p))       the one primitive
    p            =  exp(log p)
    log-odds u   =  log p - log(1 - p)

The pair is primitive because log loss, the label-pair regulariser, calibration on log-odds and
query ranking all need exactly it. A link describes itself completely in plain data (``spec``),
so that it can be saved with a model and in the metadata of a predictions file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from labelwise.attributes import AttributeColumns
from labelwise.errors import CheckpointError, SettingsError
from labelwise.numeric.arrays import numpy_or_torch
from labelwise.numeric.ops import log_softmax_and_rest
from labelwise.taxonomy import FAR, LabelTree

MAPS = {"log_probs", "log_odds", "log_none", "logits_at"}


class Link(nn.Module, ABC):
    """A map from logits to probabilities; subclasses give ``log_probs`` and their ``spec``.

    Every map takes a tensor and answers with one, or numpy with numpy.
    """

    kind: ClassVar[str]

    @property
    def couples_labels(self) -> bool:
        """Whether a label's probability depends on the logits of other labels too."""
        return False

    @property
    def exclusive(self) -> AttributeColumns | None:
        """Groups of labels that exclude each other, where the probabilities obey them."""
        return None

    def of_label(self, column: int) -> "Link":
        """Return the link of one label's logits (..., 1); for links that couple no labels."""
        return self

    def label_log_probs(
        self, column: int, read: Callable[[int], Tensor], labels: int
    ) -> tuple[Tensor, Tensor]:
        """Return ``(log p, log(1 - p))`` (n,) of one of so many labels.

        ``read`` gives a label's logits (n,); those that the answer does not depend on are not read.
        """
        if self.couples_labels:
            every = torch.stack([read(k) for k in range(labels)], dim=1)
            log_p, log_q = self.log_probs(every)
            return log_p[:, column], log_q[:, column]
        log_p, log_q = self.of_label(column).log_probs(read(column)[:, None])
        return log_p[:, 0], log_q[:, 0]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let a link written for tensors take numpy arrays too, and then answer in numpy."""
        super().__init_subclass__(**kwargs)
        for name in MAPS & vars(cls).keys():
            setattr(cls, name, numpy_or_torch(vars(cls)[name]))

    @abstractmethod
    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(log p, log(1 - p))``, each shaped like ``logits``."""

    @numpy_or_torch
    def forward(self, logits: Tensor) -> Tensor:
        """Return the probabilities of ``logits`` (..., K)."""
        return self.log_probs(logits)[0].exp()

    @numpy_or_torch
    def decision_probs(self, logits: Tensor) -> Tensor:
        """Return the probabilities that rules are fitted to and applied to, in float32.

        They are computed in float64 whatever the logits are, so that a threshold fitted between two
        of them stays between them, and rounded, so that one that was given as 0.3 is 0.3 again.
        """
        return self.log_probs(logits.double())[0].exp().float()

    @numpy_or_torch
    def log_odds(self, logits: Tensor) -> Tensor:
        """Return ``u = log p - log(1 - p)``."""
        log_p, log_q = self.log_probs(logits)
        return log_p - log_q

    @numpy_or_torch
    def log_none(self, logits: Tensor) -> Tensor:
        """Return the log of the probability (...) that no label is present.

        Labels are taken as independent given the image, unless the link knows better.
        """
        return self.log_probs(logits)[1].sum(dim=-1)

    @numpy_or_torch
    def logits_at(self, probs: Tensor) -> Tensor:
        """Return the logits (float64) whose probabilities are ``probs``, by bisection.

        For links that act on each entry alone and rise. Used to start a classifier's biases at
        the label priors.
        """
        if not ((probs > 0) & (probs < 1)).all():
            raise ValueError(f"probs must lie strictly between 0 and 1, got {probs.tolist()}")
        goal = torch.logit(probs.double())
        low, high = torch.full_like(goal, -1e3), torch.full_like(goal, 1e3)
        for _ in range(80):
            middle = (low + high) / 2
            below = self.log_odds(middle) < goal
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def slope_and_offset(self, labels: int) -> tuple[Tensor, Tensor] | None:
        """Return (K,) numbers with ``p = sigma(slope v + offset)`` for so many labels, in float64.

        None if the link is another curve; then a linear classifier cannot do its work.
        """
        return None

    def spec(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain data (numbers, lists, nested links)."""
        return {}


class Sigmoid(Link):
    """``p = 1 / (1 + exp(-v))``, the proper link of cross-entropy."""

    kind = "sigmoid"

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return logsigmoid(logits), logsigmoid(-logits)

    def log_odds(self, logits: Tensor) -> Tensor:
        return logits

    def slope_and_offset(self, labels: int) -> tuple[Tensor, Tensor]:
        slope = torch.ones(labels, dtype=torch.float64)
        return slope, torch.zeros_like(slope)


class Softmax(Link):
    """``p = softmax(v / temperature)`` over the labels of an image: they sum to one.

    With several labels present these are not the labels' marginal probabilities.
    """

    kind = "softmax"

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    @property
    def couples_labels(self) -> bool:
        return True

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return log_softmax_and_rest(logits / self.temperature)

    def log_none(self, logits: Tensor) -> Tensor:
        return torch.full_like(logits[..., 0], float("-inf"))

    def logits_at(self, probs: Tensor) -> Tensor:
        return self.temperature * probs.double().log()

    def spec(self) -> dict[str, Any]:
        return {"temperature": self.temperature}


def consistent_log_probs(log_p: Tensor, log_q: Tensor, tree: LabelTree) -> tuple[Tensor, Tensor]:
    """Return the nearest (log p, log(1 - p)) in which no label is likelier than its parent.

    Nearest in KL divergence, see :mod:`labelwise.taxonomy`. An entry that need not move keeps both
    to the last bit.
    """
    given = log_p - log_q
    labels = len(tree.parent)
    if given.shape[-1] != labels:
        raise ValueError(f"the taxonomy is of {labels} labels, got {given.shape[-1]} columns")
    found = tree.consistent(given.reshape(-1, labels)).reshape(given.shape)
    moved = found != given
    return (
        torch.where(moved, logsigmoid(found), log_p),
        torch.where(moved, logsigmoid(-found), log_q),
    )


class Consistent(Link):
    """The probabilities of ``link`` made consistent: no label is likelier than its parent.

    ``parents`` is the column of each label's parent, -1 where it has none. An image without any
    label is one without any label at the top: the others follow from these,

        P(none) = product over the labels k without a parent of (1 - p_k),

    unless ``link`` couples labels and so knows that probability itself.
    """

    kind = "consistent"

    def __init__(self, link: Link, parents: Sequence[int]) -> None:
        super().__init__()
        self.link = link
        self.tree = LabelTree(tuple(parents))

    @property
    def couples_labels(self) -> bool:
        return True

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return consistent_log_probs(*self.link.log_probs(logits), self.tree)

    def log_none(self, logits: Tensor) -> Tensor:
        if self.link.couples_labels:
            return self.link.log_none(logits)
        return self.log_probs(logits)[1][..., self.tree.tops].sum(dim=-1)

    def label_log_probs(
        self, column: int, read: Callable[[int], Tensor], labels: int
    ) -> tuple[Tensor, Tensor]:
        if self.link.couples_labels:
            return super().label_log_probs(column, read, labels)
        family, tree = self.tree.family(column)
        pairs = [self.link.label_log_probs(k, read, labels) for k in family]
        log_p, log_q = (torch.stack(part, dim=1) for part in zip(*pairs, strict=True))
        log_p, log_q = consistent_log_probs(log_p, log_q, tree)
        return log_p[:, family.index(column)], log_q[:, family.index(column)]

    def spec(self) -> dict[str, Any]:
        return {"link": self.link, "parents": list(self.tree.parent)}


class Grouped(Link):
    """The probabilities of ``link`` within groups of labels that exclude each other.

    ``exactly_one`` and ``at_most_one`` are the columns of each group; the formulas stand in
    :mod:`labelwise.attributes`. No image is without a label where a group must have one.
    """

    kind = "grouped"

    def __init__(
        self,
        link: Link,
        exactly_one: Sequence[Sequence[int]] = (),
        at_most_one: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__()
        self.link = link
        self.columns = AttributeColumns.of(exactly_one, at_most_one)

    @property
    def couples_labels(self) -> bool:
        return True

    @property
    def exclusive(self) -> AttributeColumns:
        return self.columns

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_q = self.link.log_probs(logits)
        odds = (log_p - log_q).clamp(-FAR, FAR)
        every = range(log_p.shape[-1])
        grouped = [column for group in self.columns.groups for column in group]
        if grouped and max(grouped) >= log_p.shape[-1]:
            raise ValueError(f"the groups reach column {max(grouped)}, got {log_p.shape[-1]}")
        free = [column for column in every if column not in set(grouped)]
        parts = [(log_p[..., free], log_q[..., free])]
        parts += [log_softmax_and_rest(odds[..., list(g)]) for g in self.columns.exactly_one]
        for group in self.columns.at_most_one:
            own = odds[..., list(group)]
            pair = log_softmax_and_rest(torch.cat([own, torch.zeros_like(own[..., :1])], dim=-1))
            parts.append((pair[0][..., :-1], pair[1][..., :-1]))
        order = [*free, *grouped]
        back = [order.index(column) for column in every]
        present, absent = (torch.cat(part, dim=-1)[..., back] for part in zip(*parts, strict=True))
        return present, absent

    def log_none(self, logits: Tensor) -> Tensor:
        log_p, log_q = self.link.log_probs(logits)
        odds = (log_p - log_q).clamp(-FAR, FAR)
        grouped = {column for group in self.columns.groups for column in group}
        free = [column for column in range(log_p.shape[-1]) if column not in grouped]
        found = log_q[..., free].sum(dim=-1)
        for group in self.columns.at_most_one:
            own = odds[..., list(group)]
            none = torch.cat([own, torch.zeros_like(own[..., :1])], dim=-1)
            found = found - none.logsumexp(dim=-1)
        return found - FAR * len(self.columns.exactly_one)

    def spec(self) -> dict[str, Any]:
        return {
            "link": self.link,
            "exactly_one": [list(group) for group in self.columns.exactly_one],
            "at_most_one": [list(group) for group in self.columns.at_most_one],
        }


def check_log_probs(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Return a link's answer; one with a probability that is not a number is an error."""
    for values in (log_p, log_q):
        if values.isnan().any():
            raise CheckpointError(
                f"{int(values.isnan().sum()):,} of {values.numel():,} probabilities are not "
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
