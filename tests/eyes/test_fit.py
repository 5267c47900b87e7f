"""The cross-fitted head.

Oracles: scikit-learn of equal penalty on the rows of each fold, SciPy's optimiser for the
calibrator, rows that do not see their own label.
"""

import numpy as np
import pytest
from PIL import Image
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from labelwise.base.convex import CoinLoss, ShareLoss
from labelwise.base.newton import Design
from labelwise.base.progress import Silent
from labelwise.calibration.shrunken import shrunken, shrunken_lines, shrunken_with_errors
from labelwise.errors import DataError, ImageError
from labelwise.eyes import Eye, features
from labelwise.eyes import fit as module
from labelwise.eyes.fit import deal_folds, fit
from labelwise.links import Sigmoid, Softmax
from labelwise.metrics import log_loss
from labelwise.pictures import ArrayImages, PictureImages
from labelwise.pictures.memory import MappedFeatures


def draw(rows, features=12, labels=3, seed=0, noise=1.0, spread=4.0):
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(features, labels))
    x = rng.normal(size=(rows, features)) * np.geomspace(0.3, spread, features)
    v = (x @ truth / features**0.5 - 0.5) / noise
    return x.astype(np.float32) + 2, (rng.random((rows, labels)) < 1 / (1 + np.exp(-v))).astype(
        np.float32
    )


def sklearns(features, labels, strength, scale):
    """Return the logits of scikit-learn's head with an L2 weight per row, for scaled features.

    Each row is there as present and as absent, one of them with a weight of a quarter / rows.
    """
    weights = np.concatenate([labels, 1 - labels]) + 0.25 / len(labels)
    both = np.arange(2 * len(labels)) < len(labels)
    peer = LogisticRegression(
        C=1 / (strength * len(labels)), solver="newton-cholesky", tol=1e-12, max_iter=500
    )
    peer.fit(np.tile(features / scale, (2, 1)), both, weights)
    return lambda rows: (rows / scale) @ peer.coef_[0] + peer.intercept_[0]


