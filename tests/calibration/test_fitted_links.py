"""What every calibrator and link must keep. Oracles: order, masks, pairs, a column of all, JSON."""

import json

import numpy as np
import pytest
import torch
from calibration_problems import log_loss, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise import calibrate, objectives
from labelwise.calibration import CALIBRATORS, auto, histogram, isotonic, platt, temperature
from labelwise.calibration.auto import STEPS
from labelwise.learn.methods import LINKS, link_from_spec, link_to_spec
from labelwise.learn.objectives import PhiLink, QuasibinaryLink
from labelwise.links import Consistent, Grouped, Sigmoid, Softmax

ALL = pytest.mark.parametrize("name", CALIBRATORS)


@ALL
def test_both_logarithms_belong_to_one_probability_that_rises_with_the_score(name):
    logits, labels, _ = problem()
    link = CALIBRATORS[name](logits, labels, Sigmoid())
    at = torch.linspace(-30, 30, 2001, dtype=torch.float64)[:, None].expand(-1, 5)
    assert name == "histogram" or (link(at).diff(dim=0) >= 0).all()
    extreme = torch.tensor([[-np.inf], [-1e6], [-50], [0], [50], [1e6], [np.inf]]).expand(-1, 5)
    for dtype in (torch.float32, torch.float64):
        for values in (logits.to(dtype), extreme.to(dtype)):
            log_p, log_q = link.log_probs(values)
            assert (log_p.dtype, log_p.shape) == (dtype, values.shape)
            total = torch.logaddexp(log_p, log_q)
            torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-5, rtol=0)


@ALL
def test_labels_not_observed_count_for_nothing(name):
    logits, labels, observed = problem(unknown=True, images=120)
    link = CALIBRATORS[name](logits, labels, Sigmoid(), observed)
    wild = torch.where(observed, logits, torch.nan)
    wrong = torch.where(observed, labels.double(), -1.0)
    other = CALIBRATORS[name](wild, wrong, Sigmoid(), observed)
    assert link_to_spec(other) == link_to_spec(link)


@ALL
def test_links_that_answer_zero_or_one_do_not_break_the_fit(name):
    logits, labels, _ = problem(300)
    phi = PhiLink(gamma_neg=4, gamma_pos=1, margin=0.3)
    assert torch.isinf(phi.log_odds(logits)).any()
    assert platt(logits, labels, phi).limit == pytest.approx(np.log(1e6), abs=1e-5)
    assert platt(logits, labels, Sigmoid()).limit == 1e4
    clipped = QuasibinaryLink(log_normalizer=float(logits.quantile(0.9)))
    for base in (phi, clipped):
        link = CALIBRATORS[name](logits, labels, base)
        assert torch.isfinite(torch.stack(link.log_probs(logits))).all()
        assert log_loss(link, logits, labels) < 0.7


NAMES = st.sampled_from(list(CALIBRATORS))


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 1000), NAMES)
@settings(max_examples=20, deadline=None)
@pytest.mark.filterwarnings("ignore:.*score.*:UserWarning")
def test_tiny_tables_of_any_shape_are_fitted(images, labels, seed, name):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(images, labels)).round(1)
    truth = rng.integers(0, 2, (images, labels))
    if truth.min() == truth.max():
        with pytest.raises(ValueError, match="at least one present and one absent"):
            CALIBRATORS[name](logits, truth, Sigmoid())
        return
    link = CALIBRATORS[name](logits, truth, Sigmoid())
    assert torch.isfinite(torch.stack(link.log_probs(torch.from_numpy(logits)))).all()


def test_the_chosen_one_has_the_least_log_loss_and_says_what_it_beat():
    logits, labels, _ = problem(400, spread=1.5)
    choice = auto(logits, labels, Sigmoid())
    losses = [row.log_loss for row in choice.candidates]
    assert losses == sorted(losses)
    assert {row.name for row in choice.candidates} == {"as it is", *CALIBRATORS}
    assert choice.name == choice.candidates[0].name in ("platt", "platt-offset", "beta")
    expected = CALIBRATORS[choice.name](logits, labels, Sigmoid())
    assert link_to_spec(choice.link) == link_to_spec(expected)
    assert str(choice).startswith(f"chosen: {choice.name}, by log loss over 5 folds")
    assert choice.candidates[0].behind == 0 < choice.candidates[1].standard_error


