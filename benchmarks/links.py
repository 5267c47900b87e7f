"""Write the table of evidence/links.md: what the optimum of every method reads as.

python benchmarks/links.py            write it (two minutes on one core)
python benchmarks/links.py --check    fail if the page has another

Three images and three labels that are independent given the image, with the probabilities 0.1, 0.5
and 0.9 in turn; every set of labels occurs as often as these say, so the loss of the rows is the
exact expected loss. Free logits are fitted to it by gradient steps (a detached weight has no value
to search along). Of a proper method its link reads 0.1, 0.5, 0.9.
"""

import sys
from dataclasses import dataclass
from itertools import product
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor

from labelwise.learn.methods import METHODS, READINGS, find_method, make_objective
from labelwise.types import DatasetFacts, Outputs, Targets

PAGE = Path(__file__).parents[1] / "evidence" / "links.md"
MARK = "<!-- table: python benchmarks/links.py -->\n"
CHANCES = (0.1, 0.5, 0.9)
ROWS = 200  # of each image: every product of three chances is a multiple of 1 / 200
ROUNDS = 3
WITHOUT_A_ZERO = ("softmax", "quasibinary")  # links of logits that may all move together


@dataclass(frozen=True)
class MethodReading:
    """What true probabilities of 0.1, 0.5, 0.9 read as; None where logits have no such reading."""

    method: str
    link: str | None
    own: tuple[float, ...] | None
    by_sigmoid: tuple[float, ...] | None


def _expectation() -> tuple[Tensor, Tensor, Tensor]:
    """Return the chances (3, 3), and of all rows the image (R,) and the labels (R, 3)."""
    chances = torch.tensor([[*CHANCES[k:], *CHANCES[:k]] for k in range(3)], dtype=torch.float64)
    images, rows = [], []
    for image, chance in enumerate(chances):
        for labels in product((0.0, 1.0), repeat=3):
            given = torch.tensor(labels, dtype=torch.float64)
            share = torch.where(given == 1, chance, 1 - chance).prod().item()
            images += [image] * round(ROWS * share)
            rows += [given] * round(ROWS * share)
    return chances, torch.tensor(images), torch.stack(rows)


def reading_of(method: str, *, steps: int = 200) -> MethodReading:
    """Return what the optimum of a method with default options reads as."""
    if find_method(method).probabilities == "ranking only":
        return MethodReading(method, None, None, None)
    chances, images, labels = _expectation()
    torch.manual_seed(0)
    objective = make_objective(method, DatasetFacts(len(images), 3, 1.5, (0.5,) * 3))
    logits = torch.zeros_like(chances, requires_grad=True)
    others = {name: torch.zeros_like(chances, requires_grad=True) for name in objective.aux}
    index = torch.arange(len(images))
    for step in range(ROUNDS * steps):
        if step % steps == 0:  # without the memory of steep slopes, flat ones are left too
            optimizer = torch.optim.Adam([logits, *others.values()], betas=(0.8, 0.99))
        rate = 0.15 * (1 + cos(pi * (step % steps) / steps)) + 1e-5
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        aux = {name: value[images] for name, value in others.items()}
        objective(Outputs(logits[images], aux), Targets(labels, None, index)).backward()
        optimizer.step()
        objective.step(rate)
    fitted = logits.detach()
    link = objective.final_link(fitted[images], labels)
    if link is None:
        raise TypeError(f"{method} must have a link: {find_method(method).probabilities}")
    own = _by_chance(link(fitted), chances)
    zero = link.kind not in WITHOUT_A_ZERO
    by_sigmoid = _by_chance(torch.sigmoid(fitted), chances) if zero else None
    return MethodReading(method, link.kind, own, by_sigmoid)


def _by_chance(probs: Tensor, chances: Tensor) -> tuple[float, ...]:
    return tuple(probs[chances == chance].mean().item() for chance in CHANCES)


def readings_table() -> str:
    """Return the methods, what their optimum reads as, and why, as a Markdown table."""
    lines = [
        "| method | proper | link | its link reads 0.1, 0.5, 0.9 as | a sigmoid reads them as | "
        "why |",
        "|---|---|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        one = reading_of(name)
        proper = {"proper": "yes", "improper": "no", "ranking only": "no link"}
        cells = [
            *(f"`{name}`", proper[method.probabilities], one.link or "–"),
            *(_shown(one.own), _shown(one.by_sigmoid), READINGS[name]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(values: tuple[float, ...] | None) -> str:
    return "–" if values is None else ", ".join(f"{value:.2f}" for value in values)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARK.strip()!r}")
    made = f"{before}{mark}\n{readings_table()}"
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        raise SystemExit(f"{PAGE} has another table; run python benchmarks/links.py")


if __name__ == "__main__":
    main()