@pytest.mark.parametrize(("rows", "features"), [(150, 12), (60, 90)])
def test_every_fold_and_the_head_of_all_rows_are_scikit_learns(rows, features, monkeypatch):
    monkeypatch.setattr(module, "FINE", 1e-12)
    x, y = draw(rows, features)
    fitted = fit(x, y)
    spread = x.std(0, dtype=np.float64)
    scale = np.sqrt(spread * np.sqrt((spread**2).mean()))
    assert set(np.bincount(fitted.folds)) <= {rows // 5, rows // 10}
    for label in range(3):
        strength = fitted.strength[label]
        everyone = sklearns(x, y[:, label], strength, scale)
        np.testing.assert_allclose(fitted.logits(x)[:, label], everyone(x), atol=1e-4)
        for fold in range(fitted.folds.max() + 1):
            held = fitted.folds == fold
            logits = sklearns(x[~held], y[~held, label], strength, scale)(x[held])
            np.testing.assert_allclose(fitted.out_of_fold[held, label], logits, atol=2e-3)


def test_a_row_never_sees_its_own_label():
    """Oracle: another label for a row leaves its own out-of-fold logits where strengths are."""
    x, y = draw(80, seed=3)
    folds = np.arange(80) % 4
    other = y.copy()
    other[folds == 2] = 1 - other[folds == 2]
    paths = []
    for labels in (y, other):
        targets = module._Targets.of(labels, None)
        coins = CoinLoss.of(labels.astype(np.float64))
        parts = (Design.of(x), coins, Sigmoid(), targets, folds, lambda _power, _loss: None)
        path = module._Path(*parts)
        path.attempt(0.0)
        paths.append(path.logits(path.found[0.0]))
    np.testing.assert_allclose(paths[0][folds == 2], paths[1][folds == 2], rtol=1e-6)
    assert np.abs(paths[0] - paths[1])[folds != 2].min() > 0


def test_unknown_labels_are_left_out():
    """Oracle: the same head whatever an unknown entry holds; scikit-learn without these rows."""
    x, y = draw(150, seed=5)
    known = np.random.default_rng(0).random(y.shape) < 0.7
    fitted = fit(x, y, known)
    other = fit(x, np.where(known, y, 1 - y), known)
    np.testing.assert_array_equal(fitted.weight, other.weight)
    np.testing.assert_array_equal(fitted.out_of_fold, other.out_of_fold)
    spread = x.std(0, dtype=np.float64)
    scale = np.sqrt(spread * np.sqrt((spread**2).mean()))
    rows = known[:, 0]
    per_row = fitted.strength[0] * len(x) / rows.sum()
    logits = sklearns(x[rows], y[rows, 0], per_row, scale)(x)
    np.testing.assert_allclose(fitted.logits(x)[:, 0], logits, atol=1e-3)


def test_folds_hold_whole_groups_and_the_same_share_of_rare_labels():
    rng = np.random.default_rng(0)
    labels = (rng.random((100, 6)) < [0.5, 0.3, 0.1, 0.1, 0.05, 0.05]).astype(float)
    fold = deal_folds(labels, 5)
    assert set(np.bincount(fold)) == {20}
    counts = np.stack([labels[fold == number].sum(0) for number in range(5)])
    assert (counts.max(0) - counts.min(0) <= np.maximum(2, 0.4 * counts.mean(0))).all()
    groups = rng.integers(0, 25, 100)
    together = deal_folds(labels, 5, groups=groups)
    assert all(len(set(together[groups == group])) == 1 for group in set(groups))
    assert set(together) == set(range(5))
    dealt = fit(rng.normal(size=(100, 4)), labels, groups=groups).folds
    assert all(len(set(dealt[groups == group])) == 1 for group in set(groups))


def test_the_strength_is_near_the_best_for_new_rows():
    """Oracle: heads of a grid of strengths, on 4,000 new rows of the same law."""
    x, y = draw(200, features=40, seed=1, noise=2.0)
    new, truth = draw(4000, features=40, seed=2, noise=2.0)
    fitted = fit(x, y)
    spread = x.std(0, dtype=np.float64)
    scale = np.sqrt(spread * np.sqrt((spread**2).mean()))

    def loss(logits):
        return CoinLoss.of(truth.astype(np.float64)).rows(logits).mean()

    grid = []
    for strength in np.logspace(-4, 1, 16):
        logits = [sklearns(x, y[:, k], strength, scale)(new) for k in range(3)]
        grid.append(loss(np.stack(logits, 1)))
    assert loss(fitted.logits(new).astype(np.float64)) < min(grid) * 1.01


def test_the_calibrator_is_the_mode_of_its_normal_laws():
    """Oracle: SciPy's minimiser on the formulas of the module."""
    rng = np.random.default_rng(4)
    u = rng.normal(size=(60, 2)) * 3
    y = (rng.random((60, 2)) < 1 / (1 + np.exp(-(0.6 * u + [0.8, -0.2])))).astype(float)

    def cost(line, odds, labels, center, deviation):
        z = line[0] * odds + line[1]
        prior = (((line - center) / deviation) ** 2).sum() / 2
        return (np.logaddexp(0, z) - labels * z).sum() + prior

    shared = minimize(cost, [1, 0], (u, y, np.array([1, 0]), np.array([0.3, 0.5])), tol=1e-10).x
    link = shrunken(u, y)
    for k in range(2):
        own = minimize(cost, shared, (u[:, k], y[:, k], shared, np.array([0.25, 0.5])), tol=1e-10)
        np.testing.assert_allclose([link.slope[k], link.offset[k]], own.x, atol=1e-4)


def test_a_softmax_is_cross_fitted_with_a_temperature():
    """Oracles: scikit-learn's multinomial head; the out-of-fold loss on a grid of temperatures."""
    x, _ = draw(150, seed=7, spread=1.0)
    classes = np.random.default_rng(1).permutation(np.arange(150) % 4)
    x[np.arange(150), classes] += 1.0
    labels = np.eye(4, dtype=np.float32)[classes]
    fitted = fit(x, labels, loss=ShareLoss.of(labels.astype(np.float64)), link=Softmax())
    spread = x.std(0, dtype=np.float64)
    scale = np.sqrt(spread * np.sqrt((spread**2).mean()))
    assert len(set(fitted.strength)) == 1
    inverse = 1 / (fitted.strength[0] * 150)
    weights = (labels + 0.25 / 150).T.ravel()  # a quarter of each class, spread over the rows
    peer = LogisticRegression(C=inverse, tol=1e-10, max_iter=5000)
    peer.fit(np.tile(x / scale, (4, 1)), np.arange(4).repeat(150), weights)
    logits = fitted.logits(x)
    ours = logits - logits.mean(1, keepdims=True)
    theirs = peer.decision_function(x / scale)
    ratio = (ours * theirs).sum() / (theirs**2).sum()  # the temperature
    np.testing.assert_allclose(ours, ratio * theirs, atol=2e-3)

    def cost(slope):
        z = slope / ratio * fitted.out_of_fold.astype(np.float64)
        total = (np.log(np.exp(z).sum(1)) - z[np.arange(150), classes]).sum()
        return total + (slope - 1) ** 2 / 0.3**2 / 2

    grid = np.linspace(0.2, 2, 1801)
    assert ratio == pytest.approx(grid[np.argmin([cost(slope) for slope in grid])], abs=2e-3)


def test_labels_in_portions_are_solved_as_all_at_once(monkeypatch):
    x, y = draw(120, labels=7, seed=5)
    y[:, 4] = 0  # a label that is never present gets its half entry in its own portion
    expected = fit(x, y)
    monkeypatch.setattr(module, "AT_ONCE", 3 * 5 * 120 + 5)
    found = fit(x, y)
    np.testing.assert_allclose(found.out_of_fold, expected.out_of_fold, atol=5e-2)
    np.testing.assert_allclose(found.weight, expected.weight, atol=5e-3)


def test_there_may_be_more_labels_than_photos():
    x, y = draw(24, labels=60, seed=8)
    fitted = fit(x, y)
    assert fitted.weight.shape == (60, 12)
    assert fitted.out_of_fold.shape == (24, 60)
    assert np.isfinite(fitted.link(fitted.out_of_fold)).all()


def test_tensors_give_what_arrays_give():
    torch = pytest.importorskip("torch")
    x, y = draw(90, seed=2)
    array, tensor = fit(x, y), fit(torch.from_numpy(x), y)
    np.testing.assert_allclose(tensor.weight.numpy(), array.weight, atol=1e-4)
    np.testing.assert_allclose(tensor.out_of_fold, array.out_of_fold, atol=1e-2)
    np.testing.assert_array_equal(tensor.folds, array.folds)


@pytest.mark.parametrize("rows", [10, 20, 50])
def test_few_photos_are_never_worse_than_the_base_rate_beyond_chance(rows):
    """Oracle: the shares of the labels alone, on 1,000 new rows; features that say nothing."""
    worse = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(rows + 1000, 64)).astype(np.float32)
        y = (rng.random((rows + 1000, 6)) < 0.25).astype(np.float32)
        fitted = fit(x[:rows], y[:rows])
        new = y[rows:]
        base = np.broadcast_to((y[:rows].sum(0) + 0.5) / (rows + 1), new.shape)
        losses = [
            log_loss(probs, new).value for probs in (fitted.link(fitted.logits(x[rows:])), base)
        ]
        worse.append(losses[0] - losses[1])
    assert np.mean(worse) < 0.02
    assert max(worse) < 0.15