@pytest.mark.parametrize(("known", "flipped"), [(100, False), (100, True), (99, True)])
def test_steps_are_compared_only_where_a_hundred_entries_of_each_kind_are_known(known, flipped):
    """The rarer side counts, be it present or absent."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(400) < known).reshape(40, 10) * 1.0
    logits = labels + rng.normal(size=labels.shape)
    unknown = np.ones((5, 10))  # present, had anyone looked
    observed = np.arange(45)[:, None].repeat(10, 1) < 40
    scores, truth = np.concatenate([logits, unknown]), np.concatenate([labels, unknown])
    choice = auto(-scores if flipped else scores, truth != flipped, Sigmoid(), observed, folds=2)
    compared = {row.name for row in choice.candidates}
    assert compared >= {"as it is", "temperature", "platt-shared", "beta"}
    assert compared & STEPS == (STEPS if known == 100 else set())


def test_a_fit_that_is_better_by_chance_is_not_taken():
    """Oracle: labels drawn from the link itself; without the standard error some fit would win."""
    rng = np.random.default_rng((5, 1))
    logits = rng.normal(-1, 2, (50, 5))
    chosen = auto(logits, rng.random((50, 5)) < Sigmoid()(logits), Sigmoid())
    assert (chosen.name, chosen.candidates[0].name == "as it is") == ("as it is", False)


def test_cross_validation_is_leave_fold_out_by_hand():
    logits, labels, observed = problem(60, unknown=True)
    only = {"temperature": temperature}
    choice = auto(logits, labels, None, observed, candidates=only, folds=60)
    total, count = 0.0, 0
    for row in range(60):
        rest = torch.arange(60) != row
        link = temperature(logits[rest], labels[rest], None, observed[rest])
        if observed[row].any():
            loss = log_loss(link, logits[[row]], labels[[row]], observed[[row]])
            total += loss * observed[row].sum().item()
            count += observed[row].sum().item()
    assert choice.candidates[0].log_loss == pytest.approx(total / count)


def test_groups_stay_together():
    """Copies of an image on both sides of a fold make overfitting look good."""
    logits, labels, _ = problem(60, 1, slope=1.0, shift=0.0, seed=3)
    copied, truth = logits.repeat(8, 1), labels.repeat(8, 1)
    groups = np.tile(np.arange(60), 8)
    wild = {"wild": lambda *a: isotonic(*a, strength=0.0), "temperature": temperature}
    assert auto(copied, truth, None, candidates=wild).name == "wild"
    assert auto(copied, truth, None, candidates=wild, groups=groups).name == "temperature"


def test_a_link_that_is_certain_and_wrong_has_infinite_log_loss():
    logits, labels, _ = problem(200)
    choice = auto(logits, labels, PhiLink(margin=0.5), candidates={"histogram": histogram})
    assert (choice.name, choice.candidates[1].log_loss) == ("histogram", np.inf)


RANDOM = np.random.default_rng(0)
LOGITS = torch.from_numpy(RANDOM.normal(-1, 2, (300, 4)))
LABELS = (RANDOM.random((300, 4)) < Sigmoid()(LOGITS - 0.5).numpy()).astype(float)
LIST = [
    Sigmoid(),
    Softmax(),
    objectives.SoftmaxOrNoneLink(),
    objectives.SPALink(),
    objectives.PhiLink(),
    objectives.FocalMarginLink(),
    objectives.WeightedSigmoid([0.5, 1.0, 2.0, 5.0]),
    objectives.WeightedSigmoid([3.0]),
    objectives.QuasibinaryLink(1.5),
    calibrate.temperature(LOGITS, LABELS, Sigmoid()),
    calibrate.platt(LOGITS, LABELS, objectives.SPALink(), scope="offset"),
    *(
        fit(LOGITS, LABELS, Sigmoid(), scope=scope)
        for fit in (platt, calibrate.beta, histogram, isotonic)
        for scope in ("shared", "label")
    ),
    calibrate.beta(LOGITS, LABELS, None),
    calibrate.platt(LOGITS, LABELS, Softmax()),
    calibrate.expect_zero_share(Sigmoid(), LABELS, 0.5),
    Consistent(Sigmoid(), [-1, 0, 1, 1]),
    Consistent(objectives.WeightedSigmoid([0.5, 1.0, 2.0, 5.0]), [1, -1, -1, 2]),
    Consistent(Softmax(), [1, -1, -1, 2]),
    Grouped(Sigmoid(), [[0, 2]], [[1, 3]]),
    calibrate.AveragedCurves(
        Sigmoid(), [[1, 2, 3, 4], [2, 1, 1, 2]], [[0, 1, 0, 1], [1, 0, 2, 1]], [0.3, 1.0], 50.0
    ),
]


EACH = pytest.mark.parametrize("link", LIST, ids=lambda link: link.kind)


@EACH
def test_every_link_goes_through_plain_data(link):
    assert {link.kind for link in LIST} == set(LINKS)
    spec = json.loads(json.dumps(link_to_spec(link), allow_nan=False))
    again = link_from_spec(spec)
    assert link_to_spec(again) == link_to_spec(link)
    for found, expected in zip(again.log_probs(LOGITS), link.log_probs(LOGITS), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@EACH
@torch.no_grad()
def test_one_label_alone_has_the_probability_it_has_among_all(link):
    whole = link.log_probs(LOGITS)
    changed = LOGITS.clone()
    changed[:, 0] += 3
    others = link.log_probs(changed)[0][:, 1:]
    assert torch.equal(others, whole[0][:, 1:]) != link.couples_labels
    for column in range(4):
        pair = link.label_log_probs(column, lambda k: LOGITS[:, k], 4)
        for found, expected in zip(pair, whole, strict=True):
            torch.testing.assert_close(found, expected[:, column], rtol=1e-12, atol=1e-12)
        if not link.couples_labels:
            alone = link.of_label(column).log_probs(LOGITS[:, [column]])
            for found, expected in zip(alone, whole, strict=True):
                torch.testing.assert_close(found[:, 0], expected[:, column], rtol=1e-12, atol=1e-12)
