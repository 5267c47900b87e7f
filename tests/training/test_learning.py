"""How much more photos would help. Oracle: heads that were trained on that many photos."""

import numpy as np
import pytest
from tiny_run import Hearing, tiny_settings

from labelwise.eyes.fit import fit
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows
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
