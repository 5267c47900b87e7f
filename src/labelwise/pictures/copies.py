"""Copies: whether one photo lies on another, mirrored, cropped, turned or recoloured.

A :class:`Pattern` is the grey photo squeezed to a square, less the mean of its neighbourhood and
divided by its spread, and less the means of its rows and columns, so that light, contrast, colour
and horizons drop out. One pattern is laid on the other, as it is, mirrored and turned by 5 degrees
either way, at sizes from 1 to 1/2 and at every shift; of overlaps of half of the smaller one

    evidence = atanh(r) sqrt(places / 9 - 3)        r: correlation over the overlap, Fisher's z

(9 places count as one, since neighbours are alike, and more in blurred photos; of a small photo 9
of its pixels do). Two things on plain ground agree in few places: at most 2.5 sum a^2 sum b^2 /
sum a^2 b^2 of them count. Every way to lay them is tried at COARSE places a side, where one product
of Fourier transforms gives all shifts; the best few are correlated exactly at FINE places, and the
best of these again at SOURCE places. The detail that is seen there first took no part in the
choice: copies agree in it, and what agreed by chance does not. Different photos reach 3 to 5.3,
three in 8 million pairs more; photos are copies from LINE on.

Only photos that another kind of evidence calls alike are laid on each other: their features by a
network (:func:`alike_by_features`), or their fingerprints (:func:`alike_by_looks`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.base.arrays import Floats
from labelwise.base.groups import joined_rows
from labelwise.errors import LabelwiseError
from labelwise.pictures.duplicates import KEPT, NEAR
from labelwise.pictures.sources import ImageSource

Plane = NDArray[np.float32]
Rows = NDArray[np.int64]

LINE = 6.0
COARSE, FINE, SOURCE = 24, 48, 96  # places a side; patterns are made of SOURCE pixels
LEAST = 0.45  # of the places of the smaller one that overlap
STEP, SIZES = 0.93, 11  # sizes from 1 to about 1/2
TURN = 5  # degrees
SPREAD_OUT = 2.5  # sum a^2 sum b^2 / sum a^2 b^2 of natural photos is their places divided by it
TRIED = 3  # ways to lay a pair that are looked at closely
NEAREST = 3  # photos that each one is compared with
IN_MEMORY = 1000  # patterns
PROMISING = 2.7  # coarse evidence below which nothing is looked at closely
DOUBTFUL, SURE = 2.8, 8.0  # evidence at FINE places between which SOURCE places decide
ALIKE = 0.5  # cosine of features, less their mean
FEW = 64  # photos whose mean says little: the nearest of each are compared, however far
ROWS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class Pattern:
    """A photo prepared for comparisons: its four forms, as Fourier transforms and as pixels."""

    forms: tuple[Image.Image, ...]
    whole: NDArray[np.complex64]  # (4, 2 COARSE, COARSE + 1): forms at full size
    laid: NDArray[np.complex64]  # (SIZES, 2 COARSE, COARSE + 1): the photo at each size
    spread: float  # root mean square of the coarse band
    pixels: int  # of the photo: a small one has no more places than these
    bands: dict[tuple[int, int], Plane]  # by form and side, once asked for

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
        laid = np.zeros((SIZES, *space), np.float32)
        for number, size in enumerate(_sizes(COARSE)):
            laid[number, :size, :size] = _band(grey, size)
        spread = float(np.sqrt(np.mean(np.square(bands[0]))))
        pixels = picture.width * picture.height
        return cls(forms, rfft2(bands, space), np.conj(rfft2(laid)), spread, pixels, {})

    def band(self, form: int, side: int) -> Plane:
        """Return the band of a form at ``side`` places."""
        if (form, side) not in self.bands:
            self.bands[form, side] = _band(self.forms[form], side)
        return self.bands[form, side]


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


class Laid(NamedTuple):
    """How one photo lies on a form of another: its centre and size in sides of the other."""

    evidence: float
    row: float
    column: float
    size: float


def evidence(one: Pattern, other: Pattern) -> float:
    """Return the evidence that one photo is a copy of the other."""
    from scipy.fft import irfft2

    space = (2 * COARSE, 2 * COARSE)
    stacked = np.stack([one.whole[:, None] * other.laid, other.whole[:, None] * one.laid])
    sums = irfft2(stacked, space)  # (2, 4, SIZES, shifts)
    sums *= _weights()
    flat = sums.reshape(8 * SIZES, -1)
    peaks = flat.max(1) / max(3 * one.spread * other.spread, 1e-6)
    ways = []
    for way in np.argsort(-peaks)[:TRIED]:
        if peaks[way] < PROMISING:
            break
        turn, form, size = (int(at) for at in np.unravel_index(way, (2, 4, SIZES)))
        pair = (one, other) if turn == 0 else (other, one)
        side, shift = _sizes(COARSE)[size], np.unravel_index(int(flat[way].argmax()), space)
        row, column = ((int(at) + COARSE) % (2 * COARSE) - COARSE + side / 2 for at in shift)
        start = Laid(0.0, row / COARSE, column / COARSE, side / COARSE)
        ways.append((_near(*pair, form, start, FINE, STEP, 1), pair, form))
        if ways[-1][0].evidence >= SURE:
            break
    if not ways:
        return 0.0
    best, pair, form = max(ways, key=lambda way: way[0].evidence)
    if DOUBTFUL <= best.evidence < SURE:
        best = _near(*pair, form, best, SOURCE, 0.97, 1)
        best = _near(*pair, form, best, SOURCE, 0.985, 1)
    return best.evidence


def _near(
    whole: Pattern, laid: Pattern, form: int, start: Laid, side: int, step: float, reach: int
) -> Laid:
    """Return the best way to lay one on the other at ``side`` places, near one that is known."""
    ground, best, most = whole.band(form, side), start._replace(evidence=0.0), 0.0
    shared: tuple[Plane, Plane] | None = None
    for size in {round(side * min(1.0, start.size * step**power)) for power in (-1, 0, 1)}:
        top = laid.band(0, size)
        first = round(start.row * side - size / 2), round(start.column * side - size / 2)
        rows, columns = (range(at - reach, at + reach + 1) for at in first)
        for row in rows:
            for column in columns:
                a, b = _overlap(ground, top, row, column)
                if a.size >= LEAST * size * size and (told := _evidence(a, b, a.size / 9)) > most:
                    centre = (row + size / 2) / side, (column + size / 2) / side
                    best, most, shared = Laid(told, *centre, size / side), told, (a, b)
    if shared is None:
        return best
    seen = min(whole.pixels, laid.pixels) * shared[0].size / side**2 / 9
    return best._replace(evidence=_evidence(*shared, min(seen, _independent(*shared))))


def _overlap(ground: Plane, top: Plane, row: int, column: int) -> tuple[Plane, Plane]:
    side = len(top)
    a = ground[max(row, 0) : row + side, max(column, 0) : column + side]
    b = top[max(-row, 0) :, max(-column, 0) :][: a.shape[0], : a.shape[1]]
    return a - a.mean(), b - b.mean()


def _evidence(a: Plane, b: Plane, most: float) -> float:
    """Return the evidence of an overlap of which ``most`` places count, or fewer."""
    products = a * b
    squares = float(np.vdot(a, a) * np.vdot(b, b))
    r = float(products.sum()) / max(squares**0.5, 1e-2)
    spread = SPREAD_OUT * squares / max(float(np.vdot(products, products)), 1e-9)
    return float(np.arctanh(min(r, 0.999)) * max(min(most, spread / 9) - 3, 0) ** 0.5)


def _independent(a: Plane, b: Plane) -> float:
    """Return how many places of two bands are independent: 1 / variance of r by chance.

    Of bands with the power spectra P and Q that is sum P sum Q / sum P Q; at most a place of 9.
    """
    from scipy.fft import rfft2

    one, other = (np.abs(rfft2(side)) ** 2 for side in (a, b))
    shared = float(one.sum()) * float(other.sum()) / max(float(np.vdot(one, other)), 1e-9)
    return min(2 * shared, a.size / 9)


def alike_by_features(features: Floats, known: int | None = None) -> Rows:
    """Return pairs (P, 2) of photos whose features (n, D) are alike, the lower row first.

    Each photo is paired with the NEAREST of the others or, from row ``known`` on, of those before
    it, if the cosine of their features less the mean is ALIKE.
    """
    moved = np.asarray(features, np.float32) - np.mean(features, 0, dtype=np.float64)
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    units = np.asarray(moved / np.where(lengths > 0, lengths, 1), np.float32)
    return _nearest((units,), ALIKE if len(units) > FEW else -1.0, known)


def alike_by_looks(looks: NDArray[np.float32], known: int | None = None) -> Rows:
    """Return such pairs of photos whose fingerprints (n, D), or mirror images, have NEAR."""
    return _nearest((looks, mirrored(looks)), NEAR, known)


def _nearest(views: tuple[NDArray[np.float32], ...], least: float, known: int | None) -> Rows:
    whole, pairs = views[0], []
    others = whole[:known]
    for start in range(known or 0, len(whole), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(whole)))
        alike = np.maximum.reduce([view[rows] @ others.T for view in views])
        if known is None:
            alike[np.arange(len(rows)), rows] = -2.0
        near = np.argpartition(-alike, min(NEAREST, alike.shape[1]) - 1, axis=1)[:, :NEAREST]
        at, column = np.nonzero(np.take_along_axis(alike, near, 1) >= least)
        pairs.append(np.sort(np.stack([near[at, column], rows[at]], 1), axis=1))
    return np.unique(np.concatenate([np.empty((0, 2), np.int64), *pairs]), axis=0)


def copied_pairs(
    pairs: Rows, pattern_of: Callable[[int], Pattern | None]
) -> tuple[Rows, NDArray[np.float64]]:
    """Return those of pairs (P, 2) of photos that are copies, and the evidence of each (C,).

    ``pattern_of`` a photo that cannot be read is None, which is a copy of nothing.
    """
    held = lru_cache(IN_MEMORY)(pattern_of)
    told = np.zeros(len(pairs))
    for number, (row, other) in enumerate(pairs.tolist()):
        one, two = held(row), held(other)
        told[number] = 0.0 if one is None or two is None else evidence(one, two)
    sure = told >= LINE
    return pairs[sure], told[sure]


def copied_groups(count: int, pairs: Rows) -> Rows:
    """Return the earliest photo (n,) that a chain of copies joins each photo to."""
    return joined_rows(np.arange(count), pairs)


def mirrored(looks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the fingerprints (n, D) of mirror images: waves of odd number change their sign."""
    signs = np.where(np.arange(KEPT) % 2, -1.0, 1.0)
    return looks * np.tile(signs, KEPT)[1:].astype(np.float32)


def reader(photos: ImageSource) -> Callable[[int], Pattern | None]:
    """Return what reads the pattern of a photo by its row: None where it cannot be read."""

    def read(row: int) -> Pattern | None:
        try:
            with photos.read(row, SOURCE) as picture:
                return Pattern.of(picture)
        except (LabelwiseError, OSError):
            return None

    return read
