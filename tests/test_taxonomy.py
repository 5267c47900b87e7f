"""Taxonomies and groups. Oracles: a quadratic program, all outcomes enumerated, slow loops."""

import csv
import itertools
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_pictures import states
from sample_scores import sample
from scipy.optimize import minimize
from scipy.special import logit
from typed import must_run, refused

from labelwise.contrib.skos import read_skos
from labelwise.decide import OnePerGroup, Threshold
from labelwise.errors import DataError
from labelwise.evaluation import evaluate
from labelwise.links import Grouped, Sigmoid, consistent_log_probs
from labelwise.models.scoring import Scored, obeying
from labelwise.pictures import FileImages
from labelwise.queries import Query, rank
from labelwise.queries.bound_query import bind
from labelwise.report import write_report
from labelwise.tables import LabelTable, load, obey_taxonomy
from labelwise.taxonomy import AttributeColumns, AttributeGroups, LabelTree, Taxonomy
from labelwise.types import LabelSpace

ANIMALS = Taxonomy({"dog": "pet", "cat": "pet", "pet": "animal", "cow": "animal"})
SPACE = LabelSpace(("animal", "cat", "cow", "dog", "pet", "sofa"))


@st.composite
def trees(draw, largest=7):
    """Return a tree of 1 to ``largest`` labels in any order of columns."""
    place = [*draw(st.permutations(range(draw(st.integers(1, largest))))), -1]
    above = {place[n]: place[draw(st.integers(-1, n - 1))] for n in range(len(place) - 1)}
    return LabelTree(tuple(above[column] for column in sorted(above)))


def assert_consistent(tree, values):
    for child, parent in tree.upward:
        assert (values[:, child] <= values[:, parent]).all()


def test_both_forms_of_file_say_the_same(tmp_path):
    lines = ("\ufeffparent, child", "pet,dog", "pet,cat", "animal,pet", "animal,cow")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (tmp_path / "b.csv").write_text("animal|pet|dog\n\nanimal | pet|cat\nanimal|cow\nsofa\n")
    assert Taxonomy.read(tmp_path / "a.csv") == ANIMALS == Taxonomy.read(tmp_path / "b.csv")
    assert ANIMALS.above("dog") == ("animal", "pet")
    assert ANIMALS.below("pet") == ("dog", "cat")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"the taxonomy is empty; write child,parent or names as a\|b\|c"),
        ("child,parent\n", "says of nothing what it is a kind of"),
        ("dog,pet\ncat,pet\n", r"line 1: a taxonomy has the header child,parent or lines as"),
        ("child,parent\ndog,pet\ncat,\n", "line 3: a line must name a child and its parent"),
        ("child,parent\ndog,pet\n\ndog,cow\n", r"line 4: 'dog' has two parents, 'pet' \(line 2\)"),
        ("a|b\nb|c\nc|a\n", r"line \d: .* circles, got one at '.': . is a kind of . is"),
        ("child,parent\ndog,dog\n", "line 2: a taxonomy must not turn in circles"),
        ("animal||dog\n", "line 1: a name must not be empty"),
        ("animal|dgo\n", "line 1: there is no label 'dgo'; did you mean 'dog'"),
    ],
)
def test_bad_files_get_one_sentence_with_the_line(tmp_path, text, sentence):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        Taxonomy.read(tmp_path / "t.csv").within(SPACE)


def test_levels_pass_over_groups_that_are_no_labels():
    tree = Taxonomy({"dog": "pet", "pet": "animal"}).within(LabelSpace(("animal", "dog", "sofa")))
    assert (tree.parent, tree.level) == ((-1, 0, -1), (1, 2, 1))
    assert ANIMALS.within(SPACE).levels()[3].tolist() == [1, 3]


