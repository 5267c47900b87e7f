"""Shares of labels among new photos. Oracles: exact probabilities, the formula of one photo."""

import json

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from search_setup import LABELS, picture, save_model
from typed import must_run, refused

from labelwise.errors import DataError
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions
from labelwise.scores.run import held_out_of, share_shift

BEFORE = np.array([0.1, 0.4, 0.3, 0.2])


def photos(seed, shares, count=4000):
    """Return logits that are exact at the shares BEFORE, of photos with other shares."""
    random = np.random.default_rng(seed)
    truth = random.random((count, 4)) < shares
    return 2 * random.normal(np.where(truth, 2.0, 0.0)) - 2 + logit(BEFORE), truth


def predictions(logits, truth, observed=None):
    names = [f"{row}.jpg" for row in range(len(logits))]
    arrays = (torch.from_numpy(logits).float(), torch.from_numpy(truth).float())
    return Predictions(names, *arrays, observed, LABELS, "test", Sigmoid())


def log_loss(p, truth):
    return -np.log(np.where(truth, p, 1 - p)).mean()


def test_adapted_probabilities_are_nearly_as_good_as_the_exact_ones():
    shares = np.array([0.3, 0.4, 0.3, 0.2])
    logits, truth = photos(1, shares)
    shift = share_shift(predictions(*photos(0, BEFORE)), Sigmoid(), logits)
    assert [one.label for one in shift.moved] == ["beach"]
    adapted = shift.adapted()(logits)
    exact = expit(logits - logit(BEFORE) + logit(shares))
    as_it_is, best = log_loss(expit(logits[:, 0]), truth[:, 0]), log_loss(exact[:, 0], truth[:, 0])
    assert log_loss(adapted[:, 0], truth[:, 0]) - best < 0.1 * (as_it_is - best)
    assert adapted[:, 1:] == pytest.approx(expit(logits[:, 1:]), abs=1e-5)  # these did not move
    share = shift.shares[0]
    assert share.low <= truth[:, 0].mean() <= share.high
    known = shift.known[0]
    odds = known.slope * logits[5, 0] + known.offset + logit(share.now)
    assert adapted[5, 0] == pytest.approx(expit(odds), rel=1e-4)


def test_labels_that_nobody_or_everybody_carries_are_left_as_they_are():
    logits, truth = photos(0, BEFORE, 500)
    truth[:, 1], truth[:, 2] = False, True
    observed = torch.ones(truth.shape, dtype=torch.bool)
    observed[:, 3] = False
    held_out = predictions(logits, truth, observed)
    shift = share_shift(held_out, Sigmoid(), logits)
    assert [one is None for one in shift.shares] == [False, True, True, True]
    assert "nothing was adapted" in shift.sentence()
    assert shift.adapted()(logits) == pytest.approx(expit(logits), abs=1e-5)


def test_no_link_no_photo_and_no_held_out_photos_are_refused(tmp_path):
    held_out = predictions(*photos(0, BEFORE, 100))
    with pytest.raises(DataError, match="calibrate it first"):
        share_shift(held_out, None, held_out.logits)
    with pytest.raises(DataError, match="at least one photo"):
        share_shift(held_out, Sigmoid(), held_out.logits[:0])
    folder = save_model(tmp_path / "run")
    (folder / "predictions" / "test.parquet").unlink()
    with pytest.raises(DataError, match="has no predictions of held-out photos"):
        held_out_of(folder)


def test_predict_shows_the_shares_of_labels(tmp_path):
    """The run says dog of pictures far more often than of held-out photos."""
    run = save_model(tmp_path / "run")
    for number in range(30):
        picture(tmp_path / "photos" / f"{number}.png", number)
    out = tmp_path / "all.jsonl"
    said = must_run("predict", run, tmp_path / "photos", "--frequencies", "-o", out).output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    probs = np.array([[row["probs"][name] for name in LABELS] for row in rows])
    shift = share_shift(held_out_of(run), Sigmoid(), torch.from_numpy(logit(probs)))
    assert "look as the held-out ones did, and only are more or fewer" in said
    for one in shift.shares:
        line = next(line for line in said.splitlines() if one.label in line.split()[:1])
        assert {f"{one.before:.1%}", f"{one.now:.1%}"} <= set(line.split())
    assert "--adapt-shares does not apply" in refused("evaluate", run, "--adapt-shares")
    shards = ("--frequencies", "-o", f"{tmp_path}/shards/")
    assert "not for shards" in refused("predict", run, tmp_path / "photos", *shards)
