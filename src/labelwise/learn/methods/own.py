"""Methods of your own: a loss in a Python file, compared with the others as ``my.py:MyLoss``.

``MyLoss`` is an objective, or a function or module of (logits, labels) that returns a loss for
every entry, or one number. A class with the arguments ``num_images`` or ``num_labels`` gets those
of the training set. A loss that treats each entry alone comes with its link. For a label of
probability eta the expected loss is at rest where

    eta present'(v) + (1 - eta) absent'(v) = 0

so the log-odds that a logit v stands for are log absent'(v) - log(-present'(v)). Both slopes are
taken by autograd on a grid; the link is a table, saved with a model without any of your code.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path

import torch
from torch import Tensor

from labelwise.base.text import first_line
from labelwise.calibration.isotonic import Isotonic
from labelwise.errors import SettingsError, require
from labelwise.learn.methods.catalogue import METHODS, Honesty, Method
from labelwise.learn.objectives import Objective
from labelwise.learn.objectives.base import masked_mean
from labelwise.links import Link
from labelwise.types import Outputs, Targets

Loss = Callable[[Tensor, Tensor], Tensor]
FAR, STEP = 14.0, 0.01  # of the grid of logits: beyond, a table in float32 cannot tell p from 1
LEAST = 1e-7
SIZES = ("num_images", "num_labels")  # of the training set, which a class may ask for


def slopes(loss: Loss, logits: Tensor, label: float) -> Tensor:
    """Return the slope of a loss at each logit (N,) of a label that is present or absent."""
    given = logits[:, None].clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(given, torch.full_like(given, label)).sum(), given)
    return slope[:, 0]


def default_link(loss: Loss) -> tuple[Link | None, str]:
    """Return the link of a loss of single entries, None of any other, and what to know of it."""
    logits = torch.arange(-FAR, FAR + STEP / 2, STEP, dtype=torch.float64)
    present, absent = slopes(loss, logits, 1.0), slopes(loss, logits, 0.0)
    third = slice(None, None, 3)  # of other rows: another slope at the same logit is coupled
    ratios = [
        slopes(loss, logits[third], label) / whole[third]
        for label, whole in ((1.0, present), (0.0, absent))
    ]
    known = torch.cat([ratio[ratio.isfinite()] for ratio in ratios])
    if not len(known) or float(known.max() - known.min()) > 1e-6 * float(known.abs().max()):
        return None, "it couples entries, so its logits only rank until you calibrate"
    share = absent.clamp(min=0) / (absent.clamp(min=0) - present.clamp(max=0))
    share = share.nan_to_num(0.5).clamp(LEAST, 1 - LEAST)
    rising = share.cummax(0).values
    falls = logits[rising - share > 1e-6]
    note = f"its link has probabilities from {rising[0]:.3g} to {rising[-1]:.3g}"
    if len(falls):
        note = (
            f"its probability is not monotone: it falls between the logits {falls[0]:.2f} and "
            f"{falls[-1]:.2f}, where the link is held flat; calibrate before you use it"
        )
    return Isotonic(None, [(logits.tolist(), rising.tolist())], (), FAR), note


class OwnLoss(Objective):
    """A loss of (logits, labels), with the link that belongs to it; ``note`` says what it is."""

    soft_labels = True

    def __init__(self, function: Loss) -> None:
        link, self.note = default_link(function)
        super().__init__(link)
        self.function = function

    def loss(self, outputs: Outputs, targets: Targets) -> Tensor:
        value = self.function(outputs.logits, targets.labels)
        if value.shape == outputs.logits.shape:
            return masked_mean(value, targets.observed)
        require(
            not value.ndim and targets.observed is None,
            "your loss must return one number, or one for every entry (B, K), which unknown "
            f"labels need; got {tuple(value.shape)}",
        )
        return value


def add_method(text: str) -> tuple[str, str]:
    """Add the method of ``FILE.py:NAME`` to those that are known; return its name and a note."""
    file, _, attribute = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise SettingsError(f"{file} does not exist; name your own method as FILE.py:NAME")
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{file} is not a Python file; name your own method as FILE.py:NAME")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingsError(f"{file} cannot be run: {first_line(error)}") from error
    loss = getattr(module, attribute, None)
    if not callable(loss):
        raise SettingsError(f"{file} has no function or class {attribute!r}")
    sizes: dict[str, str] = {}
    if isinstance(loss, type):
        sizes = {name: name for name in SIZES if name in signature(loss).parameters}
    made = loss(**dict.fromkeys(sizes, 2)) if isinstance(loss, type) else loss
    make: Callable[..., Objective] = loss if isinstance(made, Objective) else partial(OwnLoss, made)
    objective = made if isinstance(made, Objective) else make()
    note = getattr(objective, "note", "an objective, with the link it names")
    honesty: Honesty = "improper" if "not monotone" in note else "proper"
    honesty = "ranking only" if objective.link is None else honesty
    name = f"{path.name}:{attribute}"
    METHODS[name] = Method(make, honesty, f"Your own: {note}.", str(path), from_facts=sizes)
    return name, note