@settings(max_examples=30, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**32 - 1))
def test_projection_is_the_nearest_consistent_point(tree, seed):
    """Oracle: the same least squares on log-odds by scipy's SLSQP."""
    u = np.random.default_rng(seed).normal(size=(2, len(tree.parent)))
    found = tree.consistent(torch.from_numpy(u)).numpy()
    children, parents = np.array(tree.upward, int).reshape(-1, 2).T
    rules = {"type": "ineq", "fun": lambda z: z[parents] - z[children]}
    for row, odds in zip(found, u, strict=True):
        best = minimize(lambda z, v=odds: ((z - v) ** 2).sum(), 0 * odds, constraints=rules)
        assert ((row - odds) ** 2).sum() <= best.fun + 1e-6
    assert_consistent(tree, found)


def test_projection_is_safe_at_the_ends_and_leaves_the_rest_alone():
    tree = LabelTree((-1, 0, -1))
    log_p = torch.tensor([[-torch.inf, 0.0, -0.5], [-1e-20, -1e-3, -745.0]], dtype=torch.float64)
    log_q = torch.tensor([[0.0, -torch.inf, -0.9], [-46.0, -6.9, -1e-300]], dtype=torch.float64)
    new_p, new_q = consistent_log_probs(log_p, log_q, tree)
    assert new_p.isfinite()[0, :2].all()
    assert torch.equal(new_p[0, :2].exp(), torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert torch.equal(new_p[:, 2], log_p[:, 2])
    assert torch.equal(new_q[1], log_q[1])


@settings(max_examples=30, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**32 - 1))
def test_completed_labels_are_a_closure(tree, seed):
    """Oracle: the rules of the docstring applied one at a time until nothing changes."""
    rng = np.random.default_rng(seed)
    states = rng.choice([0, 1, -1], size=(6, len(tree.parent)))  # -1: unknown
    given_ = map(torch.from_numpy, (states.clip(0), states >= 0))
    labels, observed = tree.complete(*given_)
    slow = states.copy()
    pairs = tree.upward * (len(tree.parent) + 1)
    for child, parent in pairs:
        slow[slow[:, child] == 1, parent] = 1
    for child, parent in pairs:
        slow[slow[:, parent] == 0, child] = 0
    np.testing.assert_array_equal(np.where(observed, labels, -1), slow)
    assert torch.equal(tree.complete(labels, observed)[0], labels)
    sets = torch.from_numpy(states == 1)
    closed = tree.closed(sets)
    assert_consistent(tree, closed.double())
    assert not (sets & ~closed).any()


def test_tables_obey():
    rows = {
        (0, 0, 0, 1, 0, 0): [1, 0, 0, 1, 1, 0],  # a dog, said to be no animal
        (0, -1, -1, 0, -1, 1): [0, 0, 0, 0, 0, 1],  # no animal, so no cat
        (-1, 0, 0, 0.7, 0.5, 0): [-1, 0, 0, 0.7, 0.7, 0],  # a dog, perhaps
        (-1, -1, -1, -1, -1, -1): [-1] * 6,
    }
    states, images = np.array(list(rows), float), FileImages("", list("abcd"))
    table = LabelTable.from_arrays(SPACE, images, states.clip(0), states >= 0)
    obeyed = obey_taxonomy(table, ANIMALS)
    labels, known = obeyed.table.targets()
    np.testing.assert_allclose(np.where(known, labels, -1), list(rows.values()), rtol=1e-6)
    assert (obeyed.raised, obeyed.learned) == (3, 3)
    assert obey_taxonomy(obeyed.table, ANIMALS).raised == 0


