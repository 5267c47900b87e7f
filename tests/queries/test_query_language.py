"""Oracles: written-out cases, a round trip through text, and every truth assignment tried."""

import re
from dataclasses import replace
from itertools import combinations, product
from math import expm1, log

import numpy as np
import pytest
from golden import cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score
from torch.nn.functional import logsigmoid

from labelwise.errors import DataError
from labelwise.queries import (
    Query,
    bind,
    bound_query,
    calibrate_query,
    complete,
    count_queries,
    quality,
    rank,
    retrieval_map,
)
from labelwise.queries.query import AllOf, AnyOf, Has, Not, Nothing, Parser, written
from labelwise.tables import posterior
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

SPACE = LabelSpace(("cat", "dog", "sofa", "beach", "not found", "none"))
CAT, DOG, SOFA, BEACH = map(Has, SPACE.names[:4])


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("dog & !beach", AllOf((DOG, Not(BEACH)))),
        ("dog,!beach", AllOf((DOG, Not(BEACH)))),
        ("dog, not beach", AllOf((DOG, Not(BEACH)))),
        ("(cat | dog), -sofa", AllOf((AnyOf((CAT, DOG)), Not(SOFA)))),
        ("cat | dog & !sofa", AllOf((AnyOf((CAT, DOG)), Not(SOFA)))),
        ("-(cat, dog) | sofa", AnyOf((Not(AllOf((CAT, DOG))), SOFA))),
        ("!!dog", DOG),
        ("(" * 50 + "dog" + ")" * 50, DOG),
        ("dog | dog", DOG),
        ('label:"dog&!beach"', AllOf((DOG, Not(BEACH)))),
        ('label:"cat|dog&!sofa", beach', AllOf((AnyOf((CAT, DOG)), Not(SOFA), BEACH))),
        ("none", Nothing()),
        ('"none"', Has("none")),
        ('"not found"', Has("not found")),
        (r"\not found", Has("not found")),
    ],
)
def test_spellings(text, expression):
    assert Query.parse(text).expression == expression


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one label"),
        ("dog,,beach", "between commas"),
        ("dog, -dog", "both wanted and unwanted, got 'dog'"),
        ('"dog', "must be closed"),
        ("dog\\", "followed by a character"),
        ("dgo", "unknown label 'dgo'; did you mean 'dog'"),
        ("dog, -beech", "did you mean 'beach'"),
        ("(dog", "must be closed"),
        ("dog)", "opened before it is closed"),
        ("(dog) cat", "followed by ',', '&' or '|'"),
        ("dog |", "between commas"),
        ("dog > high", "probability such as 0.8 or 80%, and 'high' is none"),
        ("dog>0.8 | cat", "by itself"),
        ("(dog>0.8)", "by itself"),
        ("-dog>0.8", "by itself|cannot be negated"),
        ("cat | dog and sofa", "unknown label 'dog and sofa'"),  # it could be read in two ways
        ('"dog and sofa"', "unknown label 'dog and sofa'"),
        ("(" * 5000 + "dog" + ")" * 5000, "nested 50 deep"),
        ("not " * 60 + "dog", "nested 50 deep"),
    ],
)
def test_wrong_queries_get_one_sentence(text, message):
    with pytest.raises(DataError, match=message) as caught:
        Query.parse(text, SPACE)
    assert len(str(caught.value)) < 250


STREET = LabelSpace(("traffic light", "light", "car", "T-shirt", "red car", "light red"))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("car and light", "car, light"),
        ("Car and light", None),
        ("car AND not light, T-shirt", "car, -light, T-shirt"),
        ("car or light", "(car | light)"),
        ("car light>0.5", "car, light>0.5"),
        ("traffic light car", "traffic light, car"),
        ("car Traffic  Light t-shirt, -red car", "car, traffic light, T-shirt, -red car"),
        ("traffic light car | car", None),  # it could be read in two ways
        ("car -traffic light", "car, -traffic light"),
        ("car !light", "car, -light"),
        ("car red car", "car, red car"),
        ("light red car", None),  # light, red car; or light red, car
        ("car " * 51, None),  # nobody means that
    ],
)
def test_words_and_missing_commas_between_labels_are_answered_by_signs(text, meant):
    told = "^unknown label" if meant is None else f"got {text!r}; did you mean {meant!r}?"
    with pytest.raises(DataError, match=told if meant is None else re.escape(told) + "$"):
        Query.parse(text, STREET)


