"""Softmax and its forms for images without labels, against golden vectors."""

from math import exp, log, log1p

import golden
import pytest
import torch
from contract import example
from torch.nn.functional import cross_entropy, log_softmax

from labelwise.methods import make_objective
from labelwise.objectives import (
    DistributionBalanced,
    MaxConfidence,
    SoftmaxCrossEntropy,
    SoftmaxOrNone,
    UniformKL,
    max_confidence,
    uniform_kl,
)
from labelwise.types import DatasetFacts, Outputs, Targets


def test_golden_softmax():
    (case,) = golden.cases("softmax_ml").values()
    logits, labels, _ = golden.batch(case)
    golden.assert_golden(SoftmaxCrossEntropy()(logits, labels), case["expected"]["mean"])


@pytest.mark.parametrize(
    ("method", "function"), [("uniform_kl", uniform_kl), ("max_conf", max_confidence)]
)
def test_golden_zero_label(method, function):
    (case,) = golden.cases(method).values()
    log_probs = log_softmax(golden.tensor(case["inputs"]["logits"]), dim=1)
    golden.assert_golden(function(log_probs), case["expected"]["per_sample"])
    golden.assert_golden(function(log_probs).mean(), case["expected"]["mean"])


def test_images_without_labels_have_their_own_term():
    logits, labels = example()
    labels[3] = 0
    inside, log_p = labels.any(1), logits.log_softmax(1)
    entropy = -(labels / labels.sum(1, keepdim=True) * log_p).sum(1)[inside]
    uniform = -log_p.mean(1)[~inside] - log(5)
    expected = entropy.mean() + 0.3 * uniform.mean()
    torch.testing.assert_close(UniformKL(0.3)(logits, labels), expected)
    expected = torch.cat([entropy, log_p.amax(1)[~inside]]).mean()
    torch.testing.assert_close(MaxConfidence()(logits, labels), expected)


def test_torch_agrees_on_soft_shares_and_temperature():
    logits, labels = example()
    some = labels.sum(dim=1) > 0
    shares = labels[some] / labels[some].sum(dim=1, keepdim=True)
    for temperature in (1.0, 2.5):
        expected = cross_entropy(logits[some] / temperature, shares)
        objective = SoftmaxCrossEntropy(temperature)
        torch.testing.assert_close(objective(logits, labels), expected)
        expected = (logits / temperature).softmax(dim=1)
        torch.testing.assert_close(objective.probabilities(logits), expected)


def one_or_no_label(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return logits, torch.eye(6, dtype=torch.float64)[torch.arange(rows) % 6, :5]


def test_none_is_one_more_class_of_torchs_cross_entropy():
    logits, labels = one_or_no_label()
    wider = torch.cat([logits, torch.zeros(8, 1, dtype=torch.float64)], dim=1)
    classes = torch.where(labels.sum(dim=1) > 0, labels.argmax(dim=1), 5)
    objective = SoftmaxOrNone()
    assert 0 < (classes == 5).sum() < 8
    torch.testing.assert_close(objective(logits, labels), cross_entropy(wider, classes))
    torch.testing.assert_close(objective.probabilities(logits), wider.softmax(dim=1)[:, :5])
    log_p, log_q = objective.link.log_probs(logits)
    torch.testing.assert_close(log_p.exp() + log_q.exp(), torch.ones_like(log_p))


def test_softmax_or_none_starts_where_the_loss_of_the_priors_is_at_rest():
    priors = torch.tensor([0.3, 0.1, 0.15, 0.05, 0.2], dtype=torch.float64)
    logits = SoftmaxOrNone().start_logits(priors).requires_grad_()
    chances = torch.cat([priors, 1 - priors.sum(dim=0, keepdim=True)])
    labels = torch.eye(6, dtype=torch.float64)[:, :5]
    rows = [SoftmaxOrNone()(logits[None], row[None]) for row in labels]
    sum(chance * loss for chance, loss in zip(chances, rows, strict=True)).backward()
    assert logits.grad.abs().max() < 1e-12
    torch.testing.assert_close(SoftmaxOrNone()(logits.expand(6, 5), labels), sum(rows) / 6)


def test_the_normalisers_of_the_last_training_batch_are_kept_and_no_others():
    logits, labels = example()
    objective = SoftmaxCrossEntropy(2.0)
    objective(logits, labels)
    sums = [sum(exp(value / 2) for value in row) for row in logits.tolist()]
    kept = [objective.lowest_log_c.exp().item(), objective.highest_log_c.exp().item()]
    assert kept == pytest.approx([min(sums), max(sums)], rel=1e-5)
    objective.eval()(logits * 3, labels)
    assert objective.lowest_log_c.exp().item() == pytest.approx(min(sums), rel=1e-5)
    assert objective.state_dict() == SoftmaxCrossEntropy().state_dict()  # a checkpoint has none


SHARES = (0.5, 0.1, 0.01)


def sigmoid(x):
    return 1 / (1 + exp(-x))


def slow(logits, labels, observed):
    """The loss as the authors' code has it, with the constants of its MS-COCO configuration."""
    costs = []
    for v, y, seen in zip(logits, labels, observed, strict=True):
        repeated = sum(1 / s for s, here in zip(SHARES, y, strict=True) if here)
        for k, share in enumerate(SHARES):
            weight = 0.1 + (sigmoid(10 * (1 / share / repeated - 0.2)) if repeated else 1.0)
            z = v[k] - 0.05 / 2 * log(1 / share - 1)
            present = (1 - sigmoid(z)) ** 2 * log1p(exp(-z))
            absent = sigmoid(2 * z) ** 2 * log1p(exp(2 * z)) / 2
            costs += [2 * weight * (present if y[k] else absent)] * seen[k]
    return sum(costs) / len(costs)


def test_is_the_formula_entry_by_entry():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, 3, generator=generator, dtype=torch.float64)
    labels = (torch.rand(7, 3, generator=generator) < 0.4).double()
    labels[0] = 0
    observed = torch.rand(7, 3, generator=generator) < 0.8
    labels = torch.where(observed, labels, 0.0)
    expected = slow(logits.tolist(), labels.tolist(), observed.tolist())
    objective = make_objective("db", DatasetFacts(7, 3, 1.0, SHARES))
    found = objective(Outputs(logits), Targets(labels, observed))
    assert found.item() == pytest.approx(expected, rel=1e-9)
    never_and_always = DistributionBalanced((0.0, 1.0))
    assert never_and_always(torch.zeros(2, 2), torch.eye(2)).isfinite()
