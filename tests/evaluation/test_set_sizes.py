"""Sets far larger or smaller than the true ones are said.

Oracle: sets and labels whose sizes are known by construction.
"""

import pytest
import torch

from labelwise.decide import Threshold
from labelwise.evaluation import evaluate
from labelwise.evaluation.evaluation import far_apart
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.report.page import decisions


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
        (6, 2, ("The rule gives 6.00 labels per image and the truth has 2.00: far more",)),
        (1, 4, ("The rule gives 1.00 labels per image and the truth has 4.00: far fewer",)),
        (0, 1, ("The rule gives 0.00 labels per image and the truth has 1.00: far fewer",)),
        (3, 2, ()),
        (2, 3, ()),
    ],
)
def test_sizes_far_from_the_truth_are_noted(chosen, true, words):
    found = [note for note in evaluation(chosen, true).notes if "labels per image" in note]
    assert [note.partition(";")[0] for note in found] == list(words)


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


def test_less_than_half_a_label_is_not_far():
    assert not far_apart(0.4, 0.0)
    assert not far_apart(0.9, 0.45)
    assert far_apart(1.0, 0.5)


def test_predict_says_when_new_photos_get_far_more_labels(tmp_path):
    """Oracle: the true size of the photos that judged the run, two labels."""
    run = RunFolder(tmp_path)
    assert run.size_note(6.5) == ""  # of a model without figures
    evaluation(2, 2).save(tmp_path / "evaluation.json")
    assert run.size_note(2.4) == ""
    words = "6.50 labels per photo, where the photos that judged the model have 2.00"
    assert run.size_note(6.5).startswith(words)
