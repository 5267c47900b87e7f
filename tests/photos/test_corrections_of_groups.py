"""What a correction says of labels that exclude it. Oracle: the rules of the groups, by hand."""

import numpy as np
import pytest
from open_indexes import open_index
from search_setup import LABELS

from labelwise.links import Grouped, Sigmoid
from labelwise.methods import link_to_spec

GROUP = ("beach", "cat", "dog")


@pytest.fixture
def index_of(update):
    """Return an index whose model knows these groups."""
    update()

    def made(**groups):
        index = open_index(update.folder)
        link = link_to_spec(Grouped(Sigmoid(), **groups))
        index.use(index.spec.model_copy(update={"link": link}), None)
        return open_index(update.folder)

    return made


def said(index, row):
    """Return what is known of a photo, by its labels."""
    every = {name: index.corrections.of(LABELS.index(name)) for name in LABELS}
    return {name: one.state for name, some in every.items() for one in some if one.row == row}


def test_a_correction_settles_the_labels_that_it_excludes(index_of):
    index = index_of(exactly_one=[(0, 1, 2)])
    before = np.exp(index.log_probs(slice(0, 12)))
    index.correct(0, {"cat": "present"})
    index.correct(1, {"beach": "absent", "cat": "absent"})
    index.correct(2, {"beach": "absent", "row": "present"})
    absent, present = "absent", "present"
    assert said(index, 0) == {"beach": absent, "cat": present, "dog": absent}
    assert said(index, 1) == {"beach": absent, "cat": absent, "dog": present}
    assert said(index, 2) == {"beach": absent, "row": present}
    probs = np.exp(index.log_probs(slice(0, 12)))
    np.testing.assert_array_equal(probs[:2, :3], [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(index.sets(slice(0, 2))[:, :3], [[0, 1, 0], [0, 0, 1]])
    assert probs[2, 0] == 0 < probs[2, 1] < 1
    assert index.probability(0, "dog") == 0
    assert before[0, 2] > 0
    index.correct(0, {"cat": "withdrawn"})
    assert said(index, 0) == {}


def test_what_was_said_itself_stands_and_clashes_settle_nothing(index_of):
    index = index_of(exactly_one=[(0, 1, 2)])
    index.correct(0, {"beach": "present", "cat": "present"})
    index.correct(1, {"cat": "present", "dog": "unknown"})
    index.correct(2, dict.fromkeys(GROUP, "absent"))
    assert said(index, 0) == {"beach": "present", "cat": "present"}
    assert said(index, 1) == {"beach": "absent", "cat": "present", "dog": "unknown"}
    assert said(index, 2) == dict.fromkeys(GROUP, "absent")


def test_of_at_most_one_the_last_label_left_is_not_known(index_of):
    index = index_of(at_most_one=[(0, 1, 2)])
    index.correct(0, {"beach": "absent", "cat": "absent"})
    index.correct(1, {"dog": "present"})
    assert said(index, 0) == {"beach": "absent", "cat": "absent"}
    assert said(index, 1) == {"beach": "absent", "cat": "absent", "dog": "present"}
