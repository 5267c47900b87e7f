"""Pictures that look alike: the nearest embeddings, found by their signs and then measured.

    embedding = unit vector of R V (features - mean)   V: main directions of the first photos'
                                                       features; R: a fixed random rotation
    code      = the signs of the embedding, one bit per number
    nearness  = cosine of two embeddings

Two vectors at angle a differ in a share a / pi of their signs. So the codes, 32 bytes per picture,
choose the pictures worth a look, and their embeddings give the order. Without the rotation most
signs would belong to directions in which the pictures hardly differ.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import floor
from os import cpu_count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelwise.search.fronts import ROUNDING, Fronts

if TYPE_CHECKING:  # searches by labels do without torch, which takes seconds to import
    import torch

__all__ = ["PARALLEL", "Projection", "codes_of", "farthest_rows", "nearest_rows"]

WIDTH = 256
LOOKED_AT = 2000
SIFTED = 8  # times as many rows have all their signs counted
SAMPLED = 1 << 16  # distances that say how many are small
BLOCK = 1 << 14
MEASURED = 1 << 13  # rows that a thread measures at once
PARALLEL = 1 << 16  # rows; fewer are measured by one thread, and without fronts
FAR = 255  # more signs than half a code has
LEFT_OUT = np.iinfo(np.int32).min  # below every ceiling

Vectors = NDArray[np.float32]
Codes = NDArray[np.uint64]


class Projection:
    """From a backbone's features (n, D) to the embeddings (n, at most 256) that are kept."""

    def __init__(self, numbers: Vectors) -> None:
        """Take ``numbers`` (1 + width, D): the mean of the features, then the directions R V."""
        self.numbers = np.asarray(numbers, np.float32)

    @classmethod
    def fitted(cls, features: Vectors) -> "Projection":
        """Return the projection onto the directions in which some features differ most."""
        mean = features.mean(axis=0, dtype=np.float64)
        centred = features.astype(np.float64) - mean
        width = min(WIDTH, features.shape[1])
        directions = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :width]
        rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
        return cls(np.vstack([mean, (directions @ rotation).T]).astype(np.float32))

    def __call__(self, features: Vectors) -> NDArray[np.float16]:
        mean, directions = self.numbers[0], self.numbers[1:]
        turned = (features - mean) @ directions.T
        length = np.linalg.norm(turned, axis=1, keepdims=True)
        unit: NDArray[np.float16] = (turned / np.maximum(length, 1e-12)).astype(np.float16)
        return unit


