"""Objective: a loss together with the link under which its logits are probabilities.

Called as ``objective(outputs, targets)``, or ``objective(logits, labels)``. Under distributed
training every process computes the loss of the joined batch: the gather's backward adds the W equal
gradients, and the data-parallel mean divides by W again.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import pi
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from labelwise.base.arrays import Array, mask_tensor, to_tensor
from labelwise.base.convex import ConvexLoss
from labelwise.base.distributed import gather_rows, world_size
from labelwise.errors import SettingsError, require
from labelwise.links import Link, Sigmoid, require_link
from labelwise.types import DatasetFacts, Outputs, Targets

# Random numbers that depend only on a seed and a position, not on the order of asking.
#
# The mixing function of SplitMix64 (Steele et al. 2014), mix(mix(seed) xor position), its top 24
# bits as a number in [0, 1). Tensor operations only: the same on every device, in every process of
# a distributed run, after a resumed run, and inside ``torch.compile``. Constants are 64-bit ones as
# signed integers; int64 arithmetic wraps.

GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)
BITS = 24


def uniforms(positions: Tensor, seed: int | Tensor) -> Tensor:
    """Return float32 numbers in [0, 1), one for each of the int64 ``positions``."""
    # Not the generator's sum, start + position * GAMMA: compilers take that for an index and
    # do it in integers without bound.
    mixed = _mix(_mix(positions.new_zeros(()) + seed) ^ positions)
    return _shift(mixed, 64 - BITS).to(torch.float32) * 2.0**-BITS


def normals(positions: Tensor, seed: int | Tensor) -> Tensor:
    """Return float32 standard normal numbers (Box and Muller), one for each of ``positions``."""
    radius = (-2 * torch.log(1 - uniforms(2 * positions, seed))).sqrt()
    return radius * torch.cos(2 * pi * uniforms(2 * positions + 1, seed))


def _mix(state: Tensor) -> Tensor:
    state = state + GAMMA
    state = (state ^ _shift(state, 30)) * MIX_1
    state = (state ^ _shift(state, 27)) * MIX_2
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    return (state >> bits) & ((1 << (64 - bits)) - 1)


Option = TypeVar("Option", bound=str)
Per = Literal["entry", "image"]  # of what a loss is the mean


def one_of(name: str, value: Option, known: object) -> Option:
    """Return an option if it is one of the values of a Literal."""
    known = get_args(known)
    require(value in known, f"{name} must be one of {known}, got {value!r}")
    return value


def masked_mean(values: Tensor, observed: Tensor | None) -> Tensor:
    """Return the mean over observed entries; 0, still connected to the graph, if there are none."""
    if observed is None:
        return values.sum() / max(values.numel(), 1)
    return torch.where(observed, values, 0.0).sum() / observed.to(values.dtype).sum().clamp(min=1)


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
    """Return the log-sum-exp over a mask; if it is empty finite, without gradient or meaning."""
    some = mask.any(dim=dim, keepdim=True)
    return torch.where(some, torch.where(mask, values, float("-inf")), 0.0).logsumexp(dim=dim)


def running_sum(values: Tensor, dim: int) -> Tensor:
    """Return the cumulative sum; on the CPU where the device has no deterministic kernel for it."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim).to(values.device)
    return values.cumsum(dim)


