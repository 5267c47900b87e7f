"""Two processes with half a batch each are one process with the joined batch, for every method."""

import re
from pathlib import Path

import contract
import pytest
import torch
import train_halves
from test_catalogue import WITHOUT_DRAWS
from train_halves import EVERYTHING, HALVES, LABELS, ROWS, train

from labelwise.errors import SettingsError
from labelwise.learn.methods import METHODS, make_objective
from labelwise.learn.objectives import refuse_accumulation
from labelwise.types import Outputs, Targets

SCRIPT = Path(train_halves.__file__)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, warm_commands):
    folder = tmp_path_factory.mktemp("two")
    done = warm_commands.run([folder], folder, SCRIPT)
    assert done.returncode == 0, done.stderr
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
    refuse_accumulation(objective, name, 2 - objective.couples_batch)
    if objective.couples_batch:
        with pytest.raises(SettingsError, match=re.escape(f"method '{name}' couples")):
            refuse_accumulation(objective, name, 2)
