"""Files opened by others, as docs/export.md says. Oracles: Predictions and Index."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from open_indexes import open_index
from search_setup import LABELS

from labelwise.predictions import Predictions


def dogs(folder):
    return open_index(folder / "index").store.column(LABELS.index("dog"))


def test_duckdb_reads_predictions_and_scores(library):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    file = library / "tiny" / "predictions" / "test.parquet"
    own = Predictions.load(file)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT id, logits, labels FROM '{file}'").fetchall()
        assert [one[0] for one in found] == list(own.ids)
        np.testing.assert_array_equal([one[1] for one in found], own.logits)
        np.testing.assert_array_equal([one[2] for one in found], own.labels)
        scores = library / "index" / "scores"
        found = connection.sql(f"SELECT row, dog FROM '{scores}/*.parquet' ORDER BY row").fetchall()
    np.testing.assert_array_equal(found, list(enumerate(dogs(library))))


def test_pandas_reads_predictions_scores_and_photos(library):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    file = library / "tiny" / "predictions" / "test.parquet"
    table = pandas.read_parquet(file)
    np.testing.assert_array_equal(np.stack(list(table["logits"])), Predictions.load(file).logits)
    scores = pandas.read_parquet(library / "index" / "scores").sort_values("row")
    np.testing.assert_array_equal(scores["dog"], dogs(library))
    place = f"file:{library / 'index' / 'photos.sqlite'}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as connection:
        photos = pandas.read_sql("SELECT * FROM files", connection)
    assert sorted(photos["name"]) == [f"{number}.png" for number in range(8)]
    assert set(photos["state"]) == {"ok"}
