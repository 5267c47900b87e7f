"""Losses. Oracles: golden vectors, cross-entropy, timm's ASL, minimised risks, slow loops."""

from math import ceil, exp, inf, isnan, log, log1p

import contract
import golden
import pytest
import torch
from contract import example, value_and_grad
from golden import assert_golden, cases, tensor
from torch.nn.functional import one_hot

import labelwise.learn.objectives as o
from labelwise import objectives
from labelwise.errors import TrainingError
from labelwise.learn.methods import link_from_spec, link_to_spec, make_objective
from labelwise.learn.objectives import (
    AN,
    EPR,
    IU,
    PR,
    WAN,
    LabelPairs,
    Quasibinary,
    QuasibinaryLink,
    SmoothedBCE,
    precise_normalizer,
)
from labelwise.learn.objectives.quasibinary import TrackedLink, log_normalizer
from labelwise.types import DatasetFacts

CASES = golden.cases("asy")
PHI = golden.cases("phi_map")
LOGITS = torch.linspace(-12, 12, 97, dtype=torch.float64)


def focusing(case, weight_grad="full"):
    params = case["params"]
    return o.Focusing(params["gamma_neg"], params["gamma_pos"], params["margin"], weight_grad)


@pytest.mark.parametrize("name", ["asl_repo_default", "focal_sym2", "asyfocal_1_4"])
def test_golden_values_and_both_gradients(name):
    case = CASES[name]
    for mode, key in [("full", "grad_of_sum_full"), ("detached", "grad_of_sum_detached_weight")]:
        logits, labels, _ = golden.batch(case)
        loss = o.asymmetric_loss(logits, labels, focusing(case, mode))
        golden.assert_golden(loss, case["expected"]["elementwise"])
        loss.sum().backward()
        golden.assert_golden(logits.grad, case["expected"][key])
        mean = o.Asymmetric(focusing(case, mode))(logits, labels)
        golden.assert_golden(mean, case["expected"]["mean"])


def test_golden_margin_and_reduction():
    case = CASES["negatives below/at/just above margin"]
    logits = torch.logit(golden.tensor(case["inputs"]["probs"]))
    loss = o.asymmetric_loss(logits, torch.zeros_like(logits), focusing(case))
    golden.assert_golden(loss, case["expected"]["elementwise"])
    assert loss[0, 0] == 0
    case = CASES["q2l_reduction_1000x_mean"]
    logits, labels, _ = golden.batch(case)
    loss = 1000 * o.Asymmetric(focusing(case))(logits, labels)
    golden.assert_golden(loss, case["expected"]["loss"])


@pytest.mark.parametrize("name", [name for name in PHI if name.startswith(("gn=", "maximum"))])
def test_golden_phi(name):
    case = PHI[name]
    logits = torch.logit(golden.tensor(case["inputs"]["prob"]))
    for mode, key in [("full", "phi_full_gradient"), ("detached", "phi_detached_weight")]:
        expected = case["expected"][key]
        probs = o.PhiLink(**case["params"], weight_grad=mode)(logits)
        golden.assert_golden(probs, expected if isinstance(expected, list) else [expected])


def test_golden_population_optima():
    case = PHI["population optimum under each gradient mode, ASY(gn=4,m=.05)"]
    for row in case["expected"]["rows"]:
        options = {"gamma_neg": 4, "gamma_pos": row["gamma_pos"], "margin": 0.05}
        full, detached = (
            o.PhiLink(**options),
            o.PhiLink(**options, weight_grad="detached"),
        )
        at_full = torch.logit(golden.tensor(row["p_star_full"]))
        at_detached = torch.logit(golden.tensor(row["p_star_detached"]))
        torch.testing.assert_close(full(at_full).item(), row["eta"], atol=1e-6, rtol=0)
        torch.testing.assert_close(detached(at_detached).item(), row["eta"], atol=1e-6, rtol=0)
        wrong = row["phi_full_of_p_star_detached"]
        torch.testing.assert_close(full(at_detached).item(), wrong, atol=1e-6, rtol=0)


