"""Tallies of numbers, held to counting each number by itself."""

import numpy as np

from labelwise.numeric.bucket_counts import BucketCounts

SCORES = -np.random.default_rng(0).exponential(2.0, 5000).astype(np.float32)


def test_every_number_is_counted_near_its_size():
    sizes, times = BucketCounts.of(SCORES).sizes()
    assert times.sum() == len(SCORES)
    np.testing.assert_allclose(np.repeat(sizes, times), np.sort(-SCORES), rtol=1 / 500)


def test_falling_ends_part_the_numbers_exactly():
    some = np.concatenate([SCORES, SCORES[:40], np.float32([0.0, -np.inf, -np.inf])])
    lowest, times = BucketCounts.of(some).falling(-4.0)
    assert (np.diff(lowest) < 0).all()
    assert -4.0 <= lowest[-1] < -3.97
    counted = [np.count_nonzero(some >= one) for one in lowest]
    np.testing.assert_array_equal(times.cumsum(), counted)


def test_minus_infinity_is_never_on_a_list():
    lowest, times = BucketCounts.of(np.float32([-1.0, -np.inf])).falling(-np.inf)
    assert len(lowest) == 1
    assert times.tolist() == [1]


def test_two_tallies_are_added_bucket_by_bucket():
    both = BucketCounts.of(SCORES[:1000]) + BucketCounts.of(SCORES[1000:].astype(np.float64))
    np.testing.assert_array_equal(both.counts, BucketCounts.of(SCORES).counts)
