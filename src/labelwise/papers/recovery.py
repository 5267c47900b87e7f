"""Table 1 of SPA as a computed table: does the minimiser of a loss give the true probability back?

For a label of probability eta the expected loss is stationary where

    eta present'(v) + (1 - eta) absent'(v) = 0

so v*(eta) is where the left side changes its sign, found on a fine grid by the very gradient that
training follows (a detached weight has none). A loss is strictly proper for its link if
link(v*(eta)) = eta. Minimiser and eta are one-to-one if v* is finite, rises strictly with eta, and
no stretch of logits is equally good for a label that is never (or always) there: below ASL's
margin every logit is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.links import Link, Sigmoid
from labelwise.methods import find_method, make_objective
from labelwise.objectives import Objective
from labelwise.types import DatasetFacts, Outputs, Targets

ETAS = torch.arange(1, 200, dtype=torch.float64) / 200
LOGITS = torch.linspace(-25, 25, 100_001, dtype=torch.float64)
SATURATED = 15.0  # beyond, slopes round to 0 (torch cuts softplus off at 20)
EXACT = 1e-3  # the grid's own error is below half of it
PUBLISHED = {  # strictly proper, one-to-one
    "bce": (True, True),
    "focal": (False, True),
    "asl": (False, False),
    "spa": (True, True),
}
METHODS = (
    *("bce", "focal", "focal+phi", "asl", "asl+phi", "spa"),
    *("focal-official", "focal-official+phi", "asl-official", "asl-official+phi"),
)


@dataclass(frozen=True)
class Recovery:
    """How far the link and a sigmoid are from eta at worst, and up to which eta v* is finite."""

    method: str
    link_error: float
    sigmoid_error: float
    highest: float
    one_to_one: bool

    @property
    def proper(self) -> bool:
        """Whether the link gives every eta back."""
        return self.link_error < EXACT and self.highest > ETAS[-1].item() - EXACT


def minimisers(objective: Objective, etas: Tensor = ETAS) -> Tensor:
    """Return v*(eta); infinite where the expected loss has no minimum."""
    present, absent = (_slopes(objective, label) for label in (1.0, 0.0))
    found = []
    for eta in etas.tolist():
        falling = (eta * present + (1 - eta) * absent) < 0
        last = int(falling.sum())
        found.append(float("inf") if last == len(LOGITS) else LOGITS[last].item())
    return torch.tensor(found, dtype=torch.float64)


def recovery_of(method: str) -> Recovery:
    """Return what a method with default options recovers."""
    facts = DatasetFacts(1, 1, 0.5, (0.5,))
    objective = make_objective(method, facts)
    best = minimisers(objective)
    finite = best.isfinite()
    etas, values = ETAS[finite], best[finite]
    link: Link | None = objective.link
    with torch.no_grad():
        recovered = torch.full_like(etas, torch.nan) if link is None else link(values)
    near = LOGITS.abs() < SATURATED
    absent, present = (_slopes(objective, label)[near] for label in (0.0, 1.0))
    flat = bool((absent <= 0).any() or (present >= 0).any())
    return Recovery(
        method,
        float((recovered - etas).abs().max()),
        float((Sigmoid()(values) - etas).abs().max()),
        float(etas[-1]) if len(etas) else 0.0,
        bool(finite.all() and (values.diff() > 0).all() and not flat),
    )


def recovery_rows(methods: Iterable[str] = METHODS) -> tuple[list[str], list[list[str]]]:
    """Return the header and the cells of the table, the printed verdicts beside the computed."""
    header = [
        *("loss", "link off by", "sigmoid off by", "eta reached"),
        *("proper", "printed", "one-to-one", "printed"),
    ]
    rows = []
    for method in methods:
        find_method(method)
        one = recovery_of(method)
        printed = [_mark(mark) for mark in PUBLISHED.get(method, (None, None))]
        rows.append(
            [
                method,
                f"{one.link_error:.3f}",
                f"{one.sigmoid_error:.3f}",
                "all" if one.highest > ETAS[-1].item() - EXACT else f"up to {one.highest:.3f}",
                *(_mark(one.proper), printed[0], _mark(one.one_to_one), printed[1]),
            ]
        )
    return header, rows


def _mark(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"


def _slopes(objective: Objective, label: float) -> Tensor:
    logits = LOGITS[:, None].clone().requires_grad_()
    labels = torch.full_like(logits, label)
    loss = objective(Outputs(logits), Targets(labels, None, torch.arange(len(logits))))
    (slopes,) = torch.autograd.grad(loss, logits)
    return slopes[:, 0]
