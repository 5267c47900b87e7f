"""Taxonomies. Oracles: a quadratic program solved by scipy, slow loops, the Pythagorean bound."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_scores import sample
from scipy.optimize import minimize
from typed import must_run, run

from labelwise.data import LabelTable, load, obey_taxonomy
from labelwise.decide import Threshold
from labelwise.errors import DataError, LabelwiseError
from labelwise.evaluation import evaluate
from labelwise.links import Sigmoid, consistent_log_probs
from labelwise.models.scoring import Scored, obeying
from labelwise.pictures import FileImages
from labelwise.report import write_report
from labelwise.taxonomy import LabelTree, Taxonomy
from labelwise.types import LabelSpace

ANIMALS = Taxonomy({"dog": "pet", "cat": "pet", "pet": "animal", "cow": "animal"})
SPACE = LabelSpace(("animal", "cat", "cow", "dog", "pet", "sofa"))


@st.composite
def trees(draw, largest=7):
    """Return a tree of 1 to ``largest`` labels in any order of columns."""
    count = draw(st.integers(1, largest))
    parents = [draw(st.integers(-1, column - 1)) for column in range(count)]
    place = draw(st.permutations(range(count)))
    parent = [0] * count
    for column in range(count):
        parent[place[column]] = -1 if parents[column] < 0 else place[parents[column]]
    return LabelTree(tuple(parent))


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


def test_groups_that_are_no_labels_are_passed_over():
    tree = Taxonomy({"dog": "pet", "pet": "animal"}).within(LabelSpace(("animal", "dog", "sofa")))
    assert (tree.parent, tree.level) == ((-1, 0, -1), (1, 2, 1))
    assert ANIMALS.within(SPACE).levels()[3].tolist() == [1, 3]


@settings(max_examples=30, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**32 - 1))
def test_projection_is_the_nearest_consistent_point(tree, seed):
    """Oracle: the same least squares on log-odds by scipy's SLSQP."""
    u = np.random.default_rng(seed).normal(size=(2, len(tree.parent)))
    found = tree.consistent(torch.from_numpy(u)).numpy()
    children, parents = (
        (list(side) for side in zip(*tree.upward, strict=True)) if tree.upward else ([], [])
    )
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
    again = tree.complete(labels, observed)
    assert torch.equal(again[0], labels)
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


def test_groups_become_labels(tmp_path):
    (tmp_path / "t.csv").write_text("path,dog,cat\na.jpg,1,0\nb.jpg,0,0\nc.jpg,,0\n")
    table = load(tmp_path / "t.csv", check_files=False)
    grown = obey_taxonomy(table, Taxonomy({"dog": "pet", "cat": "pet"}), add_groups=True)
    assert grown.table.space.names == ("dog", "cat", "pet")
    labels, known = grown.table.targets()
    assert np.where(known, labels, 9)[:, 2].tolist() == [1, 0, 9]
    assert (grown.raised, grown.learned) == (0, 0)


def test_evaluations_are_given_by_level(tmp_path):
    predictions = sample(200, unknown=0.1)
    first, second, third = predictions.names[:3]
    taxonomy = Taxonomy({second: first, third: second})
    found = evaluate(predictions, Sigmoid(), Threshold(0.5), taxonomy=taxonomy, query_length=0)
    tree = taxonomy.within(LabelSpace(predictions.names))
    labels, observed = tree.complete(
        *map(torch.from_numpy, (predictions.labels, predictions.observed))
    )
    assert [(one.level, one.labels) for one in found.levels] == [(1, 3), (2, 1), (3, 1)]
    column = tree.levels()[2][0]
    row = next(row for row in found.rows if row.name == predictions.names[column])
    second = found.levels[1]
    assert (second.mean_ap, second.mean_f1) == pytest.approx((row.ap, row.f1))
    known = torch.ones_like(labels, dtype=torch.bool) if observed is None else observed
    u = tree.consistent(torch.from_numpy(predictions.logits).double())
    log_p, log_q = Sigmoid().log_probs(u)
    loss = -torch.where(labels == 1, log_p, log_q)[known].mean().item()
    assert found.after.log_loss == pytest.approx(loss, rel=1e-6)
    assert second.log_loss == pytest.approx(
        -torch.where(labels == 1, log_p, log_q)[:, column][known[:, column]].mean().item(), rel=1e-6
    )
    wrong = int(tree.violations(predictions.logits).sum())
    assert any(note.startswith(f"Of {wrong:,} of 200 images") for note in found.notes)
    assert "made consistent" in found.calibrator
    write_report(found, tmp_path / "report.html", title="by level")
    assert "Labels by their depth in the taxonomy" in (tmp_path / "report.html").read_text()
    predictions.with_link(Sigmoid()).save(tmp_path / "p.parquet")
    lines = [f"{child},{parent}" for child, parent in taxonomy.parents.items()]
    (tmp_path / "kinds.csv").write_text("child,parent\n" + "\n".join(lines) + "\n")
    words = ("evaluate", tmp_path / "p.parquet", "--query-length", "0")
    result = must_run(*words, "--taxonomy", tmp_path / "kinds.csv")
    assert "obey the taxonomy" in " ".join(result.output.split())


def test_answers_obey():
    u = torch.tensor([[-1.0, 3.0, 0.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
    tree = LabelTree((-1, 0, -1))
    rule = Threshold((0.9, 0.6, 0.6))
    space = LabelSpace(("pet", "dog", "sofa"))
    given_ = Scored(
        space, np.arange(2), ("a", "b"), u.float(), *Sigmoid().log_probs(u), torch.zeros(2, 3) > 0
    )
    found = obeying(given_, tree, rule)
    assert_consistent(tree, found.probs)
    torch.testing.assert_close(found.probs[0, :2].logit(), torch.tensor([1.0, 1.0]).double())
    # The dog alone is above its threshold, and is a pet.
    assert found.labels[0] == ("pet", "dog")
    assert found.labels[1] == ("pet", "dog")


def test_verbs(tmp_path):
    (tmp_path / "t.csv").write_text("path,labels\na.jpg,dog\nb.jpg,pet\nc.jpg,\n")
    (tmp_path / "kinds.csv").write_text("animal|pet|dog\n")
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(b"")
    words = ("data", "export", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
    result = must_run(*words, "--taxonomy", tmp_path / "kinds.csv", "--add-groups")
    assert "1 labels were raised" in result.output
    assert "1 groups became labels" in result.output
    names, (labels, _) = (lambda t: (t.space.names, t.targets()))(load(tmp_path / "o.csv"))
    assert names == ("animal", "dog", "pet")
    assert labels.tolist() == [[1, 1, 1], [1, 0, 1], [0, 0, 0]]
    describe = ("data", "describe", tmp_path / "t.csv", "--taxonomy", tmp_path / "kinds.csv")
    result = run(*describe, "--json")
    assert "1 at level 1, 1 at level 2" in json.loads(result.output)["notes"][-1]
    result = run(*words, "--add-groups")
    assert isinstance(result.exception, LabelwiseError)
