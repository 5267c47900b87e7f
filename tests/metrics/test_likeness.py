"""The energy test against all ways to deal few points and slow sums; raking against its own
constraints; outcomes against worlds whose truth is known."""

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import binom

from labelwise.metrics import shift

CLASSES = 5
NAMES = [f"label {k}" for k in range(CLASSES)]
FLAT = np.full(CLASSES, 0.2)
TRIPLED = np.array([0.6, 0.1, 0.1, 0.1, 0.1])


def energy(points, first):
    """Return the energy distance of some points from the others, by its definition."""
    points = (points - points.mean(0)) / points.std(0)
    second = [k for k in range(len(points)) if k not in first]
    x, z = points[list(first)], points[second]
    return 2 * cdist(x, z).mean() - cdist(x, x).mean() - cdist(z, z).mean()


def test_the_p_value_is_the_share_of_all_deals(monkeypatch):
    random = np.random.default_rng(0)
    points = random.normal(size=(9, 3)).astype("f4")
    points[:4] += 0.8
    own = energy(points, range(4))
    every = [energy(points, first) for first in combinations(range(9), 4)]
    exact = np.mean([value >= own - 1e-6 for value in every])
    monkeypatch.setattr(shift, "PERMUTATIONS", 20_000)
    assert shift.energy_test(points[:4], points[4:], random) == pytest.approx(exact, abs=0.015)


def test_raked_weights_meet_the_shares():
    random = np.random.default_rng(2)
    labels = (random.random((500, 3)) < [0.1, 0.5, 0.3]).astype(float)
    weights = shift.raked_weights(labels, np.array([0.3, 0.4, 0.35]))
    np.testing.assert_allclose(weights @ labels, [0.3, 0.4, 0.35], atol=1e-6)
    assert weights.sum() == pytest.approx(1)
    beyond = shift.raked_weights(np.zeros((50, 1)), np.array([0.5]))  # cannot be met
    assert np.isfinite(beyond).all()


def world(random, count, prior, move=0.0, scale=1.0):
    """Return points of one of five laws each, and the exact probabilities under equal shares."""
    which = random.choice(CLASSES, count, p=prior)
    x = scale * (3 * np.eye(CLASSES)[which] + random.normal(size=(count, CLASSES))) + move
    logits = (3 * x).astype("f4")
    probs = np.exp(3 * x - (3 * x).max(axis=1, keepdims=True))
    return logits, probs / probs.sum(axis=1, keepdims=True), np.eye(CLASSES)[which]


def outcome(random, **of_library):
    own, probs, labels = world(random, 600, FLAT)
    new, new_probs, _ = world(random, 600, **of_library)
    known = shift.held_out_shares(probs, labels > 0.5)
    return shift.compare_photos(NAMES, own, labels, known, new, new_probs, own_probs=probs)


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ({"prior": FLAT}, "alike"),
        ({"prior": TRIPLED}, "shares differ"),
        ({"prior": FLAT, "scale": 0.6}, "pictures differ"),
        ({"prior": TRIPLED, "move": 2.0}, "pictures differ"),
    ],
)
def test_outcomes_of_known_worlds(library, expected):
    assert outcome(np.random.default_rng(3), **library).outcome == expected


def test_sentences_say_what_was_compared_and_what_to_do():
    random = np.random.default_rng(4)
    same = outcome(random, prior=FLAT)
    assert same.sentence() == (
        "These photos do not differ noticeably from the held-out ones "
        "(600 held-out and 600 of these photos compared)."
    )
    shares = outcome(random, prior=TRIPLED)
    assert shares.moved[0].label == "label 0"
    assert shares.moved[0].now == pytest.approx(0.6, abs=0.08)
    assert "label 0 " in shares.sentence()
    assert "labelwise count" in shares.sentence()
    pictures = outcome(random, prior=FLAT, scale=0.4)
    assert "do not look like the held-out ones" in pictures.sentence()


def test_any_false_difference_of_means_is_as_rare_as_said(monkeypatch):
    """Oracle: 5 % of draws, binomially; and the one column that moved is found, alone."""
    monkeypatch.setattr(shift, "PERMUTATIONS", 99)
    random = np.random.default_rng(8)
    false = found = 0
    for _ in range(60):
        draws = random.beta(0.05, 2.0, size=(260, 20))  # rare labels, skewed
        false += shift.different_means(draws[:100], draws[100:], random).any()
        draws[100:, 3] += 0.1
        moved = shift.different_means(draws[:100], draws[100:], random)
        found += bool(moved[3])
    assert 0 < false <= binom.ppf(0.999, 60, 0.05)
    assert found > 45


def test_no_share_moves_where_the_means_do_not(monkeypatch):
    """Oracle: labels of which the estimate says that they moved stay where no mean differs."""
    random = np.random.default_rng(4)
    assert outcome(random, prior=TRIPLED).moved
    nothing = np.zeros(CLASSES, np.bool_)
    monkeypatch.setattr(shift, "different_means", lambda *_: nothing)
    assert not outcome(random, prior=TRIPLED).moved


def test_few_photos_tell_nothing():
    random = np.random.default_rng(5)
    own, probs, labels = world(random, 600, FLAT)
    known = shift.held_out_shares(probs, labels > 0.5)
    one = shift.compare_photos(NAMES, own, labels, known, own[:1], probs[:1], own_probs=probs)
    assert one.outcome == "unknown"
    assert "it takes 50 photos, and there is 1" in one.sentence()
    few = shift.compare_photos(NAMES, own[:9], labels[:9], known, own, probs, own_probs=probs[:9])
    assert "it takes 50 held-out photos, and there are 9" in few.sentence()


def test_far_photos_are_those_beyond_the_held_out_photos_own_distances():
    random = np.random.default_rng(6)
    own = random.normal(size=(300, 3)).astype("f4")
    new = np.concatenate([random.normal(size=(300, 3)), [[9, 9, 9], own[7]]]).astype("f4")
    far = shift.far_points(own, new)
    scaled = cdist((own - own.mean(0)) / own.std(0), (own - own.mean(0)) / own.std(0))
    np.fill_diagonal(scaled, np.inf)
    limit = np.quantile(scaled.min(0), 0.99, method="higher")
    slow = cdist((new - own.mean(0)) / own.std(0), (own - own.mean(0)) / own.std(0)).min(1) / limit
    np.testing.assert_allclose(far, slow, atol=2e-3)
    assert far[-2] > 5
    assert far[-1] < 0.01
    assert (far > 1).mean() < 0.05
