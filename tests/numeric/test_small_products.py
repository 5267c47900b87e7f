"""Products of small integers. Oracle: NumPy's own, in 64-bit integers."""

import sys

import numpy as np
import pytest

from labelwise.numeric.small_products import WIDEST, SmallColumns

EXTREMES = np.array([-128, -127, -1, 0, 1, 127], np.int8)


@pytest.fixture(params=["numkong", "without"])
def way(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "numkong", None)  # as where it is not installed
        monkeypatch.setattr("labelwise.numeric.small_products.find_spec", lambda _name: None)
    else:
        pytest.importorskip("numkong")


@pytest.mark.parametrize("width", [1, 5, 24, 192, WIDEST])
@pytest.mark.parametrize("count", [1, 3, 4, 7])
@pytest.mark.usefixtures("way")
def test_products_are_exact(width, count):
    random = np.random.default_rng(width)
    rows = random.choice(EXTREMES, (2500, width))
    rows[0], rows[1] = -128, 127
    columns = random.choice(EXTREMES, (count, width))
    columns[0] = -128
    expected = rows.astype(np.int64) @ columns.T.astype(np.int64)
    rows.flags.writeable = False  # as what is mapped from a file
    found = SmallColumns(columns).products(rows)
    assert found.shape == (2500, count)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(SmallColumns(columns).products(rows[7:9]), expected[7:9])


def test_rows_too_wide_to_be_exact_are_refused():
    with pytest.raises(ValueError, match="at most 1,024 in a row, got 1,025"):
        SmallColumns(np.zeros((1, 1025), np.int8))
