"""The generalised pseudo-label robust loss; oracle: the authors' formula, entry by entry.

Tran et al., ICCV 2025, with the numbers of their code for MS-COCO; guesses of scores by a loop.
"""

from math import exp, log

import contract
import pytest
import torch

from labelwise.objectives import BCE, PseudoLabelRobust, guessed_labels
from labelwise.types import Outputs, Targets

IMAGES, LABELS, EPOCHS, K = 6, 5, 8, 1.5


def batch():
    """Return logits, labels, which are observed, and guesses of every kind at unknown entries."""
    logits, labels = contract.example(IMAGES, LABELS)
    generator = torch.Generator().manual_seed(1)
    observed = torch.rand(labels.shape, generator=generator) >= 0.7
    guesses = torch.randint(-1, 2, labels.shape, generator=generator)
    return logits, torch.where(observed, labels, 0.0), observed, guesses


def sigmoid(v):
    return 1 / (1 + exp(-v))


def published(v, guess, epoch, trust=0.9, low=0.5, high=0.7):
    """Return the loss of an unknown entry and its slope in the epoch counted from 1."""
    p = sigmoid(v)
    u, s = 0.5 + (0.8 - 0.5) * epoch / EPOCHS, 2 + (0.5 - 2) * epoch / EPOCHS
    m = exp(-0.5 * ((p - u) / s) ** 2)
    if guess > 0:
        held = min(max(m, 1 - high), 1 - low)  # as the code has it, on m itself
        cost = trust * -log(p) + (1 - trust) * -log(1 - p)
        return (1 - held) * cost, (1 - held) * (p - trust)
    if guess < 0:
        return m * -log(1 - p), m * p
    w, b = 10 * (epoch - 1) / EPOCHS, -2 - 6 * (epoch - 1) / EPOCHS
    k = sigmoid(w * p + b)
    value = m * (k * (1 - p**0.01) / 0.01 + (1 - k) * p)
    return value, m * (-k * p ** (0.01 - 1) + (1 - k)) * p * (1 - p)


def run(objective, logits, labels, observed):
    """Return the loss and its gradient of all images, which are the training set."""
    logits = logits.clone().requires_grad_()
    loss = objective(Outputs(logits), Targets(labels, observed, torch.arange(IMAGES)))
    loss.backward()
    return loss.item(), logits.grad


def in_epoch(epoch, guesses, **options):
    """Return the objective after it saw the epochs before this one."""
    objective = PseudoLabelRobust(guesses, K, **options)
    for _ in range(epoch - 1):
        objective(*contract.example(IMAGES, LABELS, seed=9))
    return objective


@pytest.mark.parametrize("epoch", [1, 4, 8])
@pytest.mark.parametrize("options", [{}, {"trust": 0.6, "low": 0.05, "high": 0.2}])
def test_loss_and_gradient_are_the_published_ones(epoch, options):
    logits, labels, observed, guesses = batch()
    expects = sum(sigmoid(v) for v in logits.flatten().tolist()) / IMAGES
    value = 0.001 * ((expects - K) / LABELS) ** 2
    slopes = torch.zeros_like(logits)
    for i in range(IMAGES):
        for j in range(LABELS):
            v, y = logits[i, j].item(), labels[i, j].item()
            p = sigmoid(v)
            if observed[i, j]:
                cost, slope = -log(p if y else 1 - p), p - y
            else:
                cost, slope = published(v, guesses[i, j].item(), epoch, **options)
            value += cost / logits.numel()
            push = 0.002 * (expects - K) / LABELS**2 * p * (1 - p) / IMAGES
            slopes[i, j] = slope / logits.numel() + push
    loss, gradient = run(in_epoch(epoch, guesses, **options), logits, labels, observed)
    assert loss == pytest.approx(value)
    torch.testing.assert_close(gradient, slopes)


def test_known_labels_are_never_guessed_away():
    logits, labels, _, guesses = batch()
    everything = torch.ones_like(guesses, dtype=torch.bool)
    for observed in (None, everything):
        loss, _ = run(in_epoch(3, guesses, weight=0.0), logits, labels, observed)
        assert loss == pytest.approx(BCE()(logits, labels).item())


def test_guesses_follow_the_images_of_a_batch():
    logits, labels, observed, guesses = batch()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    plain, _ = run(PseudoLabelRobust(guesses, K), logits, labels, observed)
    targets = Targets(labels[order], observed[order], order)
    moved = PseudoLabelRobust(guesses, K)(Outputs(logits[order]), targets)
    assert moved.item() == pytest.approx(plain)
    with pytest.raises(ValueError, match="targets need their index"):
        PseudoLabelRobust(guesses, K)(logits, labels, observed)


def test_it_meets_the_contract():
    """Finite anywhere, for every guess; the same after a round trip of its state."""
    for guess in (-1, 0, 1):
        table = torch.tensor([[-1e4, -50.0, 0.0, 50.0, 1e4]] * IMAGES)
        guesses = torch.full((IMAGES, LABELS), guess)
        nothing = torch.zeros(IMAGES, LABELS, dtype=torch.bool)
        loss, gradient = run(PseudoLabelRobust(guesses, K), table, torch.zeros(6, 5), nothing)
        assert torch.tensor(loss).isfinite()
        assert gradient.isfinite().all()
    logits, labels, observed, guesses = batch()
    seen = in_epoch(5, guesses)
    again = PseudoLabelRobust(torch.zeros_like(guesses), K)
    again.load_state_dict(seen.state_dict())
    assert run(again, logits, labels, observed)[0] == run(seen, logits, labels, observed)[0]


@pytest.mark.parametrize(("present", "absent"), [(0.3, 0.0), (0.45, 0.5), (0.05, 0.9)])
def test_guesses_of_scores_are_those_of_a_loop(present, absent):
    scores = 2 * torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    expected = []
    for row in scores.tolist():
        shares = [exp(score) / sum(exp(other) for other in row) for score in row]
        lowest = sorted(range(7), key=shares.__getitem__)[: int(absent * 7)]
        expected.append(
            [1 if s >= present else -1 if j in lowest else 0 for j, s in enumerate(shares)]
        )
    found = guessed_labels(scores, present=present, absent=absent)
    assert found.tolist() == expected
    assert (found == 1).any()
    assert (found == -1).any() == (absent > 0)


def test_what_it_cannot_mean_is_refused():
    guesses = torch.zeros(IMAGES, LABELS)
    with pytest.raises(ValueError, match=r"guesses must be \(N, K\) of -1, 0 and 1"):
        PseudoLabelRobust(guesses + 0.5, K)
    with pytest.raises(ValueError, match="trust must lie in"):
        PseudoLabelRobust(guesses, K, low=0.9)
    with pytest.raises(ValueError, match="k must be positive"):
        PseudoLabelRobust(guesses, 0.0)
    with pytest.raises(ValueError, match="present must lie in"):
        guessed_labels(guesses, present=0.0)
    with pytest.raises(ValueError, match="scores must be"):
        guessed_labels(torch.zeros(3))
