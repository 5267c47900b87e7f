"""The contract, over every method of the catalogue."""

import contract
import pytest
import torch
from contract import example
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.modules.module import register_module_buffer_registration_hook

import labelwise.learn.objectives as o
from labelwise import objectives
from labelwise.errors import SettingsError
from labelwise.learn.methods import LINKS, METHODS, link_from_spec, link_to_spec, make_objective
from labelwise.types import DatasetFacts, Outputs, Targets

# Ranks and noise drawn by place in the batch do not follow a permutation: their exact forms do.
WITHOUT_DRAWS = {
    "warp": {"rank": "exact"},
    "rml": {"rank": "exact"},
    "top-k": {"eps": 0.0},
    "role": {"start": 0.5},
}
GROWS_WITH_THE_BATCH = {"two-way"}
# What the papers state for their losses (ASL and focal: Ridnik et al.; SPA: section 5.1), and
# what ASL's authors pass in their script for MS-COCO.
OFFICIAL = {"gamma_neg": 4.0, "gamma_pos": 0.0, "margin": 0.05, "weight_grad": "detached"}
STATED = {
    "asl-official": OFFICIAL,
    "asl-official+phi": {**OFFICIAL, "phi": "right"},
    "asl-official+lpr": {**OFFICIAL, "lpr_weight": 1.0},
    "focal-official": {**OFFICIAL, "gamma_neg": 2.0, "margin": 0.0},
    "asl": {"gamma_neg": 4.0, "gamma_pos": 1.0, "margin": 0.05},
    "asl+lpr": {"gamma_neg": 4.0, "gamma_pos": 1.0, "margin": 0.05, "lpr_weight": 1.0},
    "focal": {"gamma_neg": 2.0, "gamma_pos": 2.0, "margin": 0.0},
    "focal+phi": {"gamma_neg": 2.0, "gamma_pos": 2.0, "margin": 0.0},
    "spa": {"zeta_pos": 1, "k_pos": 1, "b_pos": 0, "zeta_neg": 5, "k_neg": 3, "b_neg": 1},
    "two-way": {"temperature_pos": 4.0, "temperature_neg": 1.0, "margin": 0.0},
    "an-ls": {"smoothing": 0.1},
    "an": {"smoothing": 0.0},
    "ll-r": {"rate": 0.002},
    "ll-r+boostlu": {"rate": 0.005},
    "bce+mbls": {"term_weight": 0.1},
}
# Improper where this batch does not look.
IMPROPER_ELSEWHERE = {
    "bce+mbls": "nothing changes within its margin",
    "bce+mdca": "the mean label of this batch is exact, that of a small one is not",
}

every_method = pytest.mark.parametrize("name", METHODS)


def maker(name, **options):
    def make(facts):
        torch.manual_seed(0)
        return make_objective(name, facts, **options)

    return make


def exact(name):
    return maker(name, **WITHOUT_DRAWS.get(name, {}))


def new(name):
    return exact(name)(contract.facts(6, 5))


@pytest.mark.parametrize("name", STATED)
def test_defaults_are_those_of_the_papers(name):
    assert METHODS[name].options.items() >= STATED[name].items()


@every_method
def test_every_option_can_be_given_and_no_other(name):
    facts = contract.facts(6, 5)
    plain = contract.value(exact(name)(facts), *contract.example())
    given = METHODS[name].options | WITHOUT_DRAWS.get(name, {})
    assert torch.equal(contract.value(maker(name, **given)(facts), *contract.example()), plain)
    with pytest.raises(SettingsError, match="has no option 'nonsense'"):
        make_objective(name, facts, nonsense=1)
    # What the training set supplies can be told instead.
    given = [make_objective("epr", facts, **told).k for told in ({}, {"k": 4.5})]
    assert given == [facts.mean_labels, 4.5]


@every_method
def test_proper_methods_alone_recover_probabilities_and_ranking_ones_refuse_them(name):
    objective = exact(name)(contract.facts(256, 3))
    if METHODS[name].probabilities == "ranking only":
        with pytest.raises(SettingsError, match=r"ranks labels .* calibrate\.platt"):
            objective.probabilities(torch.zeros(2, 5))
        return
    proper = METHODS[name].probabilities == "proper"
    if not proper and (objective.reads_unknown or name in IMPROPER_ELSEWHERE):
        pytest.skip(IMPROPER_ELSEWHERE.get(name, "of unknown labels; here all are known"))
    error = contract.recovery_error(objective)
    assert error < 1e-3 if proper else error > 0.02


