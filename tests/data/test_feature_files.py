"""Feature files; oracles: the arrays that were written, and faults made one at a time."""

import numpy as np
import pytest

from labelwise.data import load
from labelwise.data.feature_files import read_feature_file, write_features
from labelwise.errors import DataError
from labelwise.pictures import FeatureRows

RNG = np.random.default_rng(0)


def arrays(**changed):
    given = {
        "features": RNG.normal(size=(6, 4)),
        "labels": np.array([[1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [0, 0]], np.uint8),
        "label_names": np.array(["cat", "dog"]),
        "observed": np.array([[1, 1], [1, 0], [1, 1], [0, 1], [1, 1], [1, 1]], bool),
        "split": np.array(["train", "Training", "train", "valid", "test", "test"]),
        "ids": np.array(list("abcdef")),
    }
    return {key: value for key, value in (given | changed).items() if value is not None}


def written(folder, **changed):
    np.savez(folder / "rows.npz", **arrays(**changed))
    return folder / "rows.npz"


def test_a_file_is_read_as_it_stands_and_written_back(tmp_path):
    given = arrays()
    np.savez(tmp_path / "rows.npz", **given)
    table = load(tmp_path / "rows.npz")
    assert table.space.names == ("cat", "dog")
    assert list(table.ids) == list("abcdef")
    assert table.split.tolist() == ["train", "train", "train", "val", "test", "test"]
    assert isinstance(table.images, FeatureRows)
    np.testing.assert_allclose(table.images.features, given["features"], rtol=1e-6)
    labels, observed = table.targets()
    np.testing.assert_array_equal(observed, given["observed"])
    np.testing.assert_array_equal(labels[observed], given["labels"][observed])
    write_features(table, tmp_path / "again.npz")
    again = load(f"features:{tmp_path / 'again.npz'}")
    np.testing.assert_array_equal(again.images.features, table.images.features)
    for one, other in zip(again.targets(), table.targets(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.split.tolist() == table.split.tolist()


def test_what_may_be_left_out_and_soft_labels(tmp_path):
    soft = np.full((6, 2), 0.25)
    table = read_feature_file(written(tmp_path, observed=None, split=None, ids=None, labels=soft))
    assert table.split is None
    assert not table.has_unknown()
    np.testing.assert_allclose(table.targets()[0], soft)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label_names": None}, "must be an .npz file of features, labels and label_names"),
        ({"features": np.zeros((6, 4, 2))}, r"features must be \(N, D\) or"),
        ({"features": np.array([["x"] * 4] * 6)}, "features must hold numbers"),
        ({"features": np.full((6, 4), np.nan)}, "row 1: features must be finite"),
        ({"labels": np.zeros((6, 3))}, r"labels must be \(6, 2\), got \(6, 3\)"),
        ({"labels": np.full((6, 2), 2)}, r"labels must lie in \[0, 1\]"),
        ({"labels": np.full((6, 2), -0.5)}, r"labels must lie in \[0, 1\]"),
        ({"observed": np.ones((5, 2), bool)}, r"observed must be \(6, 2\)"),
        ({"split": np.array(["train"] * 5 + ["tune"])}, "split must be train, val or test"),
        ({"ids": np.arange(6)}, "ids must hold texts"),
        ({"features": np.array([{}] * 6, object)}, "Object arrays cannot be loaded"),
    ],
)
def test_a_fault_is_named(tmp_path, changed, message):
    path = written(tmp_path, **changed)
    with pytest.raises(DataError, match=message):
        read_feature_file(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut off", b"", b"\x93NUMPY\x01\x00 cut off"])
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "rows.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.npz: must be an \.npz file"):
        load(tmp_path / "rows.npz")


def test_a_single_array_is_named(tmp_path):
    with (tmp_path / "rows.npz").open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(DataError, match=r"rows\.npz: must be an \.npz file"):
        load(tmp_path / "rows.npz")


def test_pictures_are_not_written_as_features(tmp_path):
    with pytest.raises(DataError, match="holds images"):
        write_features(load("scenes", num_train=4, num_val=2, num_test=2), tmp_path / "rows.npz")
