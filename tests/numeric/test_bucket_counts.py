"""Tallies of numbers, held to counting each number by itself."""

import numpy as np

from labelwise.numeric.bucket_counts import BucketCounts

SCORES = -np.random.default_rng(0).exponential(2.0, 5000).astype(np.float32)


def test_every_number_is_counted_near_its_size():
    sizes, times = BucketCounts.of(SCORES).sizes()
    assert times.sum() == len(SCORES)
    np.testing.assert_allclose(np.repeat(sizes, times), np.sort(-SCORES), rtol=1 / 500)
