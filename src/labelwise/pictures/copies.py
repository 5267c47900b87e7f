"""Copies: whether one photo lies on another, mirrored, cropped, turned or recoloured.

A :class:`Pattern` is the grey photo squeezed to a square, less the mean of its neighbourhood and
divided by its spread, and less the means of its rows and columns, so that light, contrast, colour
and horizons drop out. One pattern is laid on the other, as it is, mirrored and turned by 5 degrees
either way, at sizes from 1 to 1/2 and at every shift; of overlaps of half of the smaller one

    evidence = atanh(r) sqrt(places / 9 - 3)        r: correlation over the overlap, Fisher's z

(9 places count as one, since neighbours are alike). Two things on plain ground agree in few places:
at most 2.5 sum a^2 sum b^2 / sum a^2 b^2 of them count. Different photos reach 3 to 5.7; photos are
copies from LINE on. Every way to lay them is tried at COARSE places a side, where spreads are
nearly the same everywhere and one product of Fourier transforms gives all shifts; the best few are
correlated exactly at FINE places (:func:`evidence`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.base.groups import joined_rows
from labelwise.pictures.duplicates import KEPT, near_groups

Plane = NDArray[np.float32]

LINE = 6.0
COARSE, FINE = 24, 48
SOURCE = 2 * FINE  # pixels a side from which patterns are made
LEAST = 0.45  # of the places of the smaller one that overlap
STEP, SIZES = 0.93, 11  # sizes from 1 to about 1/2
TURN = 5  # degrees
SPREAD_OUT = 2.5  # sum a^2 sum b^2 / sum a^2 b^2 of natural photos is their places divided by it
TRIED = 3  # ways to lay a pair that are looked at closely
NEAREST = 3  # photos that each one is compared with
IN_MEMORY = 1000  # patterns
PROMISING = 2.7  # coarse evidence below which nothing is looked at closely


@dataclass(frozen=True, eq=False)
class Pattern:
    """A photo prepared for comparisons: its four forms, as Fourier transforms and as pixels."""

    forms: tuple[Image.Image, ...]
    whole: NDArray[np.complex64]  # (4, 2 COARSE, COARSE + 1): forms at full size
    laid: NDArray[np.complex64]  # (SIZES, 2 COARSE, COARSE + 1): the photo at each size
    spread: float  # root mean square of the coarse band
    fine: dict[tuple[int, int], Plane]  # bands by form and side, once asked for

    @classmethod
    def of(cls, picture: Image.Image) -> "Pattern":
        from scipy.fft import rfft2

        grey = picture.convert("L").resize((SOURCE, SOURCE), Image.Resampling.BOX)
        near, far = round(0.07 * SOURCE), round(0.93 * SOURCE)
        turned = (
            grey.rotate(angle, Image.Resampling.BICUBIC).crop((near, near, far, far))
            for angle in (TURN, -TURN)
        )
        forms = (grey, grey.transpose(Image.Transpose.FLIP_LEFT_RIGHT), *turned)
        space = (2 * COARSE, 2 * COARSE)
        bands = np.stack([_band(form, COARSE) for form in forms])
        laid = [rfft2(_band(grey, size), space) for size in _sizes(COARSE)]
        spread = float(np.sqrt(np.mean(np.square(bands[0]))))
        return cls(forms, rfft2(bands, space), np.conj(np.stack(laid)), spread, {})

    def band(self, form: int, side: int) -> Plane:
        """Return the band of a form at ``side`` places."""
        if (form, side) not in self.fine:
            self.fine[form, side] = _band(self.forms[form], side)
        return self.fine[form, side]


def _sizes(side: int) -> list[int]:
    return [round(side * STEP**power) for power in range(SIZES)]


def _band(picture: Image.Image, side: int) -> Plane:
    from scipy.ndimage import uniform_filter

    values = np.asarray(picture.resize((side, side), Image.Resampling.BOX), np.float32)
    near = 9 if side > COARSE else 7
    mean = uniform_filter(values, near, mode="nearest")
    square = uniform_filter(values * values, near, mode="nearest")
    values = (values - mean) / (np.sqrt(np.maximum(square - mean * mean, 0)) + 4)
    values -= values.mean(1, keepdims=True)
    return np.asarray(values - values.mean(0, keepdims=True), np.float32)


@cache
def _weights() -> Plane:
    """Return what makes a sum of products coarse evidence, (SIZES, 2 COARSE, 2 COARSE)."""
    from scipy.fft import irfft2, rfft2

    space = (2 * COARSE, 2 * COARSE)
    whole = rfft2(np.ones((COARSE, COARSE), np.float32), space)
    masks = [np.conj(rfft2(np.ones((size, size), np.float32), space)) for size in _sizes(COARSE)]
    places = np.maximum(np.round(irfft2(whole * np.stack(masks), space)), 1)
    enough = places >= LEAST * np.square(_sizes(COARSE))[:, None, None]
    return np.asarray(np.where(enough, 1 / np.sqrt(places), 0), np.float32)


def evidence(one: Pattern, other: Pattern) -> float:
    """Return the evidence that one photo is a copy of the other."""
    from scipy.fft import irfft2

    space, best = (2 * COARSE, 2 * COARSE), 0.0
    stacked = np.stack([one.whole[:, None] * other.laid, other.whole[:, None] * one.laid])
    found = irfft2(stacked, space)  # (2, 4, SIZES, shifts)
    found *= _weights()
    flat = found.reshape(8 * SIZES, -1)
    peaks = flat.max(1) / max(3 * one.spread * other.spread, 1e-6)
    for way in np.argsort(-peaks)[:TRIED]:
        if peaks[way] < PROMISING:
            break
        turn, form, size = np.unravel_index(way, (2, 4, SIZES))
        shift = np.unravel_index(int(flat[way].argmax()), space)
        pair = (one, other) if turn == 0 else (other, one)
        best = max(best, _close(*pair, int(form), int(size), shift))
    return best


def _close(whole: Pattern, laid: Pattern, form: int, size: int, shift: Any) -> float:
    """Return the evidence at FINE places near a coarse way to lay one on the other."""
    ground, best, scale = whole.band(form, FINE), 0.0, FINE // COARSE
    start = [(int(at) + COARSE) % (2 * COARSE) - COARSE for at in shift]
    for side in {_sizes(FINE)[at] for at in (size - 1, size, size + 1) if 0 <= at < SIZES}:
        top = laid.band(0, side)
        centre = [scale * at + (scale * _sizes(COARSE)[size] - side) / 2 for at in start]
        rows, columns = (range(round(at) - 1, round(at) + 2) for at in centre)
        for row in rows:
            for column in columns:
                best = max(best, _at(ground, top, row, column))
    return best


def _at(ground: Plane, top: Plane, row: int, column: int) -> float:
    side = len(top)
    a = ground[max(row, 0) : row + side, max(column, 0) : column + side]
    if a.size < LEAST * side * side:
        return 0.0
    b = top[max(-row, 0) :, max(-column, 0) :][: a.shape[0], : a.shape[1]]
    a, b = a - a.mean(), b - b.mean()
    squares = float(np.vdot(a, a) * np.vdot(b, b))
    r = float(np.vdot(a, b)) / max(squares**0.5, 1e-2)
    places = min(a.size, SPREAD_OUT * squares / max(float(np.vdot(a * a, b * b)), 1e-9))
    return float(np.arctanh(min(r, 0.999)) * max(places / 9 - 3, 0) ** 0.5)


def copied_groups(
    looks: NDArray[np.float32], pattern_of: Callable[[int], Pattern], least: float
) -> NDArray[np.int64]:
    """Return the earliest photo (n,) that a chain of copies joins each photo to.

    Photos are compared whose fingerprints (n, D), or those of their mirror images, have a cosine
    of ``least``: each with the NEAREST of its own.
    """
    count, held = len(looks), lru_cache(IN_MEMORY)(pattern_of)
    chains = near_groups(np.concatenate([looks, mirrored(looks)]), least)
    same = np.stack([np.arange(count), np.arange(count) + count], 1)
    chains, pairs = joined_rows(chains, same)[:count], set()
    order = np.argsort(chains, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(chains[order])) + 1):
        for row in rows.tolist() if len(rows) > 1 else ():
            alike = np.maximum(looks[rows] @ looks[row], mirrored(looks[rows]) @ looks[row])
            alike[rows == row] = -1
            nearest = np.argsort(-alike, kind="stable")[:NEAREST]
            others = rows[nearest[alike[nearest] >= least]].tolist()
            pairs |= {(min(row, other), max(row, other)) for other in others}
    sure = [pair for pair in sorted(pairs) if evidence(*map(held, pair)) >= LINE]
    return joined_rows(np.arange(count), np.array(sure, np.int64).reshape(-1, 2))


def mirrored(looks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the fingerprints (n, D) of mirror images: waves of odd number change their sign."""
    signs = np.where(np.arange(KEPT) % 2, -1.0, 1.0)
    return looks * np.tile(signs, KEPT)[1:].astype(np.float32)
