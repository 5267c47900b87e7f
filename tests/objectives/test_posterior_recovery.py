"""Networks trained by every proper method find the true probabilities of ``posterior`` data."""

from functools import cache
from math import cos, pi

import pytest
import torch
from torch import nn

from labelwise.calibration import platt
from labelwise.data.generated import posterior
from labelwise.methods import METHODS, make_objective
from labelwise.objectives import PhiLink, precise_normalizer
from labelwise.types import DatasetFacts

PROPER = [name for name in METHODS if METHODS[name].probabilities == "proper"]
NEAR = 0.03  # mean |p - eta| of 6,000 training rows; an improper link is off by more than twice


@cache
def world():
    data = posterior(6000, 1000, 2000, num_labels=4, num_features=4, most=0.4, least=0.1)
    features = torch.as_tensor(data.table.images.features)
    labels = torch.as_tensor(data.table.targets()[0]).float()
    return features, labels, torch.as_tensor(data.eta)


@cache
def train(name, **options):
    features, labels, _ = world()
    objective = make_objective(name, DatasetFacts(6000, 4, 1.0), **options)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    steps = 180
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.015 * (1 + cos(pi * step / steps))
        rows = torch.arange(500 * step, 500 * step + 500) % 6000
        optimizer.zero_grad()
        objective(model(features[rows]), labels[rows]).backward()
        optimizer.step()
    return objective, model.requires_grad_(False)


def error(link, model):
    features, _, eta = world()
    return (link(model(features[7000:])) - eta[7000:]).abs().mean().item()


@pytest.mark.parametrize("name", PROPER)
def test_proper_methods_find_the_truth(name):
    objective, model = train(name)
    assert error(objective.link, model) < NEAR


def test_detached_weights_need_their_own_map():
    objective, model = train("asl+phi", weight_grad="detached")
    assert error(objective.link, model) < NEAR
    assert error(PhiLink(4, 1, 0.05, "full"), model) > 2 * NEAR


def test_the_exact_normaliser_is_at_least_as_good_as_its_average():
    features, labels, _ = world()
    _, model = train("quasibinary")
    assert error(precise_normalizer(model(features[:6000]), labels[:6000]), model) < NEAR


def test_two_way_finds_it_after_platt():
    features, labels, _ = world()
    _, model = train("two-way")
    link = platt(model(features[6000:7000]), labels[6000:7000], None)
    assert error(link, model) < NEAR


@pytest.mark.parametrize("name", ["focal", "asl", "softmax"])
def test_improper_methods_miss_it(name):
    objective, model = train(name)
    assert error(objective.link, model) > 2 * NEAR
