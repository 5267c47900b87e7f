"""Oracles: golden vectors, loops over pairs, hand-made cases, the law of the sampled rank."""

import golden
import pytest
import torch
from contract import example

from labelwise.learn.objectives import LSEP, RML, WARP, PairwiseHinge, TwoWay, two_way_unit
from labelwise.learn.objectives.base import split_labels
from labelwise.learn.objectives.ranking import RankWeights, harmonic_numbers, hinge_sum, sort_rivals


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
