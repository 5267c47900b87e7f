"""Label names as the beginning of a head. Oracles: the eye's own classes, a slow derivative."""

import numpy as np

from labelwise.eyes import Eye
from labelwise.eyes.fit import fit, fit_named
from labelwise.eyes.kinds import directions, imagenet_kinds


def log_odds(logits, classes):
    p = np.exp(logits - logits.max(1, keepdims=True))
    share = p[:, classes].sum(1) / p.sum(1)
    return np.log(share / (1 - share))


def test_directions_are_the_mean_slope_of_the_log_odds_of_all_classes_of_a_name():
    eye, rng = Eye.open(), np.random.default_rng(0)
    weight, bias = (side.astype(float) for side in eye.classifier())
    x = rng.normal(size=(7, 2992)).astype(np.float32)
    towards = directions(eye, ["dog", "evening"], x)
    assert not towards[1].any()
    classes = list(imagenet_kinds().of(["dog"]))
    means, step = x[:, :1280].astype(float), 1e-4 * rng.normal(size=1280)
    odds = [log_odds((means + side) @ weight.T + bias, classes) for side in (step, -step)]
    np.testing.assert_allclose(towards[0, :1280] @ step, (odds[0] - odds[1]).mean() / 2, rtol=1e-4)
    assert not towards[:, 1280:].any()
    assert directions(eye, ["evening"], x) is None


def test_a_head_begins_with_names_only_where_that_helps():
    """With few rows a right direction helps; a wrong one, of noise, is left out."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 60))
    truth = rng.normal(size=(3, 60)) / 4
    y = (x @ truth.T + 0.3 * rng.normal(size=(240, 3)) > 0.5).astype(float)
    few, new = slice(0, 40), slice(40, None)
    plain = fit(x[few], y[few])
    named = fit_named(x[few], y[few], None, 5 * truth, plain)

    def loss(fitted):
        log_p, log_q = fitted.link.log_probs(fitted.logits(x[new]))
        return -(y[new] * log_p + (1 - y[new]) * log_q).mean()

    assert loss(named) < 0.75 * loss(plain)
    assert fit_named(x[few], y[few], None, rng.normal(size=(3, 60)), plain) is None