@pytest.mark.parametrize("name", ["a|b", "x (y)", "-dash", "!", "not now"])
def test_a_label_with_signs_in_its_name_is_answered_by_how_it_is_written(name):
    with pytest.raises(DataError) as refused:
        Query.parse(name, LabelSpace((name, "dog")))
    suggested = re.search("did you mean '(.*)'", str(refused.value))[1]
    assert Query.parse(suggested) == Query(Has(name))


def holds(expression, truth):
    """Return whether an expression is true under a dict from names to truth."""
    if isinstance(expression, Has):
        return truth[expression.name]
    if isinstance(expression, Nothing):
        return not any(truth.values())
    if isinstance(expression, Not):
        return not holds(expression.part, truth)
    quantor = all if isinstance(expression, AllOf) else any
    return quantor(holds(part, truth) for part in expression.parts)


def trees(names):
    """Return a strategy of expressions over some names."""

    def grown(inner):
        parts = st.lists(inner, min_size=1, max_size=3).map(tuple)
        return inner.map(Not) | parts.map(AllOf) | parts.map(AnyOf)

    return st.recursive(st.sampled_from(names).map(Has) | st.just(Nothing()), grown, max_leaves=6)


NAMES = (*SPACE.names[1:], "a|b", "x (y)", "-dash", 'q"t', "label:x", "!", "a<b")


@given(trees(NAMES))
@settings(max_examples=80, deadline=None)
def test_text_round_trip(expression):
    """Oracle: what is read is written and read again the same, and is as true as what was meant."""
    read = Parser(written(expression)).whole()
    assert Parser(str(Query(read))).whole() == read
    for seed in range(4):
        truth = dict(zip(NAMES, np.random.default_rng(seed).random(len(NAMES)) < 0.5, strict=True))
        assert holds(read, truth) == holds(expression, truth)


def scores_of(query, probs):
    probs = probs[:, list(query.columns)]
    with np.errstate(divide="ignore"):
        return query.log_scores(np.log(probs), np.log1p(-probs))


@given(trees(SPACE.names[:4]), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_probability_and_truth_agree_with_every_assignment(expression, seed):
    space = LabelSpace(SPACE.names[:4])
    probs = np.random.default_rng(seed).random((3, 4)).round(1)  # 0 and 1 occur
    query = bind(Query(expression), space)
    part = list(query.columns)
    scores = scores_of(query, probs)
    expected = np.zeros(3)
    for truth in product([False, True], repeat=4):
        named = dict(zip(space.names, truth, strict=True))
        chance = np.where(truth, probs, 1 - probs).prod(1)
        right = holds(expression, named)
        expected += chance * right
        found, known = query.right(np.array([truth])[:, part])
        assert known.all()
        assert bool(found[0]) == right
    np.testing.assert_allclose(np.exp(scores), expected, atol=1e-9)


def test_unknown_labels_leave_an_answer_unknown_only_where_it_hangs_on_them():
    query = bind(Query.parse("(cat | dog), -sofa"), SPACE)
    labels = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    observed = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 0]])
    right, known = np.int64(query.right(labels, observed)).tolist()
    assert (right, known) == ([1, 0, 0, 0], [1, 0, 1, 0])


def test_limits_leave_images_out_and_round_trip():
    query = Query.parse("dog>0.8, cat<20%")
    assert (query.wanted, query.unwanted) == (("dog",), ("cat",))
    assert Query.parse(str(query)) == query
    probs = np.array([[0.1, 0.9], [0.3, 0.9], [0.1, 0.8]])
    scores = scores_of(bind(query, LabelSpace(("cat", "dog"))), probs)
    np.testing.assert_allclose(np.exp(scores), [0.81, 0, 0], atol=1e-12)


