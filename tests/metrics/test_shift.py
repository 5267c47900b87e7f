"""The alarm against all outcomes, a slow sum over start times and the binomial law; shares against
a known truth, the EM of Saerens et al., and a link that was itself fitted. The energy test against
all ways to deal few points; raking against its own constraints; outcomes of known worlds."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import expit, logit
from scipy.stats import binom, norm

from labelwise.base.special import fit_slope_and_offset
from labelwise.metrics import shift


def test_too_sure_probabilities_are_noticed_and_the_alarm_stays():
    random = np.random.default_rng(2)
    odds = random.normal(0, 2, 600)
    probs, true = 1 / (1 + np.exp(-2 * odds)), 1 / (1 + np.exp(-odds))
    bad = random.random(600) < true
    alarm = shift.calibration_alarm("dog", probs, bad)
    assert alarm.raised
    good = random.random(3000) < 0.5
    assert shift.calibration_alarm("dog", [*probs, *[0.5] * 3000], [*bad, *good]).raised
    assert (alarm.audited, alarm.present) == (600, bad.sum())
    assert alarm.expected == pytest.approx(probs.sum())
    certain = shift.calibration_alarm("dog", [0.0, 1.0] * 50, [True, False] * 50)
    assert certain.raised
    assert np.isfinite(certain.evidence)
    many = shift.calibration_alarm("dog", probs, bad, labels=40)  # 5 % for all labels together
    assert (alarm.threshold, many.threshold) == (20, 800)


def test_evidence_is_the_sum_over_start_times():
    random = np.random.default_rng(4)
    probs = random.beta(0.5, 2, 9)
    truth = random.random(9) < 0.4
    slow = 1 - sum(1 / (j * (j + 1)) for j in range(1, 10))
    for slope, offset in shift.BETS:
        bet = expit(slope * logit(probs) + offset)
        ratio = np.where(truth, bet / probs, (1 - bet) / (1 - probs))
        slow += sum(ratio[j - 1 :].prod() / (j * (j + 1)) for j in range(1, 10)) / len(shift.BETS)
    assert shift.calibration_alarm("dog", probs, truth).evidence == pytest.approx(slow)
    mean, probs = 0.0, np.array([0.02, 0.3, 0.5, 0.7, 0.9, 0.999])
    for truth in product([False, True], repeat=6):  # it is one on average if they are right
        chance = np.prod(np.where(truth, probs, 1 - probs))
        mean += chance * shift.calibration_alarm("dog", probs, truth).evidence
    assert mean == pytest.approx(1.0)


def test_audits_are_drawn_by_label_and_row_alone():
    rows = np.arange(20_000)
    dog, cat = shift.audit_order("dog", rows), shift.audit_order("cat", rows)
    assert (shift.audit_order("dog", rows[7:9]) == dog[7:9]).all()
    assert len(np.unique(dog)) == len(rows)
    assert abs(np.corrcoef(dog.astype(float), cat.astype(float))[0, 1]) < 0.03
    assert abs(np.corrcoef(dog.astype(float), rows)[0, 1]) < 0.03


def photos(random, count, share, apart=2.0):
    """Return scores of two normal laws, and who carries the label."""
    truth = random.random(count) < share
    return random.normal(np.where(truth, apart, 0.0)), truth


@pytest.mark.parametrize("now", [0.2, 0.5])
def test_the_share_is_the_limit_of_em(now):
    random = np.random.default_rng(3)
    before = 0.2

    def probs(x):
        present, absent = before * norm.pdf(x, 2), (1 - before) * norm.pdf(x, 0)
        return present / (present + absent)

    x, truth = photos(random, 100_000, before)
    held_out = shift.held_out_share(probs(x), truth)
    new, _ = photos(random, 2000, now)
    share = shift.estimate_share("dog", probs(new), held_out)
    ratio = np.exp(held_out.log_ratios(probs(new)))
    t = 0.5
    for _ in range(500):
        t = float((t * ratio / (t * ratio + 1 - t)).mean())
    assert (share.now, share.now) == (pytest.approx(t, abs=1e-6), pytest.approx(now, abs=0.05))
    assert share.moved == (now != before)


def test_intervals_of_shares_carry_the_error_of_the_link():
    """The link is fitted on 800 photos and the held-out ones are 800 others, as in a run."""
    random = np.random.default_rng(6)
    inside, moved, draws = 0, 0, 30
    before, now = 0.05, 0.15
    for _ in range(draws):
        x, truth = photos(random, 800, before)
        (slope, offset), _ = fit_slope_and_offset(x, truth * 1.0, np.full(2, 1e-3))
        x, truth = photos(random, 800, before)
        held_out = shift.held_out_share(expit(slope * x + offset), truth)
        x, _ = photos(random, 2000, now)
        share = shift.estimate_share("dog", expit(slope * x + offset), held_out)
        inside += share.low <= now <= share.high
        moved += share.moved
    assert inside >= binom.ppf(0.001, draws, 0.95)
    assert moved >= 0.93 * draws


def test_without_photos_or_labels_nothing_is_said_of_the_share_now():
    for one_kind in (np.zeros(20, bool), np.ones(20, bool)):
        assert shift.held_out_share(np.full(20, 0.1), one_kind) is None
    x, truth = photos(np.random.default_rng(8), 400, 0.3)
    share = shift.estimate_share("dog", np.empty(0), shift.held_out_share(expit(2 * x - 3), truth))
    assert (share.low, share.high, share.photos, share.moved) == (0.0, 1.0, 0, False)


CLASSES = 5
NAMES = [f"label {k}" for k in range(CLASSES)]
FLAT = np.full(CLASSES, 0.2)
TRIPLED = np.array([0.6, 0.1, 0.1, 0.1, 0.1])


def energy(points, first):
    """Return the energy distance of some points from the others, by its definition."""
    points = (points - points.mean(0)) / points.std(0)
    x, z = points[list(first)], points[[k for k in range(len(points)) if k not in first]]
    return 2 * cdist(x, z).mean() - cdist(x, x).mean() - cdist(z, z).mean()


def test_the_p_value_is_the_share_of_all_deals(monkeypatch):
    random = np.random.default_rng(0)
    points = random.normal(size=(9, 3)).astype("f4")
    points[:4] += 0.8
    own = energy(points, range(4))
    every = [energy(points, first) for first in combinations(range(9), 4)]
    exact = np.mean([value >= own - 1e-6 for value in every])
    monkeypatch.setattr(shift, "PERMUTATIONS", 20_000)
    assert shift.energy_test(points[:4], points[4:], random) == pytest.approx(exact, abs=0.015)


def test_raked_weights_meet_the_shares():
    random = np.random.default_rng(2)
    labels = (random.random((500, 3)) < [0.1, 0.5, 0.3]).astype(float)
    weights = shift.raked_weights(labels, np.array([0.3, 0.4, 0.35]))
    np.testing.assert_allclose(weights @ labels, [0.3, 0.4, 0.35], atol=1e-6)
    assert weights.sum() == pytest.approx(1)
    beyond = shift.raked_weights(np.zeros((50, 1)), np.array([0.5]))  # cannot be met
    assert np.isfinite(beyond).all()


def world(random, count, prior, move=0.0, scale=1.0):
    """Return points of one of five laws each, and the exact probabilities under equal shares."""
    which = random.choice(CLASSES, count, p=prior)
    x = scale * (3 * np.eye(CLASSES)[which] + random.normal(size=(count, CLASSES))) + move
    logits = (3 * x).astype("f4")
    probs = np.exp(3 * x - (3 * x).max(axis=1, keepdims=True))
    return logits, probs / probs.sum(axis=1, keepdims=True), np.eye(CLASSES)[which]


def outcome(random, **of_library):
    own, probs, labels = world(random, 600, FLAT)
    new, new_probs, _ = world(random, 600, **of_library)
    known = shift.held_out_shares(probs, labels > 0.5)
    return shift.compare_photos(NAMES, own, labels, known, new, new_probs, own_probs=probs)


@pytest.mark.parametrize(
    ("library", "expected", "words"),
    [
        ({"prior": FLAT}, "alike", "do not differ noticeably from the held-out ones (600 held-out"),
        ({"prior": TRIPLED}, "shares differ", "more or less frequent than among the held-out"),
        ({"prior": FLAT, "scale": 0.6}, "pictures differ", "do not look like the held-out ones"),
        ({"prior": TRIPLED, "move": 2.0}, "pictures differ", "labelwise count --ask 150"),
    ],
)
def test_outcomes_of_known_worlds_and_what_is_said_of_them(monkeypatch, library, expected, words):
    found = outcome(np.random.default_rng(3), **library)
    assert found.outcome == expected
    assert words in found.sentence()
    if expected == "shares differ":
        monkeypatch.setattr(shift, "different_means", lambda *_: np.zeros(CLASSES, np.bool_))
        assert not outcome(np.random.default_rng(3), **library).moved  # where no mean differs
        assert found.moved[0].label == "label 0"
        assert found.moved[0].now == pytest.approx(0.6, abs=0.08)
        assert "(label 0 " in found.sentence()


def test_any_false_difference_of_means_is_as_rare_as_said(monkeypatch):
    """Oracle: 5 % of draws, binomially; and the one column that moved is found, alone."""
    monkeypatch.setattr(shift, "PERMUTATIONS", 99)
    random = np.random.default_rng(8)
    false = found = 0
    for _ in range(60):
        draws = random.beta(0.05, 2.0, size=(260, 20))  # rare labels, skewed
        false += shift.different_means(draws[:100], draws[100:], random).any()
        draws[100:, 3] += 0.1
        moved = shift.different_means(draws[:100], draws[100:], random)
        found += bool(moved[3])
    assert 0 < false <= binom.ppf(0.999, 60, 0.05)
    assert found > 45


def test_few_photos_tell_nothing():
    own, probs, labels = world(np.random.default_rng(5), 600, FLAT)
    known = shift.held_out_shares(probs, labels > 0.5)
    one = shift.compare_photos(NAMES, own, labels, known, own[:1], probs[:1], own_probs=probs)
    assert one.outcome == "unknown"
    assert "it takes 50 photos, and there is 1" in one.sentence()
    few = shift.compare_photos(NAMES, own[:9], labels[:9], known, own, probs, own_probs=probs[:9])
    assert "it takes 50 held-out photos, and there are 9" in few.sentence()


def test_far_photos_are_those_beyond_the_held_out_photos_own_distances():
    random = np.random.default_rng(6)
    own = random.normal(size=(300, 3)).astype("f4")
    new = np.concatenate([random.normal(size=(300, 3)), [[9, 9, 9], own[7]]]).astype("f4")
    far = shift.far_points(own, new)
    scaled = cdist((own - own.mean(0)) / own.std(0), (own - own.mean(0)) / own.std(0))
    np.fill_diagonal(scaled, np.inf)
    limit = np.quantile(scaled.min(0), 0.99, method="higher")
    slow = cdist((new - own.mean(0)) / own.std(0), (own - own.mean(0)) / own.std(0)).min(1) / limit
    np.testing.assert_allclose(far, slow, atol=2e-3)
    assert far[-2] > 5
    assert far[-1] < 0.01
    assert (far > 1).mean() < 0.05
