"""Losses for missing labels; oracles: slow loops of the authors' formulas, minimised risks.

Hill and SPLC: Zhang et al. 2021; LL-R, LL-Ct, LL-Cp: Kim et al., CVPR 2022; EM: Zhou et al., ECCV
2022; ZLPR: Su et al. 2022. The loops follow the published formulas, entry by entry.
"""

from math import ceil, comb, exp, log, log1p

import contract
import pytest
import torch
from torch.nn.functional import softplus

from labelwise.objectives import (
    BCE,
    SPLC,
    ZLPR,
    EntropyMaximisation,
    EntropyWithPseudoLabels,
    FocalMarginLink,
    Hill,
    LargeLoss,
    LargeLossForGood,
    largest_unknown,
    negative_entropy,
)
from labelwise.types import Outputs, Targets

IMAGES = 6
OPTIONS = ("lam", "margin", "gamma")


def batch(seed=0, unknown=0.5):
    """Return logits, labels and which are observed; some of each kind."""
    logits, labels = contract.example(IMAGES, 5, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    observed = torch.rand(labels.shape, generator=generator) >= unknown
    return logits, torch.where(observed, labels, 0.0), observed


def sigmoid(v):
    return 1 / (1 + exp(-v))


def focal(v, gamma=2.0):
    return -((1 - sigmoid(v)) ** gamma) * log(sigmoid(v))


def mean_over(table, cost):
    logits, labels, observed = table
    costs = [
        cost(logits[i, k].item(), labels[i, k].item(), bool(observed[i, k]))
        for i in range(logits.shape[0])
        for k in range(logits.shape[1])
    ]
    return sum(costs) / len(costs)


def after(epochs, objective):
    """Let an objective see whole epochs of some other images."""
    logits, labels = contract.example(IMAGES, 5, seed=99)
    for _ in range(epochs):
        objective(logits, labels)
    return objective


@pytest.mark.parametrize("lam", [1.5, 1.8])
def test_hill_is_the_published_sum(lam):
    def cost(v, y, known):
        p = sigmoid(v)
        return focal(v - 1) if y else (lam - p) * p**2

    table = batch()
    assert Hill(lam=lam)(*table).item() == pytest.approx(mean_over(table, cost))


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_splc_takes_likely_unknown_labels_as_present_after_the_first_epoch(epochs):
    def cost(v, y, known):
        if y:
            return focal(v - 1)
        missing = epochs >= 1 and not known and sigmoid(v) > 0.6
        return focal(v) if missing else focal(-v)

    table = batch()
    objective = after(epochs, SPLC(IMAGES))
    assert objective(*table).item() == pytest.approx(mean_over(table, cost))


@pytest.mark.parametrize("correction", ["reject", "correct"])
@pytest.mark.parametrize("epochs", [0, 1, 2, 5])
def test_the_largest_losses_of_unknown_labels_are_rejected_or_corrected(correction, epochs):
    table = logits, _, observed = batch()
    rate = 0.07
    costs = sorted((log1p(exp(v)) for v in logits[~observed].tolist()), reverse=True)
    count = ceil(rate * epochs * logits.numel())
    least = costs[min(count, len(costs)) - 1] if count else float("inf")

    def cost(v, y, known):
        if not known and log1p(exp(v)) >= least - 1e-12:
            return log1p(exp(-v)) if correction == "correct" else 0.0
        return log1p(exp(-v)) if y else log1p(exp(v))

    objective = after(epochs, LargeLoss(IMAGES, rate=rate, correction=correction))
    assert objective(*table).item() == pytest.approx(mean_over(table, cost))


def test_known_labels_are_never_corrected():
    losses = torch.tensor([[9.0, 3.0, 2.0, 1.0]])
    unknown = torch.tensor([[False, True, True, False]])
    for count, chosen in {0: [], 1: [1], 2: [1, 2], 4: [1, 2]}.items():
        found = largest_unknown(losses, unknown, torch.tensor(count))
        assert found.nonzero()[:, 1].tolist() == chosen


def test_unknown_labels_have_a_large_entropy():
    def cost(v, y, known):
        p = sigmoid(v)
        if not known:
            return 0.1 * (p * log(p) + (1 - p) * log(1 - p))
        return -log(p) if y else -log(1 - p)

    table = batch()
    assert EntropyMaximisation()(*table).item() == pytest.approx(mean_over(table, cost))


def test_zlpr_is_the_published_sum():
    logits, labels, observed = batch(unknown=0.2)
    total = 0.0
    for row in range(IMAGES):
        sides = ([], [])
        for v, y, known in zip(logits[row], labels[row], observed[row], strict=True):
            if known:
                sides[int(y)].append(exp(-v) if y else exp(v))
        total += sum(log1p(sum(side)) for side in sides)
    assert ZLPR()(logits, labels, observed).item() == pytest.approx(total / IMAGES)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: SPLC(256), lambda: LargeLoss(256), lambda: LargeLoss(256, correction="correct")),
        EntropyMaximisation,
    ],
)
def test_with_complete_labels_their_links_are_proper(make):
    contract.assert_recovers_probabilities(make())


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({"lam": 1.5}, (0.275, 0.937, 0.994)),
        ({"lam": 2.0}, (0.217, 0.762, 0.949)),
        ({"lam": 1.5, "margin": 0.5}, None),
        ({"lam": None}, (0.349, 0.622, 0.835)),
        ({"lam": None, "margin": 0.0, "gamma": 1.0}, None),
    ],
)
def test_their_links_recover_what_a_sigmoid_does_not(options, read):
    # Oracle: a grid search for the least expected loss of a label of each probability.
    lam, margin, gamma = (options.get(key, 1.0 + (key == "gamma")) for key in OPTIONS)
    grid = torch.linspace(-12, 12, 240001, dtype=torch.float64)
    p, shifted = torch.sigmoid(grid), torch.sigmoid(grid - margin)
    present = -((1 - shifted) ** gamma) * shifted.log()
    absent = -(p**gamma) * (1 - p).log() if lam is None else (lam - p) * p**2
    for place, chance in enumerate((0.1, 0.5, 0.9)):
        best = grid[(chance * present + (1 - chance) * absent).argmin()]
        assert FocalMarginLink(**options)(best).item() == pytest.approx(chance, abs=1e-3)
        if read:
            assert torch.sigmoid(best).item() == pytest.approx(read[place], abs=1e-3)


