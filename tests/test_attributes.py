"""Groups of labels that exclude each other. Oracles: all outcomes enumerated, and plain loops."""

import csv
import itertools

import numpy as np
import pytest
import torch
from scipy.special import logit
from typed import must_run, run

from labelwise.decide import OnePerGroup, Threshold
from labelwise.errors import DataError
from labelwise.links import Grouped, Sigmoid
from labelwise.retrieval import Query, rank
from labelwise.retrieval.bound_query import bind
from labelwise.taxonomy import AttributeColumns, AttributeGroups
from labelwise.types import LabelSpace

EXACTLY, MOST = ((0, 3, 1),), ((2, 5),)
RULES = {(0, 3, 1): (1,), (2, 5): (0, 1)}  # how many labels of each group may be present


OUTCOMES = np.array(
    [
        outcome
        for outcome in itertools.product((0, 1), repeat=6)
        if all(sum(outcome[k] for k in group) in may for group, may in RULES.items())
    ]
)


def chances(p):
    """Return P(outcome | the rules hold) of independent labels, for each of OUTCOMES."""
    chance = np.where(OUTCOMES, p, 1 - p).prod(1)
    return chance / chance.sum()


def test_probabilities_are_those_of_independent_labels_given_the_rules():
    p = np.random.default_rng(0).random((5, 6))
    link = Grouped(Sigmoid(), EXACTLY, MOST)
    log_p, log_q = link.log_probs(torch.tensor(logit(p)))
    expected = np.array([chances(row) @ OUTCOMES for row in p])
    assert log_p.exp().numpy() == pytest.approx(expected)
    assert log_q.exp().numpy() == pytest.approx(1 - expected)
    assert log_p[:, [0, 3, 1]].exp().sum(1).numpy() == pytest.approx(np.ones(5))
    most = Grouped(Sigmoid(), (), MOST)
    free = p.copy()
    none = np.prod(1 - free[:, [0, 1, 3, 4]], 1) / (1 + (free / (1 - free))[:, [2, 5]].sum(1))
    assert most.log_none(torch.tensor(logit(p))).exp().numpy() == pytest.approx(none)
    assert link.log_none(torch.tensor(logit(p))).exp().numpy() == pytest.approx(np.zeros(5))


def test_certain_answers_stay_finite():
    odds = torch.tensor([[np.inf, -np.inf, 50.0, 0.0, 0.0, -np.inf], [1e6] * 6, [-1e6] * 6])
    log_p, log_q = Grouped(Sigmoid(), EXACTLY, MOST).log_probs(odds)
    assert not log_p.isnan().any()
    assert not log_q.isnan().any()
    assert log_p[0, 0].exp() == pytest.approx(1.0)


@pytest.mark.parametrize("threshold", [0.2, 0.8])
def test_sets_hold_one_label_of_a_group(threshold):
    probs = np.random.default_rng(1).random((40, 6))
    rule = OnePerGroup(Threshold(threshold), EXACTLY, MOST)
    expected = probs >= threshold
    for row, (group, may) in itertools.product(range(40), RULES.items()):
        best = max(group, key=lambda k: probs[row, k])
        needs_one = expected[row, list(group)].any() or may == (1,)
        expected[row, list(group)] = [k == best and needs_one for k in group]
    assert (rule(probs) == expected).all()
    assert (rule(torch.tensor(probs)).numpy() == expected).all()


def test_a_column_in_two_groups_is_refused():
    with pytest.raises(ValueError, match="a column must be in one group"):
        Grouped(Sigmoid(), [[0, 1]], [[1, 2]])
    with pytest.raises(ValueError, match="a column must be in one group"):
        OnePerGroup(Threshold(0.5), ((0, 1),), ((1, 2),))
    with pytest.raises(ValueError, match="the groups reach column 5, got 2"):
        Grouped(Sigmoid(), [[0, 5]]).log_probs(torch.zeros(1, 2))


def test_rules_complete_labels_and_find_conflicts():
    """Oracle: what all allowed ways to fill a group's unknown labels agree on; none: a conflict."""
    labels = np.random.default_rng(2).choice([0.0, 0.0, 1.0, np.nan], (300, 6))
    known = ~np.isnan(labels)
    found = AttributeColumns(EXACTLY, MOST).settled(np.nan_to_num(labels), known)
    expected, broken = labels.copy(), np.zeros(300, bool)
    for row, (group, may) in itertools.product(range(300), RULES.items()):
        own = labels[row, list(group)]
        ways = [way for way in itertools.product((0, 1), repeat=len(group)) if sum(way) in may]
        ways = [way for way in ways if ((own == way) | np.isnan(own)).all()]
        broken[row] |= not ways
        agree = [v[0] if len(set(v)) == 1 else np.nan for v in zip(*ways, strict=True)]
        expected[row, list(group)] = agree if ways else np.nan
    np.testing.assert_array_equal(np.where(found.observed, found.labels, np.nan), expected)
    assert (found.conflicts == broken).all()
    assert 0 < broken.sum() < 300
    assert found.learned == (~np.isnan(expected) & ~known).sum()