@every_method
@pytest.mark.parametrize(
    ("check", "made"),
    [
        (contract.assert_repeating_a_batch_changes_nothing, exact),
        (contract.assert_finite_anywhere, maker),
        (contract.assert_equivariant, exact),
        (contract.assert_safe_under_autocast, maker),
        (contract.assert_state_round_trip, maker),
        (contract.assert_masks_are_slices, exact),
        (contract.assert_gradient_is_right, maker),
    ],
)
def test_keeps_the_contract(check, made, name):
    if name in GROWS_WITH_THE_BATCH and "repeating" in check.__name__:
        pytest.skip("its log-sum-exp over the images of a label grows with their number")
    if new(name).reads_unknown and "masks" in check.__name__:
        pytest.skip("unknown labels take part in this loss")
    detached = METHODS[name].options.get("weight_grad") == "detached"
    if (name == "role" or detached) and "gradient" in check.__name__:
        pytest.skip("what is constant in the gradient is held by golden vectors and timm's loss")
    check(made(name))


@every_method
def test_a_batch_without_images_costs_nothing(name):
    objective, logits = new(name), torch.zeros(0, 5, requires_grad=True)
    outputs = Outputs(logits, {output: logits for output in objective.aux})
    for observed in (None, torch.zeros(0, 5, dtype=torch.bool)):
        loss = objective(outputs, Targets(torch.zeros(0, 5), observed, torch.arange(0)))
        loss.backward()
        assert loss.item() == 0
        assert logits.grad.shape == (0, 5)


def one_of_each_class():
    """Return methods whose parts, losses, terms and links, are of every class there is."""
    chosen, seen = [], set()
    parts = {name: {type(part) for part in new(name).modules()} for name in METHODS}
    for name in sorted(parts, key=lambda name: -len(parts[name])):
        if parts[name] - seen:
            chosen.append(name)
            seen |= parts[name]
    return chosen


@pytest.mark.parametrize("name", one_of_each_class())
def test_compiles_to_one_graph(name):
    # What changes state on its way goes through the pass that makes graphs functional, too.
    state = [*new(name).buffers(), *new(name).parameters()]
    functional = state or name == "bce+lpr"  # and an operator of our own
    contract.assert_compiles(maker(name), "aot_eager" if functional else "eager")


def test_compiles_beside_a_library_that_watches_modules():
    untraced = torch.compiler.disable(lambda module, name, buffer: None)
    hook = register_module_buffer_registration_hook(untraced)
    try:
        contract.assert_compiles(maker("warp"), "aot_eager")
    finally:
        hook.remove()


@every_method
def test_link_survives_as_plain_data(name):
    objective = new(name)
    if objective.link is None:
        pytest.skip("no link")
    contract.value(objective, *contract.example())
    assert isinstance(objective.link, LINKS[objective.link.kind])
    logits = contract.example(seed=1)[0]
    again = link_from_spec(link_to_spec(objective.link))
    torch.testing.assert_close(again(logits), objective.link(logits), rtol=0, atol=0)


def test_weights_on_present_labels_are_torchs_and_their_link_takes_them_out():
    logits, labels = contract.example()
    weights = [1.0, 2.0, 3.0, 0.5, 4.0]
    expected = binary_cross_entropy_with_logits(
        logits, labels.to(logits), pos_weight=torch.tensor(weights, dtype=logits.dtype)
    )
    torch.testing.assert_close(objectives.BCE(pos_weight=weights)(logits, labels), expected)
    contract.assert_recovers_probabilities(objectives.BCE(pos_weight=3.0))
    balanced = make_objective("bce", DatasetFacts(9, 2, 1.0, (0.25, 0.5)), pos_weight="balanced")
    assert balanced.pos_weight.tolist() == [3.0, 1.0]
    observed = torch.rand(6, 5) < 0.7  # per image it is the sum over labels
    observed[0] = False
    expected = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    expected = (expected * observed).sum(dim=1)[observed.any(dim=1)].mean()
    torch.testing.assert_close(objectives.BCE(per="image")(logits, labels, observed), expected)


