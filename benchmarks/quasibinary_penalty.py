"""Why the detached penalty of the quasibinary loss collapses, on digits that train in seconds.

    python benchmarks/quasibinary_penalty.py

Six digits are labels, the other four are images without labels. SGD as in the paper: lr 0.1,
momentum 0.9, weight decay 1e-4, batches of 64. The stop of the detached penalty is switched off.
"""

from typing import get_args

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import labelwise.learn.objectives.quasibinary as quasibinary
from labelwise.learn.objectives import Quasibinary

LABELS, TRAIN = 6, 1400


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, LABELS))


def convolutional() -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, width in [(1, 32), (32, 64), (64, 64)]:
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, LABELS))


def train(model: nn.Sequential, penalty: str, images: Tensor, digits: Tensor, epochs: int) -> str:
    labels = nn.functional.one_hot(digits, 10)[:, :LABELS].float()
    objective = Quasibinary(penalty=penalty)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    lowest = float("inf")
    for _ in range(epochs):
        for rows in torch.randperm(TRAIN).split(64):
            optimizer.zero_grad()
            objective(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            lowest = min(lowest, objective.link.log_normalizer.item())
    model.eval().requires_grad_(False)
    features = model[:-1](images[:TRAIN])
    inside = digits[TRAIN:] < LABELS
    right = model(images[TRAIN:])[inside].argmax(dim=1) == digits[TRAIN:][inside]
    common = model[-1].weight.mean(dim=0).norm().item()
    dead = (features.amax(dim=0) <= 0).sum().item()
    return (
        f"{penalty:<10} lowest log C {lowest:8.1f}   common part of the weights {common:6.2f}   "
        f"dead features {dead:2d} of 64   accuracy {right.float().mean().item():.2f}"
    )


def main() -> None:
    torch.set_num_threads(1)
    quasibinary._DRIFTED = float("-inf")
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    for make in (dense, convolutional):
        print(make.__name__)
        for penalty in get_args(quasibinary.Penalty):
            torch.manual_seed(0)
            print("  " + train(make(), penalty, images, torch.tensor(digits), 12), flush=True)


if __name__ == "__main__":
    main()