def test_evaluations_are_given_by_level(tmp_path):
    predictions = sample(200, unknown=0.1)
    first, second, third = predictions.names[:3]
    taxonomy = Taxonomy({second: first, third: second})
    found = evaluate(predictions, Sigmoid(), Threshold(0.5), taxonomy=taxonomy, query_length=0)
    tree = taxonomy.within(LabelSpace(predictions.names))
    given_ = map(torch.from_numpy, (predictions.labels, predictions.observed))
    labels, known = tree.complete(*given_)
    assert [(one.level, one.labels) for one in found.levels] == [(1, 3), (2, 1), (3, 1)]
    column = tree.levels()[2][0]
    row = next(row for row in found.rows if row.name == predictions.names[column])
    second = found.levels[1]
    assert (second.mean_ap, second.mean_f1) == pytest.approx((row.ap, row.f1))
    u = tree.consistent(torch.from_numpy(predictions.logits).double())
    log_p, log_q = Sigmoid().log_probs(u)
    losses = -torch.where(labels == 1, log_p, log_q)
    assert found.after.log_loss == pytest.approx(losses[known].mean().item(), rel=1e-6)
    own = losses[:, column][known[:, column]].mean().item()
    assert second.log_loss == pytest.approx(own, rel=1e-6)
    wrong = int(tree.violations(predictions.logits).sum())
    assert any(note.startswith(f"Of {wrong:,} of 200 images") for note in found.notes)
    assert "made consistent" in found.calibrator
    write_report(found, tmp_path / "report.html", title="by level")
    assert "Labels by their depth in the taxonomy" in (tmp_path / "report.html").read_text()
    predictions.with_link(Sigmoid()).save(tmp_path / "p.parquet")
    (tmp_path / "kinds.csv").write_text("|".join(predictions.names[:3]))
    words = ("evaluate", tmp_path / "p.parquet", "--query-length", "0")
    result = must_run(*words, "--taxonomy", tmp_path / "kinds.csv")
    assert "obey the taxonomy" in " ".join(result.output.split())


def test_answers_obey():
    u = np.array([[-1.0, 3.0, 0.0], [2.0, 1.0, 0.0]])
    tree, space = LabelTree((-1, 0, -1)), LabelSpace(("pet", "dog", "sofa"))
    logs = Sigmoid().log_probs(u)
    none = np.zeros((2, 3), bool)
    scored = Scored(space, np.arange(2), ("a", "b"), u.astype(np.float32), *logs, none)
    found = obeying(scored, tree, Threshold((0.9, 0.6, 0.6)))
    np.testing.assert_allclose(found.probs[0, :2], 1 / (1 + np.exp(-1.0)))
    # The dog alone is above its threshold, and is a pet.
    assert list(found.labels) == [("pet", "dog")] * 2


