"""The public surface: names compared with reality, types as a user's checker sees them."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_scores import sample
from search_setup import picture, save_model
from sklearn.metrics import average_precision_score
from tiny_run import tiny_table

import labelwise
from labelwise import evaluation, photos
from labelwise.base.progress import Silent
from labelwise.errors import CheckpointError, DataError, SettingsError

PACKAGE = Path(labelwise.__file__).parent


def type_checking_imports():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname or alias.name for node in block.body for alias in node.names}


def test_every_public_name_is_real_sorted_and_seen_by_checkers():
    assert len(set(labelwise.__all__)) == len(labelwise.__all__)
    for name in labelwise.__all__:
        assert getattr(labelwise, name) is not None
    homes = [name for names in labelwise._HOMES.values() for name in names]
    reached = {*homes, *labelwise._MODULES, "__version__"}
    assert reached == set(labelwise.__all__)
    assert type_checking_imports() == reached - {"__version__"}
    assert set(dir(labelwise)) == set(labelwise.__all__)
    assert labelwise.retrieval is labelwise.queries  # what the rooms were called until 0.3
    assert labelwise.data is labelwise.tables
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        labelwise.nonsense  # noqa: B018


def test_train_and_load_run(tmp_path, capsys):
    table = tiny_table()
    settings = {"backbone": "identity", "batch_size": 16, "accelerator": "cpu", "epochs": 2}
    run = labelwise.train(table, tmp_path / "run", method="bce", progress=False, **settings)
    assert capsys.readouterr().out == ""
    assert run.is_finished
    assert run.report.exists()
    assert run.spec.method == "bce"
    assert run.settings["recipe"]["epochs"] == 2
    opened = labelwise.load_run(tmp_path / "run")
    assert opened == run
    features = table.images.features[:5]
    assert opened.model().predict(features).probs.shape == (5, 4)
    assert opened.evaluation.headline
    with pytest.raises(SettingsError, match="started with other settings"):
        labelwise.train(table, tmp_path / "run", method="spa", progress=False, **settings)
    with pytest.raises(SettingsError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        labelwise.train(table, tmp_path / "other", epoch=3)


def test_load_run_names_what_is_no_run(tmp_path):
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        labelwise.load_run(tmp_path)
    (tmp_path / "settings.yaml").write_text("method: bce")
    with pytest.raises(CheckpointError, match="was not finished; train again to go on"):
        labelwise.load_run(tmp_path)


def test_arrays_are_evaluated_and_calibrated_as_people_guess():
    """Oracles: scikit-learn's mAP, the same rows as Predictions, and Platt on the log-odds."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(80, 3))
    labels = (random.random((80, 3)) < 1 / (1 + np.exp(-2 * logits))).astype(float)
    probs = 1 / (1 + np.exp(-logits))
    found = labelwise.evaluate(probs, labels, query_length=0)
    assert found.ranking.map_class == pytest.approx(average_precision_score(labels, probs))
    assert found.before.pooled.ece == pytest.approx(
        labelwise.evaluate(logits, labels, logits=True, query_length=0).before.pooled.ece
    )
    some = np.where(random.random((80, 3)) < 0.1, np.nan, labels)
    assert labelwise.evaluate(probs, some, query_length=0).rows[0].known < 80
    assert labelwise.evaluate(torch.tensor(probs), labels.tolist(), query_length=0) == found
    with pytest.raises(DataError, match="A run is calibrated"):
        labelwise.calibrate("runs/first")
    with pytest.raises(DataError, match="Say logits=True"):
        labelwise.evaluate(logits, labels)
    with pytest.raises(DataError, match="same shape"):
        labelwise.evaluate(probs, labels[:, :2])
    platt = labelwise.calibrate.platt(logits, labels)
    assert np.allclose(platt(logits), labelwise.calibrate(logits, labels, method="platt")(logits))
    mean = np.mean(labelwise.calibrate(logits, labels)(logits))
    assert mean == pytest.approx(labels.mean(), abs=0.05)
    assert labelwise.metrics.mean_average_precision(probs, labels) == found.ranking.map_class


def test_a_run_predicts_folders_arrays_and_tensors_and_exports(tmp_path):
    """Oracle: the model's own predict."""
    for number in range(3):
        picture(tmp_path / "photos" / f"{number}.png", number)
    save_model(tmp_path / "run")
    run = labelwise.RunFolder(tmp_path / "run")
    paths = sorted((tmp_path / "photos").iterdir())
    expected = run.model().predict(paths)
    assert run.predict(tmp_path / "photos").labels == expected.labels
    assert np.allclose(run.predict(paths).probabilities, expected.probs)
    pixels = torch.zeros(2, 3, 8, 8)
    assert run.predict(pixels).probs.shape == (2, len(run.spec.labels))
    for unclear in (np.zeros((2, 8, 8, 3), np.float32), pixels.permute(0, 2, 3, 1)):
        with pytest.raises(DataError, match=r"must be a NumPy array of uint8: \(255 \* x\)"):
            run.predict(unclear)


def test_functions_that_people_call_answer_as_those_of_their_rooms(tmp_path):
    """Oracle: the functions themselves."""
    rows = sample(60)
    found = labelwise.evaluate(rows, rows.link, labelwise.TopK(2))
    assert found == evaluation.evaluate(rows, rows.link, labelwise.TopK(2))
    for number in range(6):
        picture(tmp_path / "photos" / f"{number}.png", number)
    index, model = tmp_path / "photos.index", save_model(tmp_path / "run")
    photos.update_index(index, [tmp_path / "photos"], model=model, watch=Silent())
    with labelwise.Index(index) as opened:
        expected = photos.answer(opened, labelwise.Query.parse("dog, -beach"), top=3)
    found = labelwise.search(index, "dog, -beach", top=3)
    assert (found.query, found.hits, found.count) == (expected.query, expected.hits, expected.count)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert len(expected.hits) == 3