@every_method
def test_soft_labels_are_mixtures_of_hard_ones_or_are_refused(name):
    objective = new(name)
    if objective.soft_labels:
        if not name.endswith("+lpr"):  # pairs: only of independent labels, as test_softmax has it
            contract.assert_soft_labels_are_mixtures(exact(name))
        return
    logits, labels = torch.zeros(6, 5), torch.eye(6, 5)
    labels[2, 2] = 0.25
    with pytest.raises(ValueError, match=r"needs labels of 0 and 1, got 0\.25; cut soft labels"):
        objective(logits, labels)
    if not objective.aux:  # of the hidden entry nobody asks
        objective(
            Outputs(logits), Targets(labels.round(), labels == labels.round(), torch.arange(6))
        )


FACTS = DatasetFacts(100, 3, 1.0, (0.1, 0.2, 0.3))


@pytest.mark.parametrize("name", ["bce", "spa", "focal", "asl", "asl+phi", "spa+lpr", "an"])
def test_the_loss_is_at_rest_where_labels_of_a_share_start(name):
    priors = torch.tensor([0.05, 0.3, 0.6], dtype=torch.float64)
    objective = make_objective(name, FACTS)
    start = objective.start_logits(priors).requires_grad_()
    main = objective.main if isinstance(objective, objectives.Sum) else objective
    main(start[None], priors[None]).backward()
    torch.testing.assert_close(start.grad, torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)


RISING = {
    "phi": objectives.PhiLink(4, 1, 0.0),
    "phi, detached": objectives.PhiLink(4, 0, 0.0, "detached"),
    "spa": objectives.SPALink(),
    "spa, plain": objectives.SPALink(objectives.Side(), objectives.Side()),
    "spa, steep": objectives.SPALink(objectives.Side(), objectives.Side(0.5, 2, -1)),
    "hill": objectives.FocalMarginLink(),
    "hill, 2": objectives.FocalMarginLink(lam=2.0),
    "focal margin": objectives.FocalMarginLink(lam=None),
}


@pytest.mark.parametrize("name", RISING)
def test_links_rise_stay_finite_and_have_an_inverse(name):
    link = RISING[name]
    logits = torch.linspace(-12, 12, 49, dtype=torch.float64)
    log_odds = link.log_odds(torch.tensor([-1e4, *logits, 1e4], dtype=torch.float64))
    assert log_odds.isfinite().all()
    assert (log_odds.diff() > 0).all()
    log_p, log_q = link.log_probs(logits)
    torch.testing.assert_close(torch.logaddexp(log_p, log_q), torch.zeros_like(log_p))
    torch.testing.assert_close(link.logits_at(link(logits)), logits, atol=1e-3, rtol=0)


# What losses and links cannot use is refused with the rule and the value.

LOGITS, LABELS = example()
GUESSES, EYE = torch.zeros(6, 5), torch.eye(3)
FLAT = "has no link where a higher logit"
INDEX = "targets need their index"

