"""Noised and smooth top-k losses against golden vectors, enumeration and their limits."""

from itertools import combinations
from math import log

import pytest
import torch
from golden import assert_golden, cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from labelwise import objectives
from labelwise.objectives.softmax import log_symmetric_sums
from labelwise.types import Outputs, Targets


def random_batch(seed, rows=4, labels=6):
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(rows, labels, generator=generator, dtype=torch.float64)
    return scores, one_hot(torch.randint(labels, (rows,), generator=generator), labels)


def hard_limit(scores, labels, k, alpha=1.0):
    """Return max(0, alpha + (k-th largest other score - score of the label) / k), slowly."""
    losses = []
    for row, truth in zip(scores, labels, strict=True):
        rivals = sorted(row[truth == 0].tolist(), reverse=True)
        losses.append(max(0.0, alpha + (rivals[k - 1] - row[truth == 1].item()) / k))
    return torch.tensor(losses, dtype=torch.float64)


def test_golden_noised():
    case = cases("noised_topk")["k=2 explicit noise"]
    scores, noise = tensor(case["inputs"]["scores"]), tensor(case["inputs"]["noise_Z"])
    losses = objectives.noised_top_k_loss(scores, noise, 2)
    assert_golden(losses[[0, 1], [0, 2]], case["expected"]["per_sample"])


def test_gradient_is_the_mean_of_the_chosen_one_hots():
    scores = torch.tensor([[0.0, 0.1, 0.2, -9.0]], dtype=torch.float64, requires_grad=True)
    noise = torch.randn(1, 4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objectives.noised_top_k_loss(scores, noise, 1)[0, 3].backward()
    chosen = (scores.detach().unsqueeze(2) + noise).argsort(dim=1, descending=True)[0, 1]
    expected = one_hot(chosen, 4).double().mean(0) - torch.tensor([0, 0, 0, 1.0])
    torch.testing.assert_close(scores.grad[0], expected)


def test_the_noise_changes_with_the_step_and_comes_back_with_the_state():
    batch = random_batch(1)
    objective, other = (objectives.NoisedTopK(2, eps=1.0, seed=seed) for seed in (3, 4))
    first, second = objective(*batch), objective(*batch)
    assert first != second
    assert other(*batch) != first
    objective.load_state_dict(objectives.NoisedTopK(2).state_dict())
    assert objective(*batch) == first
    objective.eval()
    assert objective(*batch) == objective(*batch) == second


@pytest.mark.parametrize("name", cases("smooth_topk"))
def test_golden_smooth(name):
    case = cases("smooth_topk")[name]
    scores, params = tensor([case["inputs"]["scores"]]), case["params"]
    labels = one_hot(torch.tensor([case["inputs"]["label"]]), 5)
    objective = objectives.SmoothTopK(params["k"], tau=params["tau"], alpha=params["alpha"])
    assert_golden(objective(scores, labels), case["expected"]["loss"])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.data())
def test_symmetric_sums_are_sums_over_subsets(seed, count, data):
    k = data.draw(st.integers(1, count))
    generator = torch.Generator().manual_seed(seed)
    logs = 3 * torch.randn(1, count, generator=generator, dtype=torch.float64)
    for degree, found in zip((k - 1, k), log_symmetric_sums(logs, k), strict=True):
        subsets = [logs[0, list(subset)].sum() for subset in combinations(range(count), degree)]
        torch.testing.assert_close(found[0], torch.stack(subsets).logsumexp(0))


def test_hard_images_take_the_limit_and_it_fits_the_smooth_form():
    k, tau = 2, 0.1
    gap = k * tau * log(1000)
    row = torch.tensor([3.0, 3.0, 3.0 - gap - 1e-3, 0.5, 0.2], dtype=torch.float64)
    easy = row.clone()
    easy[2] += 2e-3  # just below the gap: smooth
    for label in range(5):
        labels = one_hot(torch.tensor([label]), 5)
        found = objectives.SmoothTopK(k, tau=tau)(row[None], labels)
        torch.testing.assert_close(found, hard_limit(row[None], labels, k).mean())
        smooth = objectives.smooth_top_k_loss(easy[None], labels, k, tau, 1.0)[0, label]
        assert smooth != hard_limit(easy[None], labels, k)[0]
        torch.testing.assert_close(smooth, found, atol=2 * tau * log(2), rtol=0)


@pytest.mark.parametrize("objective", [objectives.NoisedTopK(2, eps=0.0), objectives.SmoothTopK(2)])
def test_images_without_a_label_are_left_out_and_several_take_their_mean(objective):
    scores, labels = random_batch(4)
    alone = objective(scores[1:], labels[1:])
    none = labels.clone()
    none[0] = 0
    torch.testing.assert_close(objective(scores, none), alone)
    both = torch.zeros(1, 6)
    both[0, :2] = 1
    assert objective(scores[:1], both) > 0


def test_ten_thousand_labels_in_single_precision():
    scores = torch.randn(2, 10_000, requires_grad=True)
    labels = one_hot(torch.tensor([0, 1]), 10_000)
    loss = objectives.SmoothTopK(5, tau=0.1)(scores, labels)
    loss.backward()
    exact = objectives.SmoothTopK(5, tau=0.1)(scores.detach().double(), labels)
    torch.testing.assert_close(loss.detach().double(), exact, rtol=1e-5, atol=0)
    assert scores.grad.isfinite().all()


# Average-K two-head loss against golden vectors and a loop over the batch.


@pytest.mark.parametrize("name", cases("avgk_loss"))
def test_golden(name):
    case = cases("avgk_loss")[name]
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    logits, proposal = tensor(inputs["ml_logits"]), tensor(inputs["sccp_logits"])
    labels = one_hot(torch.tensor(inputs["labels"]), 4).double()
    parts = objectives.average_k_loss(logits, proposal, labels, params["K"], params["alpha"])
    for part, key in zip(parts, ("ce", "bce_obs", "bce_pseudo_pos", "bce_neg"), strict=True):
        assert_golden(part, expected[key])
    outputs = Outputs(logits, {"proposal": proposal})
    loss = objectives.AverageK(params["K"], alpha=params["alpha"])(outputs, Targets(labels))
    assert_golden(loss, expected["total"])
    chosen = objectives.average_k_candidates(proposal, labels, params["K"])
    assert [row.nonzero().flatten().tolist() for row in chosen] == expected["candidates"]


def test_ties_still_choose_exactly_as_many():
    truth = one_hot(torch.tensor([0, 1, 2, 3]), 5)
    assert objectives.average_k_candidates(torch.zeros(4, 5), truth, 2.5).sum() == 6
