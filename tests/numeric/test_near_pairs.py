"""Oracle: every pair of vectors compared, in a loop over rows or by one product."""

import numpy as np
import pytest

from labelwise.numeric import near_pairs as module
from labelwise.numeric.near_pairs import near_pairs


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def with_copies(rng, count, width=40, noise=0.03):
    """Vectors at random, and a copy of every tenth that is turned a little."""
    plain = unit(rng.standard_normal((count, width)))
    copies = unit(plain[::10] + noise * rng.standard_normal((len(plain[::10]), width)))
    return np.concatenate([plain, copies]).astype(np.float32)


def slowly(vectors, least):
    return [
        (i, j)
        for i in range(len(vectors))
        for j in range(i + 1, len(vectors))
        if vectors[i] @ vectors[j] >= least
    ]


def test_few_vectors_are_all_compared():
    vectors = with_copies(np.random.default_rng(0), 150)
    vectors[7] = 0
    expected = slowly(vectors, 0.95)
    assert len(expected) > 10
    assert near_pairs(vectors, 0.95).tolist() == [list(pair) for pair in expected]
    assert near_pairs(vectors[:0], 0.95).shape == (0, 2)


@pytest.mark.parametrize(("noise", "share"), [(0.02, 0.99), (0.05, 0.93)])
def test_many_vectors_are_found_without_comparing_all(monkeypatch, noise, share):
    """Of the pairs that comparing all finds, nearly all; never another pair."""
    rng = np.random.default_rng(1)
    vectors = with_copies(rng, 3000, noise=noise)
    compared = []

    def counted(rows, members, least, compare=module._compared):
        compared.append(len(members) ** 2)
        return compare(rows, members, least)

    monkeypatch.setattr(module, "_compared", counted)
    found = {tuple(pair) for pair in near_pairs(vectors, 0.9).tolist()}
    cosines = vectors @ vectors.T
    expected = set(
        zip(*(one.tolist() for one in np.nonzero(np.triu(cosines >= 0.9, 1))), strict=True)
    )
    assert len(expected) >= 290
    assert found <= expected
    assert len(found) >= share * len(expected)
    assert sum(compared) < len(vectors) ** 2 / 10
