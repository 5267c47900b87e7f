"""Oracles: written-out cases, a round trip through text, and the sum of log probabilities."""

import numpy as np
import pytest
import torch
from golden import cases, tensor
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from labelwise.errors import DataError
from labelwise.retrieval import Query, rank
from labelwise.types import LabelSpace

SPACE = LabelSpace(("dog", "beach", "hot dog", "rock, paper", "-5 degrees", 'say "cheese"'))


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("dog", ["dog"], []),
        ("dog, -beach", ["dog"], ["beach"]),
        ("  dog ,-  beach  ", ["dog"], ["beach"]),
        ("-beach", [], ["beach"]),
        ("hot dog, dog", ["hot dog", "dog"], []),
        ('"rock, paper", -"-5 degrees"', ["rock, paper"], ["-5 degrees"]),
        (r"rock\, paper, -\-5 degrees", ["rock, paper"], ["-5 degrees"]),
        (r"say \"cheese\"", ['say "cheese"'], []),
        ("dog, dog", ["dog"], []),
        ('"-5 degrees"', ["-5 degrees"], []),
        (r"\-5 degrees", ["-5 degrees"], []),
        ('" padded "', [" padded "], []),
        ("a - b", ["a - b"], []),
    ],
)
def test_parse(text, wanted, unwanted):
    assert Query.parse(text) == Query.of(wanted, unwanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one label"),
        ("  ", "at least one label"),
        ("dog,,beach", "between commas"),
        ("dog,", "between commas"),
        ("-", "between commas"),
        ("dog, -dog", "both wanted and unwanted, got 'dog'"),
        ('"dog', "must be closed"),
        ("dog\\", "followed by a character"),
        ("dgo", "unknown label 'dgo'; did you mean 'dog'"),
        ("dog, -beech", "did you mean 'beach'"),
    ],
)
def test_errors_say_the_way_out(text, message):
    with pytest.raises(DataError, match=message):
        Query.parse(text, SPACE)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name.strip())


@given(st.lists(NAMES, unique=True, min_size=1, max_size=5), st.integers(0, 5))
def test_text_round_trip(names, split):
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
    by_row = np.argsort(found.order)
    expected = case["expected"]
    np.testing.assert_allclose(found.log_scores[by_row], expected["log_score"], rtol=1e-9)
    np.testing.assert_allclose(found.probs[by_row], expected["score"], rtol=1e-9)


@pytest.mark.parametrize("top", [None, 0, 1, 7, 50, 99])
def test_rank_orders_all_or_the_top_and_keeps_ties_in_row_order(top):
    rng = np.random.default_rng(0)
    log_p = np.log(rng.integers(0, 4, (50, 6)) / 4 + 1e-300)
    log_p[:5] = -np.inf
    log_q = np.log1p(-np.exp(log_p).clip(0, 0.9))
    found = rank(log_p, log_q, Query.of(["dog"], ["beach"]), SPACE, top=top)
    scores = log_p[:, 0] + log_q[:, 1]
    expected = sorted(range(50), key=lambda row: (-scores[row], row))[:top]
    assert found.order.tolist() == expected
    np.testing.assert_array_equal(found.log_scores, scores[expected])
    np.testing.assert_allclose(found.probs, np.exp(scores[expected]))


def test_products_that_underflow_still_rank():
    space = LabelSpace(tuple(f"label {k}" for k in range(400)))
    log_p = torch.full((2, 400), -10.0)
    log_p[1] -= 0.01
    found = rank(log_p, torch.zeros(2, 400), Query.of(space.names), space)
    assert found.order.tolist() == [0, 1]
    assert (found.probs == 0).all()


def test_rank_refuses_nan_and_unequal_shapes():
    values = np.zeros((3, 6))
    with pytest.raises(ValueError, match="one shape"):
        rank(values, values[:, :2], Query.of(["dog"]), SPACE)
    values[1, 0] = np.nan
    with pytest.raises(ValueError, match="NaN, got one in row 1"):
        rank(values, values, Query.of(["dog"]), SPACE)
