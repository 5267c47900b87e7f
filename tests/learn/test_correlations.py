"""DCLR by loops over images, labels and what is kept, as its public code writes it."""

import math
from itertools import combinations, product

import pytest
import torch

from labelwise.learn.heads import LabelFeatures
from labelwise.learn.objectives import DynamicCorrelations, bce_loss
from labelwise.learn.objectives.correlations import contrast_loss, correlated_targets
from labelwise.types import Outputs, Targets

LABELS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
EPS = 0.05


def looped_targets(labels, alike, eps, sharpness=10.0):
    """The soft labels of the public code: a softmax over the other labels of each present one."""
    targets = (1 - eps) * labels
    for image, i in labels.nonzero().tolist():
        others = [j for j in range(labels.shape[1]) if j != i]
        powers = {j: math.exp(sharpness * float(alike[image, i, j])) for j in others}
        for j in others:
            targets[image, j] += eps * powers[j] / sum(powers.values())
    return targets


def test_targets_follow_the_labels_that_look_alike():
    alike = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))
    found = correlated_targets(LABELS, alike, EPS)
    torch.testing.assert_close(found, looped_targets(LABELS, alike, EPS))
    even = correlated_targets(LABELS, torch.zeros(3, 4, 4), EPS)
    assert even[1].tolist() == pytest.approx([EPS / 3, 1 - EPS, EPS / 3, EPS / 3])


def looped_contrast(features, labels):
    cosine = torch.nn.functional.cosine_similarity
    kinds = {2: [], 1: [], 0: []}
    for (a, b), k in product(combinations(range(len(labels)), 2), range(labels.shape[1])):
        if -1 not in (labels[a, k], labels[b, k]):
            c = cosine(features[a, k], features[b, k], dim=0)
            carry = int(labels[a, k] + labels[b, k])
            kinds[carry].append(float(1 - c if carry == 2 else 1 + c))
    together, mixed, apart = kinds.values()
    n = len(together)
    assert max(len(mixed), len(apart)) <= 2 * n, "all are drawn: nothing is left to chance"
    every = together + mixed + sorted(mixed)[::-1][:n] + apart + sorted(apart)[::-1][:n]
    return sum(every) / len(every)


def test_the_contrast_counts_the_largest_pairs_twice():
    features = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[1, 1, 1, 0], [1, 1, -1, 0], [1, 0, -1, 1]])
    found = contrast_loss(features, labels)
    assert float(found) == pytest.approx(looped_contrast(features, labels), rel=1e-5)


def test_smoothing_is_even_first_and_by_what_is_kept_later():
    torch.manual_seed(0)
    objective = DynamicCorrelations(3, 4, width=5, contrast=0.0, start=1)
    logits, features = torch.randn(3, 4), torch.randn(3, 4, 5)
    outputs, targets = Outputs(logits, {"features": features}), Targets(LABELS)
    even = correlated_targets(LABELS, torch.zeros(3, 4, 4), EPS)
    torch.testing.assert_close(objective(outputs, targets), bce_loss(logits, even).mean())
    unit = torch.nn.functional.normalize(features, dim=2)
    alike = torch.zeros(3, 4, 4)
    for j in range(4):  # twice the images that carry j: this batch and the one before
        alike[:, :, j] = (unit @ unit[LABELS[:, j] == 1, j].T).mean(2)
    centres = torch.zeros(3, 4, 4)
    again = objective(outputs, targets)
    for j in range(4):
        centres[:, :, j] = unit @ torch.nn.functional.normalize(objective.centres[j], dim=1).mean(0)
    aims = [looped_targets(LABELS, one, EPS) for one in (alike, centres)]
    torch.testing.assert_close(again, bce_loss(logits, (aims[0] + aims[1]) / 2).mean())
    assert objective.counts.tolist() == [4, 2, 2, 2]
    torch.testing.assert_close(objective.kept[1, :2], features[[1, 1], 1])
    observed = torch.ones(3, 4, dtype=torch.bool)
    observed[0, 0] = False  # an unknown label costs nothing and is not kept
    objective = DynamicCorrelations(3, 4, width=5)
    objective(Outputs(logits.requires_grad_(), outputs.aux), Targets(LABELS, observed)).backward()
    assert (logits.grad[0, 0], objective.counts.tolist()) == (0, [1, 1, 1, 1])


def test_its_head_gives_features_of_every_label():
    head = LabelFeatures(7, 4)
    head.start_at(torch.arange(4.0))
    outputs = head(torch.randn(2, 7, 3, 3))
    assert outputs.aux["features"].shape == (2, 4, 128)
    DynamicCorrelations(2, 4)(outputs, Targets(LABELS[:2])).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