def codes_of(embeddings: NDArray[np.float16]) -> Codes:
    """Return the signs of embeddings (n, D) in words of 64 bits, (ceil(D / 64), n)."""
    words = -(-embeddings.shape[1] // 64)
    codes = np.empty((words, len(embeddings)), np.uint64)
    for start in range(0, len(embeddings), BLOCK):
        part = embeddings[start : start + BLOCK]
        signs = np.zeros((len(part), 64 * words), np.bool_)
        signs[:, : part.shape[1]] = part > 0
        codes[:, start : start + BLOCK] = np.packbits(signs, axis=1).view(np.uint64).T
    return codes


def nearest_rows(
    target: NDArray[np.float16],
    embeddings: NDArray[np.float16],
    codes: Codes,
    count: int,
    excluded: NDArray[np.int64],
) -> tuple[NDArray[np.int64], Vectors]:
    """Return the ``count`` rows nearest to an embedding (D,), nearest first, and their cosines.

    Half of the signs choose the rows whose other signs are counted, and all signs those whose
    embeddings are measured.
    """
    own = codes_of(target[None])[:, 0]
    looked_at = max(LOOKED_AT, 4 * count)
    half = -(-len(own) // 2)
    first = _differing_signs(own[:half], codes[:half])
    first[excluded] = FAR
    rows = _least(first, SIFTED * looked_at)
    distance = first[rows].astype(np.uint16)
    for word in range(half, len(own)):
        distance += np.bitwise_count(codes[word, rows] ^ own[word])
    rows = rows[_least(distance, looked_at)]
    cosines = embeddings[rows].astype(np.float32) @ target.astype(np.float32)
    order = np.argsort(-cosines, kind="stable")[:count]
    return rows[order], cosines[order]


def farthest_rows(
    direction: NDArray[np.float64],
    embeddings: NDArray[np.float16],
    count: int,
    excluded: NDArray[np.int64],
    among: NDArray[np.int64] | None = None,
    fronts: Fronts | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ``count`` rows farthest along a direction (D,), farthest first, and the cosines.

    Photos are not as near to a text as to their like, and signs would miss some of them. So every
    row is measured that could be among the best: all of ``among`` (None: all rows), or, with
    ``fronts``, those whose ceilings say so. The answer is the same.
    """
    target = direction / max(float(np.linalg.norm(direction)), 1e-12)
    rows = None if among is None else np.setdiff1d(among, excluded)
    if fronts is not None and (rows is None or len(rows) >= PARALLEL):
        rows = _possible_rows(target, embeddings, count, excluded, rows, fronts)
    elif rows is None:
        kept = np.ones(len(embeddings), np.bool_)
        kept[excluded] = False
        rows = np.flatnonzero(kept) if len(excluded) else None
    cosines = _cosines(target, embeddings, rows)
    best = cosines.topk(min(count, len(cosines))).indices.numpy()
    values = cosines.numpy()
    order = best[np.lexsort((best, -values[best]))]
    found: NDArray[np.int64] = order if rows is None else rows[order]
    return found, values[order].astype(np.float64)


def _possible_rows(
    target: NDArray[np.float64],
    embeddings: NDArray[np.float16],
    count: int,
    excluded: NDArray[np.int64],
    among: NDArray[np.int64] | None,
    fronts: Fronts,
) -> NDArray[np.int64]:
    """Return rows, in order, that hold the ``count`` farthest: their ceilings reach these."""
    query, ceilings = fronts.query(target), np.empty(len(embeddings), np.int32)
    _share_out(partial(fronts.write_ceilings, query, ceilings), len(ceilings))
    if among is not None:
        ceilings, every = np.full_like(ceilings, LEFT_OUT), ceilings
        ceilings[among] = every[among]
    ceilings[excluded] = LEFT_OUT
    enough = max(LOOKED_AT, 2 * count)
    step = max(1, len(ceilings) // SAMPLED)
    sample = ceilings[::step]
    place = max(len(sample) - 1 - enough // step, 0)
    first = np.flatnonzero(ceilings >= np.partition(sample, place)[place])
    if len(first) < count:
        return np.flatnonzero(ceilings > LEFT_OUT)
    worst = float(_cosines(target, embeddings, first).topk(count).values[-1])
    least = floor((worst - ROUNDING) / query.unit)
    rows: NDArray[np.int64] = np.flatnonzero(ceilings >= least)
    return rows


def _cosines(
    target: NDArray[np.float64],
    embeddings: NDArray[np.float16],
    rows: NDArray[np.int64] | None,
) -> "torch.Tensor":
    """Return the cosines of a unit vector and some rows, or all, which threads share."""
    import torch

    narrow = torch.from_numpy(target.astype(np.float32))
    total = len(embeddings) if rows is None else len(rows)
    cosines = torch.empty(total)
    _share_out(partial(_measure, embeddings, rows, narrow, cosines), total)
    return cosines


def _share_out(work: Callable[[int, int], None], total: int) -> None:
    """Do some work on places from 0 to ``total``, parts of it in threads if there are many."""
    import torch

    threads = min(cpu_count() or 1, 4) if total >= PARALLEL else 1
    cuts = np.linspace(0, total, threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in [pool.submit(work, first, last) for first, last in pairwise(cuts)]:
            done.result()


def _measure(
    embeddings: NDArray[np.float16],
    rows: NDArray[np.int64] | None,
    target: "torch.Tensor",
    cosines: "torch.Tensor",
    first: int,
    last: int,
) -> None:
    """Write the cosines of the places ``first`` to ``last`` of some rows, or of all."""
    import torch

    kept = np.empty((min(MEASURED, last - first), embeddings.shape[1]), np.float16)
    exact = torch.empty(kept.shape)
    for start in range(first, last, MEASURED):
        end = min(start + MEASURED, last)
        own, wide = kept[: end - start], exact[: end - start]
        own[:] = embeddings[start:end] if rows is None else embeddings[rows[start:end]]
        wide.copy_(torch.from_numpy(own))
        torch.mv(wide, target, out=cosines[start:end])


def _differing_signs(own: NDArray[np.uint64], codes: Codes) -> NDArray[np.uint8]:
    """Return in how many signs each of n codes (at most 3 words, n) differs from ``own``."""
    distance = np.empty(codes.shape[1], np.uint8)
    for start in range(0, len(distance), BLOCK):
        part = codes[:, start : start + BLOCK]
        total = distance[start : start + BLOCK]
        np.bitwise_count(part[0] ^ own[0], out=total)
        for word in range(1, len(own)):
            total += np.bitwise_count(part[word] ^ own[word])
    return distance


def _least(distance: NDArray[np.integer[Any]], count: int) -> NDArray[np.int64]:
    """Return the places of at least the ``count`` smallest distances, ties included.

    Rows that are left out (at distance FAR) are never among them.
    """
    step = max(1, len(distance) // SAMPLED)
    sample = np.bincount(distance[::step], minlength=FAR + 1)[:FAR].cumsum() * step
    enough = sample >= count
    farthest = int(enough.argmax()) if enough.any() else FAR - 1
    places: NDArray[np.int64] = np.flatnonzero(distance <= farthest)
    return places
