"""The estimator over images. Oracles: the run it trained; scikit-learn's own checks and tools."""

import pickle

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.utils import estimator_checks

from labelwise.contrib.sklearn_images import LabelwiseClassifier
from labelwise.models.run_folder import RunFolder

IDENTITY = {"epochs": 2, "accelerator": "cpu", "calibrate": "platt"}
QUICK = IDENTITY | {"image_size": 16, "batch_size": 16, "val_share": 0.25}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos that are red, green, both or neither, and their labels."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    truth = rng.integers(0, 2, (48, 2))
    paths = []
    for number, (red, green) in enumerate(truth):
        pixels = rng.integers(0, 60, (20, 24, 3)) + np.array([180 * red, 180 * green, 0])
        paths.append(str(folder / f"{number}.png"))
        Image.fromarray(pixels.astype(np.uint8)).save(paths[-1])
    return paths, truth


def features(rows=96, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 5))
    return values, (values[:, :3] + 0.3 * rng.normal(size=(rows, 3)) > 0.3).astype(int)


CHECKS = ("estimator_cloneable", "estimator_repr", "get_params_invariance", "mixin_order")
CHECKS += ("no_attributes_set_in_init", "parameters_default_constructible", "set_params")


@pytest.mark.parametrize("check", CHECKS)
def test_scikit_learns_checks_of_parameters(check):
    getattr(estimator_checks, f"check_{check}")("LabelwiseClassifier", LabelwiseClassifier())


def test_it_answers_as_the_run_it_trained(photos, tmp_path):
    paths, truth = photos
    settings = QUICK | {"rule": "top-1"}
    given = {"labels": ["red", "green"], "folder": tmp_path / "run"}
    model = LabelwiseClassifier("small-cnn", "bce", settings, **given)
    assert model.fit(paths, truth) is model
    run = RunFolder(tmp_path / "run")
    expected = run.model().predict(paths)
    np.testing.assert_array_equal(model.predict_proba(paths), expected.probs)
    np.testing.assert_array_equal(model.decision_function(paths), expected.logits)
    np.testing.assert_array_equal(model.predict(paths), expected.sets)
    assert (model.classes_.tolist(), sorted(run.splits)) == (["red", "green"], ["train", "val"])
    assert (model.predict(paths).sum(axis=1) == 1).all()  # the rule of the settings
    opened = [Image.open(path) for path in paths[:4]]
    np.testing.assert_allclose(model.predict_proba(opened), expected.probs[:4], atol=1e-6)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(paths), expected.probs)
    other = clone(model).set_params(folder=None).fit(np.array(paths), truth)
    np.testing.assert_array_equal(other.predict_proba(np.array(paths)), expected.probs)
    with pytest.raises(NotFittedError):
        clone(model).predict(paths)


def test_scikit_learns_tools_cut_and_choose_it():
    values, truth = features()
    model = LabelwiseClassifier("identity", "bce", IDENTITY | {"calibrate": "none"})
    probs = cross_val_predict(model, values, truth, cv=2, method="predict_proba")
    halves = np.arange(len(values)) < len(values) // 2
    for held in (halves, ~halves):
        own = clone(model).fit(values[~held], truth[~held])
        np.testing.assert_allclose(probs[held], own.predict_proba(values[held]), atol=1e-6)
    search = GridSearchCV(model, {"method": ["bce", "asl"]}, cv=2).fit(values, truth)
    assert search.best_params_["method"] in ("bce", "asl")
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])


def test_labels_that_are_unknown_are_not_learned_from():
    values, truth = features()
    known = np.ones(truth.shape, bool)
    known[::2, 1] = False
    model = LabelwiseClassifier("identity", "bce", IDENTITY)
    first = clone(model).fit(values, truth, mask=known).predict_proba(values)
    changed = np.where(known, truth, 1 - truth)
    second = clone(model).fit(values, changed, mask=known).predict_proba(values)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - clone(model).fit(values, truth).predict_proba(values)).max() > 1e-3


def test_mistakes_are_value_errors_with_a_way_out(photos):
    paths, truth = photos
    for model, given, told in (
        (LabelwiseClassifier("small-cnn"), (paths[0], truth[:1]), r"write \[image\]"),
        (LabelwiseClassifier("small-cnn"), (paths, truth[1:]), "a row per image, 48, got 47"),
        (LabelwiseClassifier("small-cn", settings=QUICK), photos, "did you mean"),
        (LabelwiseClassifier(settings={"backbone": "x"}), photos, "must not be in settings"),
    ):
        with pytest.raises(ValueError, match=told):
            model.fit(*given)
