"""MLflow. Oracles: mlflow's own loading and checks of signatures; the model it was made from."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_predictor import NAMES, make, pictures

import labelwise
from labelwise.contrib.mlflow import log_model, save_model
from labelwise.errors import LabelwiseError
from labelwise.learn.predictor import Predictor

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of mlflow and what it brings


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow") / "model"
    make().save(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, picture in enumerate(pictures(4)):
        picture.save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def test_mlflow_loads_it_without_pickles_and_answers_as_the_model(model, photos, tmp_path):
    save_model(model, tmp_path / "saved")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    assert loaded.metadata.signature.inputs.input_names() == ["image"]
    assert loaded.metadata.signature.outputs.input_names() == [*NAMES, "decided"]
    own = Predictor.load(model).predict(photos)
    given = pandas.DataFrame({"image": [path.read_bytes() for path in photos]}, index=[4, 7, 9, 2])
    found = loaded.predict(given)
    assert list(found.index) == [4, 7, 9, 2]
    np.testing.assert_allclose(found[list(NAMES)], own.probs, atol=1e-6)
    assert [tuple(json.loads(one)) for one in found["decided"]] == own.labels
    mlflow.models.signature.infer_signature(found)  # its columns have types that mlflow knows
    names = {path.name for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert {"model.json", "model.safetensors", "labelwise_tagger.py"} <= names
    assert not {name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".joblib"))}


def test_it_is_logged_to_a_run(model, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        with mlflow.start_run():
            logged = log_model(model, "tagger")
        loaded = mlflow.pyfunc.load_model(logged.model_uri)
        found = loaded.predict(pandas.DataFrame({"image": [photos[0].read_bytes()]}))
    finally:
        mlflow.set_tracking_uri(None)
    np.testing.assert_allclose(found[list(NAMES)], Predictor.load(model).predict(photos[0]).probs)


def test_a_training_run_is_logged_with_its_model(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the test")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    rows = {"num_train": 64, "num_val": 32, "num_test": 32}
    given = {"backbone": "small-cnn", "epochs": 2, "batch_size": 16, "data_options": rows}
    try:
        for _ in range(2):  # the second time there is nothing left to send
            run = labelwise.train("scenes", tmp_path / "run", log="mlflow", progress=False, **given)
        client = mlflow.MlflowClient()
        (kept,) = mlflow.search_runs(experiment_names=["of the test"], output_format="list")
        named = ("epoch_loss", "val_map", "record")
        shown = {name: client.get_metric_history(kept.info.run_id, name) for name in named}
        shown = {name: [(one.step, one.value) for one in shown[name]] for name in named}
        (model,) = mlflow.search_logged_models(output_format="list")
        found = mlflow.pyfunc.load_model(model.model_uri).predict(
            pandas.DataFrame({"image": [photos[0].read_bytes()]})
        )
    finally:
        mlflow.set_tracking_uri(None)
    journal = run.journal.read()
    for name in ("epoch_loss", "val_map"):
        assert shown[name] == [(one["step"], one[name]) for one in journal if name in one]
    assert [value for _, value in shown["record"]] == list(range(len(journal)))
    assert (kept.info.status, kept.data.params["recipe.epochs"]) == ("FINISHED", "2")
    expected = run.model().predict(photos[0])
    np.testing.assert_allclose(found[list(run.spec.labels)], expected.probs, atol=1e-6)


def test_a_model_that_only_ranks_is_refused(tmp_path):
    replace(make(), link=None).save(tmp_path / "model")
    with pytest.raises(LabelwiseError, match="calibrate it first"):
        save_model(tmp_path / "model", tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
