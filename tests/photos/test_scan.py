"""Oracle: a full stable sort of the same sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.photos import scan
from labelwise.photos.scan import ScanTerm, best_rows, count_at_least, sum_of


def by_sorting(terms, count, excluded=()):
    scores = sum_of(terms, slice(None))
    rows = np.array([r for r in range(len(scores)) if r not in set(excluded)], np.int64)
    rows = rows[scores[rows] > -np.inf]
    order = np.lexsort((rows, -scores[rows]))[:count]
    return rows[order], scores[rows[order]]


def assert_sorted_alike(terms, count, excluded=()):
    rows, scores = best_rows(terms, count, np.array(sorted(excluded), np.int64))
    expected_rows, expected = by_sorting(terms, count, excluded)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected)


@pytest.fixture
def small_blocks(monkeypatch):
    """Few rows must already take the ways of many."""
    monkeypatch.setattr(scan, "BLOCK", 16)
    monkeypatch.setattr(scan, "COLUMNS", 4)
    monkeypatch.setattr(scan, "TRIED_SHARE", 1)
    monkeypatch.setattr(scan, "FIRST_TRIES", (4, 8, 32))


@pytest.mark.parametrize("parallel", [1 << 21, 1])
@pytest.mark.usefixtures("small_blocks")
def test_finds_what_a_full_sort_finds(monkeypatch, parallel):
    monkeypatch.setattr(scan, "PARALLEL", parallel)

    @settings(max_examples=150, deadline=None)
    @given(
        st.integers(1, 3),
        st.integers(1, 200),
        st.integers(1, 60),
        st.integers(0, 2**32 - 1),
        st.integers(1, 4),
    )
    def check(width, rows, count, seed, levels):
        random = np.random.default_rng(seed)
        terms = []
        for _ in range(width):  # few levels, so that there are many ties
            values = -random.integers(0, 10**levels, rows).astype(np.float32)
            values[random.random(rows) < 0.05] = -np.inf
            terms.append(ScanTerm(values))
        excluded = np.flatnonzero(random.random(rows) < 0.1).tolist()
        assert_sorted_alike(terms, count, excluded)
        least = -float(random.integers(0, 10**levels))
        kept = np.setdiff1d(np.arange(rows), excluded)
        expected = int((sum_of(terms, kept) >= least).sum())
        assert count_at_least(terms, least, np.array(excluded, np.int64)) == expected

    check()


def test_labels_that_never_meet_are_found_by_scanning():
    random = np.random.default_rng(0)
    logits = random.normal(-3, 2, 200_000).astype(np.float32)
    wanted = ScanTerm(-np.logaddexp(0, -logits).astype(np.float32))
    against = ScanTerm(-np.logaddexp(0, logits).astype(np.float32) - 5)
    assert_sorted_alike([wanted, against], 50)


def test_clear_answers_are_found_without_a_scan(monkeypatch):
    random = np.random.default_rng(0)
    columns = [random.normal(-3, 2, 200_000).astype(np.float32) for _ in range(2)]
    terms = [
        ScanTerm(-np.logaddexp(0, -one).astype(np.float32)) for one in (columns[0], -columns[1])
    ]
    expected = by_sorting(terms, 50)
    monkeypatch.setattr(scan, "_scanned", lambda *_: pytest.fail("all rows were read"))
    rows, scores = best_rows(terms, 50)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(scores, expected[1])


def test_nothing_to_rank():
    assert not len(best_rows([ScanTerm(np.empty(0, np.float32))], 5)[0])
    assert not len(best_rows([ScanTerm(np.zeros(3, np.float32))], 0)[0])
    with pytest.raises(ValueError, match="at least one term"):
        best_rows([], 5)
