"""The generalised robust losses; oracle: the authors' formulas and schedules, entry by entry.

GR: Chen et al., IJCAI 2024; GPR, with guesses of another model: Tran et al., ICCV 2025; both with
the numbers of their code for MS-COCO: k and m hold still while the loss is differentiated, k moves
by the epochs before this one, m by this one as well. Guesses of scores by a loop.
"""

from math import exp, log

import contract
import pytest
import torch

from labelwise.objectives import (
    BCE,
    GeneralizedRobust,
    PseudoLabelRobust,
    guessed_labels,
    tempered_log,
)
from labelwise.types import Outputs, Targets

IMAGES, LABELS, EPOCHS, K = 6, 5, 8, 1.5
GUESSING = {"steep": 10, "offset": -8}  # of GPR, where the schedule of k ends


def batch():
    """Return logits, labels and which are observed; unknown entries, presences and absences."""
    logits, labels = contract.example(IMAGES, LABELS)
    generator = torch.Generator().manual_seed(1)
    observed = torch.rand(labels.shape, generator=generator) >= 0.6
    return logits, torch.where(observed, labels, 0.0), observed


def some_guesses():
    return torch.randint(-1, 2, (IMAGES, LABELS), generator=torch.Generator().manual_seed(2))


def sigmoid(v):
    return 1 / (1 + exp(-v))


def published(v, epoch, guess=0, a=0.01, c=1.0, steep=2, offset=-2, trust=0.9, low=0.5, high=0.7):
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
    done = (epoch - 1) / EPOCHS
    k = sigmoid(steep * done * p - 2 + (offset + 2) * done)
    value = m * (k * (1 - p**a) / a + (1 - k) * (1 - (1 - p) ** c) / c)
    slope = m * (-k * p ** (a - 1) + (1 - k) * (1 - p) ** (c - 1)) * p * (1 - p)
    return value, slope


def in_epoch(epoch, objective):
    """Return an objective after it saw the epochs before this one."""
    for _ in range(epoch - 1):
        objective(*contract.example(IMAGES, LABELS, seed=9))
    return objective


def assert_published(objective, cost, value=0.0, push=lambda p: 0.0):
    """Compare loss and gradient with known labels' cross-entropy and a cost of unknown entries."""
    logits, labels, observed = batch()
    slopes = torch.zeros_like(logits)
    for i in range(IMAGES):
        for j in range(LABELS):
            v, y = logits[i, j].item(), labels[i, j].item()
            p = sigmoid(v)
            known = -log(p if y else 1 - p), p - y
            paid, slope = known if observed[i, j] else cost(v, i, j)
            value += paid / logits.numel()
            slopes[i, j] = slope / logits.numel() + push(p)
    loss, gradient = contract.value_and_grad(objective, logits, labels, observed)
    assert loss.item() == pytest.approx(value)
    torch.testing.assert_close(gradient, slopes)


@pytest.mark.parametrize("epoch", [1, 2, 5, 8])
@pytest.mark.parametrize("exponents", [(0.01, 1.0), (0.7, 0.3)])
def test_loss_and_gradient_are_the_published_ones(epoch, exponents):
    a, c = exponents
    objective = GeneralizedRobust(IMAGES, present_exponent=a, absent_exponent=c)
    assert_published(in_epoch(epoch, objective), lambda v, i, j: published(v, epoch, a=a, c=c))


@pytest.mark.parametrize("epoch", [1, 4, 8])
@pytest.mark.parametrize("options", [{}, {"trust": 0.6, "low": 0.05, "high": 0.2}])
def test_loss_and_gradient_with_guesses_are_the_published_ones(epoch, options):
    guesses = some_guesses()
    expects = sum(sigmoid(v) for v in batch()[0].flatten().tolist()) / IMAGES
    assert_published(
        in_epoch(epoch, PseudoLabelRobust(guesses, K, **options)),
        lambda v, i, j: published(v, epoch, guesses[i, j].item(), **GUESSING, **options),
        0.001 * ((expects - K) / LABELS) ** 2,
        lambda p: 0.002 * (expects - K) / LABELS**2 * p * (1 - p) / IMAGES,
    )


def test_after_its_epochs_the_loss_stays_as_it_is():
    def loss(epoch):
        return in_epoch(epoch, GeneralizedRobust(IMAGES))(*batch()).item()

    assert loss(9) == pytest.approx(loss(10)) == pytest.approx(loss(30))
    assert loss(9) != pytest.approx(loss(8), rel=1e-4)  # k's last step


