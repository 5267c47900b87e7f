"""Was a list's promise kept? Oracles: scipy's laws, and lists whose every photo is known."""

import numpy as np
import pytest
from scipy.stats import binomtest, hypergeom

from labelwise.decide import ListAnswers, Promise, judge_list, judge_lists
from labelwise.decide.promises import DOUBTED, MISJUDGED


def promise(listed=100, kind="sure", level=0.9, confidence=0.95):
    sure = None if kind == "expected" else confidence
    said = ("list", level, sure, 400, 50, 0.95, "held-out photos", "2026-01-01", "exact")
    return Promise(*said, kind=kind, listed=listed)


def told(drawn, wrong, more_right=0, more_wrong=0):
    return ListAnswers(drawn - wrong + more_right, wrong + more_wrong, drawn, wrong)


@pytest.mark.parametrize(("drawn", "wrong"), [(30, 0), (30, 2), (60, 3), (90, 25), (3, 1)])
def test_the_bounds_are_the_tails_of_the_law_of_draws(drawn, wrong):
    found = judge_list(promise(), told(drawn, wrong))
    counts = np.arange(wrong, 100 - drawn + wrong + 1)
    above = hypergeom.sf(wrong - 1, 100, counts, drawn)
    below = hypergeom.cdf(wrong, 100, counts, drawn)
    assert found.least == counts[above > MISJUDGED].min()
    assert found.most == max(counts[below > DOUBTED].max(), found.least)
    assert found.share == wrong / drawn


def test_what_is_known_of_every_photo_leaves_no_doubt():
    kept = judge_list(promise(), told(0, 0, more_right=90))
    assert (kept.verdict, kept.certain, kept.most) == ("kept", True, 10)
    assert judge_list(promise(), told(0, 0, more_right=89)).verdict == "cannot tell"
    broken = judge_list(promise(), told(0, 0, more_wrong=11))
    assert (broken.verdict, broken.certain, broken.least) == ("broken", True, 11)
    assert judge_list(promise(), told(0, 0, more_wrong=10)).verdict == "cannot tell"
    whole = judge_list(promise(10, level=0.7), told(10, 3))
    assert (whole.verdict, whole.least, whole.most, whole.share) == ("kept", 3, 3, 0.3)
    assert "kept: 3 of 10 photos drawn from it are wrong; 3 of its 10" in str(whole)


def test_it_says_how_many_more_right_answers_would_tell():
    """Oracle: the same list with as many more, and with one fewer."""
    early = judge_list(promise(), told(5, 0))
    assert early.verdict == "cannot tell"
    assert f"{early.more} more right answers would tell" in str(early)
    assert judge_list(promise(), told(5 + early.more, 0)).verdict == "kept"
    assert judge_list(promise(), told(4 + early.more, 0)).verdict == "cannot tell"
    assert "no photo of it was answered" in str(judge_list(promise(), told(0, 0)))


def test_lists_together_are_held_to_the_confidence():
    """Oracle: scipy's binomial test of as many broken lists."""
    kept = [judge_list(promise(20), told(20, 1)) for _ in range(19)]
    broken = judge_list(promise(20), told(20, 3))
    one = judge_lists([*kept, broken])
    chance = binomtest(1, 20, 0.05, alternative="greater").pvalue
    assert (one.told, one.kept, one.verdict) == (20, 19, "kept")
    assert one.chance == pytest.approx(chance)
    assert str(one).startswith("kept in 19 of 20; promises that hold break 1 or more of 20 with")
    assert judge_lists([kept[0], broken]).verdict == "cannot tell"  # more than allowed, few lists
    many = judge_lists([*kept[:16], broken, broken, broken, broken])
    assert many.verdict == "broken"
    assert many.chance == pytest.approx(binomtest(4, 20, 0.05, alternative="greater").pvalue)
    drawn = judge_list(promise(100), told(20, 8))  # a sample may mislead, so more is allowed
    seen = judge_lists([*kept, drawn])
    assert seen.chance == pytest.approx(binomtest(1, 20, 0.06, alternative="greater").pvalue)
    nothing = judge_lists([judge_list(promise(), told(0, 0))])
    assert (nothing.verdict, str(nothing)) == ("cannot tell", "1 cannot be decided yet")
    assert str(judge_lists([])) == "nothing was promised"


def test_no_answers_break_an_expected_promise_of_version_0_2():
    bad = judge_list(promise(20, kind="expected"), told(20, 10))
    assert (bad.verdict, bad.more) == ("cannot tell", 0)
    assert "10 of its 20 photos are wrong, 10% may be on average over searches" in str(bad)
    together = judge_lists([bad] * 30)
    assert (together.verdict, together.told, together.untold) == ("cannot tell", 0, 30)