REFUSED = [
    (lambda: o.BCE()(LOGITS[0], LABELS), r"logits must be \(B, K\), got shape \(5,\)"),
    (lambda: o.BCE()(LOGITS, torch.arange(6)), r"matrix of 0 and 1, got .*one_hot\(ids, 5\)"),
    (lambda: o.BCE()(LOGITS, LABELS[:, :4]), r"shape of the logits \(6, 5\), got \(6, 4\)"),
    (lambda: o.BCE()(LOGITS, LABELS * 3), r"labels must lie in \[0, 1\], got 3.0"),
    (lambda: o.BCE()(LOGITS, LABELS * float("nan")), "labels must lie in .*got nan"),
    (lambda: o.BCE()(LOGITS, LABELS, LABELS * 0 + 2), "boolean, or 0 and 1, got 2"),
    (lambda: o.BCE()(LOGITS, LABELS, LABELS[:5] > 0), r"observed must have .* got \(5, 5\)"),
    (lambda: o.BCE(per="batch"), "per must be"),
    (lambda: o.BCE(pos_weight=[1.0, 0.0]), "pos_weight must be"),
    (lambda: o.BCE(pos_weight="heavy"), "pos_weight must be"),
    (lambda: o.Focusing(gamma_neg=-1), "must not be negative, got"),
    (lambda: o.Focusing(margin=1), r"margin must lie in \[0, 1\), got 1"),
    (lambda: o.PhiLink(weight_grad="some"), "weight_grad must be"),
    (lambda: o.Asymmetric(phi="wrong"), "phi must be one of .* got 'wrong'"),
    (lambda: o.Side(k=0), r"must be positive, got Side\(zeta=1.0, k=0"),
    (lambda: o.SPA() + -1 * o.LabelPairs(), "must not be negative, got -1"),
    (lambda: o.SPLC(5, threshold=1.0), "threshold must lie strictly between 0 and 1, got 1"),
    (lambda: o.SPLC(5, wait=-1), "wait must not be negative, got -1"),
    (lambda: o.SPLC(0), "num_images must be at least 1, got 0"),
    (lambda: o.LargeLoss(5, rate=1.0), r"rate must lie in \[0, 1\), got 1"),
    (lambda: o.FocalMarginLink(gamma=-1.0), "gamma must not be negative, got -1"),
    (lambda: o.Hill(gamma=1.0), FLAT),
    (lambda: o.Hill(gamma=0.5, lam=1.6), FLAT),
    (lambda: o.Hill(lam=1.2), r"lam must be at least 1\.5, .* got 1\.2"),
    (lambda: o.MMCE(0.0), "width must be above"),
    (lambda: o.LogitMargin(-1.0), "margin must not be negative"),
    (lambda: o.ROLE(2, 3, 0.0), "must be positive, got 2, 3 and 0.0"),
    (lambda: o.ROLE(2, 3, 1.0, table="a/file"), "table must be one of"),
    (lambda: o.ROLE(2, 3, 1.0, start=1.0), r"start must lie in \[0.5, 1\), got 1.0"),
    (lambda: o.ROLE(2, 3, 1.0)(torch.zeros(2, 3), EYE[:2]), INDEX),
    (lambda: o.NoisedTopK(0), "at least 1 .* got 0, 10, 0.2"),
    (lambda: o.NoisedTopK(1, eps=-1.0), "eps not negative"),
    (lambda: o.SmoothTopK(1, tau=0.0), "tau positive"),
    (lambda: o.NoisedTopK(3)(torch.zeros(1, 3), EYE[:1]), "below the 3 labels, got 3"),
    (lambda: o.SmoothTopK(3)(torch.zeros(1, 3), EYE[:1]), "below the 3 labels, got 3"),
    (lambda: o.AverageK(2)(Outputs(LOGITS), Targets(LABELS)), "head output 'proposal', got none"),
    (lambda: o.AverageK(0.5), r"k must be at least 1 .* got 0.5"),
    (lambda: o.AverageK(2, alpha=-1), "alpha not negative, got 2 and -1"),
    (lambda: o.average_k_candidates(EYE, EYE, 4), "between 1 and the 3 labels, got 4"),
    (lambda: o.SoftmaxCrossEntropy(0), "temperature must be positive, got 0"),
    (lambda: o.UniformKL(-1), "beta must not be negative, got -1"),
    (lambda: o.DistributionBalanced((0.5, 0.1), scale=0.0), "scale must be positive"),
    (lambda: o.Quasibinary(penalty="soft"), "penalty must be one of"),
    (lambda: o.Quasibinary(momentum=1.0), "momentum must lie in"),
    (lambda: o.WARP(rank="first"), "rank must be one of .* got 'first'"),
    (lambda: o.WARP(rounding="up"), "rounding must be"),
    (lambda: o.PairwiseHinge(0), "margin must be positive, got 0"),
    (lambda: o.RML(beta=2), "RML needs s < 1"),
    (lambda: o.TwoWay(side="left"), "side must be one of"),
    (lambda: o.TwoWay(temperature_pos=0), "must be positive, got 0 and"),
    (lambda: o.AN(smoothing=0.5), r"smoothing must lie in \[0, 0.5\), got 0.5"),
    (lambda: o.AN(eps_mode="exact"), "eps_mode must be one of .* got 'exact'"),
    (lambda: o.WAN(per="batch"), "per must be one of .* got 'batch'"),
    (lambda: o.EPR(0.0), "k must be positive .* got 0.0"),
    (lambda: o.EPR(1.0, weight=-1.0), "weight not negative, got 1.0 and -1.0"),
]


@pytest.mark.parametrize(("make", "rule"), REFUSED)
def test_what_cannot_be_used_is_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_pairs_need_an_objective_with_probabilities():
    with pytest.raises(SettingsError, match="has no probabilities"):
        (o.TwoWay() + o.LabelPairs())(LOGITS, LABELS)
