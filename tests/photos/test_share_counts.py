"""Counts of a label whose share moved, held to the truth of libraries that were drawn with it."""

import numpy as np
import pytest
import torch
from made_index import made_index
from open_indexes import open_index
from scipy.special import expit, logit
from scipy.stats import binom
from search_setup import LABELS, save_model
from typed import run

from labelwise.errors import DataError, SettingsError
from labelwise.links import Sigmoid
from labelwise.photos.prevalence import adapted_count
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
    draws, held = 30, 0
    for seed in range(draws):
        logits, truth = shifted(np.random.default_rng(10 + seed), 0.8)
        index = open_index(made_index(tmp_path / f"{seed}.index", held_out, logits))
        found = adapted_count(index, DOG)
        held += found.low <= truth.sum() <= found.high
    without = adapted_count(index, Query.parse("-dog"))
    assert without.count == pytest.approx(500 - found.count)
    assert (without.low, without.high) == pytest.approx((500 - found.high, 500 - found.low))
    assert held >= binom.ppf(0.001, draws, 0.95)
    assert found.before == pytest.approx(0.3, abs=0.05)
    assert found.high < 0.95 * 500


def test_queries_of_several_labels_and_models_without_photos_are_refused(held_out, tmp_path):
    logits, _ = shifted(np.random.default_rng(3), 0.3, 60)
    index = open_index(made_index(tmp_path / "index", held_out, logits))
    for text in ("dog, cat", "dog | cat"):
        with pytest.raises(DataError, match="one label at a time"):
            adapted_count(index, Query.parse(text))
    (tmp_path / "index" / "held-out.parquet").unlink()
    with pytest.raises(DataError, match="need photos whose labels are known"):
        adapted_count(open_index(tmp_path / "index"), DOG)


def test_the_command_says_the_condition_and_refuses_answers(held_out, tmp_path):
    logits, _ = shifted(np.random.default_rng(3), 0.7, 600)
    folder = made_index(tmp_path / "index", held_out, logits)
    call = ["estimate", str(folder), "dog", "--adapt-shares"]
    said = run(*call, catch_exceptions=False).output
    with open_index(folder) as index:
        found = adapted_count(index, DOG)
    assert f"about {found.count:,.0f} of 600 photos match dog" in said
    assert "if photos with the label look as the held-out ones did" in said
    with pytest.raises(SettingsError, match="answers need no adapting"):
        run(*call, "--answers", "5", catch_exceptions=False)
