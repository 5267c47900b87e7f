"""Average-K two-head loss against golden vectors and a loop over the batch."""

from math import log

import pytest
import torch
from golden import assert_golden, cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, one_hot, softplus

from labelwise.networks.heads import LinearHead, TwoHead
from labelwise.objectives import WAN, AverageK, average_k_candidates, average_k_loss
from labelwise.types import Outputs, Targets


def random_batch(seed, rows, labels):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, rows, labels, generator=generator, dtype=torch.float64)
    return *scores, torch.randint(labels, (rows,), generator=generator)


@pytest.mark.parametrize("name", cases("avgk_loss"))
def test_golden(name):
    case = cases("avgk_loss")[name]
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    logits, proposal = tensor(inputs["ml_logits"]), tensor(inputs["sccp_logits"])
    labels = one_hot(torch.tensor(inputs["labels"]), 4).double()
    parts = average_k_loss(logits, proposal, labels, params["K"], params["alpha"])
    for part, key in zip(parts, ("ce", "bce_obs", "bce_pseudo_pos", "bce_neg"), strict=True):
        assert_golden(part, expected[key])
    objective = AverageK(params["K"], alpha=params["alpha"])
    assert_golden(
        objective(Outputs(logits, {"proposal": proposal}), Targets(labels)), expected["total"]
    )
    chosen = average_k_candidates(proposal, labels, params["K"])
    assert [row.nonzero().flatten().tolist() for row in chosen] == expected["candidates"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(2, 7), st.data())
def test_equals_a_loop_that_sorts_the_batch(seed, rows, labels, data):
    k = data.draw(st.floats(1, labels))
    alpha = data.draw(st.sampled_from([0.1, 1.0, 5.0]))
    logits, proposal, ids = random_batch(seed, rows, labels)
    truth = one_hot(ids, labels).double()
    probs = torch.softmax(proposal, dim=1)
    others = [(i, j) for i in range(rows) for j in range(labels) if j != ids[i]]
    others.sort(key=lambda entry: -probs[entry])
    cut = round((k - 1) * rows)
    candidates, rest = others[:cut], others[cut:]

    def mean(entries, sign):
        values = [softplus(sign * logits[entry]) for entry in entries]
        return sum(values) / len(values) if values else torch.tensor(0.0)

    expected = cross_entropy(proposal, ids) + mean([(i, ids[i]) for i in range(rows)], -1)
    expected = expected + alpha * (mean(candidates, -1) + mean(rest, 1))
    mask = average_k_candidates(proposal, truth, k)
    assert mask.sum() == cut
    assert not mask[truth == 1].any()
    parts = average_k_loss(logits, proposal, truth, k, alpha)
    torch.testing.assert_close(sum(parts), expected)


def test_one_label_an_image_is_cross_entropy_plus_assume_negative():
    logits, proposal, ids = random_batch(0, 5, 4)
    truth = one_hot(ids, 4).double()
    loss = AverageK(1)(Outputs(logits, {"proposal": proposal}), Targets(truth))
    expected = cross_entropy(proposal, ids) + WAN(per="image")(logits, truth)
    torch.testing.assert_close(loss, expected)
    zeros = Outputs(torch.zeros(2, 3), {"proposal": torch.zeros(2, 3)})
    assert_golden(AverageK(1)(zeros, Targets(torch.eye(3)[:2])).double().round(decimals=5),
          round(log(3) + 2 * log(2), 5))  # fmt: skip


def test_ties_still_choose_exactly_as_many():
    truth = one_hot(torch.tensor([0, 1, 2, 3]), 5)
    assert average_k_candidates(torch.zeros(4, 5), truth, 2.5).sum() == 6


def test_the_selection_sends_no_gradient_but_both_heads_learn():
    head = TwoHead(3, 4)
    truth = one_hot(torch.tensor([0, 3]), 4)
    AverageK(2)(head(torch.randn(2, 3, 2, 2)), Targets(truth)).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())
    logits, proposal, ids = random_batch(1, 3, 4)
    proposal.requires_grad_()
    parts = average_k_loss(logits, proposal, one_hot(ids, 4).double(), 2, 1.0)
    assert parts.proposal.requires_grad
    assert not parts.present.requires_grad
    assert not parts.candidates.requires_grad


def test_refuses_other_heads_and_bad_options():
    with pytest.raises(ValueError, match="AverageK needs the head output 'proposal', got none"):
        AverageK(2)(LinearHead(3, 4)(torch.randn(2, 3, 1, 1)), Targets(torch.eye(4)[:2]))
    with pytest.raises(ValueError, match=r"k must be at least 1 .* got 0.5"):
        AverageK(0.5)
    with pytest.raises(ValueError, match="alpha not negative, got 2 and -1"):
        AverageK(2, alpha=-1)
    with pytest.raises(ValueError, match="between 1 and the 3 labels, got 4"):
        average_k_candidates(torch.zeros(2, 3), torch.zeros(2, 3), 4)
