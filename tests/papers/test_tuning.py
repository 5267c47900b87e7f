"""Tuning: every try of every method can be built and gives a finite loss."""

import contract
import pytest
import torch
from tiny_run import tiny_settings

from labelwise.methods import METHODS, make_objective
from labelwise.papers.compare import tries

ROWS = 400
FACTS = contract.facts(ROWS, 5)
TUNED = [(name, option) for name, method in METHODS.items() for option in method.tuning]


def loss(name, **options):
    """Return the loss of a later epoch, some labels unknown: what waits for some has its turn."""
    objective = make_objective(name, FACTS, **options)
    logits, labels = contract.example(ROWS, 5)
    observed = torch.rand(ROWS, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    for _ in range(5):
        contract.value(objective, logits, labels, observed)
        objective.step(0.1)
    return contract.value(objective, logits, labels, observed)


@pytest.mark.parametrize("name", METHODS)
def test_every_try_of_every_method_can_be_built(name):
    found = list(tries(tiny_settings(method=name), 20))
    assert found[0].options == {}
    for settings in found:
        assert settings.options.keys() == (
            METHODS[name].tuning.keys() if settings != found[0] else set()
        )
        make_objective(name, FACTS, **settings.options)
    assert torch.isfinite(loss(name, **found[-1].options))
    tried = {
        option: {settings.options[option] for settings in found[1:]}
        for option in METHODS[name].tuning
    }
    assert tried == {option: set(values) for option, values in METHODS[name].tuning.items()}


@pytest.mark.parametrize(("name", "option"), TUNED)
def test_a_tuned_option_matters_and_its_default_is_among_the_values(name, option):
    method = METHODS[name]
    assert method.options[option] in method.tuning[option]
    losses = {loss(name, **{option: value}).item() for value in method.tuning[option]}
    assert len(losses) == len(method.tuning[option])


def test_what_a_user_fixes_is_not_tuned():
    found = list(tries(tiny_settings(method="rml", options={"beta": 0.3}), 5))
    assert {settings.options["beta"] for settings in found} == {0.3}