def test_offset_and_epochs_are_followed():
    moving = GeneralizedRobust(IMAGES, offset_first=-4.0, offset_last=0.0, epochs=4)
    still = {"slope": 1.0, "offset": -2.0, "centre": 0.725, "width": 0.875}
    both = {f"{name}_{end}": value for name, value in still.items() for end in ("first", "last")}
    found, expected = in_epoch(3, moving)(*batch()), GeneralizedRobust(IMAGES, **both)(*batch())
    assert found.item() == pytest.approx(expected.item())


def test_with_complete_labels_they_are_cross_entropy():
    logits, labels = contract.example(IMAGES, LABELS)
    for observed in (None, torch.ones(IMAGES, LABELS, dtype=torch.bool)):
        for objective in (
            GeneralizedRobust(IMAGES),
            PseudoLabelRobust(some_guesses(), K, weight=0.0),  # none is guessed away
        ):
            found = contract.value(in_epoch(4, objective), logits, labels, observed)
            torch.testing.assert_close(found, BCE()(logits, labels))
    contract.assert_recovers_probabilities(GeneralizedRobust(256))


def test_robust_losses_lie_between_cross_entropy_and_a_linear_price():
    p = torch.linspace(0.01, 1, 100, dtype=torch.float64)
    torch.testing.assert_close(tempered_log(-p.log(), 1e-9), -p.log(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tempered_log(-p.log(), 1.0), 1 - p)
    between = tempered_log(-p.log(), 0.3)
    assert (between <= -p.log() + 1e-12).all()
    assert (between >= 1 - p - 1e-12).all()


def test_guesses_follow_the_images_of_a_batch():
    logits, labels, observed = batch()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    plain = contract.value(PseudoLabelRobust(some_guesses(), K), logits, labels, observed)
    targets = Targets(labels[order], observed[order], order)
    moved = PseudoLabelRobust(some_guesses(), K)(Outputs(logits[order]), targets)
    assert moved.item() == pytest.approx(plain.item())
    with pytest.raises(ValueError, match="targets need their index"):
        PseudoLabelRobust(some_guesses(), K)(logits, labels, observed)


def test_guesses_meet_the_contract():
    """Finite anywhere, for every guess; the same after a round trip of its state."""
    nothing = torch.zeros(IMAGES, LABELS, dtype=torch.bool)
    table = torch.tensor([[-1e4, -50.0, 0.0, 50.0, 1e4]] * IMAGES)
    for guess in (-1, 0, 1):
        objective = PseudoLabelRobust(torch.full((IMAGES, LABELS), guess), K)
        found = contract.value_and_grad(objective, table, torch.zeros(6, 5), nothing)
        assert all(one.isfinite().all() for one in found)
    seen = in_epoch(5, PseudoLabelRobust(some_guesses(), K))
    again = PseudoLabelRobust(torch.zeros(IMAGES, LABELS), K)
    again.load_state_dict(seen.state_dict())
    assert contract.value(again, *batch()) == contract.value(seen, *batch())


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


GUESSES = torch.zeros(IMAGES, LABELS)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: GeneralizedRobust(6, present_exponent=0.0), r"present_exponent must .* got 0"),
        (lambda: GeneralizedRobust(6, absent_exponent=1.5), r"absent_exponent must .* got 1\.5"),
        (lambda: GeneralizedRobust(6, width_first=0.0), "width_first must be positive, got 0"),
        (lambda: GeneralizedRobust(6, width_last=-1.0), "width_last must be positive, got -1"),
        (lambda: GeneralizedRobust(6, epochs=0), "epochs must be at least 1, got 0"),
        (lambda: PseudoLabelRobust(GUESSES + 0.5, K), r"guesses must be \(N, K\) of -1, 0 and 1"),
        (lambda: PseudoLabelRobust(GUESSES, K, low=0.9), "trust must lie in"),
        (lambda: PseudoLabelRobust(GUESSES, 0.0), "k must be positive"),
        (lambda: guessed_labels(GUESSES, present=0.0), "present must lie in"),
        (lambda: guessed_labels(torch.zeros(3)), "scores must be"),
    ],
)
def test_options_they_cannot_mean_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()
