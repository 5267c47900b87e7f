"""Counts of a label whose share moved, held to the truth of libraries that were drawn with it."""

import json

import numpy as np
import pytest
import torch
from made_index import made_index
from open_indexes import open_index
from scipy.special import expit, logit
from scipy.stats import binom
from search_setup import LABELS, save_model
from typed import run

from labelwise.links import Sigmoid
from labelwise.photos import answer, shift
from labelwise.photos.filters import PhotoFilter
from labelwise.predictions import Predictions
from labelwise.retrieval import Query

DOG, COLUMN = Query.parse("dog"), 2


def shifted(random, share, photos=500):
    """Return logits and truth of photos that look as the model thinks, with another share."""
    truth = random.random(photos) < share
    logits = random.normal(-1, 2, (photos, 4))
    # Scores two apart and of spread one have the log ratio 2 x - 2; at a share of 0.3 it is exact.
    logits[:, COLUMN] = 2 * random.normal(np.where(truth, 2.0, 0.0)) - 2 + logit(0.3)
    return logits, truth


@pytest.fixture
def held_out(tmp_path):
    """A model folder whose held-out photos are exact, with a share of dogs of 0.3."""
    folder = save_model(tmp_path / "run")
    logits, truth = shifted(np.random.default_rng(1), 0.3, 1000)
    labels = np.random.default_rng(2).random((1000, 4)) < expit(logits)
    labels[:, COLUMN] = truth
    arrays = (torch.from_numpy(logits).float(), torch.from_numpy(labels).float())
    made = Predictions([f"{row}" for row in range(1000)], *arrays, None, LABELS, "test", Sigmoid())
    made.save(folder / "predictions" / "test.parquet")
    return folder


def test_the_count_holds_where_the_label_is_three_times_as_frequent(held_out, tmp_path):
    draws, held = 12, 0
    for seed in range(draws):
        logits, truth = shifted(np.random.default_rng(10 + seed), 0.8)
        index = open_index(made_index(tmp_path / f"{seed}.index", held_out, logits))
        found = answer(index, DOG)
        assert found.likeness.likeness.outcome == "shares differ"
        low, high = found.interval
        held += low <= truth.sum() <= high
    assert held >= binom.ppf(0.001, draws, 0.95)
    assert high < 0.95 * 500


@pytest.mark.parametrize(
    ("photos", "mean", "why"),
    [
        (400, 4.0, "no interval: these photos differ from the held-out ones"),
        (40, 0.0, "no interval: these photos were not compared with the held-out ones"),
    ],
)
def test_no_interval_where_held_out_photos_do_not_speak_for_these(
    held_out, tmp_path, photos, mean, why
):
    """A folder inside a larger library, too: only its own photos are compared."""
    odd = np.random.default_rng(5).normal(mean, 2, (photos, 4))
    folder = made_index(tmp_path / "odd.index", held_out, odd)
    assert why in " ".join(run("count", str(folder), "dog").output.split())
    found = json.loads(run("search", str(folder), "dog", "--count", "--json").stdout)
    assert (found["lower"], found["upper"], found["untested"]) == (None, None, why)
    usual, _ = shifted(np.random.default_rng(6), 0.3, 600)
    folders = ["usual"] * len(usual) + ["odd"] * len(odd)
    everything = np.concatenate([usual, odd])
    index = open_index(made_index(tmp_path / "all.index", held_out, everything, folders))
    assert answer(index, DOG, photos=PhotoFilter("odd")).untested == why
    assert answer(index, DOG, photos=PhotoFilter("usual")).interval is not None


def test_photos_of_a_filter_are_compared_once_until_the_model_changes(
    held_out, tmp_path, monkeypatch
):
    """A page asks again for each fifty photos. Oracle: how often photos are compared."""
    logits, _ = shifted(np.random.default_rng(6), 0.3, 300)
    folders = ["a", "b"] * 150
    index = open_index(made_index(tmp_path / "index", held_out, logits, folders))
    compare, seen = shift.compare_photos, []
    monkeypatch.setattr(shift, "compare_photos", lambda *a, **k: seen.append(0) or compare(*a, **k))
    first = answer(index, DOG, photos=PhotoFilter("a"))
    assert answer(index, DOG, top=5, photos=PhotoFilter("a")).likeness == first.likeness
    assert len(seen) == 1
    answer(index, DOG, photos=PhotoFilter("b"))
    assert len(seen) == 2
    index.use(index.spec, index.held_out)
    answer(index, DOG, photos=PhotoFilter("a"))
    assert len(seen) == 3
