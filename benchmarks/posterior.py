"""How far are the probabilities of each method from the truth, where the truth is known?

    python benchmarks/posterior.py                        one seed; --seeds 3 for the docs' table

Trains one small network a method on ``posterior`` data, whose label probabilities eta(x) are known
in closed form. Prints the mean of |p - eta| over test rows and labels, and by which factor the
probabilities are too large on the whole.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from statistics import mean

import torch
from torch import Tensor, nn

from labelwise.calibration import platt
from labelwise.learn.methods import make_objective
from labelwise.learn.objectives import Objective, PhiLink, precise_normalizer
from labelwise.links import Link
from labelwise.tables.generated import posterior
from labelwise.types import DatasetFacts


@dataclass(frozen=True)
class Split:
    features: Tensor
    labels: Tensor
    eta: Tensor


FitLink = Callable[[Objective, nn.Module, dict[str, Split]], Link]


def own(objective: Objective, model: nn.Module, data: dict[str, Split]) -> Link:
    assert objective.link is not None
    return objective.link


def printed(objective: Objective, model: nn.Module, data: dict[str, Split]) -> Link:
    return PhiLink(4.0, 1.0, 0.05, "full")


def precise(objective: Objective, model: nn.Module, data: dict[str, Split]) -> Link:
    return precise_normalizer(model(data["train"].features), data["train"].labels)


def calibrated(objective: Objective, model: nn.Module, data: dict[str, Split]) -> Link:
    return platt(model(data["val"].features), data["val"].labels, None)


ROWS: list[tuple[str, str, dict[str, str], FitLink]] = [
    ("BCE", "bce", {}, own),
    ("SPA", "spa", {}, own),
    ("SPA + LPR", "spa+lpr", {}, own),
    ("focal + phi", "focal+phi", {}, own),
    ("ASL + phi (full gradient)", "asl+phi", {}, own),
    ("ASL + phi (detached, right map)", "asl+phi", {"weight_grad": "detached"}, own),
    ("ASL + phi (detached, printed map)", "asl+phi", {"weight_grad": "detached"}, printed),
    ("quasibinary", "quasibinary", {}, precise),
    ("two-way + Platt", "two-way", {}, calibrated),
    ("focal, sigmoid", "focal", {}, own),
    ("ASL, sigmoid", "asl", {}, own),
    ("softmax", "softmax", {}, own),
]


def load(seed: int) -> dict[str, Split]:
    data = posterior(50_000, 10_000, 10_000, seed=seed)
    labels, _ = data.table.targets()
    features = torch.as_tensor(data.table.images.features)
    eta = torch.as_tensor(data.eta)
    splits = {}
    for name in ("train", "val", "test"):
        rows = torch.as_tensor(data.table.split == name)
        splits[name] = Split(features[rows], torch.as_tensor(labels)[rows].float(), eta[rows])
    return splits


def train(objective: Objective, split: Split, epochs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    rows, width = split.features.shape
    model = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, split.labels.shape[1]))
    optimizer = torch.optim.Adam(model.parameters())
    steps, step = epochs * (rows // 500), 0
    for _ in range(epochs):
        for batch in torch.randperm(rows).split(500):
            optimizer.param_groups[0]["lr"] = 0.005 * (1 + cos(pi * step / steps))
            optimizer.zero_grad()
            objective(model(split.features[batch]), split.labels[batch]).backward()
            optimizer.step()
            step += 1
    return model.requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    worlds = [load(seed) for seed in range(options.seeds)]
    print(f"{'method':<36}{'mean |p - eta|':>16}{'mean p / mean eta':>20}")
    for title, name, knobs, fit_link in ROWS:
        errors, ratios = [], []
        for seed, data in enumerate(worlds):
            rows, columns = data["train"].labels.shape
            facts = DatasetFacts(rows, columns, data["train"].labels.sum().item() / rows)
            objective = make_objective(name, facts, **knobs)
            model = train(objective, data["train"], options.epochs, seed)
            link = fit_link(objective, model, data)
            probs, eta = link(model(data["test"].features)).double(), data["test"].eta
            errors.append((probs - eta).abs().mean().item())
            ratios.append((probs.mean() / eta.mean()).item())
        print(f"{title:<36}{mean(errors):>16.4f}{mean(ratios):>20.3f}", flush=True)


if __name__ == "__main__":
    main()
