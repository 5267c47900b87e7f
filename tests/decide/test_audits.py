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


@pytest.mark.parametrize("alone", [False, True])
def test_each_bet_is_fair(alone):
    """Summed over every use that may be drawn, Z is the set's wrong share, whatever came before."""
    sizes, right, scores = mixed(1, tags=4, gap=1.5)
    audit = Audit(sizes, scores=scores, seed=4)
    steps = 0
    while audit.question is not None and steps < 8:
        running = audit.own.get(audit.question[0]) if alone else audit.test
        if running is not None:
            steps += audit.test is not None
            kept, mean = running.kept, 0.0
            chances = np.where(kept, audit._chances, 0)
            out_of_reach = ((audit.strata > audit.asked) & kept & (chances == 0)).any()
            for tag, part in zip(*np.nonzero(chances), strict=True):
                members = np.flatnonzero(audit.bins[tag] == part)
                order = np.random.default_rng((4, 2, int(tag), int(part))).permutation(members)
                for use in order[audit.asked[tag, part] :]:
                    test = deepcopy(running)
                    audit._bet(test, tag, part, not right[tag][use])
                    left = audit.strata[tag, part] - audit.asked[tag, part]
                    assert (len(test.seen) == len(running.seen)) == out_of_reach
                    mean += chances[tag, part] / chances.sum() / left * (test.seen or [[0]])[-1][0]
            inside = [kept[k][audit.bins[k]] for k in range(len(sizes))]
            wrong = sum((~r & m).sum() for r, m in zip(right, inside, strict=True))
            expected = pytest.approx(wrong / sum(m.sum() for m in inside), abs=1e-9)
            assert out_of_reach or mean == expected
        answered(audit, right, most=audit.count + 1)
    assert steps == 8


def test_capital_is_the_mean_of_the_stakes_products():
    sizes, right, _ = mixed(2, tags=8)
    audit = answered(Audit(sizes, seed=1), right, most=90)
    uses = int(audit.strata[audit.test.kept].sum())
    null = (np.floor(0.1 * uses) + 1) / uses
    z, _, high = np.array(audit.test.seen).T
    capitals = [np.cumprod(1 + stake / (high - null) * (null - z)) for stake in audits.STAKES]
    assert np.exp(audit.test.gained(null)) == pytest.approx(np.mean(capitals, 0).max())


@pytest.mark.parametrize(("gap", "most", "kept"), [(None, 450, 0.35), (1.5, 200, 0.6)])
def test_mixed_tags_are_guaranteed_with_few_answers(gap, most, kept):
    """Power and validity in one world: all audits end with a guarantee, which is true."""
    counts, shares = [], []
    for seed in range(2):
        sizes, right, scores = mixed(seed, gap=gap)
        audit = answered(Audit(sizes, scores=scores, seed=seed), right)
        verdict, mask = audit.verdict(), audit.kept()
        inside = [r & mask[k][audit.bins[k]] for k, r in enumerate(right)]
        hits = sum(rows.sum() for rows in inside)
        said = re.search(r"at least ([\d.]+) % of these ([\d,]+) uses together", verdict.sentence())
        assert hits >= float(said[1]) / 100 * int(said[2].replace(",", ""))
        counts.append(audit.count)
        shares.append(hits / sum(r.sum() for r in right))
    assert np.mean(counts) <= most
    assert np.mean(shares) >= kept


def test_resumes_from_answers_in_any_order():
    sizes, right, scores = mixed(3, tags=12, gap=1.0)
    whole, told = Audit(sizes, scores=scores, seed=9), {}
    for _ in range(50):
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
    assert [one.verdict().guaranteed for one in (audit, strict)] == [False, False]
    assert audit.precision(0).low == strict.precision(0).low == 0.8
    assert (audit.precision(0).high, strict.precision(0).high) == (1.0, 0.8)


def test_what_nobody_could_tell_may_have_been_right():
    """The same answers with "no" for "unsure": the upper end is lower by the unsure ones alone."""
    audit, strict = Audit([2000]), Audit([2000])
    for value in ["yes", "yes", "unsure", "no"] * 20:
        if audit.question is not None:
            audit.answer(value)
            strict.answer("no" if value == "unsure" else value)
    told, plain = audit.precision(0), strict.precision(0)
    assert told.unsure > 1
    assert told.high == pytest.approx(plain.high + told.unsure / 2000)
    assert told.low == pytest.approx(plain.low)