def test_calibrated_and_decided_sets_obey_the_rules(tmp_path):
    """Of 400 rows with scores of two colours and a shape two have labels that break the rule."""
    rng = np.random.default_rng(3)
    (tmp_path / "groups.csv").write_text("group,kind,labels\ncolour,exactly-one,red|blue\n")
    lines = ["id,split,score:red,score:blue,score:round,label:red,label:blue,label:round"]
    for row in range(400):
        red, circle = rng.integers(0, 2, 2).tolist()
        scores = 2 * np.array([red, 1 - red, circle]) - 1 + 1.5 * rng.normal(size=3)
        told = [1, 1, circle] if row in (5, 6) else [red, "" if row % 3 else 1 - red, circle]
        lines.append(",".join(map(str, [row, "val" if row % 2 else "test", *scores, *told])))
    (tmp_path / "scores.csv").write_text("\n".join(lines))
    apart = ("--scores", "logits", "--fit-on", "val", "--report-on", "test")
    groups = ("--attributes", tmp_path / "groups.csv")
    out = tmp_path / "rule.json"
    result = must_run(
        "decide", tmp_path / "scores.csv", *apart, *groups, "--rule", "best-f", "-o", out
    )
    assert "2 rows break a rule of" in result.stdout
    assert "red, blue: right in" in result.stdout
    must_run("apply", out, tmp_path / "scores.csv", "--scores", "logits", "-o", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert float(row["score:red"]) + float(row["score:blue"]) == pytest.approx(1.0)
        assert len({"red", "blue"} & set(row["labels"].split("|"))) == 1
    refused = run("decide", tmp_path / "scores.csv", *apart, *groups, "--promise", "recall=0.5")
    assert "it shapes a rule, not a guarantee" in str(refused.exception)


def test_conflicts_of_a_label_table_are_shown_and_the_rest_is_learned(tmp_path):
    (tmp_path / "groups.csv").write_text("group,kind,labels\nlight,at-most-one,day|night\n")
    (tmp_path / "t.csv").write_text(
        "path,labels,unknown\na.jpg,day|night,\nb.jpg,day,night\nc.jpg,,\nd.jpg,fox,day\n"
    )
    out = tmp_path / "done.csv"
    result = must_run("data", "clashes", tmp_path / "t.csv", tmp_path / "groups.csv", "-o", out)
    assert "1 photo of 4 breaks a rule, first 'a.jpg'" in result.stdout
    assert "1 more label is known by the rules" in result.stdout  # of b.jpg
    assert "a.jpg" in result.stdout
    with out.open() as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert set(rows["a.jpg"]["unknown"].split("|")) == {"day", "night"}
    assert (rows["b.jpg"]["labels"], rows["b.jpg"]["unknown"]) == ("day", "")
    assert rows["d.jpg"]["unknown"] == "day"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("group,kind,labels\ncolour,one,red|blue\n", "must be one of exactly-one"),
        ("group,kind,labels\ncolour,any,red\n", "two labels or more"),
        ("group,kind,labels\na,exactly-one,red|blue\nb,at-most-one,red|x\n", "has one rule"),
        ("group,labels\ncolour,red|blue\n", "there is no 'kind'"),
        ("group,kind,labels\n", "there are no groups"),
        ("group,kind,labels\na,any,red|bleu\n", "'bleu' of the group 'a' is not a label.*'blue'"),
    ],
)
def test_groups_that_cannot_be_meant(tmp_path, text, sentence):
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        AttributeGroups.read(tmp_path / "groups.csv").within(LabelSpace(("red", "blue")))


def test_a_group_is_right_where_it_is_known_and_the_same():
    columns = AttributeColumns(((0, 2),), ())
    labels = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [1, 0, 1]], bool)
    sets = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 1]], bool)
    known = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 0]], bool)
    assert [int(rows.sum()) for rows in columns.right_rows((0, 2), sets, labels, known)] == [3, 2]
    assert [int(rows.sum()) for rows in columns.right_rows((0, 2), sets, labels, None)] == [4, 3]


@pytest.mark.parametrize(
    "text", ["a, -d", "a, d", "-a, -b, -d", "c | f", "(a | b), e", "a | (d, -e)", "none", "c, f"]
)
def test_a_query_knows_what_excludes_what(text):
    """Held to all outcomes of independent labels that keep the rules."""
    space = LabelSpace(tuple("abcdef"))
    p = np.random.default_rng(5).random(6)
    query = Query.parse(text, space)
    log_p, log_q = Grouped(Sigmoid(), EXACTLY, MOST).log_probs(torch.tensor(logit(p))[None])
    found = rank(log_p, log_q, query, space, attributes=AttributeColumns(EXACTLY, MOST)).probs[0]
    bound = bind(query, space)
    right, _ = bound.right(OUTCOMES[:, list(bound.columns)].astype(float))
    assert found == pytest.approx(chances(p) @ right, abs=1e-12)