def test_asking_for_a_parent_finds_the_children(tmp_path):
    file = tmp_path / "kinds.csv"
    file.write_text("child,parent\ncat,pet\ndog,pet\npet,animal\nsofa,furniture\n")
    kinds = Taxonomy.read(file)
    assert kinds.below("animal") == ("cat", "dog", "pet")
    bound = bind(Query.parse("animal, -sofa", SPACE, kinds), SPACE, kinds)
    assert bound.columns == (0, 1, 2)
    probs = np.array([[0.5, 0.5, 0.2, 0.1, 0.1, 0.1]])
    found = rank(np.log(probs), np.log1p(-probs), bound.query, SPACE, taxonomy=kinds)
    np.testing.assert_allclose(found.probs, [0.75 * 0.8])
    with pytest.raises(DataError, match="unknown label 'animl'; did you mean 'animal'"):
        Query.parse("animl", SPACE, kinds)


def test_unfinished_names_are_completed():
    found = [complete(text, SPACE) for text in ("cat, -d", "(cat | so", "fou", "xyz")]
    assert found == [["cat, -dog"], ["(cat | sofa"], ['"not found"'], []]
    assert complete("pe", SPACE, Taxonomy({"cat": "pet"})) == ["pet"]


def test_labels_named_twice_are_simplified_or_refused():
    """Each of them doubles the work, so what is left of them must be few."""
    names = tuple(f"label {k}" for k in range(40))
    space = LabelSpace(names)
    kinds = Taxonomy({**dict.fromkeys(names[:30], "pet"), "pet": "animal", "label 35": "animal"})

    def columns(text):
        return sorted(bind(Query.parse(text, space, kinds), space, kinds).columns)

    assert columns("animal, pet") == [*range(30)]
    assert columns("animal, -pet") == [*range(30), 35]
    assert columns("pet, -label 3") == [*range(30)]
    assert columns("animal, label 3") == [3]
    assert columns("label 3 | pet") == [*range(30)]
    assert columns("(label 0 | label 1), (label 1 | label 0 | label 2)") == [0, 1]
    chain = [f"(label {k} | label {k + 1})" for k in range(20)]
    assert len(columns(", ".join(chain[:7]))) == 8
    with pytest.raises(DataError, match=r"may name 6 labels more than once.*got 7"):
        columns(", ".join(chain[:8]))


ODD = LabelSpace(("dog", "beach", "hot dog", "rock, paper", "-5 degrees", 'say "cheese"'))


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("  dog ,-  beach  ", ["dog"], ["beach"]),
        ("hot dog, dog", ["hot dog", "dog"], []),
        ('"rock, paper", -"-5 degrees"', ["rock, paper"], ["-5 degrees"]),
        (r"rock\, paper, -\-5 degrees", ["rock, paper"], ["-5 degrees"]),
        (r"say \"cheese\"", ['say "cheese"'], []),
        ('" padded "', [" padded "], []),
        ("a - b", ["a - b"], []),
    ],
)
def test_parse(text, wanted, unwanted):
    assert Query.parse(text) == Query.of(wanted, unwanted)


SIGNS = """ ,&|!()<>%-"\\:\t\nabnotZé漢🐕\u2028\x7f"""
ANY = st.text(st.sampled_from(SIGNS), min_size=1, max_size=9).filter(lambda name: name.strip())


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY, unique=True, min_size=1, max_size=5), st.integers(0, 5))
def test_any_names_come_back_through_text(names, split):
    query = Query.of(names[:split], names[split:])
    assert Query.parse(str(query)) == query


