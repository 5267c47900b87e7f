"""A head with words as its prior. Oracles: autograd at the optimum, the text head, a plain head."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.nn.functional import binary_cross_entropy_with_logits

from labelwise.objectives.convex import CoinLoss, ShiftedLoss
from labelwise.training.solve import Design, minimise, solve
from labelwise.types import Targets
from labelwise.words.answered import answered_head
from labelwise.words.classes import TextHead

FEATURES, LABELS = 60, 6


def draw(rows, seed, error=0.6):
    """Return features, labels of a linear truth, and a text head that is nearly right."""
    fixed = np.random.default_rng(7)
    truth = fixed.normal(size=(FEATURES, LABELS))
    wrong = fixed.normal(size=(FEATURES, LABELS))
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, FEATURES))
    logits = 3 * x @ truth / FEATURES**0.5 - 1.5
    y = random.random((rows, LABELS)) < 1 / (1 + np.exp(-logits))
    text = TextHead(torch.tensor(truth + error * wrong), torch.zeros(LABELS, dtype=torch.float64))
    return torch.tensor(x), torch.tensor(y).double(), text


def mean_precision(scores, labels):
    return np.mean(
        [average_precision_score(labels[:, k], scores[:, k]) for k in range(labels.shape[1])]
    )


def test_a_shifted_loss_is_the_loss_of_the_sum_and_so_are_its_derivatives():
    torch.manual_seed(0)
    labels, known = torch.rand(5, 3).double().round(), torch.rand(5, 3) > 0.3
    offset, logits = torch.randn(5, 3).double(), torch.randn(5, 3).double().requires_grad_()
    loss = ShiftedLoss(CoinLoss.of(Targets(labels, known)), offset)
    expected = binary_cross_entropy_with_logits(offset + logits, labels, reduction="none") * known
    torch.testing.assert_close(loss.rows(logits), expected)
    (gradient,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(loss.derivatives(logits.detach()).gradient, gradient)
    chosen = loss.columns(torch.tensor([2]))
    torch.testing.assert_close(chosen.rows(logits[:, 2:]), expected[:, 2:])


@pytest.mark.parametrize("free_bias", [True, False])
def test_the_penalty_is_on_the_distance_from_the_offset(free_bias):
    x, y, text = draw(40, seed=1)
    offset, l2 = text.scores(x), torch.full((1, LABELS), 3.0, dtype=torch.float64)
    spread = torch.linspace(0.5, 2, FEATURES).double()
    design = Design.of(x, spread=spread, free_bias=free_bias)
    loss = ShiftedLoss(CoinLoss.of(Targets(y)), offset)
    begin = torch.zeros(design.rows.shape[1], LABELS).double()
    weight, bias = design.linear(minimise(design, loss, l2, begin, tolerance=1e-15))
    scaled = (weight * spread[:, None]).requires_grad_()
    middle = (bias + x.mean(dim=0) @ weight).requires_grad_()  # the bias of centred features
    logits = offset + (x - x.mean(dim=0)) / spread @ scaled + middle
    value = binary_cross_entropy_with_logits(logits, y, reduction="sum")
    value = value + 1.5 * scaled.square().sum() + (0 if free_bias else 1.5) * middle.square().sum()
    for gradient in torch.autograd.grad(value, (scaled, middle)):
        assert gradient.abs().max() < 1e-5


@pytest.mark.parametrize("rows", [20, 120])
def test_answers_never_rank_worse_than_words_or_answers_alone(rows):
    x, y, text = draw(rows, seed=rows)
    new_x, new_y, _ = draw(3000, seed=1000)
    head = answered_head(text, x, y, None, pool=new_x)
    own = mean_precision(head.head.scores(new_x), new_y)
    cut = max(4, rows // 5)
    losses = [CoinLoss.of(Targets(part)) for part in (y[cut:], y[:cut])]
    plain = solve(x[cut:], losses[0], x[:cut], losses[1])
    assert own > mean_precision(text.scores(new_x), new_y) - 0.005
    assert own > mean_precision(plain.logits(new_x), new_y) - 0.005
    probs = head.calibration.link(head.head.scores(new_x))
    assert (probs.mean(dim=0) - new_y.mean(dim=0)).abs().mean() < 1.5 / rows**0.5


def test_with_a_right_text_head_answers_change_little_and_with_a_wrong_one_much():
    x, y, right = draw(60, seed=5, error=0.0)
    _, _, wrong = draw(60, seed=5, error=4.0)
    strong, weak = (answered_head(text, x, y, None).l2.log().mean() for text in (right, wrong))
    assert strong > weak


def test_labels_without_an_answer_keep_the_words_order():
    x, y, text = draw(60, seed=8)
    observed = torch.ones_like(y, dtype=torch.bool)
    observed[:, 2] = False
    found = answered_head(text, x, y, observed).head.scores(x)[:, 2]
    expected = text.scores(x)[:, 2]
    order = np.corrcoef(found.numpy(), expected.numpy())[0, 1]
    assert order == pytest.approx(1.0, abs=1e-9)
