"""Photos of which one label was noted.

Oracles: worlds whose probabilities are known by construction, and counting over all sets of labels.
"""

from itertools import product

import numpy as np
import pytest

from labelwise.calibration.noted import noted_once, shown_link
from labelwise.links import Sigmoid


def world(rows, labels, mean, seed=0):
    """Return logits, probabilities that a label is shown, and labels that are shown."""
    rng = np.random.default_rng(seed)
    u = 2.5 * rng.normal(size=(rows, labels)) + mean
    p = 1 / (1 + np.exp(-u))
    return u, p, (rng.random(u.shape) < p) * 1.0


def note(shown, seed=1):
    """Return one label of each row, drawn evenly from those that are shown."""
    first = (shown * (1 + np.random.default_rng(seed).random(shown.shape))).argmax(1)
    return np.eye(shown.shape[1])[first] * shown.any(1)[:, None]


@pytest.mark.parametrize("empty", [False, True])
def test_shown_labels_are_found_from_noted_ones(empty):
    """A head of noted labels says u - d, less than what is shown; the link finds it again."""
    u, p, shown = world(3000, 8, -1.5)
    rows = np.ones(len(u), bool) if empty else shown.any(1)
    noted = note(shown[rows])
    link, found = shown_link(u[rows] - 1.3, noted, Sigmoid())
    probs = np.exp(link.log_probs(u[rows] - 1.3)[0])
    # A photo that shows nothing is left out, so the others show more than chance.
    least = 1.0 if empty else shown.any(1).mean()
    assert np.abs(probs - p[rows]).mean() < 0.03
    assert found.several
    assert found.labels_per_photo == pytest.approx(shown.sum(1).mean() / max(least, 1e-9), rel=0.1)
    assert "photos seem to show 2." in found.sentence()


@pytest.mark.parametrize("sure", [0.7, 3.0])
def test_photos_of_one_label_are_told_from_photos_of_several(sure):
    """Classes drawn from a softmax, hard and easy ones: no photo shows two."""
    rng = np.random.default_rng(2)
    v = sure * rng.normal(size=(1500, 8))
    p = np.exp(v) / np.exp(v).sum(1, keepdims=True)
    noted = np.eye(8)[(p.cumsum(1) < rng.random((1500, 1))).sum(1)]
    found = shown_link(v, noted, Sigmoid())[1]
    assert not found.several


def test_the_chance_of_a_note_is_that_of_counting_all_sets():
    """Oracle: sums over the 2^4 sets of labels, each with an even draw of the noted one."""
    rng = np.random.default_rng(3)
    u = 2 * rng.normal(size=(400, 4)) + 0.5
    noted = note(world(400, 4, 0.5, seed=3)[2])
    keep = noted.any(1)
    u, noted = u[keep], noted[keep]

    def loss(slope, offset):
        p = 1 / (1 + np.exp(-(slope * u + offset)))
        drawn = np.zeros(p.shape)
        none = np.prod(1 - p, axis=1)
        for members in product((0, 1), repeat=4):
            chance = np.prod(np.where(members, p, 1 - p), axis=1)
            drawn += chance[:, None] * np.array(members) / max(sum(members), 1)
        return -np.log((drawn * noted).sum(1) / (1 - none)).sum()

    link, _ = shown_link(u, noted, Sigmoid())
    from labelwise.calibration.shrunken import shrunken_lines

    lines = shrunken_lines(u, noted, np.ones(u.shape))
    slope = np.mean(link.slope / lines[:, 0])
    offset = np.mean(link.offset - slope * lines[:, 1])
    u = u * lines[:, 0] + lines[:, 1]
    best = loss(slope, offset)
    for other in ((0.9, 0.0), (1.1, 0.0), (1.0, 0.2), (1.0, -0.2)):
        assert best < loss(slope * other[0], offset + other[1]) + 0.1


@pytest.mark.parametrize(
    ("labels", "observed", "expected"),
    [
        ([[1, 0], [0, 1]], None, True),
        ([[1, 1], [0, 1]], None, False),
        ([[1, 1], [0, 1]], [[1, 0], [0, 1]], True),
        ([[0, 0], [0, 0], [0, 1]], None, False),
    ],
)
def test_a_table_of_single_labels_is_known_by_its_rows(labels, observed, expected):
    seen = None if observed is None else np.array(observed, bool)
    assert noted_once(np.array(labels), seen) is expected


def test_twenty_photos_do_not_say_that_photos_show_everything():
    """Logits that know nothing of the labels: oracle, the log loss of a coin."""
    rng = np.random.default_rng(5)
    for seed in range(10):
        u = rng.normal(size=(20, 28)) - 3
        noted = np.eye(28)[rng.integers(0, 28, 20)]
        link, found = shown_link(u, noted, Sigmoid())
        assert found.labels_per_photo < 8, seed
        assert not found.several
        assert np.exp(link.log_probs(u)[0]).max() < 0.9
