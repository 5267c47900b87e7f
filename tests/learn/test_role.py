"""ROLE against golden vectors and against torch's dense Adam over all rows."""

from functools import cache

import pytest
import torch
from golden import assert_golden, cases, tensor
from torch import nn

from labelwise.learn.objectives import ROLE, role_loss
from labelwise.learn.objectives.role import KNOWN_LOGIT, Start, logits_of
from labelwise.types import Outputs, Targets

N, K, B, LR = 120, 3, 2, 0.01
STEPS = 90


def golden_inputs(case):
    inputs = case["inputs"]
    return [torch.logit(tensor(inputs[key])) for key in ("preds", "estimated")] + [
        tensor(inputs["labels_obs"])
    ]


def dataset(seed=0):
    """Return classifier weights, features, labels, observed: one positive known, some absent."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(N, 4, generator=generator)
    labels = torch.zeros(N, K)
    labels[torch.arange(N), torch.randint(K, (N,), generator=generator)] = 1
    observed = (labels == 1) | (torch.rand(N, K, generator=generator) < 0.2)
    return torch.randn(K, 4, generator=generator), features, labels, observed


def batches(steps, rows=N):
    """Return row numbers of each step; some rows are never met, one is twice in a batch."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(rows, (B,), generator=generator) for _ in range(steps)]
    return [torch.tensor([5, 5]), *drawn][:steps]


def rate(step):
    return LR * (1 + step % 3)


def train(objective, steps, *, start=0, weight=None, optimizer=None):
    """Train a linear model with ``objective``; return the model, ready to go on."""
    initial, features, labels, observed = dataset()
    weight = nn.Parameter(initial.clone()) if weight is None else weight
    sides = ([weight], 1.0), (list(objective.parameters()), objective.lr_scale)
    groups = [{"params": params, "scale": scale} for params, scale in sides if params]
    optimizer = optimizer or torch.optim.Adam(groups, lr=LR)
    for step, index in list(enumerate(batches(steps)))[start:]:
        for group in optimizer.param_groups:
            group["lr"] = rate(step) * group["scale"]
        optimizer.zero_grad()
        targets = Targets(labels[index], observed[index], index)
        objective(Outputs(features[index] @ weight.T), targets).backward()
        optimizer.step()
        objective.step(rate(step))
    return weight, optimizer


def reference(steps):
    """Return theta (N, K) and classifier after the recipe of the public code: one dense Adam."""
    weight, features, labels, observed = dataset()
    weight = nn.Parameter(weight.clone())
    free, known = Start().logits(torch.arange(N), K), KNOWN_LOGIT * (2 * labels - 1)
    theta = nn.Parameter(torch.where(observed, known, free))
    optimizer = torch.optim.Adam([{"params": [weight]}, {"params": [theta]}])
    for step, index in enumerate(batches(steps)):
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.param_groups[1]["lr"] = 10 * rate(step)
        optimizer.zero_grad()
        present = labels[index] * observed[index]
        sum(role_loss(features[index] @ weight.T, theta[index], present, 1.5)).backward()
        optimizer.step()
    return theta.detach(), weight.detach()


@pytest.mark.parametrize("eps_mode", ["code", "stable"])
def test_golden_value_and_gradients(eps_mode):
    case = cases("mlspl_role")["2x4"]
    main, reg = role_loss(*golden_inputs(case), 2.0, eps_mode)
    assert_golden(reg, case["expected"]["reg"])
    total = {"code": "total", "stable": "total_with_eps0"}[eps_mode]
    assert_golden(main + reg, case["expected"][total])
    (case,) = (case for name, case in cases("mlspl_role").items() if "gradients" in name)
    logits, theta, labels = golden_inputs(case)
    logits.requires_grad_(), theta.requires_grad_()
    sum(role_loss(logits, theta, labels, 2.0, "code")).backward()
    assert_golden(logits.grad, case["expected"]["grad_classifier_logits"])
    assert_golden(theta.grad, case["expected"]["grad_theta"])


def test_golden_start():
    case, places = cases("role_init").values()
    assert case["expected"]["observed_pos_logit"] == pytest.approx(KNOWN_LOGIT, rel=1e-12)
    assert case["expected"]["clip_logit"] == pytest.approx(logits_of(tensor(1.0)).item(), rel=1e-9)
    r = tensor(places["inputs"]["r"])
    assert_golden(Start().between(r), places["expected"]["logit"])
    assert_golden(torch.sigmoid(Start().between(r)), places["expected"]["prob"])
    low, high = case["expected"]["unobserved_logit_range"]
    start = Start(seed=5).logits(torch.arange(300), 7)
    assert low <= start.min() < 0.99 * low
    assert 0.99 * high < start.max() <= high
    assert torch.equal(Start(seed=5).logits(torch.tensor([7]), 7), start[7:8])