def test_verbs(tmp_path):
    rows = ("path,labels,unknown", "a.jpg,dog,", "b.jpg,pet,", "c.jpg,,", "d.jpg,,dog|pet")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (tmp_path / "kinds.csv").write_text("animal|pet|dog\n")
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_bytes(b"")
    words = ("data", "convert", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
    result = must_run(*words, "--taxonomy", tmp_path / "kinds.csv", "--add-groups")
    assert "1 labels were raised" in result.output
    assert "1 groups became labels" in result.output
    grown = load(tmp_path / "o.csv")
    assert grown.space.names == ("animal", "dog", "pet")
    assert states(grown) == ["111", "101", "000", "???"]
    describe = ("data", "describe", tmp_path / "t.csv", "--taxonomy", tmp_path / "kinds.csv")
    told = must_run(*describe, "--json").output
    assert "1 at level 1, 1 at level 2" in json.loads(told)["notes"][-1]
    assert "--taxonomy" in refused(*words, "--add-groups")


# Groups of labels that exclude each other

EXACTLY, MOST = ((0, 3, 1),), ((2, 5),)
RULES = {(0, 3, 1): (1,), (2, 5): (0, 1)}  # how many labels of each group may be present


ALL = np.array([*itertools.product((0, 1), repeat=6)])
OUTCOMES = ALL[[all(row[[*group]].sum() in RULES[group] for group in RULES) for row in ALL]]


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
    assert not torch.stack([log_p, log_q]).isnan().any()
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
    for make, inner in ((Grouped, Sigmoid()), (OnePerGroup, Threshold(0.5))):
        with pytest.raises(ValueError, match="a column must be in one group"):
            make(inner, ((0, 1),), ((1, 2),))
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
    words = (
        "calibrate",
        "--calibrator",
        "none",
        tmp_path / "scores.csv",
        "--scores",
        "logits",
        "--fit-on",
        "val",
    )
    words += ("--report-on", "test", "--attributes", tmp_path / "groups.csv")
    out = tmp_path / "rule.json"
    result = must_run(*words, "--rule", "best-f", "-o", out)
    assert "2 rows break a rule of" in result.stdout
    assert "red, blue: right in" in result.stdout
    must_run(
        "predict", out, tmp_path / "scores.csv", "--scores", "logits", "-o", tmp_path / "a.csv"
    )
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert float(row["score:red"]) + float(row["score:blue"]) == pytest.approx(1.0)
        assert len({"red", "blue"} & set(row["labels"].split("|"))) == 1
    assert "it shapes a rule, not a guarantee" in refused(*words, "--guarantee", "recall=0.5")


def test_conflicts_of_a_label_table_are_shown_and_the_rest_is_learned(tmp_path):
    (tmp_path / "groups.csv").write_text("group,kind,labels\nlight,at-most-one,day|night\n")
    text = "path,labels,unknown\na.jpg,day|night,\nb.jpg,day,night\nc.jpg,,\nd.jpg,fox,day\n"
    (tmp_path / "t.csv").write_text(text)
    out = tmp_path / "done.csv"
    result = must_run("data", "rules", tmp_path / "t.csv", tmp_path / "groups.csv", "-o", out)
    assert "1 photo of 4 breaks a rule, first 'a.jpg'" in result.stdout
    assert "1 more label is known by the rules" in result.stdout  # of b.jpg
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


# Vocabularies (SKOS, Getty AAT), as files written here

AAT = "http://vocab.getty.edu/aat/"
SKOS = "http://www.w3.org/2004/02/skos/core#"


def statement(child, what, other):
    return f"<{AAT}{child}> <{what}> <{AAT}{other}> .\n"


CONCEPTS = {  # number: names by language, broader
    "300046300": ({"en": "vessels (containers)"}, None),
    "300132254": ({"en": "vases", "nl": "vazen"}, "300046300"),
    "300198828": ({"nl": "amforen", "de": "Amphoren"}, "300132254"),
}


def as_n_triples():
    text = "# made\n"
    for number, (names, above) in CONCEPTS.items():
        for tongue, name in names.items():
            text += f'<{AAT}{number}> <{SKOS}prefLabel> "{name}"@{tongue} .\n'
        text += statement(number, f"{SKOS}broader", above) if above else ""
    return text


def test_a_vocabulary_is_a_taxonomy_with_addresses(tmp_path):
    (tmp_path / "aat.nt").write_text(as_n_triples())
    taxonomy = Taxonomy.read(tmp_path / "aat.nt")
    assert taxonomy.parents == {"vases": "vessels (containers)", "Amphoren": "vases"}
    assert taxonomy.uris["vases"] == f"{AAT}300132254"


XL, GVP = "http://www.w3.org/2008/05/skos-xl#", "http://vocab.getty.edu/ontology#"


def dump():
    """Return the files of AAT's explicit dump: names stand with terms of their own addresses."""
    terms, relations = [], []
    for number, (names, above) in CONCEPTS.items():
        for place, (tongue, name) in enumerate(names.items()):
            term = f"{AAT}term/{number}{place}-{tongue}"
            terms.append(f"<{AAT}{number}> <{XL}prefLabel> <{term}> .\n")
            terms.append(f'<{term}> <{XL}literalForm> "{name}"@{tongue} .\n')
            terms.append(f"<{term}> <{GVP}contribPreferred> _:x{place} . # a node\n")
        terms.append(f"<{AAT}{number}> <{XL}altLabel> <{AAT}term/{number}9-en> .\n")
        terms.append(f'<{AAT}term/{number}9-en> <{XL}literalForm> "another\u00e9"@en .\n')
        if above:
            kinds = ("broaderGeneric", "broaderPreferred")
            relations += [statement(number, f"{GVP}{kind}", above) for kind in kinds]
    relations.append(statement(300132254, f"{GVP}broaderGeneric", 300198828))
    return {"AATOut_2Terms.nt": terms, "AATOut_HierarchicalRels.nt": relations}


def test_the_dump_of_a_vocabulary_is_a_folder(tmp_path):
    """The layout of AAT's explicit.zip; one of its files alone names nothing, or says nothing."""
    for name, lines in dump().items():
        (tmp_path / name).write_text("".join(lines))
    parents = {"vases": "vessels (containers)", "Amphoren": "vases"}
    assert Taxonomy.read(tmp_path).parents == parents
    with pytest.raises(DataError, match="says of nothing what it is a kind of"):
        Taxonomy.read(tmp_path / "AATOut_2Terms.nt")
    first = (line for line in dump()["AATOut_2Terms.nt"] if "literalForm" not in line)
    (tmp_path / "AATOut_2Terms.nt").write_text("".join(first))
    with pytest.raises(DataError, match="name the folder with all files"):
        Taxonomy.read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"a folder of a vocabulary holds files of N-Triples"):
        Taxonomy.read(tmp_path / "empty")