class EpochsSeen(nn.Module):
    """Counts whole epochs by the images that went by; a resumed run goes on counting."""

    images: Tensor

    def __init__(self, num_images: int) -> None:
        super().__init__()
        require(num_images >= 1, f"num_images must be at least 1, got {num_images}")
        self.num_images = num_images
        self.register_buffer("images", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Tensor) -> Tensor:
        """Return how many epochs were over before this batch, and count it in training."""
        epochs = (self.images // self.num_images).to(batch.device)
        if self.training:
            self.images.add_(len(batch))
        return epochs


class Objective(nn.Module, ABC):
    """A scalar loss of a batch, with the link of its logits (None: the logits only rank).

    ``couples_batch`` says that the loss is not a mean over micro-batches, so that accumulating
    gradients would change the method. ``aux`` names the extra head outputs the loss reads.
    ``reads_unknown`` says that unobserved entries take part in the loss (as not known to be
    present) instead of being left out. ``soft_labels`` says that labels between 0 and 1 are used as
    they are; other objectives refuse them. The objective's own parameters, if any, are trained
    without weight decay at ``lr_scale`` times the learning rate of the model.
    """

    link: Link | None
    default_link: Link | None = None
    couples_batch: bool = False
    aux: tuple[str, ...] = ()
    reads_unknown: bool = False
    soft_labels: bool = False
    lr_scale: float = 1.0

    def __init__(self, link: Link | None = None) -> None:
        super().__init__()
        self.link = link or self.default_link

    @abstractmethod
    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        """Return the scalar loss; logits and labels share one dtype, float32 or float64."""

    def forward(
        self, outputs: Outputs | Tensor, targets: Targets | Array, observed: Array | None = None
    ) -> Tensor:
        """Return the scalar loss of Outputs and Targets, or of arrays; of no images it is 0."""
        if isinstance(outputs, Tensor):
            outputs = Outputs(outputs)
        if not isinstance(outputs, Outputs):
            raise TypeError(f"logits must be a tensor or Outputs, got {type(outputs).__name__}")
        if not isinstance(targets, Targets):
            device = outputs.logits.device
            mask = None if observed is None else to_tensor(observed, device)
            targets = Targets(to_tensor(targets, device), mask)
            _check_shapes(outputs, targets)
            if not torch.compiler.is_compiling():
                self._check_values(targets)
        _check_shapes(outputs, targets)
        for name in self.aux:
            if name not in outputs.aux:
                who, given = type(self).__name__, sorted(outputs.aux) or "none"
                raise ValueError(f"{who} needs the head output {name!r}, got {given}")
        with torch.autocast(outputs.logits.device.type, enabled=False):
            outputs, targets = _joined(*_full_precision(outputs, targets))
            if outputs.logits.shape[0] == 0:  # no image of any process: nothing to learn
                return sum((value.sum() for value in outputs.aux.values()), outputs.logits.sum())
            return self.loss(outputs, targets)

    def _check_values(self, targets: Targets) -> None:
        labels = targets.labels
        if targets.observed is not None:
            labels = labels[mask_tensor(targets.observed, "observed")]
        bad = ~((labels >= 0) & (labels <= 1))
        if bad.any():
            raise ValueError(f"labels must lie in [0, 1], got {labels[bad].flatten()[0].item()}")
        soft = (labels > 0) & (labels < 1)
        if not self.soft_labels and soft.any():
            raise ValueError(
                f"{type(self).__name__} needs labels of 0 and 1, got "
                f"{labels[soft].flatten()[0].item():g}; cut soft labels, as labels > 0.5, or take "
                "an objective that uses them, such as BCE"
            )

    def step(self, lr: float) -> None:
        """Update what no optimiser does, after its step at the model's learning rate ``lr``."""

    def start_from(self, state: Mapping[str, Tensor]) -> bool:
        """Take over what an earlier objective's state knew of the images; return if it had any."""
        return False

    def shares_read(self, facts: DatasetFacts) -> tuple[float, ...] | None:
        """Return the shares in training: of all images if it reads unknown ones, else of known."""
        return facts.known_present if self.reads_unknown else facts.known_shares()

    def start_logits(self, priors: Tensor) -> Tensor:
        """Return logits (float64) of shares: the link's, where the loss is at rest, or log-odds."""
        return (self.link or Sigmoid()).logits_at(priors)

    def final_link(
        self, logits: Tensor, labels: Tensor, observed: Tensor | None = None
    ) -> Link | None:
        """Return the link to deploy, which the trained model's logits of its rows may tell."""
        return self.link

    def convex(self, targets: Targets) -> ConvexLoss[Tensor] | None:
        """Return the loss of all rows, up to a factor; None where it is not known to be convex."""
        return None

    def probabilities(self, logits: Tensor) -> Tensor:
        probs: Tensor = require_link(self.link, type(self).__name__)(logits)
        return probs

    def __add__(self, term: "Term") -> "Sum":
        return Sum(self, term)


class Term(nn.Module, ABC):
    """An addition to an objective that reads the objective's link; scale it by ``2.0 * term``."""

    couples_batch: bool = False
    soft_labels: bool = False

    @abstractmethod
    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        """Return the scalar of this term under ``link``."""

    def __rmul__(self, weight: float) -> "Weighted":
        return Weighted(weight, self)


class Weighted(Term):
    """``weight * term``."""

    def __init__(self, weight: float, term: Term) -> None:
        super().__init__()
        require(weight >= 0, f"the weight of a term must not be negative, got {weight}")
        self.weight, self.term = weight, term
        self.couples_batch, self.soft_labels = term.couples_batch, term.soft_labels

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        value: Tensor = self.term(outputs, targets, link)
        return self.weight * value


class Sum(Objective):
    """``main + terms``; the link is the main objective's, and the terms read it."""

    def __init__(self, main: Objective, *terms: Term) -> None:
        super().__init__(main.link)
        self.main, self.terms, self.aux = main, nn.ModuleList(terms), main.aux
        self.couples_batch = main.couples_batch or any(term.couples_batch for term in terms)
        self.soft_labels = main.soft_labels and all(term.soft_labels for term in terms)
        self.reads_unknown, self.lr_scale = main.reads_unknown, main.lr_scale

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        total = self.main.loss(outputs, targets)
        for term in self.terms:
            total = total + term(outputs, targets, self.link)
        return total

    def step(self, lr: float) -> None:
        self.main.step(lr)

    def start_from(self, state: Mapping[str, Tensor]) -> bool:
        own = {key.removeprefix("main."): value for key, value in state.items()}
        return self.main.start_from(own)

    def shares_read(self, facts: DatasetFacts) -> tuple[float, ...] | None:
        return self.main.shares_read(facts)

    def start_logits(self, priors: Tensor) -> Tensor:
        return self.main.start_logits(priors)

    def final_link(
        self, logits: Tensor, labels: Tensor, observed: Tensor | None = None
    ) -> Link | None:
        return self.main.final_link(logits, labels, observed)


def refuse_accumulation(objective: Objective, name: str, steps: int) -> None:
    """Raise if gradients of ``steps`` micro-batches would not add up to the method's gradient."""
    if steps > 1 and objective.couples_batch:
        raise SettingsError(
            f"method {name!r} couples the images of a batch, so gradients cannot be accumulated "
            f"over {steps} micro-batches; use 1, with a larger batch or more devices"
        )


def row_numbers(targets: Targets, reason: str) -> Tensor:
    """Return the numbers of a batch's rows in the training set; ``reason`` says who needs them."""
    if targets.index is None:
        give = "give Targets(labels, observed, index)"
        raise ValueError(f"{reason}, so targets need their index; {give}")
    return targets.index


def _check_shapes(outputs: Outputs, targets: Targets) -> None:
    logits, labels = outputs.logits, targets.labels
    if logits.ndim != 2:
        raise ValueError(f"logits must be (B, K), got shape {tuple(logits.shape)}")
    if labels.ndim == 1:
        raise ValueError(
            f"labels must be a (B, K) matrix of 0 and 1, got shape {tuple(labels.shape)}; "
            f"for class ids use torch.nn.functional.one_hot(ids, {logits.shape[1]})"
        )
    shape, given = tuple(logits.shape), tuple(labels.shape)
    if given != shape:
        raise ValueError(f"labels must have the shape of the logits {shape}, got {given}")
    known = shape if targets.observed is None else tuple(targets.observed.shape)
    if known != shape:
        raise ValueError(f"observed must have the shape of the labels {shape}, got {known}")


def _full_precision(outputs: Outputs, targets: Targets) -> tuple[Outputs, Targets]:
    dtype = torch.float64 if outputs.logits.dtype == torch.float64 else torch.float32
    aux = {name: value.to(dtype) for name, value in outputs.aux.items()}
    labels, observed = targets.labels.to(dtype), targets.observed
    if observed is not None:
        observed = observed.bool()
        # What is at an unobserved entry, NaN included, must not reach a gradient.
        labels = torch.where(observed, labels, 0.0)
    return Outputs(outputs.logits.to(dtype), aux), Targets(labels, observed, targets.index)


def _joined(outputs: Outputs, targets: Targets) -> tuple[Outputs, Targets]:
    if world_size() == 1:
        return outputs, targets
    aux = {name: gather_rows(value) for name, value in outputs.aux.items()}
    return Outputs(gather_rows(outputs.logits), aux), targets.each(gather_rows)
