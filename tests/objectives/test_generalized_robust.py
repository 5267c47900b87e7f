"""The generalised robust loss; oracle: the authors' formula and schedule, entry by entry.

Chen et al., IJCAI 2024, with the numbers of their code: k and m hold still while the loss is
differentiated, k moves by the epochs before this one, m by this one as well.
"""

from math import exp, log

import contract
import pytest
import torch

from labelwise.objectives import BCE, GeneralizedRobust, tempered_log

IMAGES, LABELS, EPOCHS = 6, 5, 8


def batch():
    """Return logits, labels and which are observed; unknown entries, presences and absences."""
    logits, labels = contract.example(IMAGES, LABELS)
    generator = torch.Generator().manual_seed(1)
    observed = torch.rand(labels.shape, generator=generator) >= 0.6
    return logits, torch.where(observed, labels, 0.0), observed


def sigmoid(v):
    return 1 / (1 + exp(-v))


def published(v, epoch, a=0.01, c=1.0):
    """Return the loss of an unknown entry and its slope in the epoch counted from 1."""
    p = sigmoid(v)
    w = 0 + (2 - 0) * (epoch - 1) / EPOCHS
    k = sigmoid(w * p - 2)
    u, s = 0.5 + (0.8 - 0.5) * epoch / EPOCHS, 2 + (0.5 - 2) * epoch / EPOCHS
    m = exp(-0.5 * ((p - u) / s) ** 2)
    value = m * (k * (1 - p**a) / a + (1 - k) * (1 - (1 - p) ** c) / c)
    slope = m * (-k * p ** (a - 1) + (1 - k) * (1 - p) ** (c - 1)) * p * (1 - p)
    return value, slope


def in_epoch(epoch, **options):
    """Return the objective after it saw the epochs before this one."""
    objective = GeneralizedRobust(IMAGES, **options)
    for _ in range(epoch - 1):
        objective(*contract.example(IMAGES, LABELS, seed=9))
    return objective


@pytest.mark.parametrize("epoch", [1, 2, 5, 8])
@pytest.mark.parametrize("exponents", [(0.01, 1.0), (0.7, 0.3)])
def test_loss_and_gradient_are_the_published_ones(epoch, exponents):
    logits, labels, observed = batch()
    a, c = exponents
    value, slopes = 0.0, torch.zeros_like(logits)
    for i in range(IMAGES):
        for k in range(LABELS):
            v, y = logits[i, k].item(), labels[i, k].item()
            if observed[i, k]:
                cost, slope = -log(sigmoid(v) if y else 1 - sigmoid(v)), sigmoid(v) - y
            else:
                cost, slope = published(v, epoch, a, c)
            value += cost / logits.numel()
            slopes[i, k] = slope / logits.numel()
    objective = in_epoch(epoch, present_exponent=a, absent_exponent=c)
    loss, gradient = contract.value_and_grad(objective, logits, labels, observed)
    assert loss.item() == pytest.approx(value)
    torch.testing.assert_close(gradient, slopes)


def test_after_its_epochs_the_loss_stays_as_it_is():
    table = batch()
    stays = [in_epoch(epoch)(*table).item() for epoch in (9, 10, 30)]
    assert stays[0] == pytest.approx(stays[1]) == pytest.approx(stays[2])
    assert stays[0] != pytest.approx(in_epoch(8)(*table).item(), rel=1e-4)  # k's last step


def test_offset_and_epochs_are_followed():
    table = batch()
    moving = in_epoch(3, offset_first=-4.0, offset_last=0.0, epochs=4)(*table).item()
    still = {"slope_first": 1.0, "slope_last": 1.0, "offset_first": -2.0, "offset_last": -2.0}
    weight = {
        "centre_first": 0.725,
        "centre_last": 0.725,
        "width_first": 0.875,
        "width_last": 0.875,
    }
    assert moving == pytest.approx(GeneralizedRobust(IMAGES, **still, **weight)(*table).item())


def test_with_complete_labels_it_is_cross_entropy():
    logits, labels = contract.example(IMAGES, LABELS)
    for observed in (None, torch.ones(IMAGES, LABELS, dtype=torch.bool)):
        found = in_epoch(4)(logits, labels, observed)
        torch.testing.assert_close(found, BCE()(logits, labels))
    contract.assert_recovers_probabilities(GeneralizedRobust(256))


def test_robust_losses_lie_between_cross_entropy_and_a_linear_price():
    p = torch.linspace(0.01, 1, 100, dtype=torch.float64)
    torch.testing.assert_close(tempered_log(-p.log(), 1e-9), -p.log(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tempered_log(-p.log(), 1.0), 1 - p)
    between = tempered_log(-p.log(), 0.3)
    assert (between <= -p.log() + 1e-12).all()
    assert (between >= 1 - p - 1e-12).all()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"present_exponent": 0.0}, r"present_exponent must lie in \(0, 1\], got 0"),
        ({"absent_exponent": 1.5}, r"absent_exponent must lie in \(0, 1\], got 1\.5"),
        ({"width_first": 0.0}, "width_first must be positive, got 0"),
        ({"width_last": -1.0}, "width_last must be positive, got -1"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
    ],
)
def test_options_it_cannot_mean_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        GeneralizedRobust(IMAGES, **options)
