"""Losses for missing labels; oracles: minimised risks, slow loops of the published formulas.

Those of GR and GPR have the numbers of their code for MS-COCO: k and m hold still while the loss is
differentiated, k moves by the epochs before this one, m by this one as well.
"""

from itertools import product
from math import ceil, exp, log, log1p

import contract
import pytest
import torch
from golden import assert_golden, cases, tensor
from torch.nn.functional import one_hot

from labelwise import objectives
from labelwise.learn.objectives import AN, EPR, IU, PR, WAN, LabelPairs, SmoothedBCE
from labelwise.types import Outputs, Targets

IMAGES, LABELS, EPOCHS, K = 6, 5, 8, 1.5
OPTIONS = ("lam", "margin", "gamma")
GUESSES = torch.randint(-1, 2, (6, 5), generator=torch.Generator().manual_seed(2))
GUESSING = {"steep": 10, "offset": -8}  # of GPR, where the schedule of k ends


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

    objective = after(epochs, objectives.LargeLoss(IMAGES, rate=rate, correction=correction))
    assert objective(*table).item() == pytest.approx(mean_over(table, cost))


def test_unknown_labels_have_a_large_entropy():
    def cost(v, y, known):
        p = sigmoid(v)
        if not known:
            return 0.1 * (p * log(p) + (1 - p) * log(1 - p))
        return -log(p) if y else -log(1 - p)

    table = batch()
    assert objectives.EntropyMaximisation()(*table).item() == pytest.approx(mean_over(table, cost))


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


def test_ll_cp_keeps_its_corrections():
    """A table of labels that is rewritten, as the authors' code does, beside ours."""
    rate, index = 0.1, torch.arange(IMAGES)
    objective = objectives.LargeLossForGood(IMAGES, 5, rate=rate)
    logits, labels, observed = batch()
    state = torch.where(observed, labels, -1.0)  # -1: unknown
    for step in range(4):
        scores = logits + 0.3 * step * contract.example(IMAGES, 5, seed=step)[0]
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


def test_apl_takes_the_least_likely_unknown_labels_as_absent_for_good():
    """The authors' table of labels (1, 0, minus a pseudo-label), rewritten epoch by epoch."""
    images, share = 10, 0.25
    options = {"alpha": 0.2, "beta": 0.5, "share": share, "wait": 2}
    objective = objectives.EntropyWithPseudoLabels(images, 2, **options)
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
        for i, k in product(range(images), range(2)):
            v = scores[i, k].item()
            if observed[i, k]:
                costs.append(log1p(exp(-v)) if labels[i, k] else log1p(exp(v)))
            elif (i, k) in believed:
                q = believed[i, k]
                costs.append(0.5 * (q * log1p(exp(-v)) + (1 - q) * log1p(exp(v))))
            else:
                p = sigmoid(v)
                costs.append(0.2 * (p * log(p) + (1 - p) * log(1 - p)))
        found = []
        for rows in (torch.arange(5), torch.arange(5, 10)):
            targets = Targets(labels[rows], observed[rows], rows)
            found.append(objective(Outputs(scores[rows]), targets).item())
            objective.step(0.1)
        assert sum(found) / 2 == pytest.approx(sum(costs) / len(costs), rel=1e-3)
        for k in range(2) if epoch >= 2 else ():
            free = [i for i in range(images) if not observed[i, k] and (i, k) not in believed]
            free.sort(key=lambda i, k=k: scores[i, k].item())
            believed |= {(i, k): sigmoid(scores[i, k]) for i in free[: int(share * first[k])]}
        kept = {tuple(place) for place in (~objective.pseudo.isnan()).nonzero().tolist()}
        assert kept == set(believed)
    assert len(believed) == 6
    objective.eval()
    before = objective.last.clone()
    objective(Outputs(scores + 1), Targets(labels, observed, torch.arange(images)))
    assert torch.equal(objective.last.nan_to_num(), before.nan_to_num())  # validation says nothing


def published(v, epoch, guess=0, a=0.01, c=1.0, steep=2, offset=-2, trust=0.9, low=0.5, high=0.7):
    """Return the loss of an unknown entry and its slope in the epoch counted from 1."""
    p = sigmoid(v)
    done, epoch = min(epoch - 1, EPOCHS) / EPOCHS, min(epoch, EPOCHS)
    u, s = 0.5 + (0.8 - 0.5) * epoch / EPOCHS, 2 + (0.5 - 2) * epoch / EPOCHS
    m = exp(-0.5 * ((p - u) / s) ** 2)
    if guess > 0:
        held = min(max(m, 1 - high), 1 - low)  # as the code has it, on m itself
        cost = trust * -log(p) + (1 - trust) * -log(1 - p)
        return (1 - held) * cost, (1 - held) * (p - trust)
    if guess < 0:
        return m * -log(1 - p), m * p
    k = sigmoid(steep * done * p - 2 + (offset + 2) * done)
    value = m * (k * (1 - p**a) / a + (1 - k) * (1 - (1 - p) ** c) / c)
    return value, m * (-k * p ** (a - 1) + (1 - k) * (1 - p) ** (c - 1)) * p * (1 - p)


