"""What every calibrator and link must keep. Oracles: order, masks, pairs, a column of all, JSON."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from calibration_problems import log_loss, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise import calibrate, objectives
from labelwise.calibration import CALIBRATORS, auto, histogram, isotonic, platt, temperature
from labelwise.calibration.auto import STEPS
from labelwise.calibration.noted import noted_once, shown_link
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


# Photos of which one label was noted. Oracles: worlds whose probabilities are known by
# construction, and counting over all sets of labels.


def world(rows, labels, mean, seed=0):
    """Return logits, probabilities that a label is shown, and labels that are shown."""
    rng = np.random.default_rng(seed)
    u = 2.5 * rng.normal(size=(rows, labels)) + mean
    p = 1 / (1 + np.exp(-u))
    return u, p, (rng.random(u.shape) < p) * 1.0


def note(shown, seed=1):
    """Return one label of each row, drawn evenly from those that are shown."""
    first = (shown * (1 + np.random.default_rng(seed).random(shown.shape))).argmax(1)
    return np.eye(shown.shape[1])[first] * shown.any(1)[:, None]


@pytest.mark.parametrize("empty", [False, True])
def test_shown_labels_are_found_from_noted_ones(empty):
    """A head of noted labels says u - d, less than what is shown; the link finds it again."""
    u, p, shown = world(3000, 8, -1.5)
    rows = np.ones(len(u), bool) if empty else shown.any(1)
    noted = note(shown[rows])
    link, found = shown_link(u[rows] - 1.3, noted, Sigmoid())
    probs = np.exp(link.log_probs(u[rows] - 1.3)[0])
    # A photo that shows nothing is left out, so the others show more than chance.
    least = 1.0 if empty else shown.any(1).mean()
    assert np.abs(probs - p[rows]).mean() < 0.03
    assert found.several
    assert found.labels_per_photo == pytest.approx(shown.sum(1).mean() / max(least, 1e-9), rel=0.1)
    assert "photos seem to show 2." in found.sentence()


@pytest.mark.parametrize("sure", [0.7, 3.0])
def test_photos_of_one_label_are_told_from_photos_of_several(sure):
    """Classes drawn from a softmax, hard and easy ones: no photo shows two."""
    rng = np.random.default_rng(2)
    v = sure * rng.normal(size=(1500, 8))
    p = np.exp(v) / np.exp(v).sum(1, keepdims=True)
    noted = np.eye(8)[(p.cumsum(1) < rng.random((1500, 1))).sum(1)]
    found = shown_link(v, noted, Sigmoid())[1]
    assert not found.several


def test_the_chance_of_a_note_is_that_of_counting_all_sets():
    """Oracle: sums over the 2^4 sets of labels, each with an even draw of the noted one."""
    rng = np.random.default_rng(3)
    u = 2 * rng.normal(size=(400, 4)) + 0.5
    noted = note(world(400, 4, 0.5, seed=3)[2])
    keep = noted.any(1)
    u, noted = u[keep], noted[keep]

    def loss(slope, offset):
        p = 1 / (1 + np.exp(-(slope * u + offset)))
        drawn = np.zeros(p.shape)
        none = np.prod(1 - p, axis=1)
        for members in product((0, 1), repeat=4):
            chance = np.prod(np.where(members, p, 1 - p), axis=1)
            drawn += chance[:, None] * np.array(members) / max(sum(members), 1)
        return -np.log((drawn * noted).sum(1) / (1 - none)).sum()

    link, _ = shown_link(u, noted, Sigmoid())
    from labelwise.calibration.shrunken import shrunken_lines

    lines = shrunken_lines(u, noted, np.ones(u.shape))
    slope = np.mean(link.slope / lines[:, 0])
    offset = np.mean(link.offset - slope * lines[:, 1])
    u = u * lines[:, 0] + lines[:, 1]
    best = loss(slope, offset)
    for other in ((0.9, 0.0), (1.1, 0.0), (1.0, 0.2), (1.0, -0.2)):
        assert best < loss(slope * other[0], offset + other[1]) + 0.1


@pytest.mark.parametrize(
    ("labels", "observed", "expected"),
    [
        ([[1, 0], [0, 1]], None, True),
        ([[1, 1], [0, 1]], None, False),
        ([[1, 1], [0, 1]], [[1, 0], [0, 1]], True),
        ([[0, 0], [0, 0], [0, 1]], None, False),
    ],
)
def test_a_table_of_single_labels_is_known_by_its_rows(labels, observed, expected):
    seen = None if observed is None else np.array(observed, bool)
    assert noted_once(np.array(labels), seen) is expected


def test_twenty_photos_do_not_say_that_photos_show_everything():
    """Logits that know nothing of the labels: oracle, the log loss of a coin."""
    rng = np.random.default_rng(5)
    for seed in range(10):
        u = rng.normal(size=(20, 28)) - 3
        noted = np.eye(28)[rng.integers(0, 28, 20)]
        link, found = shown_link(u, noted, Sigmoid())
        assert found.labels_per_photo < 8, seed
        assert not found.several
        assert np.exp(link.log_probs(u)[0]).max() < 0.9
