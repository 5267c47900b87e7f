"""Audits of tag tables: exact expectations, slow loops, guarantees read from sentences."""

import re
from copy import deepcopy

import numpy as np
import pytest
from scipy.stats import beta, hypergeom

from labelwise.decide import audits
from labelwise.decide.audits import Audit
from labelwise.decide.estimate import recall_of


def answered(audit, right, most=600):
    while (use := audit.question) is not None and audit.count < most:
        audit.answer("yes" if right[use[0]][use[1]] else "no")
    return audit


def mixed(seed, tags=40, gap=None):
    rng = np.random.default_rng((3, seed))
    sizes = np.ceil(np.exp(rng.normal(np.log(80), 1.3, tags))).astype(int)
    rates = np.where(rng.random(tags) < 0.65, rng.beta(48, 2, tags), rng.beta(10, 5, tags))
    right = [rng.random(n) < p for n, p in zip(sizes, rates, strict=True)]
    scores = None if gap is None else [rng.normal(size=len(r)) + gap * r for r in right]
    return sizes, right, scores


@pytest.mark.parametrize("gap", [None, 1.5])
def test_each_bet_is_fair(gap):
    """Summed over every use that may be drawn, Z is the set's wrong share, whatever came before."""
    sizes, right, scores = mixed(1, tags=4, gap=gap)
    audit = Audit(sizes, scores=scores, seed=4)
    steps = 0
    while audit.question is not None and steps < 8:
        if audit.test is not None:
            steps += 1
            kept, mean = audit.test.kept, 0.0
            for tag, part in zip(*np.nonzero(audit._chances), strict=True):
                members = np.flatnonzero(audit.bins[tag] == part)
                order = np.random.default_rng((4, 2, int(tag), int(part))).permutation(members)
                for use in order[audit.asked[tag, part] :]:
                    test = deepcopy(audit.test)
                    audit._bet(test, tag, part, not right[tag][use])
                    left = audit.strata[tag, part] - audit.asked[tag, part]
                    mean += audit._chances[tag, part] / left * test.seen[-1][0]
            inside = [kept[k][audit.bins[k]] for k in range(len(sizes))]
            wrong = sum((~r & m).sum() for r, m in zip(right, inside, strict=True))
            assert mean == pytest.approx(wrong / sum(m.sum() for m in inside), abs=1e-9)
        tag, use = audit.question
        audit.answer("yes" if right[tag][use] else "no")
    assert steps == 8


def test_capital_is_the_mean_of_the_stakes_products():
    sizes, right, _ = mixed(2, tags=8)
    audit = answered(Audit(sizes, seed=1), right, most=90)
    test = audit.test
    assert test is not None
    assert test.seen
    uses = int(audit.strata[test.kept].sum())
    null = (np.floor(0.1 * uses) + 1) / uses
    capitals = []
    for stake in audits.STAKES:
        capital = 1.0
        for z, _, high in test.seen:
            capital *= 1 + stake / (high - null) * (null - z)
        capitals.append(capital)
    assert np.exp(test.gained) == pytest.approx(np.mean(capitals))


@pytest.mark.parametrize(("gap", "most", "kept"), [(None, 350, 0.35), (1.5, 200, 0.6)])
def test_mixed_tags_are_guaranteed_with_few_answers(gap, most, kept):
    """Power and validity in one world: all audits end with a guarantee, which is true."""
    counts, shares = [], []
    for seed in range(2):
        sizes, right, scores = mixed(seed, gap=gap)
        audit = answered(Audit(sizes, scores=scores, seed=seed), right)
        verdict, mask = audit.verdict(), audit.kept()
        inside = [r & mask[k][audit.bins[k]] for k, r in enumerate(right)]
        hits = sum(rows.sum() for rows in inside)
        said = re.search(r"at least ([\d.]+) % of their ([\d,]+) uses", verdict.sentence())
        assert hits >= float(said[1]) / 100 * int(said[2].replace(",", ""))
        counts.append(audit.count)
        shares.append(hits / sum(r.sum() for r in right))
    assert np.mean(counts) <= most
    assert np.mean(shares) >= kept


def test_resumes_from_answers_in_any_order():
    sizes, right, scores = mixed(3, tags=12, gap=1.0)
    whole, told = Audit(sizes, scores=scores, seed=9), {}
    for _ in range(110):
        use = whole.question
        assert use not in told
        told[use] = "yes" if right[use[0]][use[1]] else "no"
        ahead = deepcopy(whole)
        ahead.answer(told[use])
        assert whole.question == use
        whole.answer(told[use])
        assert whole.question == ahead.question
    again = Audit(sizes, scores=scores, seed=9).resume(dict(sorted(told.items())))
    assert again.question == whole.question
    assert again.verdict() == whole.verdict()
    assert again.precision(0) == whole.precision(0)
    assert Audit(sizes, scores=scores, seed=8).question != Audit(sizes, seed=9).question


def test_unsure_counts_as_wrong_for_the_guarantee_alone():
    told = ["yes"] * 8 + ["unsure"] * 2
    audit, strict = Audit([10], seed=0), Audit([10], seed=0)
    for value in told:
        if audit.question is not None:
            audit.answer(value)
            strict.answer("no" if value == "unsure" else value)
    assert not audit.verdict().guaranteed
    assert not strict.verdict().guaranteed
    assert audit.precision(0).low == strict.precision(0).low == 0.8
    assert (audit.precision(0).high, strict.precision(0).high) == (1.0, 0.8)


