"""``labelwise calibrate`` with few labels. Oracle: the probabilities that labels were drawn by."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import expit
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.errors import DataError
from labelwise.scores.embeddings import read_cosines, read_texts

NAMES = ["dog", "cat", "car"]


def files(folder):
    rng = np.random.default_rng(0)
    photos, texts = rng.normal(size=(800, 16)), rng.normal(size=(4, 16))
    np.savez(folder / "photos.npz", embeddings=photos, ids=np.arange(800).astype(str))
    np.savez(folder / "texts.npz", embeddings=texts, names=["dog", "cat", "car", "dog"])
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    means = np.stack([unit[0] + unit[3], 2 * unit[1], 2 * unit[2]]) / 2
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = photos / np.linalg.norm(photos, axis=1, keepdims=True) @ means.T
    truth = expit(8 * cosines - 1)
    labels = (rng.random(truth.shape) < truth)[:60].astype(float)
    np.savez(folder / "few.npz", labels=labels, names=NAMES, ids=np.arange(60).astype(str))
    return cosines, truth


def test_from_embeddings_to_probabilities_of_all_rows(tmp_path):
    cosines, truth = files(tmp_path)
    raw = read_cosines(tmp_path / "photos.npz", tmp_path / "texts.npz")
    assert raw.names == ("dog", "cat", "car")
    np.testing.assert_allclose(raw.scores, cosines, atol=1e-5)
    call = ["calibrate", tmp_path / "photos.npz", "--texts", tmp_path / "texts.npz"]
    call += ["--labels", tmp_path / "few.npz", "-o", tmp_path / "out"]
    done = CliRunner().invoke(app, [str(word) for word in call])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "60 labelled rows of 800" in done.output
    table = pq.read_table(tmp_path / "out" / "intervals.parquet")
    assert set(table["id"].to_pylist()) == {str(row) for row in range(800)}
    order = np.argsort([int(name) for name in table["id"].to_pylist()])
    for column, name in enumerate(NAMES):
        low, middle, high = (
            table[f"{mark}:{name}"].to_numpy()[order] for mark in ("low", "score", "high")
        )
        assert ((low < high) & (middle > 0) & (middle < 1)).all()
        assert np.abs(middle - truth[:, column]).mean() < 0.12
    done = CliRunner().invoke(app, [*map(str, call), "--scores", "logits"])
    assert "leave out --scores" in str(done.exception)


def test_broken_embeddings_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=np.zeros((2, 3)), names=["x", "y"])
    with pytest.raises(DataError, match="row 1 is all zeros"):
        read_texts(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", embeddings=np.ones((2, 3)))
    with pytest.raises(DataError, match="no array 'names'"):
        read_texts(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", embeddings=np.ones((2, 4)), ids=["a", "b"])
    np.savez(tmp_path / "d.npz", embeddings=np.ones((2, 3)), names=["x", "y"])
    with pytest.raises(DataError, match="must have one length, got 4 and 3"):
        read_cosines(tmp_path / "c.npz", tmp_path / "d.npz")
