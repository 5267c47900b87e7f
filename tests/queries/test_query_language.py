"""Oracles: written-out cases, a round trip through text, and every truth assignment tried."""

import re
from itertools import product

import numpy as np
import pytest
from golden import cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from labelwise.errors import DataError
from labelwise.queries import Query, bind, complete, rank
from labelwise.queries.query import AllOf, AnyOf, Has, Not, Nothing, Parser, written
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