def test_settings_without_a_link_are_refused():
    for options in ({"gamma": 1.0}, {"gamma": 0.5, "lam": 1.6}):
        with pytest.raises(ValueError, match="has no link where a higher logit"):
            Hill(**options)
    with pytest.raises(ValueError, match=r"lam must be at least 1\.5, .* got 1\.2"):
        Hill(lam=1.2)


def test_links_stay_finite_and_rise():
    logits = torch.tensor([-1e4, -50.0, -3.0, 0.0, 3.0, 50.0, 1e4])
    for link in (FocalMarginLink(), FocalMarginLink(lam=2.0), FocalMarginLink(lam=None)):
        log_odds = link.log_odds(logits)
        assert log_odds.isfinite().all()
        assert (log_odds.diff() > 0).all()


@pytest.mark.parametrize("chance", [0.001, 0.03, 0.3])
def test_maximal_entropy_calls_every_label_likelier_than_not(chance):
    # Oracle: a grid search; s / (1 - s) = a v sigmoid(v) where the loss is least.
    grid = torch.linspace(-20, 60, 160001, dtype=torch.float64)
    unknown = 0.1 * negative_entropy(grid)
    best = grid[(chance * softplus(-grid) + (1 - chance) * unknown).argmin()].item()
    assert best > 0
    assert 0.1 * best * sigmoid(best) == pytest.approx(chance / (1 - chance), rel=0.01)