def test_with_the_gradient_of_the_formula_the_printed_map_is_the_right_one():
    facts = DatasetFacts(1, 1, 0.5, (0.5,))
    maps = [make_objective("asl+phi", facts, phi=phi).link for phi in ("right", "printed")]
    torch.testing.assert_close(maps[0](LOGITS), maps[1](LOGITS), rtol=0, atol=0)


def test_margin_makes_ties_at_zero():
    link = o.PhiLink(4, 1, 0.05)
    logits = torch.logit(torch.tensor([0.01, 0.04, 0.06])).requires_grad_()
    log_p, log_q = link.log_probs(logits)
    assert log_p[:2].tolist() == [float("-inf")] * 2
    assert log_q[:2].tolist() == [0.0, 0.0]
    log_q.sum().backward()
    assert logits.grad.isfinite().all()
    logits = torch.tensor([[-25.0]], requires_grad=True)  # no dead zone for very wrong positives
    o.Asymmetric(o.FOCAL)(logits, torch.ones(1, 1)).backward()
    assert logits.grad.item() < -0.9


SPA_CASES = golden.cases("spa")


def sides(case):
    params = case["params"]
    return [o.Side(*(params[f"{k}_{side}"] for k in ("zeta", "k", "b"))) for side in ("pos", "neg")]


@pytest.mark.parametrize(
    "name", [name for name in SPA_CASES if not name.startswith(("WRONG", "2x4"))]
)
def test_golden_elementwise(name):
    case = SPA_CASES[name]
    scores, expected = golden.tensor(case["inputs"]["scores"]), case["expected"]
    for label, key in ((1.0, "loss_pos"), (0.0, "loss_neg")):
        loss = o.spa_loss(scores, torch.full_like(scores, label), *sides(case))
        golden.assert_golden(loss, expected[key])
    link = o.SPALink(*sides(case))
    if "prob" in expected:
        golden.assert_golden(link(scores), expected["prob"])
    if "logodds" in expected:
        golden.assert_golden(link.log_odds(scores), expected["logodds"])


def test_golden_batch():
    case = SPA_CASES["2x4 batch"]
    logits, labels, _ = golden.batch(case)
    objective, expected = o.SPA(*sides(case)), case["expected"]
    loss = objective(logits, labels)
    loss.backward()
    golden.assert_golden(loss, expected["mean"])
    golden.assert_golden(logits.grad, expected["grad_of_mean"])
    golden.assert_golden(objective.probabilities(logits.detach()), expected["prob"])


# Oracles: golden vectors, identities of C.

QUASI_CASES = golden.cases("quasibinary")
BATCHES = [name for name in QUASI_CASES if "targets" in QUASI_CASES[name]["inputs"]]
GRADIENTS = {"literal": "grad_through_C", "detached": "grad_penalty_C_detached"}


@pytest.mark.parametrize("name", BATCHES)
def test_golden_batches(name):
    expected = QUASI_CASES[name]["expected"]
    for penalty, key in GRADIENTS.items():
        logits, labels, _ = golden.batch(QUASI_CASES[name])
        loss = Quasibinary(penalty=penalty)(logits, labels)
        loss.backward()
        golden.assert_golden(loss, expected["loss"])
        golden.assert_golden(logits.grad, expected[key])
        log_c = log_normalizer(logits, labels)
        golden.assert_golden(log_c, expected["logC"])
        golden.assert_golden(logits - log_c, expected["log_q"])
        golden.assert_golden((logits - log_c).exp(), expected["q"])


