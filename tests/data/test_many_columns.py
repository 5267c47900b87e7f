"""Label columns that are read together, held to the same columns read one by one."""

import numpy as np
import pyarrow as pa
import pytest

import labelwise.data.columns as label_columns
from labelwise.data.columns import read_one_hot
from labelwise.errors import DataError

ROWS = 7


def drawn_batch(seed: int, bad: bool) -> tuple[pa.RecordBatch, list[str]]:
    """Return columns of every kind in some order; ``bad`` puts a word into one that is text."""
    random = np.random.default_rng(seed)

    def pick(*values):
        return [values[n] for n in random.integers(0, len(values), ROWS)]

    makers = (
        lambda: pa.array(pick("1", "0", "", " True ", "-1", "0.25", None)),
        lambda: pa.array(pick(1, 0, None, -1), pa.int64()),
        lambda: pa.array(pick(1.0, 0.0, float("nan"), 0.5, None), pa.float64()),
        lambda: pa.array(pick(True, False, None)),
        lambda: pa.nulls(ROWS),
    )
    columns = [makers[n]() for n in np.sort(random.integers(0, len(makers), 20))]
    if bad:
        place = int(random.integers(0, len(columns) + 1))
        columns.insert(place, pa.array([*pick("1", "0")[:-1], "maybe"]))
    headers = [f"label {n}" for n in range(len(columns))]
    return pa.record_batch(columns, headers), headers


def told(batch, headers):
    try:
        found = read_one_hot(
            batch, headers, lambda row: f"row {row}", soft=True, minus_one="unknown"
        )
    except DataError as error:
        return str(error)
    parts = [found.minus_ones, found.shares.tolist()]
    for rows in (found.present, found.unknown, found.soft):
        parts += [rows.sizes.tolist(), rows.numbers.tolist()]
    return parts


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_columns_read_together_are_as_each_alone(monkeypatch, seed, bad):
    batch, headers = drawn_batch(seed, bad)
    together = told(batch, headers)
    assert isinstance(together, str) == bad
    monkeypatch.setattr(label_columns, "VALUES", 1)
    assert together == told(batch, headers)
