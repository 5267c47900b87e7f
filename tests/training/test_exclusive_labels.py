"""Labels that exclude each other. Oracles: the rule, loops, scipy's exact interval, sums of p."""

from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from scipy.stats import binomtest
from tiny_run import Hearing, tiny_settings

from labelwise.errors import DataError
from labelwise.evaluation import evaluate
from labelwise.learn.predictor import Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.photos.query import Asked
from labelwise.pictures import FeatureRows
from labelwise.queries import Query
from labelwise.tables import LabelTable
from labelwise.training.run import train

NAMES = ("red", "blue", "green", "day", "night", "round")
GROUPS = "group,kind,labels\ncolour,exactly-one,red|blue|green\nlight,at-most-one,day|night\n"


def coloured_table(rows=360):
    """Return rows of one colour each, by day or night or neither; two break a rule."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    labels = np.zeros((rows, 6), np.uint8)
    labels[np.arange(rows), (x[:, :3] + 0.5 * rng.normal(size=(rows, 3))).argmax(1)] = 1
    light = np.concatenate([x[:, 3:5], np.full((rows, 1), 0.3)], axis=1).argmax(1)
    labels[np.arange(rows)[light < 2], 3 + light[light < 2]] = 1
    labels[:, 5] = x[:, 5] > 0
    labels[0, :3] = 1  # of train
    labels[5, :3] = 0  # of test
    split = np.array(["train", "train", "train", "train", "val", "test"])[np.arange(rows) % 6]
    return LabelTable.from_arrays(NAMES, FeatureRows(x), labels, split=split, name="coloured")


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coloured")
    (folder / "groups.csv").write_text(GROUPS)
    settings = tiny_settings(attributes=str(folder / "groups.csv"), rule="best-f")
    watch = Hearing()
    train(settings, folder / "run", table=coloured_table(), watch=watch)
    return folder / "run", watch.messages


def test_labels_probabilities_and_sets_obey_the_rules(coloured):
    run, messages = coloured
    assert any("2 photos of 360 break a rule, first '000000'" in one for one in messages)
    predictor = Predictor.load(run)
    rows = RunFolder(run).predictions("test").with_link(predictor.link)
    probs = rows.decision_probs()
    assert probs[:, :3].sum(1) == pytest.approx(np.ones(len(rows)), abs=1e-5)
    assert (probs[:, 3:5].sum(1) < 1).all()
    sets = rows.sets(predictor.rule)
    assert (sets[:, :3].sum(1) == 1).all()
    assert (sets[:, 3:5].sum(1) <= 1).all()
    assert not rows.observed[0, :3].any()  # the row that has no colour


def test_figures_of_each_group_are_those_of_a_loop(coloured):
    predictor = Predictor.load(coloured[0])
    run = RunFolder(coloured[0])
    rows = run.predictions("test").with_link(predictor.link)
    sets, labels, evaluation = rows.sets(predictor.rule), rows.majority, run.evaluation
    for figures, columns in zip(evaluation.exclusive, ([0, 1, 2], [3, 4]), strict=True):
        known = [n for n in range(len(rows)) if rows.observed[n, columns].all()]
        right = sum((sets[n, columns] == labels[n, columns]).all() for n in known)
        assert (figures.known, figures.right) == (len(known), right)
        interval = binomtest(int(right), len(known)).proportion_ci(0.95, "exact")
        assert (figures.low, figures.high) == pytest.approx((interval.low, interval.high))
        assert figures.labels == tuple(NAMES[k] for k in columns)
        assert figures.broken == 0
    assert [one.needs_one for one in evaluation.exclusive] == [True, False]


def test_evaluate_counts_clashes_and_broken_sets(coloured):
    """The table as it is, with its clash, and a rule that knows nothing of groups."""
    predictor = Predictor.load(coloured[0])
    rows = RunFolder(coloured[0]).predictions("test")
    as_given = coloured_table().splits()["test"].targets()[0]
    given = replace(rows, labels=as_given.astype(rows.labels.dtype), observed=None)
    sets = np.ones((len(rows), 6), bool)
    found = evaluate(given, rows.link, sets, calibrated=predictor.link)
    counts = [(one.clashes, one.broken, one.right) for one in found.exclusive]
    assert counts == [(1, len(rows), 0), (0, len(rows), 0)]
    assert any("1 photo with labels that exclude each other" in note for note in found.notes)
    empty = evaluate(given, rows.link, np.zeros_like(sets), calibrated=predictor.link)
    assert [one.broken for one in empty.exclusive] == [len(rows), 0]
    assert evaluate(given, rows.link, sets).exclusive == ()


def test_queries_know_what_excludes_what_and_which_no_photo_can_answer(coloured, tmp_path):
    logits = np.random.default_rng(7).normal(size=(40, 6))
    index = open_index(made_index(tmp_path / "index", coloured[0], logits))
    p = np.exp(np.array([index.odds(k, refit=False).log_p for k in range(6)], np.float64))
    for text, expected in {
        "red | blue": p[0] + p[1],
        "red, -blue": p[0],
        "-day, -night": 1 - p[3] - p[4],
        "(red | blue), round": (p[0] + p[1]) * p[5],
        "red, round": p[0] * p[5],
    }.items():
        asked = Asked(index, Query.parse(text, index.space)).own
        rows, scores = asked.ranking.best(40)
        assert np.exp(scores) == pytest.approx(expected[rows], rel=1e-4)
        assert (np.diff(scores) <= 0).all()
        least = float(np.sort(np.log(expected))[20])
        assert asked.ranking.count_at_least(least + 1e-4) == 19
    for text in ("red, blue", "day, night, round", "(red, blue) | (red, green)"):
        with pytest.raises(DataError, match=r"no photo can be .*one at most"):
            index.bound(Query.parse(text, index.space))
