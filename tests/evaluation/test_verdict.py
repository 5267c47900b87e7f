"""A verdict in words. Oracles: counts by hand, and evaluations of scores made good or useless."""

import numpy as np
import pytest
import torch

from labelwise.decide import Threshold
from labelwise.evaluation import evaluate
from labelwise.evaluation.verdict import verdict
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions

NAMES = ("dog", "cat", "boat")


def evaluated(scale, *, rows=600, threshold=0.5, shift=0.0, link=True):
    """Evaluate logits of ``scale`` skill; truth is drawn by the probabilities before ``shift``."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, scale, (rows, 3)) if scale else np.full((rows, 3), -1.5)
    labels = rng.random((rows, 3)) < 1 / (1 + np.exp(-logits))
    shown = logits + shift + rng.normal(0, 1e-6, logits.shape)
    table = Predictions(
        [str(row) for row in range(rows)],
        torch.from_numpy(shown).float(),
        torch.from_numpy(labels).float(),
        None,
        NAMES,
        "test",
        Sigmoid(),
    )
    rule = None if threshold is None else Threshold(threshold)
    made = evaluate(table, Sigmoid() if link else None, rule, query_length=0)
    return made, labels, shown


def test_a_useless_model_is_called_so():
    """It tags every photo: no better than always answering by frequency."""
    evaluation, labels, _ = evaluated(0.0, threshold=0.01)
    said = verdict(evaluation)
    assert said.word == "useless"
    assert evaluation.ranking.map_class < 0.3
    assert said.tags.startswith(f"Of 100 tags it gives, {round(100 * labels.mean())} are right")
    assert "it finds 100 of 100. It tags 100 of 100 photos that show nothing." in said.tags


def test_an_excellent_model_is_called_so_and_can_be_used():
    evaluation, _, _ = evaluated(40.0)
    said = verdict(evaluation)
    assert said.word == "excellent"
    assert "can be trusted" in said.trust
    assert said.hint == "Use it; audit its tags now and then."
    assert str(said).count("\n") == 1


def test_tags_are_counted_over_all_labels():
    evaluation, labels, shown = evaluated(2.0)
    sets = shown >= 0
    right = (sets & labels).sum()
    expected = f"Of 100 tags it gives, {round(100 * right / sets.sum())} are right; it finds "
    assert verdict(evaluation).tags.startswith(
        f"{expected}{round(100 * right / labels.sum())} of 100."
    )


def test_words_rise_with_skill():
    words = [verdict(evaluated(scale)[0]) for scale in (0.0, 1.5, 4.0, 40.0)]
    assert [one.skill for one in words] == sorted(one.skill for one in words)
    assert len({one.word for one in words}) >= 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scale": 3.0, "shift": 2.0}, ("mislead: they are off by", "Calibrating")),
        ({"scale": 2.0, "rows": 160}, ("More photos of `",)),
        ({"scale": 40.0, "rows": 49}, ("Only 49 photos tested it: more would help most.",)),
    ],
)
def test_the_hint_says_what_helps_most(given, words):
    """Probabilities that are off are not trusted; a rare label needs photos."""
    said = str(verdict(evaluated(**given)[0]))
    assert all(word in said for word in words)


def test_a_model_that_only_ranks_says_so():
    said = verdict(evaluated(3.0, threshold=None, link=False)[0])
    assert said.tags.startswith("It ranks labels and gives no tags (mAP ")
    assert said.trust == "It has no probabilities yet."