def test_golden_score():
    case = cases("retrieval")["one query score"]
    odds = tensor(case["inputs"]["logodds"])
    space = LabelSpace(("a", "b", "c"))
    log_p, log_q = logsigmoid(odds), logsigmoid(-odds)
    wanted, unwanted = ([space.names[k] for k in case["inputs"][side]] for side in "PN")
    found = rank(log_p, log_q, Query.of(wanted, unwanted), space)
    assert found.order.tolist() == [0, 3, 1, 2]
    expected, by_row = case["expected"], np.argsort(found.order)
    np.testing.assert_allclose(found.log_scores[by_row], expected["log_score"], rtol=1e-9)
    np.testing.assert_allclose(found.probs[by_row], expected["score"], rtol=1e-9)


@pytest.mark.parametrize("top", [None, 0, 7, 99])
def test_rank_orders_all_or_the_top_and_keeps_ties_in_row_order(top):
    rng = np.random.default_rng(0)
    log_p = np.log(rng.integers(0, 4, (50, 6)) / 4 + 1e-300)
    log_p[:5] = -np.inf
    log_q = np.log1p(-np.exp(log_p).clip(0, 0.9))
    found = rank(log_p, log_q, Query.of(["dog"], ["beach"]), ODD, top=top)
    scores = log_p[:, 0] + log_q[:, 1]
    expected = sorted(range(50), key=lambda row: (-scores[row], row))[:top]
    assert found.order.tolist() == expected
    np.testing.assert_array_equal(found.log_scores, scores[expected])
    np.testing.assert_allclose(found.probs, np.exp(scores[expected]))
    with pytest.raises(ValueError, match="one shape"):
        rank(np.zeros((3, 6)), np.zeros((3, 2)), Query.of(["dog"]), ODD)


# Oracles: outcomes counted on other photos with dependent labels, and the product itself.

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


# Oracles: sklearn's average precision in a loop over queries, and METHODS' counts of queries.


def problem(images=60, labels=5, seed=0, *, decimals=None, unknown=False, zeros=False):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(images, labels)) * 2 - 1
    if decimals is not None:
        logits = logits.round(decimals)
    truth = rng.random((images, labels)) < 1 / (1 + np.exp(-logits))
    truth[:, -1] &= rng.random(images) < 0.2
    observed = rng.random((images, labels)) < 0.8 if unknown else None
    log_p, log_q = -np.log1p(np.exp(-logits)), -np.log1p(np.exp(logits))
    if zeros:
        log_p[::3, 0], log_q[::3, 0] = -np.inf, 0.0
        log_p[1::3, 1], log_q[1::3, 1] = 0.0, -np.inf
    return log_p, log_q, truth, observed


def slow(log_p, log_q, truth, observed, length):
    """Every query of a length by definition; NaN where no image is relevant."""
    values = []
    for columns in combinations(range(truth.shape[1]), length):
        for unwanted in product([False, True], repeat=length):
            if all(unwanted):
                continue
            first = unwanted.index(False)
            scores, relevant = log_p[:, columns[first]], truth[:, columns[first]]
            for place, (column, absent) in enumerate(zip(columns, unwanted, strict=True)):
                if place != first:
                    scores = scores + (log_q if absent else log_p)[:, column]
                    relevant = relevant & (truth[:, column] != absent)
            if observed is not None:
                known = observed[:, columns].all(1)
                scores, relevant = scores[known], relevant[known]
            scores = np.maximum(scores, -1e300)
            values.append(average_precision_score(relevant, scores) if relevant.any() else np.nan)
    return np.array(values)


@pytest.mark.parametrize("kind", [{}, {"decimals": 0}, {"unknown": True}, {"zeros": True}])
@pytest.mark.parametrize("images", [3, 40])
def test_all_queries_as_sklearn_says(kind, images):
    tables = problem(images, 4, seed=images, **kind)
    results = retrieval_map(*tables, longest=5)
    assert [result.length for result in results] == [1, 2, 3, 4]
    for result in results:
        expected = slow(*tables, result.length)
        assert result.value == pytest.approx(np.nanmean(expected), rel=1e-12)
        missing = np.isnan(expected).sum()
        assert (result.queries, result.skipped) == (len(expected) - missing, missing)
        assert (result.exhaustive, result.error) == (True, 0)


