"""Near-duplicates: pictures that look the same from afar, and how they are found among many.

    fingerprint = unit vector of the 8 x 8 lowest frequencies (DCT) of the grey picture at 32 x 32,
                  without its mean; it survives another size, quality or trim

Pictures whose fingerprints have a cosine of at least NEAR are near-duplicates. Pictures of one
colour have a fingerprint of zeros and are near nothing. ``looks_of`` takes the pixels that a model
sees anyway, whose transform may cut the edges off: its fingerprints are compared with each other
alone.

Vectors are found to be near without comparing all pairs. Each gets 16 words of 16 signs, by 256
fixed planes; vectors that share a word are compared, few vectors all. Two vectors of cosine 0.95
share a word with chance 0.96, those of 0.97 with 0.99.

    first_near       the earliest vector near v that is its own first, v itself where there is none
    compared_groups  vectors that a chain of near ones joins, by comparing every pair
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.base.array_api import A, namespace
from labelwise.base.arrays import Floats, is_tensor
from labelwise.base.groups import joined_rows
from labelwise.pictures.decode import decode

Vectors = NDArray[np.float32]
Words = NDArray[np.uint16]
Rows = NDArray[np.int64]

FEW = 2048  # vectors of which all pairs are compared
WORDS, SIGNS = 16, 16
ROWS_AT_ONCE = 2048

NEAR = 0.95
SIDE, KEPT = 32, 8
LEAST_SIDE = 2 * SIDE  # to which a large picture may be reduced while it is decoded
WIDTH = KEPT * KEPT - 1
PLAIN = 1.0  # length of a vector that is rounding alone
GREY = (0.299, 0.587, 0.114)  # as Pillow weighs red, green and blue
WHITE = 255.0


def fingerprint(content: bytes, name: str) -> NDArray[np.float32]:
    """Return the fingerprint (WIDTH,) of an encoded picture, or raise an ImageError."""
    with decode(content, name, LEAST_SIDE) as picture:
        return look_of(picture)


def look_of(picture: Image.Image) -> NDArray[np.float32]:
    """Return the fingerprint (WIDTH,) of a picture."""
    from scipy.fft import dctn

    grey = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    waves = dctn(np.asarray(grey, np.float64), norm="ortho")[:KEPT, :KEPT].ravel()[1:]
    length = float(np.linalg.norm(waves))
    return np.asarray(waves / length if length > PLAIN else np.zeros(WIDTH), np.float32)


def looks_of(inputs: A) -> A:
    """Return the fingerprints (n, WIDTH), float32, of pixels (n, 3, H, W) or bands (n, C, H, W).

    Bands have no common range: the mean of them is taken from its darkest to its brightest place.
    """
    xp = namespace(inputs)
    values = xp.astype(inputs, xp.float32)
    device = values.device if is_tensor(values) else None
    rows, columns = (_waves(int(side), device) for side in values.shape[2:])
    if inputs.dtype == xp.uint8:
        grey = sum(weight * values[:, colour] for colour, weight in enumerate(GREY))
    else:
        mean = xp.mean(values, axis=1)
        low = xp.min(mean, axis=(1, 2), keepdims=True)
        span = xp.max(mean, axis=(1, 2), keepdims=True) - low
        grey = WHITE * (mean - low) / xp.where(span > 0, span, 1.0)
    waves = (rows @ grey @ columns.T).reshape(len(values), -1)[:, 1:]
    length = xp.sqrt(xp.sum(waves**2, axis=1, keepdims=True))
    looks: A = xp.where(length > PLAIN, waves / xp.where(length > PLAIN, length, 1.0), 0.0)
    return looks


@lru_cache(maxsize=32)  # a copy to a GPU is waited for
def _waves(side: int, device: Any) -> Any:
    """Return the lowest waves (KEPT, side) of the means of SIDE windows of a side, on a device."""
    from scipy.fft import dct

    means = np.zeros((SIDE, side))
    for window, row in enumerate(means):
        first, last = window * side // SIDE, -(-(window + 1) * side // SIDE)
        row[first:last] = 1 / (last - first)
    waves = (dct(np.eye(SIDE), norm="ortho", axis=0)[:KEPT] @ means).astype(np.float32)
    if device is None:
        return waves
    import torch

    with torch.inference_mode(False):  # they are used inside and outside of it
        return torch.from_numpy(waves).to(device)


def near_pairs(vectors: Floats, least: float, since: int = 0) -> Rows:
    """Return the pairs (P, 2) of rows of unit vectors (n, D) whose cosine is at least ``least``.

    The lower row stands first; pairs are in order. Zero vectors are near nothing. Of each pair the
    second row is at least ``since``: pairs among earlier rows are known.
    """
    rows = np.asarray(vectors, np.float32)
    found = [
        _compared(rows, members, least, since)
        for members in _candidates(rows)
        if members[-1] >= since
    ]
    return np.unique(np.concatenate([np.empty((0, 2), np.int64), *found]), axis=0)


def first_near(vectors: Floats, least: float, known: Rows | None = None) -> Rows:
    """Return the first row (n,) that each unit vector is near to; ``known`` rows stay."""
    rows = np.asarray(vectors, np.float32)
    done = 0 if known is None else len(known)
    firsts = np.arange(len(rows))
    firsts[:done] = firsts[:done] if known is None else known
    if len(rows) > FEW:
        _follow(firsts, _heads(rows, least, done))
    leaders = np.flatnonzero(firsts == np.arange(len(rows)))
    new = int(np.searchsorted(leaders, done))
    _follow(firsts, leaders[near_pairs(rows[leaders], least, new)])
    # A row whose first one turned out to be near an earlier one goes with that, or alone.
    moved = np.flatnonzero(firsts[firsts] != firsts)
    target = firsts[firsts[moved]]
    near = np.einsum("ij,ij->i", rows[moved], rows[target]) >= least
    firsts[moved] = np.where(near, target, moved)
    return firsts


def compared_groups(vectors: Floats, least: float) -> Rows:
    """Return the earliest row (n,) that a chain of near unit vectors (n, D) joins each row to."""
    rows = np.asarray(vectors, np.float32)
    earliest = np.arange(len(rows))
    blocks = [slice(at, at + ROWS_AT_ONCE) for at in range(0, len(rows), ROWS_AT_ONCE)]
    for number, later in enumerate(blocks):
        for earlier in blocks[: number + 1]:
            near = rows[later] @ rows[earlier].T >= least
            near &= earliest[later, None] != earliest[earlier]  # joined already, or the same row
            if near.any():
                pairs = np.argwhere(near) + np.array([later.start, earlier.start])
                earliest = joined_rows(earliest, pairs)
    return earliest


def _follow(firsts: Rows, pairs: Rows) -> None:
    """Let the later row of each pair, in order of the earlier, follow the earlier if it leads."""
    for earlier, later in pairs.tolist():
        if firsts[earlier] == earlier and firsts[later] == later:
            firsts[later] = earlier


def _candidates(rows: Vectors) -> Iterator[Rows]:
    """Yield rows among which near ones are looked for: all of few, or those that share a word."""
    if 0 < len(rows) <= FEW:
        yield np.arange(len(rows))
    elif len(rows):
        for words in _words_of(rows):
            yield from _sharing(words)


def _heads(rows: Vectors, least: float, since: int) -> Rows:
    """Return pairs of near rows: the earliest of those that share a word, and another of them."""
    heads = []
    for words in _words_of(rows):
        earliest = np.full(1 << SIGNS, len(rows), np.int64)
        np.minimum.at(earliest, words, np.arange(len(rows)))
        head, row = earliest[words[since:]], np.arange(since, len(rows))
        for start in range(0, len(row), ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            near = np.einsum("ij,ij->i", rows[row[block]], rows[head[block]]) >= least
            near &= head[block] < row[block]
            heads.append(np.stack([head[block][near], row[block][near]], 1))
    return np.unique(np.concatenate([np.empty((0, 2), np.int64), *heads]), axis=0)


def _words_of(rows: Vectors) -> Words:
    planes = np.random.default_rng(0).standard_normal((rows.shape[1], WORDS * SIGNS))
    words = np.empty((WORDS, len(rows)), np.uint16)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows[start : start + ROWS_AT_ONCE] @ planes.astype(np.float32)
        words[:, start : start + len(block)] = np.packbits(block > 0, axis=1).view(np.uint16).T
    return words


def _sharing(words: Words) -> list[Rows]:
    """Return the rows of each word that at least two have, in order."""
    order = np.argsort(words, kind="stable")
    starts = np.flatnonzero(np.diff(words[order])) + 1
    return [rows for rows in np.split(order, starts) if len(rows) > 1]


def _compared(rows: Vectors, members: Rows, least: float, since: int) -> Rows:
    """Return the near pairs among some rows, in order, all of which are compared."""
    inside, pairs = rows[members], []
    for start in range(int(np.searchsorted(members, since)), len(members), ROWS_AT_ONCE):
        near = inside[start : start + ROWS_AT_ONCE] @ inside.T >= least
        later, earlier = np.nonzero(near)
        kept = earlier < later + start
        pairs.append(np.stack([members[earlier[kept]], members[later[kept] + start]], 1))
    return np.concatenate([np.empty((0, 2), np.int64), *pairs])
