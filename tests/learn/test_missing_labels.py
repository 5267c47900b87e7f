"""Losses for missing labels; oracles: minimised risks, slow loops of the published formulas."""

from math import ceil, exp, log, log1p

import contract
import pytest
import torch
from golden import assert_golden, cases, tensor
from torch.nn.functional import one_hot

from labelwise import objectives
from labelwise.learn.objectives import AN, EPR, IU, PR, WAN, LabelPairs, SmoothedBCE

IMAGES, LABELS = 6, 5
OPTIONS = ("lam", "margin", "gamma")


def batch(seed=0, unknown=0.5):
    """Return logits, labels and which are observed; some of each kind."""
    logits, labels = contract.example(IMAGES, 5, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    observed = torch.rand(labels.shape, generator=generator) >= unknown
    return logits, torch.where(observed, labels, 0.0), observed


def sigmoid(v):
    return 1 / (1 + exp(-v))


def focal(v):
    return -((1 - sigmoid(v)) ** 2) * log(sigmoid(v))


def mean_over(table, cost):
    entries = zip(*(side.flatten().tolist() for side in table), strict=True)
    costs = [cost(*entry) for entry in entries]
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
    assert objectives.Hill(lam=lam)(*table).item() == pytest.approx(mean_over(table, cost))


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_splc_takes_likely_unknown_labels_as_present_after_the_first_epoch(epochs):
    def cost(v, y, known):
        if y:
            return focal(v - 1)
        missing = epochs >= 1 and not known and sigmoid(v) > 0.6
        return focal(v) if missing else focal(-v)

    table = batch()
    objective = after(epochs, objectives.SPLC(IMAGES))
    assert objective(*table).item() == pytest.approx(mean_over(table, cost))


@pytest.mark.parametrize("epochs", [0, 1, 2, 5])
def test_the_largest_losses_of_unknown_labels_are_rejected(epochs):
    table = logits, _, observed = batch()
    rate = 0.07
    costs = sorted((log1p(exp(v)) for v in logits[~observed].tolist()), reverse=True)
    count = ceil(rate * epochs * logits.numel())
    least = costs[min(count, len(costs)) - 1] if count else float("inf")

    def cost(v, y, known):
        if not known and log1p(exp(v)) >= least - 1e-12:
            return 0.0
        return log1p(exp(-v)) if y else log1p(exp(v))

    objective = after(epochs, objectives.LargeLoss(IMAGES, rate=rate))
    assert objective(*table).item() == pytest.approx(mean_over(table, cost))


def test_zlpr_is_the_published_sum():
    logits, labels, observed = batch(unknown=0.2)
    total = 0.0
    for row in range(IMAGES):
        sides = ([], [])
        for v, y, known in zip(logits[row], labels[row], observed[row], strict=True):
            if known:
                sides[int(y)].append(exp(-v) if y else exp(v))
        total += sum(log1p(sum(side)) for side in sides)
    assert objectives.ZLPR()(logits, labels, observed).item() == pytest.approx(total / IMAGES)


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
        assert objectives.FocalMarginLink(**options)(best).item() == pytest.approx(chance, abs=1e-3)
        if read:
            assert torch.sigmoid(best).item() == pytest.approx(read[place], abs=1e-3)


def test_epochs_are_counted_by_images_in_training_alone_and_survive_a_resume():
    objective = objectives.SPLC(12)
    logits, labels = contract.example(IMAGES, 5)
    objective(logits, labels)
    objective.eval()
    objective(logits, labels)
    assert objective.epochs(logits[:0]) == 0
    objective.train()
    objective(logits, labels)
    again = objectives.SPLC(12)
    again.load_state_dict(objective.state_dict())
    assert again.epochs(logits[:0]) == objective.epochs(logits[:0]) == 1


def test_with_complete_labels_it_is_cross_entropy():
    logits, labels = contract.example(IMAGES, LABELS)
    for observed in (None, torch.ones(IMAGES, LABELS, dtype=torch.bool)):
        found = contract.value(
            after(3, objectives.LargeLoss(IMAGES, rate=0.5)), logits, labels, observed
        )
        torch.testing.assert_close(found, objectives.BCE()(logits, labels))
    contract.assert_recovers_probabilities(objectives.SPLC(256))


# Single positive labels, against golden vectors and their degenerate cases.

CODE = {"eps_mode": "code"}
OF_MLSPL = {
    "an": lambda **o: AN(**o),
    "an_ls": lambda **o: AN(smoothing=0.1, **o),
    "wan": lambda **o: WAN(**o),
    "epr": lambda **o: EPR(2.0, **o),
    "pr": lambda **o: PR(),
}


def logits_and_labels(case):
    return torch.logit(tensor(case["inputs"]["preds"])), tensor(case["inputs"]["labels_obs"])


@pytest.mark.parametrize("name", OF_MLSPL)
def test_golden_single_positives(name):
    case = cases(f"mlspl_{name}")["2x4"]
    batch = logits_and_labels(case)
    assert_golden(OF_MLSPL[name](**CODE)(*batch), case["expected"]["total"])
    assert_golden(OF_MLSPL[name]()(*batch), case["expected"]["total_with_eps0"])
    logits, labels = contract.example(5, 7)  # unknown and absent are read alike
    hidden = torch.where(labels == 1, labels, float("nan"))
    plain = OF_MLSPL[name]()(logits, labels)
    torch.testing.assert_close(OF_MLSPL[name]()(logits, hidden, labels == 1), plain)


def test_golden_of_complete_labels_true_negatives_and_garcin_et_al():
    case = cases("mlspl_iun")["2x4"]
    logits, labels = logits_and_labels(case)
    observed = (labels == 1) | (tensor(case["inputs"]["labels_true"]) == -1)
    assert_golden(IU(**CODE)(logits, labels, observed), case["expected"]["total"])
    assert_golden(IU()(logits, labels, observed), case["expected"]["total_with_eps0"])
    for name, options in (("bce_ls", {}), ("bce", {"smoothing": 0.0})):
        case = cases(f"mlspl_{name}")["2x4 clean"]
        loss = SmoothedBCE(**options, **CODE)(*logits_and_labels(case))
        assert_golden(loss, case["expected"]["total"])
    case = cases("avgk_an")["eq. (5) batch mean"]
    logits, labels = tensor(case["inputs"]["logits"]), one_hot(torch.tensor([0, 1, 0]), 4)
    assert_golden(WAN(per="image")(logits, labels), case["expected"]["loss"])
    assert_golden(4 * WAN()(logits, labels), case["expected"]["loss"])
    case = cases("avgk_epr")["eq. (8)"]
    assert_golden(EPR(2, weight=0.5, per="image")(logits, labels), case["expected"]["loss"])


def test_unknown_entries_leave_the_mean_of_smoothed_bce_and_of_added_terms_but_iu_counts_them():
    logits, labels = contract.example(5, 7)
    observed = torch.ones_like(labels, dtype=torch.bool)
    observed[:, 3:] = False
    for loss, share in ((SmoothedBCE(), 1), (IU(), 3 / 7)):
        some = loss(logits[:, :3], labels[:, :3])
        torch.testing.assert_close(loss(logits, labels, observed), some * share)
    both = AN() + LabelPairs()
    pairs = both(logits, labels, observed) - AN()(logits, labels, observed)
    moved = torch.where(observed, logits, 9.0)
    again = both(moved, labels, observed) - AN()(moved, labels, observed)
    torch.testing.assert_close(pairs, again)
