"""Every form of a model, on a disk and in a bucket. Oracle: the model that it was made of."""

import pickle

import numpy as np
import pytest
from bucket_setup import served_bucket
from export_samples import link_of_each_kind, pictures, predictor, spec

import labelwise
from labelwise.decide import Threshold
from labelwise.errors import CheckpointError, DataError, SettingsError
from labelwise.exports.onnx_file import export_onnx
from labelwise.learn.predictor import Predictor
from labelwise.shards import LocalEngine, ModelFiles, ScoringTask, predict_shards

FORMS = ("run", "model.onnx")


@pytest.fixture(scope="module")
def model():
    return predictor(link=link_of_each_kind()["platt"], rule=Threshold((0.3, 0.4, 0.5, 0.6, 0.7)))


@pytest.fixture(scope="module")
def home(tmp_path_factory, model):
    """The same model in its two forms."""
    home = tmp_path_factory.mktemp("forms")
    model.save(home / "run")
    export_onnx(model, spec(model), home / "model.onnx", pictures(2))
    return home


def same_answers(found, model):
    images = pictures(4, (60, 50), seed=5)
    (expected,), (given,) = labelwise.score(model, images), labelwise.score(found, images)
    np.testing.assert_allclose(given.probs, expected.probs, atol=1e-3)
    assert np.array_equal(given.sets, expected.sets)
    assert (found.space, found.taxonomy) == (model.space, None)


def test_a_model_in_a_bucket_is_fetched_whatever_its_form(home, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with served_bucket() as bucket:
        for path in home.rglob("*"):
            if path.is_file():
                bucket.put(f"models/{path.relative_to(home).as_posix()}", path.read_bytes())
        for form in FORMS:
            same_answers(labelwise.load_model(bucket.place(f"models/{form}")), model)
        with pytest.raises(CheckpointError, match="is not there; is its address right"):
            labelwise.load_model(bucket.place("models/other.onnx"))
        with pytest.raises(CheckpointError, match="holds no run"):
            labelwise.load_model(bucket.place("nothing"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_scores_as_the_model_does_also_in_workers_of_shards(home, model, form, tmp_path):
    same_answers(labelwise.load_model(home / form), model)
    same_answers(labelwise.load_model(str(home / form)).for_many(1000), model)
    pictures(1, (40, 30), seed=1).read(0).save(tmp_path / "0.png")
    task = ScoringTask(str(tmp_path / "out"), ModelFiles.read(home / form), 2, decoders=1)
    assert b"labelwise.cli" not in pickle.dumps(task)
    outcome = predict_shards(task, [str(tmp_path / "0.png")], LocalEngine(1))
    assert (outcome.rows, outcome.failed) == (1, 0)


def test_what_is_no_model_is_named(home, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"")
    for path, error, told in (
        (tmp_path / "nowhere", CheckpointError, "nowhere is not there; a model is the folder"),
        (tmp_path / "photo.png", CheckpointError, "a file of another kind"),
        (tmp_path / "model.pt2", SettingsError, "by unpickling"),
        (home / "model.onnx", SettingsError, "runs on the cpu"),
    ):
        with pytest.raises(error, match=told):
            labelwise.load_model(path, "cuda")
    assert isinstance(labelwise.load_model(home / "run"), Predictor)
    with pytest.raises(DataError, match=r"labelwise\.load_run opens a run"):
        labelwise.load(home / "run")
