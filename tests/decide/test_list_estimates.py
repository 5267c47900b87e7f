"""List estimates under label shift against scipy's laws, and audits of ranked lists."""

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from labelwise.decide.audits import ListAudit, promised_check, size_list
from labelwise.decide.estimate import (
    LibraryCount,
    ListEstimate,
    NoEstimate,
    ScoredSplit,
    estimate_library_count,
    estimate_list,
    judge_cut,
)
from labelwise.errors import DataError


def scored(size, share, rng, gap=2.8):
    truth = rng.random(size) < share
    return rng.normal(size=size) + gap * truth, truth


def test_interval_is_the_beta_binomial_one():
    """Scores that say nothing tell no share: the law is a single beta-binomial, cut at the list."""
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 5 == 0
    scores = np.repeat(rng.permutation(120), 5).astype(float)  # the same for both
    held, library = ScoredSplit(scores, truth), rng.random(400) * 120
    said = judge_cut(held, held, library, 110.0)
    listed, false = int((library >= 110).sum()), 40
    assert (said.listed, said.test_absent, said.test_wrong) == (listed, 480, false)
    assert said.share == 0.0
    law = betabinom.pmf(np.arange(listed + 1), 400, false + 0.5, 480 - false + 0.5)
    law = law.cumsum() / law.sum()
    ends = np.searchsorted(law, [0.015, 0.985], side="right")
    assert (said.low * listed, said.high * listed) == pytest.approx(np.minimum(ends, listed))
    assert said.wrong == pytest.approx(min(false / 480 * 400 / listed, 1.0), abs=1e-9)
    words = said.stated().sentence
    assert words.startswith(f"About {100 * said.wrong:.2g} % of this list of {listed} photos is ")
    assert words.endswith(": 40 of 480 test photos that do not match score this high.")


def test_a_short_list_is_not_estimated():
    said = [ListEstimate(0.5, n, 0.2, 0.1, 0.5, 0.1, 480, 8, 0.95).stated() for n in (1, 9, 10)]
    assert [one.kind for one in said] == ["none", "none", "estimate"]
    assert said[0].sentence == "No estimate: a list of 1 photo is too short; look at all of it."


def test_photos_found_wrong_leave_the_estimate():
    """Oracle: 40 photos, 4 to 20 wrong, about 8; 6 of the wrong ones are gone."""
    said = ListEstimate(0.5, 40, 0.2, 0.1, 0.5, 0.1, 480, 8, 0.95).without(6)
    assert (said.listed, said.low, said.wrong) == (34, 0, pytest.approx(2 / 34))
    assert said.high == pytest.approx(14 / 34)


def test_a_long_list_has_the_interval_of_the_law_at_every_number():
    """Oracle: scipy's quantiles of the beta-binomial, for a list of far more photos than FINE."""
    truth = np.arange(600) % 5 == 0
    scores = np.repeat(np.arange(120.0), 5)
    held, library = ScoredSplit(scores, truth), np.random.default_rng(0).random(60_000) * 120
    said = judge_cut(held, held, library, 20.0)
    law = betabinom(60_000, 400.5, 80.5)
    inside = law.cdf(said.listed)
    ends = [law.ppf(inside * tail) / said.listed for tail in (0.015, 0.985)]
    assert (said.low, said.high) == pytest.approx(ends, rel=2e-3)


@pytest.mark.parametrize("shift", [0.3, 2.0])
def test_lists_and_counts_cover_under_label_shift(shift):
    covers, shown, counts = 0, 0, []
    for seed in range(24):
        rng = np.random.default_rng((8, seed))
        splits = [ScoredSplit(*scored(500, 0.2, rng)) for _ in range(2)]
        scores, truth = scored(1500, 0.2 * shift, rng)
        said, count = estimate_list(*splits, scores), estimate_library_count(*splits, scores)
        if isinstance(said, ListEstimate):
            shown += 1
            covers += said.low <= (~truth[scores >= said.cut]).mean() <= said.high
        assert isinstance(count, LibraryCount)
        counts.append(count.low <= truth.sum() <= count.high)
    assert shown >= 12
    assert covers >= binom.ppf(0.01, shown, 0.95)
    assert sum(counts) >= binom.ppf(0.005, 24, 0.95)


def test_no_estimate_says_why():
    rng = np.random.default_rng(2)
    good, library = ScoredSplit(*scored(400, 0.2, rng)), scored(300, 0.2, rng)[0]
    few = ScoredSplit(good.scores[:40], good.present[:40])
    blank = ScoredSplit(good.scores, np.zeros(400, bool))
    for pair, reason in (
        ((good, few), "fewer than 50 test"),
        ((blank, good), "no validation photo"),
    ):
        said = estimate_list(*pair, library)
        assert isinstance(said, NoEstimate)
        assert said.reason.startswith(reason)
    useless = [ScoredSplit(*scored(800, 0.1, rng, gap=0.0)) for _ in range(2)]
    assert isinstance(estimate_list(*useless, library), NoEstimate)
    assert isinstance(estimate_library_count(*useless, library), NoEstimate)
    with pytest.raises(DataError, match="between 0 and 1"):
        estimate_list(good, good, library, wrong_at_most=0)


def test_more_answers_carry_a_longer_list():
    probs = 1 / (1 + np.exp(np.linspace(-6, 6, 5000)))
    lengths = [size_list(probs, answers) for answers in (12, 30, 80)]
    longest = [one[0] for one in lengths]
    assert longest == sorted(longest)
    assert longest[0] < longest[-1]
    assert size_list(np.full(50, 0.2), 20) == ()


def test_list_audit_resumes_and_ends_with_what_is_known():
    audit, told = ListAudit((3,), seed=1), {}
    while (rank := audit.question) is not None:
        told[rank] = "yes"
        audit.answer("yes")
    assert audit.guaranteed == 3
    promise = promised_check(audit.check)
    assert promise.in_words("dog") == (
        "at least 90 % of these 3 photos match dog: known, not estimated, 3 photos checked"
    )
    assert ListAudit((3,), seed=1).resume(told).check == audit.check
    with pytest.raises(DataError, match="fall"):
        ListAudit((3, 5))
