"""Two processes with half a batch each are one process with the joined batch, for every method."""

import re
from pathlib import Path

import contract
import pytest
import torch
import torch.distributed as dist
from test_catalogue import WITHOUT_DRAWS
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from labelwise.errors import SettingsError
from labelwise.methods import METHODS, make_objective
from labelwise.objectives import refuse_accumulation
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
    """Return losses, gradients of each step and the objective's final state."""
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
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    found = {name: train(name, HALVES[rank], DistributedDataParallel) for name in METHODS}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_are_one(two_processes, name):
    expected = train(name, EVERYTHING, lambda model: model)
    for found in two_processes:
        torch.testing.assert_close(found[name], expected)


@pytest.mark.parametrize("name", METHODS)
def test_couples_batch_says_whether_halves_add_up(name):
    """Without gathering, the mean loss of two halves is the loss of the whole only if uncoupled."""
    options = WITHOUT_DRAWS.get(name, {})
    objective = make_objective(name, contract.facts(ROWS, LABELS), **options).eval()
    logits, _ = contract.example(rows=ROWS, labels=LABELS)
    logits[HALVES[0]] -= 4  # too low
    logits[HALVES[1]] *= 3  # surer of itself
    # One label in each row: different denominators are not what is meant.
    labels = torch.eye(LABELS).repeat(2, 1)[:ROWS].double()
    observed = labels == 1 if objective.reads_unknown else None

    def loss(rows):
        aux = {name: logits[rows].roll(1, 1) for name in objective.aux}
        index = torch.arange(ROWS)[rows]
        seen = None if observed is None else observed[rows]
        return objective(Outputs(logits[rows], aux), Targets(labels[rows], seen, index))

    if objective.reads_unknown:  # what waits for an epoch has its turn
        objective.train()
        loss(EVERYTHING)
        objective.eval()
    mean = torch.stack([loss(rows) for rows in HALVES]).mean()
    assert torch.isclose(mean, loss(EVERYTHING)) == (not objective.couples_batch)


@pytest.mark.parametrize("name", METHODS)
def test_coupled_methods_refuse_accumulation_by_name(name):
    objective = make_objective(name, contract.facts(ROWS, LABELS))
    refuse_accumulation(objective, name, 1)
    if not objective.couples_batch:
        refuse_accumulation(objective, name, 2)
        return
    with pytest.raises(SettingsError, match=re.escape(f"method '{name}' couples")):
        refuse_accumulation(objective, name, 2)