@cache
def straight(table):
    """Return an objective that was trained without a break, and the weight trained with it."""
    objective = ROLE(N, K, 1.5, table=table)
    return objective, train(objective, STEPS)[0].detach()


def test_every_table_follows_dense_adam():
    theta, weight = reference(STEPS)
    visited = torch.cat(batches(STEPS)).unique()
    assert len(visited) < N
    for table, tolerance in (("dense", 0.0), ("memory", 1e-5)):
        objective, found = straight(table)
        torch.testing.assert_close(found, weight, rtol=tolerance, atol=tolerance)
        off = (objective.estimates(visited) - theta[visited].sigmoid()).abs()
        assert off.quantile(0.99) <= tolerance
        assert off.max() <= 100 * tolerance  # where a gradient is rounding, Adam makes it a step
    moved = (theta - reference(0)[0]).abs().max()
    assert moved > 0.5  # the agreement is not that of two tables at rest


def test_a_killed_run_resumes_bit_for_bit():
    first, resumed, straight = (ROLE(N, K, 1.5) for _ in range(3))
    weight, optimizer = train(first, 40)
    resumed.load_state_dict(first.state_dict())
    again = torch.optim.Adam([{"params": [weight], "scale": 1.0}], lr=LR)
    again.load_state_dict(optimizer.state_dict())
    train(resumed, 60, start=40, weight=weight, optimizer=again)
    expected, _ = train(straight, 60)
    assert torch.equal(weight, expected)
    assert torch.equal(resumed.estimates(torch.arange(N)), straight.estimates(torch.arange(N)))


def test_a_device_table_compiles_to_one_graph_that_writes_nothing():
    objective = ROLE(N, K, 1.5, table="device")
    _, _, labels, observed = dataset()
    index = torch.tensor([3, 9])
    before = {name: value.clone() for name, value in objective.named_buffers()}
    run = torch.compile(objective, fullgraph=True, backend="aot_eager")
    targets = Targets(labels[index], observed[index], index)
    run(Outputs(torch.zeros(2, K, requires_grad=True)), targets).backward()
    for name, value in objective.named_buffers():  # a CUDA graph may not change what it reads
        assert torch.equal(value, before[name])
    objective.step(0.01)
    assert objective.table.clock == 1
    assert objective.table.seen.nonzero().flatten().tolist() == [3, 9]


@pytest.mark.parametrize("table", ["dense", "memory"])
def test_a_second_stage_starts_from_given_estimates(table):
    objective = ROLE(4, 2, 1.0, table=table)
    batch = Outputs(torch.zeros(1, 2)), Targets(torch.eye(1, 2), None, torch.tensor([1]))
    with torch.no_grad():  # only training with gradients is followed by a step
        objective(*batch)
    objective.eval()(*batch)
    objective.train().step(0.1)
    assert table == "dense" or objective.table.clock == 0
    objective.set_estimates(torch.tensor([3, 1]), torch.tensor([[0.2, 1.0], [0.7, 0.5]]))
    found = objective.estimates(torch.tensor([1, 3]))
    torch.testing.assert_close(found, torch.tensor([[0.7, 0.5], [0.2, 1 - 1e-5]]))
    objective(*batch)
    objective.step(0.0)  # its labels do not overwrite what was given
    torch.testing.assert_close(objective.estimates(torch.tensor([1]))[0, 0], torch.tensor(0.7))


@pytest.mark.parametrize("earlier", ["dense", "memory"])
@pytest.mark.parametrize("later", ["dense", "memory"])
def test_a_second_stage_takes_over_what_the_first_one_met(earlier, later):
    first, second = ROLE(N, K, 1.5, table=earlier), ROLE(N, K, 1.5, table=later, seed=7)
    train(first, 30)
    before = second.estimates(torch.arange(N))
    assert second.start_from(first.state_dict())
    met = torch.cat(batches(30)).unique()
    expected = before.index_copy(0, met, first.estimates(met))
    torch.testing.assert_close(second.estimates(torch.arange(N)), expected, atol=1e-6, rtol=0)
    assert not second.start_from({"link.scale": torch.ones(())})


def test_the_table_in_memory_stays_off_the_device_and_out_of_the_optimiser():
    places = {"memory": ("cpu", torch.float32), "device": ("meta", torch.float64)}
    for table, place in places.items():
        objective = ROLE(10, 3, 1.5, table=table).to("meta", torch.float64)
        moments = objective.table.moments
        assert (moments.device.type, moments.dtype) == place
        assert not list(objective.parameters())
