"""Oracles: golden vectors, loops over pairs, hand-made cases, the law of the sampled rank."""

from functools import cache

import golden
import pytest
import torch
from contract import example
from golden import assert_golden, cases, tensor
from torch import nn

from labelwise.learn.objectives import (
    LSEP,
    RML,
    ROLE,
    WARP,
    PairwiseHinge,
    TwoWay,
    role_loss,
    two_way_unit,
)
from labelwise.learn.objectives.base import split_labels
from labelwise.learn.objectives.ranking import RankWeights, harmonic_numbers, hinge_sum, sort_rivals
from labelwise.learn.objectives.role import KNOWN_LOGIT, Start, logits_of
from labelwise.types import Outputs, Targets


@pytest.mark.parametrize(
    ("method", "objective", "key"),
    [("pairwise_hinge", PairwiseHinge(), "mean_over_batch_of_pair_sum"), ("lsep", LSEP(), "mean")],
)
def test_golden_pairs(method, objective, key):
    (case,) = golden.cases(method).values()
    logits, labels, _ = golden.batch(case)
    golden.assert_golden(objective(logits, labels), case["expected"][key])


def pairwise(present, absent):
    return sum(max(0.0, 1 - p + n) for p in present for n in absent)


def weight(p, absent):
    """H of the rank: how many absent labels violate the margin."""
    return sum(1 / i for i in range(1, sum(1 - p + n > 0 for n in absent) + 1))


def warp(present, absent):
    return sum(weight(p, absent) * pairwise([p], absent) for p in present)


def rml(present, absent, s=-0.8, beta=0.9, c_u=5.0):
    def ramp(t):
        return max(0, 1 - t) - beta * max(0, s - t)

    ranked = sum(weight(p, absent) * sum(ramp(p - n) for n in absent) for p in present)
    return c_u * (sum(map(ramp, present)) + sum(ramp(-n) for n in absent)) + ranked


@pytest.mark.parametrize(
    ("objective", "formula"),
    [(PairwiseHinge(), pairwise), (WARP(rank="exact"), warp), (RML(rank="exact"), rml)],
)
def test_losses_are_their_formulas_over_pairs(objective, formula):
    logits, labels = example()
    observed = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.8
    total = 0.0
    for v, y, seen in zip(logits, labels, observed, strict=True):
        total += formula(*(v[seen & (y == side)].tolist() for side in (1, 0)))
    assert observed.any(1).all()
    assert objective(logits, labels, observed).item() == pytest.approx(total / 6, rel=1e-9)


