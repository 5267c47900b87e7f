"""Verdicts in words, sizes of sets. Oracles: counts by hand, scores made good or useless."""

import numpy as np
import pytest
import torch

from labelwise.decide import Threshold
from labelwise.evaluation import evaluate
from labelwise.evaluation.evaluation import far_apart, verdict
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.report.page import decisions

NAMES = ("dog", "cat", "boat")


def evaluated(scale, *, rows=600, threshold=0.5, shift=0.0, link=True):
    """Evaluate logits of ``scale`` skill; truth is drawn by the probabilities before ``shift``."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, scale, (rows, 3)) if scale else np.full((rows, 3), -1.5)
    labels = rng.random((rows, 3)) < 1 / (1 + np.exp(-logits))
    shown = logits + shift + rng.normal(0, 1e-6, logits.shape)
    given = torch.from_numpy(shown).float(), torch.from_numpy(labels).float()
    ids = [str(row) for row in range(rows)]
    table = Predictions(ids, *given, None, NAMES, "test", Sigmoid())
    rule = None if threshold is None else Threshold(threshold)
    return evaluate(table, Sigmoid() if link else None, rule, query_length=0), labels, shown


def test_a_useless_model_is_called_so():
    """It tags every photo: no better than always answering by frequency."""
    evaluation, labels, _ = evaluated(0.0, threshold=0.01)
    said = verdict(evaluation)
    assert said.word == "useless"
    assert evaluation.ranking.map_class < 0.3
    assert said.tags.startswith(f"Of 100 tags it gives, {round(100 * labels.mean())} are right")
    assert "it finds 100 of 100. It tags 100 of 100 photos that show nothing." in said.tags


def test_words_rise_with_skill():
    evaluation, labels, shown = evaluated(2.0)
    right = (shown[labels] >= 0).sum()  # tags are counted over all labels
    precision, recall = (round(100 * right / side.sum()) for side in (shown >= 0, labels))
    expected = f"Of 100 tags it gives, {precision} are right; it finds {recall} of 100."
    assert verdict(evaluation).tags.startswith(expected)
    words = [verdict(evaluated(scale)[0]) for scale in (0.0, 1.5, 4.0, 40.0)]
    assert words[-1].word == "excellent"
    assert words[-1].hint == "Use it; audit its tags now and then."
    assert [one.skill for one in words] == sorted(one.skill for one in words)
    assert len({one.word for one in words}) >= 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scale": 3.0, "shift": 2.0}, ("mislead: they are off by", "Calibrating")),
        ({"scale": 2.0, "rows": 160}, ("More photos of `",)),
        ({"scale": 3.0, "threshold": None, "link": False}, ("gives no tags (mAP ", "has no prob")),
        ({"scale": 40.0}, ("can be trusted",)),
        ({"scale": 40.0, "rows": 49}, ("Only 49 photos tested it: more would help most.",)),
    ],
)
def test_the_hint_says_what_helps_most(given, words):
    """Probabilities that are off are not trusted; a rare label needs photos."""
    said = str(verdict(evaluated(**given)[0]))
    assert all(word in said for word in words)


def evaluation(chosen, true, labels=8, rows=20, observed=None):
    logits = torch.full((rows, labels), -3.0)
    logits[:, :chosen] = 3.0
    truth = torch.zeros(rows, labels)
    truth[:, :true] = 1
    names = tuple(f"label {k}" for k in range(labels))
    ids = [str(row) for row in range(rows)]
    scores = Predictions(ids, logits, truth, observed, names, "test", Sigmoid())
    return evaluate(scores, Sigmoid(), Threshold(0.5), query_length=0)


@pytest.mark.parametrize(
    ("chosen", "true", "words"),
    [
        (6, 2, ["The rule gives 6.00 labels per image and the truth has 2.00: far more"]),
        (0, 1, ["The rule gives 0.00 labels per image and the truth has 1.00: far fewer"]),
        (3, 2, []),
        (2, 3, []),
    ],
)
def test_sizes_far_from_the_truth_are_noted(chosen, true, words):
    found = [note for note in evaluation(chosen, true).notes if "labels per image" in note]
    assert [note.partition(";")[0] for note in found] == words


@pytest.mark.parametrize("complete", [0, 5])
def test_true_sizes_that_are_not_known_are_not_called_zero(complete, tmp_path):
    """Three labels are on every image, and of all but the complete ones a fourth is not known."""
    observed = torch.ones(20, 8, dtype=torch.bool)
    observed[complete:, 7] = False
    found = evaluation(6, 3, observed=observed)
    assert found.sets.true_size is None
    assert found.sets.mean_true_size == (3 if complete else None)
    assert not [note for note in found.notes if "labels per image" in note]
    page = str(decisions(found))
    assert "the truth has" not in page
    assert f"all labels are known of {complete} of 20 images" in page
    found.save(tmp_path / "evaluation.json")
    assert RunFolder(tmp_path).size_note(6.5) == ""


def test_predict_says_when_new_photos_get_far_more_labels(tmp_path):
    """Oracle: the true size of the photos that judged the run, two labels."""
    assert [far_apart(*sizes) for sizes in ((0.4, 0), (0.9, 0.45), (1, 0.5))] == [0, 0, 1]
    run = RunFolder(tmp_path)
    assert run.size_note(6.5) == ""  # of a model without figures
    evaluation(2, 2).save(tmp_path / "evaluation.json")
    assert run.size_note(2.4) == ""
    words = "6.50 labels per photo, where the photos that judged the model have 2.00"
    assert run.size_note(6.5).startswith(words)
