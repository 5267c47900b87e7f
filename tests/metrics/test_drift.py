"""The alarm against all outcomes, a slow sum over start times and the binomial law; shares against
a known truth, the EM of Saerens et al., and a link that was itself fitted."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, norm

from labelwise.metrics import shift
from labelwise.numeric.special import fit_slope_and_offset


def test_evidence_is_one_on_average_if_probabilities_are_right():
    probs = np.array([0.02, 0.3, 0.5, 0.7, 0.9, 0.999])
    mean = 0.0
    for truth in itertools.product([False, True], repeat=6):
        chance = np.prod(np.where(truth, probs, 1 - probs))
        mean += chance * shift.calibration_alarm("dog", probs, truth).evidence
    assert mean == pytest.approx(1.0)


def test_too_sure_probabilities_are_noticed_and_the_alarm_stays():
    random = np.random.default_rng(2)
    odds = random.normal(0, 2, 600)
    probs, true = 1 / (1 + np.exp(-2 * odds)), 1 / (1 + np.exp(-odds))
    bad = random.random(600) < true
    alarm = shift.calibration_alarm("dog", probs, bad)
    assert alarm.raised
    good = random.random(3000) < 0.5
    after = shift.calibration_alarm("dog", [*probs, *[0.5] * 3000], [*bad, *good])
    assert after.raised
    assert (alarm.audited, alarm.present) == (600, bad.sum())
    assert alarm.expected == pytest.approx(probs.sum())


def test_certain_answers_that_are_wrong_are_evidence_not_an_error():
    alarm = shift.calibration_alarm("dog", [0.0, 1.0] * 50, [True, False] * 50)
    assert np.isfinite(alarm.evidence)
    assert alarm.raised


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
    assert share.now == pytest.approx(t, abs=1e-6)
    assert share.now == pytest.approx(now, abs=0.05)
    assert share.moved == (now != before)


@pytest.mark.parametrize(("before", "now"), [(0.05, 0.05), (0.05, 0.15)])
def test_intervals_of_shares_carry_the_error_of_the_link(before, now):
    """The link is fitted on 800 photos and the held-out ones are 800 others, as in a run."""
    random = np.random.default_rng(6)
    inside = moved = 0
    draws = 50
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
    if now == before:
        assert moved <= binom.ppf(0.999, draws, 0.05)
    else:
        assert moved >= 0.93 * draws


def test_a_label_that_no_held_out_photo_carries_has_no_share():
    probs = np.full(20, 0.1)
    assert shift.held_out_share(probs, np.zeros(20, bool)) is None
    assert shift.held_out_share(probs, np.ones(20, bool)) is None


def test_the_error_of_the_ratio_is_that_of_many_fits():
    random = np.random.default_rng(10)
    fits = []
    for _ in range(150):
        x, truth = photos(random, 1000, 0.2, 1.0)
        fits.append(shift.held_out_share(expit(x + logit(0.2) - 0.5), truth))
    seen = np.cov([(fit.slope, fit.offset) for fit in fits], rowvar=False)
    stated = np.mean([fit.covariance for fit in fits], axis=0)
    np.testing.assert_allclose(stated, seen, rtol=0.35, atol=3e-4)


def test_without_photos_nothing_is_said_of_the_share_now():
    random = np.random.default_rng(8)
    x, truth = photos(random, 400, 0.3)
    share = shift.estimate_share("dog", np.empty(0), shift.held_out_share(expit(2 * x - 3), truth))
    assert (share.low, share.high, share.photos, share.moved) == (0.0, 1.0, 0, False)