def assert_published(objective, cost, value=0.0, push=lambda p: 0.0):
    """Compare loss and gradient with known labels' cross-entropy and a cost of unknown entries."""
    logits, labels, observed = batch(unknown=0.6)
    slopes = torch.zeros_like(logits)
    for i, j in product(range(IMAGES), range(LABELS)):
        v, y = logits[i, j].item(), labels[i, j].item()
        p = sigmoid(v)
        paid, slope = (-log(p if y else 1 - p), p - y) if observed[i, j] else cost(v, i, j)
        value += paid / logits.numel()
        slopes[i, j] = slope / logits.numel() + push(p)
    loss, gradient = contract.value_and_grad(objective, logits, labels, observed)
    assert loss.item() == pytest.approx(value)
    torch.testing.assert_close(gradient, slopes)


@pytest.mark.parametrize("epoch", [1, 2, 5, 8, 9, 30])
@pytest.mark.parametrize(("a", "c"), [(0.01, 1.0), (0.7, 0.3)])
def test_loss_and_gradient_are_the_published_ones(epoch, a, c):
    objective = objectives.GeneralizedRobust(IMAGES, present_exponent=a, absent_exponent=c)
    assert_published(after(epoch - 1, objective), lambda v, i, j: published(v, epoch, a=a, c=c))


@pytest.mark.parametrize("epoch", [1, 4, 8])
@pytest.mark.parametrize("options", [{}, {"trust": 0.6, "low": 0.05, "high": 0.2}])
def test_loss_and_gradient_with_guesses_are_the_published_ones(epoch, options):
    expects = sum(sigmoid(v) for v in batch(unknown=0.6)[0].flatten().tolist()) / IMAGES
    assert_published(
        after(epoch - 1, objectives.PseudoLabelRobust(GUESSES, K, **options)),
        lambda v, i, j: published(v, epoch, GUESSES[i, j].item(), **GUESSING, **options),
        0.001 * ((expects - K) / LABELS) ** 2,
        lambda p: 0.002 * (expects - K) / LABELS**2 * p * (1 - p) / IMAGES,
    )


def test_with_complete_labels_they_are_cross_entropy():
    logits, labels = contract.example(IMAGES, LABELS)
    for observed in (None, torch.ones(IMAGES, LABELS, dtype=torch.bool)):
        for objective in (
            objectives.LargeLoss(IMAGES, rate=0.5),
            objectives.EntropyMaximisation(),
            objectives.GeneralizedRobust(IMAGES),
            objectives.PseudoLabelRobust(GUESSES, K, weight=0.0),  # none is guessed away
        ):
            found = contract.value(after(3, objective), logits, labels, observed)
            torch.testing.assert_close(found, objectives.BCE()(logits, labels))
    for objective in (objectives.GeneralizedRobust(256), objectives.SPLC(256)):
        contract.assert_recovers_probabilities(objective)


def test_guesses_meet_the_contract():
    """Finite anywhere, for every guess; the same after a round trip of its state."""
    nothing = torch.zeros(IMAGES, LABELS, dtype=torch.bool)
    table = torch.tensor([[-1e4, -50.0, 0.0, 50.0, 1e4]] * IMAGES)
    for guess in (-1, 0, 1):
        objective = objectives.PseudoLabelRobust(torch.full((IMAGES, LABELS), guess), K)
        found = contract.value_and_grad(objective, table, torch.zeros(6, 5), nothing)
        assert all(one.isfinite().all() for one in found)
    tables = iter((GUESSES, GUESSES, torch.zeros(IMAGES, LABELS)))
    contract.assert_state_round_trip(lambda _: objectives.PseudoLabelRobust(next(tables), K))


@pytest.mark.parametrize(("present", "absent"), [(0.3, 0.0), (0.45, 0.5), (0.05, 0.9)])
def test_guesses_of_scores_are_those_of_a_loop(present, absent):
    scores = 2 * torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    found = objectives.guessed_labels(scores, present=present, absent=absent)
    for row, guesses in zip(scores.tolist(), found.tolist(), strict=True):
        shares = [exp(score) / sum(map(exp, row)) for score in row]
        lowest = sorted(range(7), key=shares.__getitem__)[: int(absent * 7)]
        assert guesses == [1 if s >= present else -(j in lowest) for j, s in enumerate(shares)]
    assert (found == 1).any()
    assert (found == -1).any() == (absent > 0)


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
