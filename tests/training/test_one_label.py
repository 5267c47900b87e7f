"""One label noted per photo: the run notices it, says it, and gives probabilities of the truth.

Oracle: labels that the table does not hold, since they were never noted.
"""

import numpy as np
import pytest
from tiny_run import Hearing

from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows
from labelwise.tables import LabelTable
from labelwise.training.run import train
from labelwise.training.settings import Settings


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
