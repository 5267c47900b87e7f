"""Oracles: golden vectors, scipy's bounded minimiser, and a peer's wrong answer."""

import numpy as np
import pytest
import torch
from calibration_problems import log_loss, problem
from golden import assert_golden, cases, tensor
from scipy.optimize import minimize_scalar

from labelwise.calibration import Temperature, temperature
from labelwise.links import Sigmoid, Softmax


def test_golden():
    case = cases("temperature_scaling")["sigmoid, 8 pairs"]
    logits, labels = tensor(case["inputs"]["logits"]), tensor(case["inputs"]["targets"])
    link = temperature(logits, labels, Sigmoid())
    assert_golden(tensor(link.temperature), case["expected"]["T"])
    assert_golden(tensor(log_loss(Sigmoid(), logits, labels)), case["expected"]["nll_before"])
    assert_golden(tensor(log_loss(link, logits, labels)), case["expected"]["nll_after"])


@pytest.mark.parametrize("link", [Sigmoid(), None])
@pytest.mark.parametrize(("scale", "images"), [(0.1, 400), (30.0, 400), (1.0, 20_000)])
def test_sigmoid_is_scipys_minimum(scale, images, link):
    logits, labels, observed = problem(images, unknown=link is None)
    logits = logits * scale
    link = temperature(logits, labels, link, observed)

    def loss(a):
        return log_loss(Temperature(Sigmoid(), 1 / a, 1e9), logits, labels, observed)

    best = minimize_scalar(loss, bounds=(1e-3, 50), method="bounded", options={"xatol": 1e-10})
    assert link.temperature == pytest.approx(1 / best.x, rel=1e-5)


def test_softmax_is_scipys_minimum_and_stays_a_softmax():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(300, 6)) * 3)
    labels = torch.from_numpy(rng.random((300, 6)) < logits.softmax(1).numpy() ** 0.5)
    labels[:40] = False  # images without labels have no target
    link = temperature(logits, labels, Softmax())
    assert isinstance(link, Softmax)

    def loss(a):
        y = labels[labels.any(1)].double()
        log_p = (a * logits[labels.any(1)]).log_softmax(1)
        return -(y * log_p).sum(1).div(y.sum(1)).mean().item()

    best = minimize_scalar(loss, bounds=(1e-3, 50), method="bounded", options={"xatol": 1e-10})
    assert link.temperature == pytest.approx(1 / best.x, rel=1e-5)
    warm = temperature(logits, labels, Softmax(temperature=4.0))
    assert warm.temperature == pytest.approx(link.temperature, rel=1e-9)


def test_separable_scores_are_capped_and_reversed_ones_flattened_with_a_warning():
    logits = torch.tensor([[-1.0, 1], [-2, 2], [-3, 3]])
    labels = torch.tensor([[0, 1]] * 3)
    with pytest.warns(
        UserWarning, match=r"cannot tell how sure to be: the temperature is the least"
    ):
        assert temperature(logits, labels, Sigmoid()).temperature == pytest.approx(0.01)
    with pytest.warns(UserWarning, match="do not rise with the labels"):
        link = temperature(logits, 1 - labels, Sigmoid())
    assert link.temperature == pytest.approx(1e6)
    torch.testing.assert_close(link(logits), torch.full((3, 2), 0.5), atol=1e-5, rtol=0)
    with pytest.warns(UserWarning, match="do not rise"):
        temperature(-logits, labels, Softmax())