def test_small_tables_are_known_and_a_wrong_tag_is_dropped():
    for sizes in ([1], [1, 1, 1], [2, 5]):
        audit = answered(Audit(sizes), [np.ones(n, bool) for n in sizes])
        verdict = audit.verdict()
        assert (verdict.guaranteed, verdict.certain, verdict.uses) == (True, True, sum(sizes))
        assert "known, not estimated" in verdict.sentence()
        assert audit.count <= sum(sizes)
    right = [np.ones(4, bool), np.zeros(4, bool), np.zeros(4, bool)]
    verdict = answered(Audit([4, 4, 4]), right).verdict()
    assert (verdict.guaranteed, verdict.kept) == (True, (0,))
    assert "1 of 3 tags is kept: at least 90 % of these 4 uses together" in verdict.sentence()
    assert verdict.sentence().endswith("2 were dropped.")
    alone = answered(Audit([1]), [np.zeros(1, bool)]).verdict()
    assert not alone.guaranteed
    assert alone.sentence().startswith("Nothing is guaranteed")


def test_a_hopeless_table_ends_early():
    """Two uses in three are right, 90 % are asked for: nobody answers them all for nothing."""
    rng = np.random.default_rng(1)
    right = [rng.permutation(n) < 0.65 * n for n in (104, 87, 132, 64, 68, 147)]
    audit = Audit([len(own) for own in right])
    assert 20 < answered(audit, right).count < 100
    assert audit.verdict().sentence().startswith("Nothing is guaranteed: no set of tags reached 90")


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
    """Each Z is fair, so wrong uses are estimated by their mean, even where scores mislead."""
    monkeypatch.setattr(audits, "TESTS", 1)  # so that the first one goes on
    rng = np.random.default_rng(1)
    right = [rng.random(200) < p for p in (0.85, 0.8, 0.75)]
    scores = [rng.random(200) + 0.5 * ~r for r in right]
    audit = answered(Audit([200] * 3, scores=scores, per_tag=per_tag), right, most=60)
    left = (audit.strata - audit.asked) * audit.unanswered_wrong()
    for test in audit.own.values() if per_tag else [audit.test]:
        share = np.mean([z for z, _, _ in test.seen])
        said = left[test.kept].sum() + audit.wrong[test.kept].sum()
        assert said == pytest.approx(share * audit.strata[test.kept].sum())


def test_one_guarantee_per_tag():
    large = answered(Audit([2000], per_tag=True), [np.ones(2000, bool)]).verdict()
    assert large.guaranteed > (large.answers >= 60)  # not given up after one answer
    right = [np.ones(80, bool), np.arange(80) % 2 == 0]
    verdict = answered(Audit([80, 80], per_tag=True), right).verdict()
    assert (verdict.guaranteed, verdict.kept) == (True, (0,))
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
    assert (wider.high, wider.least_missing) == (said.high, said.least_missing)
    assert wider.low < said.low
    assert wider.most_missing > said.most_missing
    none = recall_of(50, 0, (50, 0), (0, 0))
    assert (none.recall, none.least_missing, none.most_missing) == (None, 0, 0)
    assert "none of 50 random photos shows dog" in none.sentence("dog")


def test_a_forecast_is_said_early_and_kept():
    """Oracle: the answers that audits of simulated tables took in the end."""
    early, held = 0, []
    for seed in range(12):
        sizes, right, scores = mixed(seed, gap=1.5 if seed % 2 else None)
        audit = Audit(sizes, scores=scores, seed=seed)
        answered(audit, right, most=19)
        early += audit.forecast() is not None
        answered(audit, right, most=20)
        low, high = audit.forecast()
        assert 0 <= low < high <= 800
        answered(audit, right)
        held.append(20 + low <= audit.count <= 20 + high)
    assert early == 0
    assert sum(held) >= 10  # 90 % are promised; evidence/audit.md measures it