def test_golden_probabilities_are_clipped_and_the_average_moves():
    case = QUASI_CASES["test-time probability with clipping"]
    link = QuasibinaryLink(log(case["inputs"]["C_mavg"]))
    golden.assert_golden(link(golden.tensor(case["inputs"]["logits"])), case["expected"]["prob"])
    link = TrackedLink()
    for c, expected in [(10.0, 10.0), (20.0, 11.0), (5.0, 10.4)]:
        link.track(golden.tensor(c).log())
        golden.assert_golden(link.log_normalizer.exp(), expected)
    link, logits = QuasibinaryLink(1.0), torch.tensor([-1e4, 0.0, 1.0, 1e4])
    log_p, log_q = link.log_probs(logits)
    assert (log_p.tolist(), log_q[2:].tolist()) == ([-10001.0, -1.0, 0.0, 0.0], [-inf] * 2)
    assert link.log_odds(logits).isfinite().all()
    torch.testing.assert_close(link(link.logits_at(torch.tensor([0.3]))).item(), 0.3)


def test_a_batch_without_labels_keeps_the_average_and_only_pays_the_penalty():
    objective = Quasibinary()
    logits = torch.tensor([[1.0, -1.0], [2.0, 0.5]])
    loss, grad = value_and_grad(objective, logits, torch.zeros(2, 2))
    assert loss == grad.abs().sum() == 0
    assert objective.link.log_normalizer.isnan()
    objective.link.track(torch.tensor(0.75))
    loss, grad = value_and_grad(objective, logits, torch.zeros(2, 2))
    torch.testing.assert_close(loss.item(), (0.25 + 1.25) / 2)
    torch.testing.assert_close(grad, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))
    assert objective.link.log_normalizer == 0.75


def test_the_average_moves_only_in_training():
    objective = Quasibinary()
    logits, labels = example()
    objective.eval()(logits, labels)
    assert objective.link.log_normalizer.isnan()
    with pytest.raises(ValueError, match="must have seen a batch with labels"):
        objective.probabilities(logits)
    assert isnan(link_from_spec(link_to_spec(QuasibinaryLink())).log_normalizer)
    objective.train()(logits, labels)
    torch.testing.assert_close(objective.link.log_normalizer, log_normalizer(logits, labels))
    assert "link.log_normalizer" in objective.state_dict()


def test_precise_normalizer_is_the_c_of_all_rows():
    logits, labels = example(rows=40)
    link = precise_normalizer(logits, labels)
    for objective in (Quasibinary(), Quasibinary() + 0.5 * LabelPairs()):  # a sum hands it on
        assert objective.final_link(logits, labels).log_normalizer == link.log_normalizer
    torch.testing.assert_close((logits - link.log_normalizer).exp().sum(), labels.sum())
    observed = torch.rand(40, 5) < 0.5
    part = precise_normalizer(logits, labels, observed).log_normalizer
    expected = logits[observed].exp().sum() / labels[observed].sum()
    assert exp(part) == pytest.approx(expected.item())
    with pytest.raises(ValueError, match="at least one observed label"):
        precise_normalizer(logits, torch.zeros_like(labels))
    moving = Quasibinary(test_normalizer="moving")
    moving(logits, labels), moving(2 * logits, labels)
    assert moving.final_link(logits, labels).log_normalizer == moving.link.log_normalizer.item()


def test_centred_takes_only_the_mean_out_of_detached_whose_logits_may_run_away():
    logits, labels = example(rows=12, seed=4)
    kinds = (Quasibinary(penalty=penalty) for penalty in ("detached", "centred"))
    detached, centred = (value_and_grad(kind, logits, labels)[1] for kind in kinds)
    torch.testing.assert_close(centred, detached - detached.mean())
    Quasibinary(penalty="centred")(logits - 20, labels)
    with pytest.raises(TrainingError, match="use penalty='centred'"):
        Quasibinary(penalty="detached")(logits - 20, labels)
    Quasibinary(penalty="detached").eval()(logits - 20, labels)


# Losses for missing labels; oracles: minimised risks, slow loops of the published formulas.

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