def test_one_labelled_row_is_an_error():
    x, y = draw(2)
    with pytest.raises(DataError, match="there is 1 labelled row; label more photos"):
        fit(x[:1], y[:1])
    with pytest.raises(DataError, match="there is 1 group of labelled rows"):
        fit(x, y, groups=np.array(["a", "a"]))


def test_labels_that_are_never_absent_leave_the_probabilities_as_they_are():
    x, y = draw(60)
    y[:] = 1
    fitted = fit(x, y, loss=CoinLoss.of(y.astype(np.float64)))
    assert isinstance(fitted.link, Sigmoid)
    assert "could not be calibrated" in fitted.notes[0]


def out_of_fold_logits(rows, labels=5, flipped=0.0, seed=0):
    """Return logits and labels that follow their sigmoid, then are flipped at a rate; truth."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.5, 3, (rows, labels))
    truth = (rng.random((rows, labels)) < 1 / (1 + np.exp(-logits))).astype(float)
    wrong = rng.random((rows, labels)) < flipped
    return logits, np.where(wrong, 1 - truth, truth), truth


def test_flipped_labels_are_noticed_and_probabilities_are_those_of_the_truth():
    """Oracle: the share that was flipped, and the log loss on the labels before."""
    logits, labels, truth = out_of_fold_logits(800, flipped=0.1)
    link, errors = shrunken_with_errors(logits, labels, Sigmoid())
    assert errors.rate == pytest.approx(0.1, abs=0.03)
    assert "of 100 labels look wrong" in str(errors)
    deceived = shrunken_lines(logits, labels, np.ones(labels.shape)).T
    ours, theirs = link(logits), 1 / (1 + np.exp(-(deceived[0] * logits + deceived[1])))
    best = log_loss(1 / (1 + np.exp(-logits)), truth).value
    assert log_loss(ours, truth).value < best + 0.005
    assert log_loss(theirs, truth).value > best + 0.02


def test_right_labels_are_left_alone():
    for seed in range(10):
        logits, labels, _ = out_of_fold_logits(300, seed=seed)
        link, errors = shrunken_with_errors(logits, labels, Sigmoid())
        assert (errors.rate, str(errors)) == (0.0, "")
        assert np.abs(link.slope - 1).max() < 0.5


def test_ten_rows_that_lie_apart_by_chance_do_not_make_a_sure_head():
    """Oracle: each class's share, smoothed, on new rows that lie about any class's centre."""
    above = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        centers, classes, spread = (
            rng.normal(size=(6, 300)),
            rng.integers(0, 6, 10),
            rng.random(300),
        )
        labels = np.eye(6)[classes]
        x = rng.normal(size=(10, 300)) * spread**3 + 0.3 * centers[classes]
        fitted = fit(x, labels, loss=ShareLoss.of(labels), link=Softmax(), seed=seed)
        new = rng.normal(size=(400, 300)) * spread**3 + 0.3 * centers[rng.integers(0, 6, 400)]
        log_probs = fitted.link.log_probs(fitted.logits(new).astype(np.float64))[0]
        share = np.log((labels.sum(0) + 0.5) / 13)
        above.append((share - log_probs).mean())
    assert max(above) < 2, above


# Features are computed once for each photo, whatever table it is in.


class Counting(Silent):
    """Counts the photos that were computed."""

    def __init__(self):
        self.computed = 0

    def advance(self, count):
        self.computed += count


@pytest.fixture(scope="module")
def eye():
    return Eye.open()


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{n}.png" for n in range(6)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    return paths


def computed(eye, paths, cache, **options):
    watch = Counting()
    return features(eye, PictureImages(paths), cache, watch=watch, **options), watch.computed


def test_one_more_photo_or_another_order_computes_one_photo(eye, photos, tmp_path):
    cache = tmp_path / "cache"
    plain = features(eye, PictureImages(photos))
    first, count = computed(eye, photos[:5], cache)
    assert count == 5
    assert np.array_equal(first, plain[:5])
    again, count = computed(eye, [photos[5], *photos[:5], photos[0]], cache)
    assert count == 1
    assert np.array_equal(again, plain[[5, 0, 1, 2, 3, 4, 0]])
    means, count = computed(eye, photos[:2], cache, outputs=["middle", "means"])
    assert count == 0
    assert np.array_equal(means, np.hstack([plain[:2, 2560:], plain[:2, :1280]]))


def test_equal_photos_are_computed_once_and_another_transform_is_another_file(eye, tmp_path):
    images = ArrayImages(np.zeros((3, 20, 20, 3), np.uint8))
    watch = Counting()
    values = features(eye, images, tmp_path, watch=watch)
    assert watch.computed == 1
    assert np.ptp(values, axis=0).max() == 0
    squashed = eye.with_transform(type(eye.transform)(192, (0.5,) * 3, (0.5,) * 3))
    features(squashed, images, tmp_path)
    assert len(list(tmp_path.glob("features-*.bin"))) == 2


def test_a_record_that_a_killed_process_left_half_written_is_computed_again(eye, photos, tmp_path):
    cache = tmp_path / "cache"
    expected, _ = computed(eye, photos, cache)
    (file,) = cache.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 + 100])
    values, count = computed(eye, photos, cache)
    assert count == 3
    assert np.array_equal(values, expected)
    assert file.stat().st_size == len(content)


def test_more_features_than_memory_should_hold_stay_in_the_file(eye, photos, tmp_path, monkeypatch):
    expected, _ = computed(eye, photos, tmp_path / "cache")
    monkeypatch.setattr("labelwise.eyes.feature_cache.IN_MEMORY", 100)
    values, _ = computed(eye, photos[::-1], tmp_path / "cache")
    assert isinstance(values, MappedFeatures)
    assert np.array_equal(values[:], expected[::-1])


def test_a_photo_that_cannot_be_read_is_named_and_what_was_computed_is_kept(eye, photos, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    cache = tmp_path / "cache"
    with pytest.raises(ImageError, match="broken"):
        computed(eye, [*photos[:4], broken], cache)
    assert computed(eye, photos, cache)[1] == 2