@given(st.integers(0, 10_000), st.integers(1, 300), st.sampled_from([0, None]))
@settings(max_examples=25, deadline=None)
def test_precision_of_costs_whatever_the_number_of_relevant_images(seed, relevant, decimals):
    rng = np.random.default_rng(seed)
    costs = rng.exponential(size=300).astype(np.float32)
    if decimals is not None:
        costs = costs.round(decimals)
    costs[rng.random(300) < 0.01] = np.inf
    rows = rng.permutation(300)[:relevant]
    truth = np.isin(np.arange(300), rows)
    expected = average_precision_score(truth, -np.minimum(costs, np.float32(1e30)))
    assert quality.average_precision_of_costs(costs, rows) == pytest.approx(expected, rel=1e-12)


def test_golden_counts_and_every_query_listed_once():
    case = cases("retrieval")["number of queries with |P|>=1 and length n=1..5"]
    for labels, counts in case["expected"].items():
        found = [count_queries(int(labels), n + 1) for n in range(5)]
        assert [*found, sum(found)] == counts
    for length in (1, 3):
        queries = {tuple(query) for query in quality.all_queries(5, length).tolist()}
        assert len(queries) == count_queries(5, length)
        assert all(len({row % 5 for row in query}) == length for query in queries)
        for first, *others in queries:
            wanted = [row for row in (first, *others) if row < 5]
            assert first == min(wanted)
            assert [row % 5 for row in others] == sorted(row % 5 for row in others)


def test_a_sample_is_uniform_among_answered_queries_and_near_the_whole():
    log_p, log_q, truth, _ = problem(300, 8)
    whole = retrieval_map(log_p, log_q, truth, longest=3)[2]
    options = {"longest": 3, "exhaustive": 100, "sample": 200}
    drawn = retrieval_map(log_p, log_q, truth, **options, seed=1)[2]
    assert (drawn.exhaustive, drawn.queries) == (False, 200)
    assert abs(drawn.value - whole.value) < 4 * drawn.error
    assert retrieval_map(log_p, log_q, truth, **options, seed=1)[2] == drawn
    assert retrieval_map(log_p, log_q, truth, **options, seed=2)[2] != drawn


def test_sampled_queries_are_distinct_have_relevant_images_and_cover_all():
    relevant = quality.CostTable.of(*problem(30, 5)).relevant
    queries, skipped = quality.sample_queries(relevant, 3, 1000, seed=0)
    answered = [q for q in quality.all_queries(5, 3).tolist() if relevant[q].all(0).any()]
    assert sorted(queries.tolist()) == sorted(answered)
    assert skipped > 0
    one, _ = quality.sample_queries(relevant, 1, 3, seed=0)
    assert len(one) == 3


def test_a_label_that_no_image_carries_leaves_its_queries_out():
    log_p, log_q, truth, _ = problem()
    truth[:, 2] = False
    result = retrieval_map(log_p, log_q, truth, longest=2)[1]
    assert result.skipped == np.isnan(slow(log_p, log_q, truth, None, 2)).sum() >= 8
    empty = retrieval_map(log_p, log_q, np.zeros_like(truth), longest=2)
    assert [(point.queries, np.isnan(point.value)) for point in empty] == [(0, True)] * 2


def test_says_what_is_wrong():
    log_p, log_q, truth, _ = problem()
    for arrays, longest, words in (
        ((log_p, log_q[:, :2], truth), 3, r"log_q must have the shape of log_p, \(60, 5\)"),
        ((log_p[0], log_q[0], truth[0]), 3, r"must be \(N, K\)"),
        ((log_p, log_q, truth), 0, "longest must be at least 1"),
        ((np.exp(log_p), log_q, truth), 3, "logarithms of probabilities"),
        ((log_p, log_q, truth - 1.5), 3, "labels must be 0 or 1"),
    ):
        with pytest.raises(ValueError, match=words):
            retrieval_map(*arrays, longest=longest)