@pytest.mark.parametrize(("labels", "read"), [(1, 0.1), (3, 0.107), (80, 0.237)])
def test_zlpr_is_cross_entropy_of_one_label_and_too_unsure_of_many(labels, read):
    # Oracle: alike, independent labels of probability 0.1; the root of the derivative.
    grid = torch.linspace(-6, 3, 9001, dtype=torch.float64)
    cost = torch.zeros_like(grid)
    for present in range(labels + 1):
        weight = comb(labels, present) * 0.1**present * 0.9 ** (labels - present)
        if weight < 1e-12:
            continue
        truth = torch.zeros(1, labels)
        truth[0, :present] = 1
        rows = grid[:, None].expand(-1, labels)
        above = torch.log1p((labels - present) * grid.exp())
        assert ZLPR()(rows[:1], truth).item() == pytest.approx(
            (above + torch.log1p(present * (-grid).exp()))[0].item()
        )
        cost += weight * (above + torch.log1p(present * (-grid).exp()))
    assert torch.sigmoid(grid[cost.argmin()]).item() == pytest.approx(read, abs=1e-3)


def test_with_complete_labels_two_of_them_are_cross_entropy():
    logits, labels = contract.example()
    for objective in (LargeLoss(IMAGES, rate=0.5), EntropyMaximisation()):
        torch.testing.assert_close(after(3, objective)(logits, labels), BCE()(logits, labels))


def test_epochs_are_counted_by_images_in_training_alone_and_survive_a_resume():
    objective = SPLC(12)
    logits, labels = contract.example(IMAGES, 5)
    objective(logits, labels)
    objective.eval()
    objective(logits, labels)
    assert objective.epochs(logits[:0]) == 0
    objective.train()
    objective(logits, labels)
    again = SPLC(12)
    again.load_state_dict(objective.state_dict())
    assert again.epochs(logits[:0]) == objective.epochs(logits[:0]) == 1


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: SPLC(5, threshold=1.0), "threshold must lie strictly between 0 and 1, got 1"),
        (lambda: SPLC(5, wait=-1), "wait must not be negative, got -1"),
        (lambda: SPLC(0), "num_images must be at least 1, got 0"),
        (lambda: LargeLoss(5, rate=1.0), r"rate must lie in \[0, 1\), got 1"),
        (lambda: LargeLoss(5, correction="drop"), "correction must be one of .* got 'drop'"),
        (lambda: EntropyMaximisation(alpha=-1.0), "alpha must not be negative, got -1"),
        (lambda: FocalMarginLink(gamma=-1.0), "gamma must not be negative, got -1"),
    ],
)
def test_bad_options_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_ll_cp_keeps_its_corrections():
    """A table of labels that is rewritten, as the authors' code does, beside ours."""
    rate, index = 0.1, torch.arange(IMAGES)
    objective = LargeLossForGood(IMAGES, 5, rate=rate)
    logits, labels, observed = batch()
    state = torch.where(observed, labels, -1.0)  # -1: unknown
    for step in range(4):
        scores = logits + 0.3 * step * torch.randn(
            logits.shape, generator=torch.Generator().manual_seed(step), dtype=logits.dtype
        )
        losses = [
            [log1p(exp(-v)) if y == 1 else log1p(exp(v)) for v, y in zip(*pair, strict=True)]
            for pair in zip(scores.tolist(), state.tolist(), strict=True)
        ]
        unknown = [(i, k) for i in range(IMAGES) for k in range(5) if state[i, k] == -1]
        largest = sorted(unknown, key=lambda place: -losses[place[0]][place[1]])
        chosen = largest[: ceil(rate * (IMAGES * 5))] if step else []
        for i, k in chosen:
            state[i, k] = 1
            losses[i][k] = log1p(exp(-scores[i, k].item()))
        expected = sum(map(sum, losses)) / (IMAGES * 5)
        targets = Targets(labels, observed, index)
        assert objective(Outputs(scores), targets).item() == pytest.approx(expected)
        assert torch.equal(objective.taken, (state == 1) & ~observed)
    objective.eval()
    before = objective.taken.clone()
    objective(Outputs(logits), Targets(labels, observed, index))
    assert torch.equal(objective.taken, before)  # a validation loss corrects nothing


