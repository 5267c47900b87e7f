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
from labelwise.taxonomy import AttributeColumns, AttributeGroup, AttributeGroups
from labelwise.types import LabelSpace

EXACTLY, MOST = ((0, 3, 1),), ((2, 5),)
RULES = {(0, 3, 1): (1,), (2, 5): (0, 1)}  # how many labels of each group may be present


def enumerated(p):
    """Return P(k | the rules hold) of independent labels, and P(none), outcome by outcome."""
    total, present, none = 0.0, np.zeros(len(p)), 0.0
    for outcome in itertools.product((0, 1), repeat=len(p)):
        if any(sum(outcome[k] for k in group) not in may for group, may in RULES.items()):
            continue
        chance = np.prod([q if y else 1 - q for y, q in zip(outcome, p, strict=True)])
        total += chance
        present += chance * np.array(outcome)
        none += chance * (sum(outcome) == 0)
    return present / total, none / total


def test_probabilities_are_those_of_independent_labels_given_the_rules():
    p = np.random.default_rng(0).random((5, 6))
    link = Grouped(Sigmoid(), EXACTLY, MOST)
    log_p, log_q = link.log_probs(torch.tensor(logit(p)))
    expected = np.array([enumerated(row)[0] for row in p])
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


def slow_sets(probs, threshold):
    found = np.zeros(probs.shape, bool)
    for row, p in enumerate(probs):
        chosen = {k for k in range(6) if p[k] >= threshold}
        for group, may in RULES.items():
            best = max(group, key=lambda k: (p[k], -group.index(k)))
            inside = chosen & set(group)
            chosen -= set(group)
            if inside or may == (1,):
                chosen.add(best)
        found[row, list(chosen)] = True
    return found


@pytest.mark.parametrize("threshold", [0.2, 0.8])
def test_sets_hold_one_label_of_a_group(threshold):
    probs = np.random.default_rng(1).random((40, 6))
    rule = OnePerGroup(Threshold(threshold), EXACTLY, MOST)
    expected = slow_sets(probs, threshold)
    assert (rule(probs) == expected).all()
    assert (rule(torch.tensor(probs)).numpy() == expected).all()


def test_a_column_in_two_groups_is_refused():
    with pytest.raises(ValueError, match="a column must be in one group"):
        Grouped(Sigmoid(), [[0, 1]], [[1, 2]])
    with pytest.raises(ValueError, match="a column must be in one group"):
        OnePerGroup(Threshold(0.5), ((0, 1),), ((1, 2),))
    with pytest.raises(ValueError, match="the groups reach column 5, got 2"):
        Grouped(Sigmoid(), [[0, 5]]).log_probs(torch.zeros(1, 2))


def slow_settled(labels, groups):
    """Return labels with NaN for unknown after the rules, and whether one is broken, row by row."""
    done, broken = labels.copy(), np.zeros(len(labels), bool)
    for number, row in enumerate(done):
        for group, may in groups.items():
            own = [row[k] for k in group]
            present, absent = own.count(1.0), own.count(0.0)
            if present > 1 or (may == (1,) and absent == len(group)):
                broken[number] = True
                for k in group:
                    row[k] = np.nan
            elif present == 1:
                for k in group:
                    row[k] = 1.0 if row[k] == 1 else 0.0
            elif may == (1,) and absent == len(group) - 1:
                for k in group:
                    row[k] = 1.0 if np.isnan(row[k]) else 0.0
    return done, broken


def test_rules_complete_labels_and_find_conflicts():
    rng = np.random.default_rng(2)
    labels = rng.choice([0.0, 0.0, 1.0, np.nan], (300, 6))
    known = ~np.isnan(labels)
    found = AttributeColumns(EXACTLY, MOST).settled(np.nan_to_num(labels), known)
    expected, broken = slow_settled(labels, RULES)
    np.testing.assert_array_equal(np.where(found.observed, found.labels, np.nan), expected)
    assert (found.conflicts == broken).all()
    assert 0 < broken.sum() < 300
    assert found.learned == (~np.isnan(expected) & ~known).sum()


@pytest.fixture
def colours(tmp_path):
    """A table of scores of two colours and a shape; some labels break the rule."""
    rng = np.random.default_rng(3)
    (tmp_path / "groups.csv").write_text("group,kind,labels\ncolour,exactly-one,red|blue\n")
    with (tmp_path / "scores.csv").open("w", newline="") as file:
        table = csv.writer(file)
        names = ("red", "blue", "round")
        header = ["id", "split", *(f"score:{n}" for n in names), *(f"label:{n}" for n in names)]
        table.writerow(header)
        for row in range(400):
            red, circle = int(rng.random() < 0.5), int(rng.random() < 0.5)
            truth = [red, 1 - red, circle]
            scores = [2 * y - 1 + 1.5 * rng.normal() for y in truth]
            told = [red, "" if row % 3 else 1 - red, circle]
            if row in (5, 6):
                told[:2] = [1, 1]
            table.writerow([row, "val" if row % 2 else "test", *scores, *told])
    return tmp_path


def test_calibrated_and_decided_sets_obey_the_rules(colours):
    apart = ("--scores", "logits", "--fit-on", "val", "--report-on", "test")
    groups = ("--attributes", colours / "groups.csv")
    out = colours / "rule.json"
    result = must_run(
        "decide", colours / "scores.csv", *apart, *groups, "--rule", "best-f", "-o", out
    )
    assert "2 rows break a rule of" in result.stdout
    assert "red, blue: right in" in result.stdout
    must_run("apply", out, colours / "scores.csv", "--scores", "logits", "-o", colours / "a.csv")
    with (colours / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert float(row["score:red"]) + float(row["score:blue"]) == pytest.approx(1.0)
        assert len({"red", "blue"} & set(row["labels"].split("|"))) == 1
    refused = run("decide", colours / "scores.csv", *apart, *groups, "--promise", "recall=0.5")
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
    ],
)
def test_groups_that_cannot_be_meant(tmp_path, text, sentence):
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        AttributeGroups.read(tmp_path / "groups.csv")


def test_a_label_that_is_none_is_named():
    groups = AttributeGroups((AttributeGroup("colour", "exactly-one", ("red", "bleu")),))
    with pytest.raises(DataError, match=r"'bleu' of the group 'colour' is not a label.*'blue'"):
        groups.within(LabelSpace(("red", "blue")))


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
    total = hits = 0.0
    for outcome in itertools.product((0, 1), repeat=6):
        if any(sum(outcome[k] for k in group) not in may for group, may in RULES.items()):
            continue
        chance = np.prod([q if y else 1 - q for y, q in zip(outcome, p, strict=True)])
        bound = bind(query, space)
        right, _ = bound.right(np.array([[outcome[k] for k in bound.columns]], float))
        total, hits = total + chance, hits + chance * right[0]
    assert found == pytest.approx(hits / total, abs=1e-12)