def test_small_tables_are_known_and_a_wrong_tag_is_dropped():
    for sizes in ([1], [1, 1, 1], [2, 5]):
        audit = answered(Audit(sizes), [np.ones(n, bool) for n in sizes])
        verdict = audit.verdict()
        assert (verdict.guaranteed, verdict.certain, verdict.uses) == (True, True, sum(sizes))
        assert "known, not estimated" in verdict.sentence()
        assert audit.count <= sum(sizes)
    right = [np.ones(4, bool), np.zeros(4, bool)]
    verdict = answered(Audit([4, 4]), right).verdict()
    assert verdict.guaranteed
    assert verdict.kept == (0,)
    assert verdict.sentence().startswith(
        "1 of 2 tags can be trusted: at least 90 % of their 4 uses"
    )
    alone = answered(Audit([1]), [np.zeros(1, bool)]).verdict()
    assert not alone.guaranteed
    assert alone.sentence().startswith("Nothing is guaranteed")


def test_asking_is_optimal_stopping():
    """The table of prices is what a plain recursion over all futures gives."""
    table, weights, prices = audits.worth_asking(0.1)
    weight = 6

    def mean(asked, wrong):
        odds = weights[weight] / (1 - weights[weight])
        for good, one in ((1, audits.GOOD), (-1, audits.BAD)):
            for i in range(asked):
                bad = i < wrong
                done = i if bad else i - wrong
                top = one[0] + done if bad else one[1] + done
                odds *= (top / (sum(one) + i)) ** good
        rates = [(one[0] + wrong) / (sum(one) + asked) for one in (audits.GOOD, audits.BAD)]
        return (odds * rates[0] + rates[1]) / (1 + odds)

    def value(asked, wrong, price):
        stop = max(audits.LINE - mean(asked, wrong), 0.0)
        if asked == audits.MOST_FIRST:
            return stop, 0.0
        rate = mean(asked, wrong)
        go = rate * value(asked + 1, wrong + 1, price)[0]
        go += (1 - rate) * value(asked + 1, wrong, price)[0] - price
        return max(stop, go), go - stop

    for asked, wrong in ((4, 0), (5, 1), (6, 2)):
        at = table[weight, asked, wrong]
        gains = [value(asked, wrong, price)[1] for price in prices]
        assert at == max((np.asarray(gains) > 1e-15).sum() - 1, 0)


def test_tag_intervals_cover():
    inside = total = 0
    for seed, gap in enumerate((None, 1.0)):
        sizes, right, scores = mixed(seed, tags=15, gap=gap)
        audit = answered(Audit(sizes, scores=scores, seed=seed), right, 150)
        for tag in range(15):
            known = audit.precision(tag)
            if known.answered:
                total += 1
                inside += known.low - 1e-9 <= right[tag].mean() <= known.high + 1e-9
                assert known.low <= known.estimate <= known.high
    assert inside >= 0.95 * total


@pytest.mark.parametrize("per_tag", [False, True])
def test_answers_count_with_their_sampling_weights(per_tag, monkeypatch):
    """Over many audits of one table, estimated wrong uses add up to those there are.

    Scores mislead here: wrong uses score highest, so what is believed of the strata is wrong.
    """
    monkeypatch.setattr(audits, "TESTS", 1)  # so that answers alone end it, after a fixed number
    rng = np.random.default_rng(1)
    right = [rng.random(200) < p for p in (0.85, 0.8, 0.75)]
    scores = [rng.random(200) + 0.5 * ~r for r in right]
    gaps = []
    for seed in range(8 if per_tag else 24):  # per tag, each audit has three sets
        audit = Audit([200] * 3, scores=scores, seed=seed, per_tag=per_tag)
        answered(audit, right, most=60)
        sets = [t.kept for t in audit.own.values()] if per_tag else [audit.test.kept]
        for kept in sets:
            inside = [kept[k][audit.bins[k]] for k in range(3)]
            truth = sum((~r & m).sum() for r, m in zip(right, inside, strict=True))
            left = np.where(kept, audit.strata - audit.asked, 0)
            said = (left * audit.unanswered_wrong()).sum() + audit.wrong[kept].sum()
            gaps.append((said - truth) / audit.strata[kept].sum())
    assert abs(np.mean(gaps)) < 3 * np.std(gaps) / np.sqrt(len(gaps))


def test_one_guarantee_per_tag():
    large = answered(Audit([2000], per_tag=True), [np.ones(2000, bool)]).verdict()
    assert large.guaranteed  # not given up after one answer
    assert large.answers < 60
    right = [np.ones(80, bool), np.arange(80) % 2 == 0]
    verdict = answered(Audit([80, 80], per_tag=True), right).verdict()
    assert verdict.kept == (0,)
    assert verdict.guaranteed
    assert "of the uses of each are right (95 % confidence for each tag" in verdict.sentence()


def test_recall_is_exact():
    said = recall_of(1000, 60, (190, 7), (10, 9))
    assert (said.low, said.high) == pytest.approx(beta.ppf([0.025, 0.975], [9, 10], [8, 7]))
    counts = np.arange(7, 940)
    likely = (hypergeom.sf(6, 940, counts, 190) > 0.025) & (
        hypergeom.cdf(7, 940, counts, 190) > 0.025
    )
    assert (said.least_missing, said.most_missing) == (counts[likely][0], counts[likely][-1])
    assert said.missing == pytest.approx(7 * 940 / 190)
    assert said.recall == 9 / 16
    wider = recall_of(1000, 60, (190, 7), (10, 9), unsure=3)
    assert wider.low < said.low
    assert wider.high == said.high
    assert wider.most_missing > said.most_missing
    assert wider.least_missing == said.least_missing
    none = recall_of(50, 0, (50, 0), (0, 0))
    assert none.recall is None
    assert (none.least_missing, none.most_missing) == (0, 0)
    assert "none of 50 random photos shows dog" in none.sentence("dog")