def test_ll_cp_needs_to_know_which_images_it_sees():
    logits, labels, observed = batch()
    with pytest.raises(ValueError, match="targets need their index"):
        LargeLossForGood(IMAGES, 5)(logits, labels, observed)
    with pytest.raises(ValueError, match="rate must lie in"):
        LargeLossForGood(IMAGES, 5, rate=1.0)


def entropy(p):
    return -p * log(p) - (1 - p) * log(1 - p)


def test_apl_takes_the_least_likely_unknown_labels_as_absent_for_good():
    """The authors' table of labels (1, 0, minus a pseudo-label), rewritten epoch by epoch."""
    images, share = 10, 0.25
    objective = EntropyWithPseudoLabels(images, 2, alpha=0.2, beta=0.5, share=share, wait=2)
    generator = torch.Generator().manual_seed(3)
    labels = (torch.rand(images, 2, generator=generator) < 0.4).double()
    observed = torch.zeros(images, 2, dtype=torch.bool)
    observed[::4] = True  # 7 of 10 are unknown: one of each label is taken after an epoch
    labels = torch.where(observed, labels, 0.0)
    first = [int((~observed[:, k]).sum()) for k in range(2)]
    believed: dict[tuple[int, int], float] = {}
    for epoch in range(1, 5):
        scores = torch.randn(images, 2, generator=generator, dtype=torch.float64)
        scores = scores.half().double()  # as it is kept
        costs = []
        for i in range(images):
            for k in range(2):
                v, p = scores[i, k].item(), sigmoid(scores[i, k].item())
                if observed[i, k]:
                    costs.append(log1p(exp(-v)) if labels[i, k] else log1p(exp(v)))
                elif (i, k) in believed:
                    q = believed[i, k]
                    costs.append(0.5 * (q * log1p(exp(-v)) + (1 - q) * log1p(exp(v))))
                else:
                    costs.append(-0.2 * entropy(p))
        halves = [torch.arange(5), torch.arange(5, 10)]
        found = []
        for rows in halves:
            targets = Targets(labels[rows], observed[rows], rows)
            found.append(objective(Outputs(scores[rows]), targets).item())
            objective.step(0.1)
        assert sum(found) / 2 == pytest.approx(sum(costs) / len(costs), rel=1e-3)
        if epoch >= 2:
            for k in range(2):
                free = [i for i in range(images) if not observed[i, k] and (i, k) not in believed]
                free.sort(key=lambda i, k=k: scores[i, k].item())
                for i in free[: int(share * first[k])]:
                    believed[i, k] = sigmoid(scores[i, k].item())
        kept = {tuple(place) for place in (~objective.pseudo.isnan()).nonzero().tolist()}
        assert kept == set(believed)
    assert len(believed) == 6
    objective.eval()
    before = objective.last.clone()
    objective(Outputs(scores + 1), Targets(labels, observed, torch.arange(images)))
    assert torch.equal(objective.last.nan_to_num(), before.nan_to_num())  # validation says nothing


def test_apl_refuses_senseless_settings():
    logits, labels, observed = batch()
    with pytest.raises(ValueError, match="targets need their index"):
        EntropyWithPseudoLabels(IMAGES, 5)(logits, labels, observed)
    with pytest.raises(ValueError, match="share must lie in"):
        EntropyWithPseudoLabels(IMAGES, 5, share=1.5)
    with pytest.raises(ValueError, match="alpha and beta must not be negative"):
        EntropyWithPseudoLabels(IMAGES, 5, beta=-1.0)
