"""How much more photos would help. Oracle: heads that were trained on that many photos."""

from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from scipy.stats import binomtest
from tiny_run import Hearing, tiny_settings

from labelwise.errors import DataError
from labelwise.evaluation import evaluate
from labelwise.eyes.fit import fit
from labelwise.learn.predictor import Predictor
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.photos.query import Asked
from labelwise.pictures import FeatureRows
from labelwise.queries import Query
from labelwise.report.runs import report_run
from labelwise.tables import LabelTable
from labelwise.training import checkpoint
from labelwise.training.learning import learning
from labelwise.training.run import train
from labelwise.training.settings import Settings


def world(rows, seed):
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(9).normal(size=(24, 3))
    x = rng.normal(size=(rows, 24)).astype(np.float32)
    v = x @ truth / 3 - 1
    return x, (rng.random(v.shape) < 1 / (1 + np.exp(-v))).astype(np.float32)


def test_the_range_holds_what_twice_as_many_photos_bring():
    new, truth = world(6000, 1000)
    held = []
    for seed in range(8):
        x, y = world(400, seed)
        found = learning(fit(x[:200], y[:200]), y[:200], None, ("a", "b", "c"))
        assert found.levels[0] < found.levels[2] < found.all < found.twice < found.high
        scores = fit(x, y).logits(new)
        held.append(found.low < average_precision(scores, truth).value < found.high)
    assert sum(held) >= 6


def test_few_photos_cannot_tell():
    x, y = world(60, 0)
    assert learning(fit(x, y), y, None, ("a", "b", "c")) is None  # ten folds, no curve
    x, y = world(110, 0)
    assert "cannot be told yet from 110" in str(learning(fit(x, y), y, None, ("a", "b", "c")))


def test_a_run_says_it_and_the_report_draws_it(tmp_path):
    x, y = world(1500, 3)
    split = np.array(["train"] * 1200 + ["test"] * 300)
    table = LabelTable.from_arrays(
        ("a", "b", "c"), FeatureRows(x), y.astype(np.uint8), split=split, name="curve"
    )
    done = train(Settings(data="curve"), tmp_path, table=table, watch=Hearing())
    (note,) = [note for note in done.evaluation.notes if "twice as many" in note]
    (record,) = [row for row in RunFolder(tmp_path).journal.read() if "learning" in row]
    assert record["learning"]["sentence"] == note
    photos = [point["photos"] for point in record["learning"]["points"]]
    assert photos == [240, 480, 960, 1200, 2400]
    page = report_run(done).read_text()
    assert "How much more photos would help." in page
    assert note.split(";")[0] in page
    again = train(Settings(data="curve", confidence=0.9), tmp_path, table=table, watch=Hearing())
    assert [text for text in again.evaluation.notes if text == note] == [note]


@pytest.mark.parametrize(("data", "sentence"), [("same", "another format"), ("x", "data changed")])
def test_a_run_of_an_older_labelwise_is_kept_and_says_why(tmp_path, data, sentence):
    x, y = world(120, 4)
    split = np.array(["train"] * 100 + ["test"] * 20)
    table = LabelTable.from_arrays(("a", "b", "c"), FeatureRows(x), y, split=split, name="old")
    train(tiny_settings(), tmp_path, table=table)
    other = table if data == "same" else table.subset(np.arange(119))
    watch = Hearing()
    if data == "same":
        stored = checkpoint.load_latest(tmp_path / "checkpoint", "model")
        facts = {key: value for key, value in stored.facts.items() if key != "format"}
        checkpoint.save(tmp_path / "checkpoint", stored.tensors, facts | {"data": "older"})
    assert train(tiny_settings(), tmp_path, table=other, watch=watch).was_finished
    assert any(sentence in message for message in watch.messages)


# One label noted per photo: the run notices it, says it, and gives probabilities of the truth.
# Oracle: labels that the table does not hold, since they were never noted.


def drawn(rows=600, labels=6, seed=0):
    rng = np.random.default_rng(seed)
    truth = (rng.random((rows, labels)) < 0.35).astype(np.uint8)
    truth[~truth.any(1), 0] = 1
    x = 2.5 * truth + rng.normal(size=(rows, labels))
    noted = np.eye(labels, dtype=np.uint8)[(truth * (1 + rng.random(truth.shape))).argmax(1)]
    split = np.array(["train", "train", "test"])[np.arange(rows) % 3]
    return x.astype(np.float32), truth, noted, split


def run_of(folder, labels, x, split, **changed):
    table = LabelTable.from_arrays(tuple("abcdef"), FeatureRows(x), labels, split=split, name="one")
    watch = Hearing()
    settings = Settings(data="one", **changed)
    done = train(settings, folder, table=table, watch=watch)
    return done.evaluation, watch.messages


def probabilities(run):
    logits = run.predictions("test").logits.astype(float)
    return np.exp(run.spec.made_link.log_probs(logits)[0])


def test_a_table_of_one_label_per_photo_is_noticed_and_mended(tmp_path):
    x, truth, noted, split = drawn()
    labels = np.where((split == "test")[:, None], truth, noted)
    found, messages = run_of(tmp_path / "auto", labels, x, split)
    plain, silent = run_of(tmp_path / "complete", labels, x, split, labels_are="complete")
    sentence = "Only one label per photo was noted, though photos seem to show "
    assert any(sentence in message for message in messages)
    assert any(sentence in note for note in found.notes)
    assert not any("Only one label" in message for message in silent)
    (note,) = [note for note in found.notes if sentence in note]
    stated = float(note.removeprefix(sentence).split()[0].rstrip("."))
    assert stated == pytest.approx(truth.sum(1).mean(), rel=0.15)
    run, as_one = RunFolder(tmp_path / "auto"), RunFolder(tmp_path / "complete")
    p, single = probabilities(run), probabilities(as_one)
    assert np.abs(p.mean(0) - truth[split == "test"].mean(0)).mean() < 0.07  # .18 if absent
    np.testing.assert_allclose(single.sum(1), 1, atol=1e-6)  # what --labels-are complete says
    assert found.sets.mean_size == pytest.approx(truth.sum(1).mean(), rel=0.2)
    assert plain.sets.mean_size < found.sets.mean_size
    assert run.predictions("val").observed.sum() == (split == "train").sum()
    again = run_of(tmp_path / "auto", labels, x, split, confidence=0.9)[0]
    assert any(sentence in note for note in again.notes)


def test_classes_that_exclude_each_other_stay_so(tmp_path):
    x, _, _, split = drawn()
    classes = np.eye(6, dtype=np.uint8)[np.random.default_rng(1).integers(0, 6, len(x))]
    found, messages = run_of(tmp_path / "run", classes, 2 * classes + x[::-1] / 2, split)
    assert not any("Only one label" in text for text in (*messages, *found.notes))
    assert RunFolder(tmp_path / "run").spec.method == "softmax"


# Labels that exclude each other. Oracles: the rule, loops, scipy's exact interval, sums of p.

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
