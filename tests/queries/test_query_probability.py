"""Oracles: outcomes counted on other photos with dependent labels, and the product itself."""

from dataclasses import replace
from math import expm1, log

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest

from labelwise.queries import Query, bind, bound_query, calibrate_query
from labelwise.tables import posterior

DRAWS, HELD = 20, 500


def drawn(photos, rho):
    """Photos whose marginals are exact and whose labels depend on each other given the photo."""
    data = posterior(photos, 1, 1, num_labels=6, most=0.4, least=0.1, spread=2.0, rho=rho, seed=3)
    eta = np.clip(data.eta[:photos], 1e-12, 1 - 1e-12)
    return data.table.space, np.log(eta), np.log1p(-eta), data.table.targets()[0][:photos]


@pytest.fixture(scope="module")
def world():
    return drawn(16_000, 0.8)


def parts(world, text):
    space, log_p, log_q, labels = world
    query = bind(Query.parse(text, space), space)
    columns = list(query.columns)
    return query, log_p[:, columns], log_q[:, columns], labels[:, columns]


def error(probs, right):
    bins = np.minimum((probs * 10).astype(int), 9)
    return sum(abs(probs[bins == b].sum() - right[bins == b].sum()) for b in range(10)) / len(probs)


@pytest.mark.parametrize(
    "text", ["label00, label01", "label00, -label01", "(label00 | label02), -label01"]
)
def test_calibrated_queries_are_nearer_to_what_happens_than_products(world, text):
    query, log_p, log_q, labels = parts(world, text)
    held, new = slice(0, 4000), slice(4000, None)
    fitted = calibrate_query(query, log_p[held], log_q[held], labels[held])
    scores = query.log_scores(log_p[new], log_q[new])
    right, _ = query.right(labels[new])
    before, after = error(np.exp(scores), right), error(fitted.probs(scores), right)
    assert before > 0.02
    assert after < 0.5 * before


def test_a_query_without_positives_stays_near_its_product(world):
    query, log_p, log_q, labels = parts(world, "label00, label01")
    few = calibrate_query(query, log_p[:3], log_q[:3], np.zeros((3, 2)))
    assert (few.slope, few.offset) == (pytest.approx(1, abs=0.1), pytest.approx(0, abs=0.4))
    none = calibrate_query(query, log_p[:0], log_q[:0], labels[:0])
    assert (none.slope, none.offset) == (1.0, 0.0)


def test_probabilities_keep_their_digits_from_sure_to_impossible(world):
    """Oracles: the product itself where nothing was fitted, and log-odds by Python's floats."""
    query, log_p, log_q, labels = parts(world, "label00")
    plain = calibrate_query(query, log_p[:0], log_q[:0], labels[:0])
    scores = np.array([-np.inf, -29.0, -5.0, -0.7, -0.6, -1e-3, -1e-9, -1e-12])
    np.testing.assert_allclose(plain.probs(scores), np.exp(scores), rtol=1e-12)
    flat = replace(plain, slope=0.1)  # where a product near 1 still shows its digits
    odds = [one - log(-expm1(one)) for one in scores[1:].tolist()]
    np.testing.assert_allclose(flat.probs(scores)[1:], expit(0.1 * np.array(odds)), rtol=1e-12)
    ends = plain.probs(np.array([-800.0, 0.0, 1e-9]))  # beyond it, log-odds end at 30
    np.testing.assert_allclose(ends, [np.exp(-30.0), 1.0, 1.0], rtol=1e-12)


def test_counts_cover_the_true_number(world):
    query, log_p, log_q, labels = parts(world, "label00, -label01")
    right, _ = query.right(labels)
    scores = query.log_scores(log_p, log_q)
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(DRAWS):
        order = rng.permutation(len(right))
        held, new = order[:HELD], order[HELD : HELD + 3000]
        fitted = calibrate_query(query, log_p[held], log_q[held], labels[held])
        count = fitted.count(scores[new], 0.9)
        missed += not count.lower <= right[new].sum() <= count.upper
    assert binomtest(missed, DRAWS, 0.1, alternative="greater").pvalue > 0.01


def test_unknown_answers_and_limits_are_left_out_of_the_fit(world):
    query, log_p, log_q, labels = parts(world, "label00, label01")
    observed = np.ones_like(labels, dtype=bool)
    observed[500:1000] = False
    part = calibrate_query(query, log_p[:500], log_q[:500], labels[:500])
    same = calibrate_query(query, log_p[:1000], log_q[:1000], labels[:1000], observed[:1000])
    assert (same.slope, same.positives) == (pytest.approx(part.slope), part.positives)
    strict, *arrays = parts(world, "label00>0.99999")
    fitted = calibrate_query(strict, *(array[:300] for array in arrays))
    scores = strict.log_scores(*arrays[:2])
    assert (fitted.probs(scores)[np.isneginf(scores)] == 0).all()


def test_arrays_must_be_the_querys_own_columns(world):
    query, log_p, log_q, _ = parts(world, "label00, label01")
    with pytest.raises(ValueError, match=r"one column for each of \(0, 1\), got \(16000, 1\)"):
        query.log_scores(log_p[:, :1], log_q[:, :1])
    holed = np.where(np.arange(len(log_p))[:, None] == 7, np.nan, log_p)
    with pytest.raises(ValueError, match="NaN, got one in row 7"):
        query.log_scores(holed, log_q)


def test_counts_of_32_bits_are_those_of_64(world):
    """Oracle: the sum of the probabilities; rows left out and certain ones are among them."""
    query, log_p, log_q, labels = parts(world, "label00, -label01")
    fitted = calibrate_query(query, log_p[:HELD], log_q[:HELD], labels[:HELD])
    scores = query.log_scores(log_p, log_q)
    scores = np.concatenate([scores, np.repeat([-np.inf, 0.0, -1e-9, -60.0], 50)])
    exact, small = fitted.count(scores), fitted.count(scores.astype(np.float32))
    assert exact.expected == pytest.approx(fitted.probs(scores).sum(), rel=1e-12)
    for one, other in zip(vars(exact).values(), vars(small).values(), strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    assert fitted.count(np.full(7, -np.inf)).upper == 0
    assert fitted.count(np.empty(0, np.float32)).expected == 0


def test_labels_that_are_independent_keep_the_product(monkeypatch):
    """Oracle: the product, which is right there; a prior of one strength adds twice the error."""
    world, new, errors = drawn(9000, 0.0), slice(3000, None), []
    for text in ("label00, label01", "label00, -label01", "label02, label03", "label04, label05"):
        query, log_p, log_q, labels = parts(world, text)
        scores, (right, _) = query.log_scores(log_p[new], log_q[new]), query.right(labels[new])
        for start in (0, 200, 400):
            held = slice(start, start + 200)
            known = query, log_p[held], log_q[held], labels[held]
            learned = calibrate_query(*known).probs(scores)
            with monkeypatch.context() as patched:
                patched.setattr(bound_query, "STRENGTHS", (1.0,))
                fixed = calibrate_query(*known).probs(scores)
            errors.append([error(one, right) for one in (np.exp(scores), learned, fixed)])
    product, learned, fixed = np.mean(errors, axis=0)
    assert learned - product < 0.6 * (fixed - product)
