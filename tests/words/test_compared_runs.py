"""A run of words beside a trained one. Oracles: figures by scikit-learn, the paired bootstrap."""

import numpy as np
import pytest
import torch
from search_setup import save_model
from sklearn.metrics import average_precision_score, log_loss

from labelwise.errors import DataError
from labelwise.links import Sigmoid
from labelwise.photos.words.start import compare_runs
from labelwise.predictions import Predictions

LABELS = ("dog", "cat", "car")


def save_run(folder, logits, labels, names, ids):
    """Write a run whose split test has these logits."""
    save_model(folder, labels=names)
    scores, truth = torch.tensor(logits).float(), torch.tensor(labels).float()
    made = Predictions(ids, scores, truth, None, names, "test", Sigmoid())
    made.save(folder / "predictions" / "test.parquet")
    return folder


def draw(photos, seed):
    random = np.random.default_rng(seed)
    signal = random.normal(size=(photos, 3))
    labels = (random.random(signal.shape) < 1 / (1 + np.exp(-2 * signal))).astype(float)
    return signal, labels, random


def test_figures_are_those_of_sklearn_and_intervals_those_of_the_bootstrap(tmp_path):
    signal, labels, random = draw(300, 0)
    ids = [f"{n}.png" for n in range(300)]
    weak = 2 * signal + random.normal(size=signal.shape) * 2
    one = save_run(tmp_path / "one", weak, labels, LABELS, ids)
    order = random.permutation(300)  # other rows and columns in another order
    turned = (LABELS[2], LABELS[0], LABELS[1])
    columns = [2, 0, 1]
    strong = (2 * signal)[order][:, columns]
    other = save_run(
        tmp_path / "two", strong, labels[order][:, columns], turned, [ids[row] for row in order]
    )
    precision, loss = compare_runs(one, other)

    def figures(rows):
        probs = [1 / (1 + np.exp(-values[rows])) for values in (weak, 2 * signal)]
        own = labels[rows]
        ranked = [
            np.mean([average_precision_score(own[:, k], p[:, k]) for k in range(3)]) for p in probs
        ]
        losses = [np.mean([log_loss(own[:, k], p[:, k]) for k in range(3)]) for p in probs]
        return ranked, losses

    ranked, losses = figures(np.arange(300))
    assert (precision.words, precision.trained) == pytest.approx(ranked, abs=1e-6)
    assert (loss.words, loss.trained) == pytest.approx(losses, abs=1e-5)
    draws = [figures(random.integers(0, 300, 300)) for _ in range(40)]
    for found, place in ((precision, 0), (loss, 1)):
        spread = np.std([one[place][1] - one[place][0] for one in draws])
        assert (found.high - found.low) / 2 == pytest.approx(2.2414 * spread, rel=0.3)
        assert found.told_apart
        assert str(found).endswith("the trained run is better")


def test_equal_runs_are_not_told_apart_and_strangers_not_compared(tmp_path):
    signal, labels, random = draw(120, 3)
    ids = [f"{n}.png" for n in range(120)]
    noise = [2 * signal + random.normal(size=signal.shape) for _ in range(2)]
    one = save_run(tmp_path / "one", noise[0], labels, LABELS, ids)
    other = save_run(tmp_path / "two", noise[1], labels, LABELS, ids)
    for difference in compare_runs(one, other):
        assert not difference.told_apart
        assert str(difference).endswith("no significant difference")
    stranger = save_run(tmp_path / "three", noise[1], labels, LABELS, [f"x{n}" for n in ids])
    with pytest.raises(DataError, match=r"at least 20 photos .* and a label, got 0 and 3"):
        compare_runs(one, stranger)