@pytest.mark.parametrize("rank", ["exact", "sampled"])
def test_golden_ranks(rank):
    warp, rml = (list(golden.cases(name).values()) for name in ("warp", "rml"))
    exact = [WARP(rank=rank, rounding=rounding) for rounding in ("floor", "round")]
    pairs = [(objective, warp[0]) for objective in exact] + [(RML(rank=rank), case) for case in rml]
    for objective, case in pairs:
        logits, labels, _ = golden.batch(case)
        golden.assert_golden(objective(logits, labels), case["expected"]["loss"])
    # A rival exactly at the margin does not count in the rank.
    logits, labels = torch.tensor([[1.0, 0.0, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert WARP(rank="exact")(logits, labels) == 0.5


def drawn_weights(scores, times, **options):
    """Return the weights of the first label, the present one, in as many images."""
    logits = torch.tensor([scores]).expand(times, len(scores))
    present, absent = split_labels(torch.eye(1, len(scores)).expand(times, len(scores)), None)
    rivals = sort_rivals(logits, absent)
    _, count = hinge_sum(logits, rivals, 1.0)
    return RankWeights(**options)(count, rivals, present, absent)[:, 0]


def test_sampled_ranks_follow_the_law_of_drawing_without_replacement():
    """With 2 violators among 4 absent labels the first violation is at trial 1, 2 or 3."""
    weights = drawn_weights([0.0, 5.0, 5.0, -5.0, -5.0], 20000, seed=3)
    harmonics = (25 / 12, 1.5, 1)  # of ranks 4 // 1, 4 // 2, 4 // 3
    shares = [(weights - value).abs().lt(1e-5).float().mean().item() for value in harmonics]
    torch.testing.assert_close(shares, [1 / 2, 1 / 3, 1 / 6], atol=0.015, rtol=0)
    # One violator among 5 absent labels is met at trial 1 to 5; halves round up.
    for rounding, ranks in (("floor", [5, 2, 1]), ("round", [5, 3, 2, 1])):
        weights = drawn_weights([0.0, 5.0, -5.0, -5.0, -5.0, -5.0], 500, rounding=rounding)
        assert set(weights.tolist()) == set(harmonic_numbers(5, weights)[ranks].tolist())


def test_draws_change_with_steps_and_seeds_and_rest_in_eval_mode():
    logits, labels = example()
    objective = WARP()
    assert len({objective(logits, labels).item() for _ in range(4)}) > 1
    assert objective.weights.step == 4
    resting = objective.eval()
    assert resting(logits, labels) == resting(logits, labels)
    assert objective.weights.step == 4
    assert len({WARP(seed=seed)(logits, labels).item() for seed in range(6)}) > 1


CASES = golden.cases("twl")


def loss(side, logits, labels, observed=None, t_pos=4.0, t_neg=1.0, margin=0.0):
    objective = TwoWay(side=side, temperature_pos=t_pos, temperature_neg=t_neg, margin=margin)
    return objective(logits, labels, observed)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("2x4", "zero", "ignored"))])
def test_golden_terms(name):
    logits, labels, observed = golden.batch(CASES[name])
    expected = CASES[name]["expected"]
    golden.assert_golden(loss("sample", logits, labels, observed), expected["sample_term"])
    golden.assert_golden(loss("class", logits, labels, observed), expected["class_term"])
    golden.assert_golden(loss("both", logits, labels, observed), expected["total"])
    present, absent = split_labels(labels, observed)
    for dim, key in [(1, "per_sample"), (0, "per_class")]:
        units = two_way_unit(logits, present, absent, dim=dim)
        golden.assert_golden(units[present.any(dim=dim)], expected[key])


def test_golden_special_cases():
    case = CASES["single positive: temperature T_pos has no effect"]
    logits, labels, _ = golden.batch(case)
    terms = case["expected"]["sample_term"]
    for t_pos, expected in zip(case["params"]["T_pos"], terms, strict=True):
        golden.assert_golden(loss("sample", logits, labels, t_pos=t_pos), expected)
    case = CASES["hand-checkable: x_p=(0,0), x_n=(0,): softplus(T log 2)"]
    logits, labels, _ = golden.batch(case)
    golden.assert_golden(loss("sample", logits, labels), case["expected"]["closed_form"])
    case = CASES["margin bias eps (supp. eq. iii), T_pos=T_neg=1"]
    logits, labels, _ = golden.batch(case)
    terms = case["expected"]["sample_term"]
    for margin, expected in zip(case["params"]["eps"], terms, strict=True):
        golden.assert_golden(loss("sample", logits, labels, t_pos=1.0, margin=margin), expected)
    case = CASES["global shift invariance"]
    logits, labels, _ = golden.batch(case)
    golden.assert_golden(loss("both", logits, labels), case["expected"]["total"])
    case = CASES["gradient, 2x4 defaults"]
    logits, labels, _ = golden.batch(case)
    loss("both", logits, labels).backward()
    golden.assert_golden(logits.grad, case["expected"]["grad"])
    # Masks do not leak where logits pass a hundred.
    logits = torch.tensor([[0.0, -500.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(loss("sample", logits, torch.tensor([[1.0, 0, 1]])).item(), 0.0)


# ROLE against golden vectors and against torch's dense Adam over all rows.

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
