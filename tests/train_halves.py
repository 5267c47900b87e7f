"""Train every method in two processes with half a batch each: ``train_halves.py FOLDER``.

Each process is a fork of the one that is started, and saves what it found as ``RANK.pt``.
"""

import sys
from pathlib import Path

import contract
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from labelwise.learn.methods import METHODS, make_objective
from labelwise.types import Outputs, Targets

ROWS, LABELS, STEPS = 8, 5, 2
# The whole batch, and half of it in each process.
EVERYTHING = slice(0, ROWS)
HALVES = slice(0, ROWS // 2), slice(ROWS // 2, ROWS)


class Heads(nn.Module):
    """One linear map for the logits and one for each extra output, from fixed weights."""

    def __init__(self, names):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterDict(
            {name: torch.randn(LABELS, 3, generator=generator) for name in ("logits", *names)}
        )

    def forward(self, features):
        return {name: features @ weight.T for name, weight in self.weights.items()}


def train(name, rows, wrap):
    """Return losses and gradients of each step."""
    objective = make_objective(name, contract.facts(ROWS, LABELS))
    model = wrap(Heads(objective.aux))
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        features = torch.randn(ROWS, 3, generator=generator)
        labels = (torch.rand(ROWS, LABELS, generator=generator) < 0.4).float()
        observed = torch.rand(ROWS, LABELS, generator=generator) < 0.8
        index = torch.randperm(ROWS, generator=generator)
        model.zero_grad()
        aux = model(features[rows])
        outputs = Outputs(aux.pop("logits"), aux)
        loss = objective(outputs, Targets(labels[rows], observed[rows], index[rows]))
        loss.backward()
        objective.step(0.1)
        found += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    return found


def work(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    found = {name: train(name, HALVES[rank], DistributedDataParallel) for name in METHODS}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