def test_a_parent_may_name_its_children_instead(tmp_path):
    """skos:narrower is the inverse of skos:broader; a file that mixes them lost parents."""
    whole = as_n_triples()
    turned = re.sub(f"<([^>]*)> <{SKOS}broader> <([^>]*)>", rf"<\2> <{SKOS}narrower> <\1>", whole)
    assert "broader>" not in turned
    read = []
    for name, text in {"a.nt": whole, "b.nt": turned}.items():
        (tmp_path / name).write_text(text)
        read.append(read_skos(tmp_path / name))
    assert read[0] == read[1]


def test_the_preferred_parent_is_taken_and_circles_and_two_others_are_not(tmp_path):
    text = as_n_triples() + statement("300046300", f"{SKOS}broader", "300198828")
    (tmp_path / "aat.nt").write_text(text)
    with pytest.raises(DataError, match=r"^[^\n]*aat\.nt: a taxonomy must not turn in[^\n]*$"):
        Taxonomy.read(tmp_path / "aat.nt")
    other = f'<{AAT}1> <{SKOS}prefLabel> "tableware"@en .\n'
    second = statement("300198828", f"{SKOS}broader", "1")
    (tmp_path / "aat.nt").write_text(as_n_triples() + other + second)
    with pytest.raises(DataError, match=r"'Amphoren' .* has two parents, 'tableware' and 'vases'"):
        Taxonomy.read(tmp_path / "aat.nt")
    chosen = statement("300198828", f"{GVP}broaderPreferred", "1")
    (tmp_path / "aat.nt").write_text(as_n_triples() + other + second + chosen)
    assert Taxonomy.read(tmp_path / "aat.nt").parents["Amphoren"] == "tableware"
    # Concepts of one name are told apart by their addresses.
    own = f'<{AAT}2> <{SKOS}prefLabel> "vases"@en .\n'
    own += statement("2", f"{SKOS}broader", "300046300")
    (tmp_path / "aat.nt").write_text(as_n_triples() + own)
    parents = Taxonomy.read(tmp_path / "aat.nt").parents
    assert (parents["Amphoren"], parents[f"{AAT}2"]) == (f"{AAT}300132254", "vessels (containers)")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.ttl", "@prefix x: <y> .", r"read as N-Triples .* -o ntriples .*a\.ttl > vocabulary"),
        ("a.nt", "nonsense\n", "line 1: not a statement of N-Triples"),
        ("a.nt", "# nothing\n", "no concept has a skos:prefLabel"),
        ("a.nt", f'<{AAT}1> <{SKOS}prefLabel> "a\\u00e9"@en .\n', "says of nothing what it is"),
    ],
)
def test_vocabularies_that_cannot_be_meant(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=sentence):
        Taxonomy.read(tmp_path / name)
