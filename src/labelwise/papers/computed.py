"""COMPUTED: tables of the papers that no training is needed for.

``001-table1``    which losses recover a probability, from formulas (``recovery``)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.learn.methods import make_objective
from labelwise.learn.methods.own import slopes
from labelwise.learn.objectives import Objective
from labelwise.links import Link, Sigmoid
from labelwise.papers.protocols import STATED
from labelwise.types import DatasetFacts, Outputs, Targets

# Table 1 of SPA: for a label of probability eta the expected loss is stationary where
#
#     eta present'(v) + (1 - eta) absent'(v) = 0
#
# v*(eta) is where the left side changes its sign on a fine grid. A loss is strictly proper for its
# link if link(v*(eta)) = eta, one-to-one if v* is finite, rises with eta, and no stretch of
# logits is equally good for a label that is never (or always) there.

ETAS = torch.arange(1, 200, dtype=torch.float64) / 200
LOGITS = torch.linspace(-25, 25, 100_001, dtype=torch.float64)
SATURATED = 15.0  # beyond, slopes round to 0 (torch cuts softplus off at 20)
EXACT = 1e-3  # the grid's own error is below half of it
PRINTED_RECOVERY: dict[str, list[bool]] = STATED["computed"]["recovery"]  # proper, one-to-one
METHODS: list[str] = STATED["computed"]["methods"]


@dataclass(frozen=True)
class Computed:
    """What came out: header, rows, and sentences below the table."""

    header: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()


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
        return self.link_error < EXACT and self.highest > ETAS[-1].item() - EXACT


def minimisers(objective: Objective, etas: Tensor = ETAS) -> Tensor:
    """Return v*(eta); infinite where the expected loss has no minimum."""
    present, absent = (_slopes(objective, label) for label in (1.0, 0.0))
    grid = torch.cat([LOGITS, torch.tensor([torch.inf], dtype=torch.float64)])
    lasts = [int((eta * present + (1 - eta) * absent < 0).sum()) for eta in etas.tolist()]
    return grid[lasts]


def recovery_of(method: str) -> Recovery:
    """Return what a method with default options recovers."""
    objective = make_objective(method, DatasetFacts(1, 1, 0.5, (0.5,)))
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
        float(etas[-1]) if finite.all() or link is None else float(link(LOGITS).max()),
        bool(finite.all() and (values.diff() > 0).all() and not flat),
    )


def _recovery() -> Computed:
    header = ["loss", "link off by", "sigmoid off by", "eta reached", "proper", "printed"]
    header, rows = [*header, "one-to-one", "printed"], []
    for method in METHODS:
        recovery = recovery_of(method)
        printed: Sequence[bool | None] = PRINTED_RECOVERY.get(method) or (None, None)
        errors = f"{recovery.link_error:.3f}", f"{recovery.sigmoid_error:.3f}"
        whole = recovery.highest > ETAS[-1].item() - EXACT
        reached = "all" if whole else f"up to {recovery.highest:.3f}"
        partly = recovery.link_error < EXACT and not whole
        proper = f"below {recovery.highest:.3f}" if partly else _mark(recovery.proper)
        others = map(_mark, (printed[0], recovery.one_to_one, printed[1]))
        rows.append([method, *errors, reached, proper, *others])
    return Computed(header, rows)


def _mark(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"


def _slopes(objective: Objective, label: float) -> Tensor:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        targets = Targets(labels, None, torch.arange(len(labels)))
        return torch.as_tensor(objective(Outputs(logits), targets))

    return slopes(loss, LOGITS, label)


@dataclass(frozen=True)
class ComputedTable:
    """A table that is computed."""

    title: str
    compute: Callable[[], Computed]


COMPUTED: dict[str, ComputedTable] = {
    "001-table1": ComputedTable(
        "SPA and LPR, Table 1: does the minimiser give eta back?", _recovery
    ),
}
