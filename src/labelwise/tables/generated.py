"""Embedded sets, made from a seed: ``scenes`` (images) and ``posterior`` (features).

scenes: handwritten digits of UCI pasted onto cluttered canvases; no handwriting is in two splits. A
scene holds 0 to 5 digits. Popularity falls from 0 to 9, and a digit likes to bring its partner (1
and 7, 3 and 8, ...). Scenes are drawn in chunks, each from its own seed: a larger set begins with
the smaller one, and chunks run in parallel.

posterior: features x whose true label probabilities eta(x) are known in closed form.

    x ~ N(0, I),  logit eta_k(x) = b_k + spread * w_k . x,  |w_k| = 1
    y_k = 1  where  Phi(sqrt(rho) c + sqrt(1 - rho) e_k) < eta_k(x),  c, e_k ~ N(0, 1)

Every w_k leans towards the first feature, which makes the labels correlated; rho > 0 adds a
correlation that x does not explain and leaves P(y_k = 1 | x) = eta_k(x) as it is. b_k is solved
so that P(y_k = 1) falls evenly in log from ``most`` to ``least``.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from labelwise.base.special import expit, ndtr
from labelwise.pictures.memory import ArrayImages, FeatureRows
from labelwise.tables.table import SPLITS, LabelTable
from labelwise.types import LabelSpace

CHUNK = 256
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHARES = (0.6, 0.2, 0.2)  # of the handwriting, for train, val and test
COUNT_CHANCE = (0.15, 0.25, 0.25, 0.18, 0.11, 0.06)  # of 0, 1, ... 5 digits in a scene
POPULARITY = np.array([0.20, 0.17, 0.14, 0.12, 0.10, 0.08, 0.07, 0.05, 0.04, 0.03])
PARTNER = np.array([6, 7, 5, 8, 9, 2, 0, 1, 3, 4])
PARTNER_CHANCE = 0.4
SIDES = np.array([14, 16, 18, 20, 22])  # of a digit, in pixels
PLACES_TRIED = 6  # the place with the least overlap is taken
STROKES = 3  # bars of clutter per scene
CONTRAST = 0.3  # least distance in brightness between a digit and the page behind it


def scenes(
    num_train: int = 12_000,
    num_val: int = 2_000,
    num_test: int = 2_000,
    *,
    size: int = 48,
    seed: int = 0,
    threads: int = 2,
) -> LabelTable:
    """Return scenes of ``size`` by ``size`` pixels with ten labels, the same for the same seed."""
    if size < 32:
        raise ValueError(f"size must be at least 32, got {size}")
    sizes = (num_train, num_val, num_test)
    pixels = np.empty((sum(sizes), size, size, 3), np.uint8)
    labels = np.empty((sum(sizes), 10), np.bool_)
    jobs = [
        (number, chunk, slice(start + first, start + min(first + CHUNK, rows)))
        for number, (start, rows) in enumerate(zip(np.cumsum((0, *sizes)), sizes, strict=False))
        for chunk, first in enumerate(range(0, rows, CHUNK))
    ]
    handwriting = _handwriting(seed)
    grid = (np.arange(8) - 3.5).astype(np.float32)
    angle = np.arange(16)[:, None, None] * np.pi / 16
    across = np.cos(angle) * grid[:, None] + np.sin(angle) * grid
    strokes = _boxes(np.clip(1.2 - np.abs(across), 0, 1).astype(np.float32))

    def draw(job: tuple[int, int, slice]) -> None:
        number, chunk, span = job
        rng = np.random.default_rng(np.random.SeedSequence((seed, number, chunk)))
        drawn, there = _draw(rng, handwriting[number], strokes, size)
        rows = span.stop - span.start
        pixels[span], labels[span] = drawn[:rows], there[:rows]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, jobs))
    counted = zip(SPLITS, sizes, strict=True)
    ids = [f"{split}/{row:06d}" for split, rows in counted for row in range(rows)]
    return LabelTable.from_arrays(
        LabelSpace(DIGITS),
        ArrayImages(pixels, ids),
        labels,
        split=np.repeat(SPLITS, sizes),
        name="scenes",
    )


def _handwriting(seed: int) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Return, for train, val and test, the digit images (n, 8, 8) in [0, 1] sorted by digit."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:  # UCI's, by E. Alpaydin, CC BY
        images, digits = file["images"], file["digits"]
    rng = np.random.default_rng((seed, 1797))
    parts: list[list[NDArray[np.int64]]] = [[], [], []]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(digits == digit))
        ends = np.round(np.cumsum(SHARES) * len(rows)).astype(int)[:-1]
        for chunks, chosen in zip(parts, np.split(rows, ends), strict=True):
            chunks.append(chosen)
    pixels = images.astype(np.float32) / 16
    return [
        (_boxes(pixels[np.concatenate(chunks)]), np.cumsum([0, *map(len, chunks)]))
        for chunks in parts
    ]


def _boxes(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (sides, n, S, S): 8x8 masks at each side, in a corner of the largest box."""
    largest = int(SIDES.max())
    boxes = np.zeros((len(SIDES), len(pixels), largest, largest), np.float32)
    for level, side in enumerate(SIDES):
        # Linear interpolation of 8 pixels to this side.
        at = np.clip((np.arange(side) + 0.5) * 8 / int(side) - 0.5, 0, 7)[:, None]
        stretch = np.maximum(0, 1 - np.abs(at - np.arange(8))).astype(np.float32)
        boxes[level, :, :side, :side] = stretch @ pixels @ stretch.T
    return boxes


def _draw(
    rng: np.random.Generator,
    handwriting: tuple[NDArray[np.float32], NDArray[np.int64]],
    strokes: NDArray[np.float32],
    size: int,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    boxes, starts = handwriting
    digits = rng.choice(10, (CHUNK, 5), p=POPULARITY)
    follows = rng.random((CHUNK, 5)) < PARTNER_CHANCE
    for slot in range(1, 5):
        partner = PARTNER[digits[:, slot - 1]]
        digits[:, slot] = np.where(follows[:, slot], partner, digits[:, slot])
    used = np.arange(5) < rng.choice(6, CHUNK, p=COUNT_CHANCE)[:, None]
    room = int(SIDES.max())
    canvas = np.zeros((CHUNK, 3, size + room, size + room), np.float32)
    canvas[:, :, :size, :size] = _page(rng, size)
    everyone = np.arange(CHUNK)
    for _ in range(STROKES):
        level = rng.integers(len(SIDES), size=CHUNK)
        corner = rng.integers(size - SIDES[level][:, None] // 2, size=(CHUNK, 2))
        mask = strokes[level, rng.integers(strokes.shape[1], size=CHUNK)]
        _paste(canvas, everyone, corner, 0.7 * mask, rng.random((CHUNK, 3), np.float32))
    placed = np.zeros((CHUNK, 0, 3), np.int64)
    for slot in range(5):
        level = rng.integers(len(SIDES), size=CHUNK)
        digit = digits[:, slot]
        sample = starts[digit] + rng.integers(np.diff(starts)[digit])
        corner = _least_overlap(rng, placed, SIDES[level], size)
        placed = np.concatenate([placed, np.c_[corner, SIDES[level]][:, None]], 1)
        colours = rng.random((CHUNK, 3), np.float32)
        rows = np.flatnonzero(used[:, slot])
        middle = corner[rows] + SIDES[level[rows], None] // 2
        page = canvas[rows, :, middle[:, 0], middle[:, 1]].mean(1)
        ink = _contrasting(colours[rows], page)
        _paste(canvas, rows, corner[rows], boxes[level[rows], sample[rows]], ink)
    labels = np.zeros((CHUNK, 10), np.bool_)
    labels[np.nonzero(used)[0], digits[used]] = True
    page = canvas[:, :, :size, :size]
    speck = np.frombuffer(rng.bytes(page.size), np.uint8).reshape(page.shape)
    noise = (speck >> 4).view(np.int8) - (speck & 15).view(np.int8)  # from -15 to 15
    bright = np.clip(page * np.float32(255) + noise, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(bright.transpose(0, 2, 3, 1)), labels


def _page(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    colour = rng.random((CHUNK, 3, 1, 1), np.float32)
    coarse = 0.7 * colour + 0.3 * rng.random((CHUNK, 3, 4, 4), np.float32)
    at = np.linspace(0, 3, size, dtype=np.float32)
    before = np.minimum(at.astype(np.int64), 2)
    after = at - before
    # Not a matrix product: BLAS threads inside our own threads only wait for each other.
    wide = coarse[..., before] + np.diff(coarse)[..., before] * after
    return np.diff(wide, axis=2)[:, :, before] * after[:, None] + wide[:, :, before]


def _least_overlap(
    rng: np.random.Generator, placed: NDArray[np.int64], side: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Return the corner (CHUNK, 2), of a few tried, whose box overlaps the placed ones least."""
    tried = rng.integers(size - side[:, None, None] + 1, size=(CHUNK, PLACES_TRIED, 2))
    low = np.maximum(tried[:, :, None], placed[:, None, :, :2])
    ends = placed[:, None, :, :2] + placed[:, None, :, 2:]
    high = np.minimum(tried[:, :, None] + side[:, None, None, None], ends)
    overlap = np.clip(high - low, 0, None).prod(-1).sum(-1)
    return np.asarray(tried[np.arange(CHUNK), overlap.argmin(1)])


def _contrasting(colours: NDArray[np.float32], page: NDArray[np.float32]) -> NDArray[np.float32]:
    dark = (page < 0.5)[:, None]
    more = page[:, None] + np.where(dark, CONTRAST, -CONTRAST) - colours.mean(1, keepdims=True)
    lacking = np.where(dark, np.maximum(more, 0), np.minimum(more, 0))
    return np.asarray(np.clip(colours + lacking, 0, 1))


def _paste(
    canvas: NDArray[np.float32],
    rows: NDArray[np.int64],
    corner: NDArray[np.int64],
    mask: NDArray[np.float32],
    colour: NDArray[np.float32],
) -> None:
    """Blend a colour through a mask into some canvases, each at its own corner."""
    windows = sliding_window_view(canvas, mask.shape[1:], axis=(2, 3), writeable=True)
    there = (rows, slice(None), corner[:, 0], corner[:, 1])
    windows[there] += mask[:, None] * (colour[:, :, None, None] - windows[there])


@dataclass(frozen=True, eq=False)
class PosteriorData:
    """A table of features, and the true probability of every label in it, (N, K)."""

    table: LabelTable
    eta: NDArray[np.float64]


def posterior(
    num_train: int = 20_000,
    num_val: int = 5_000,
    num_test: int = 5_000,
    *,
    num_labels: int = 20,
    num_features: int = 16,
    most: float = 0.3,
    least: float = 0.01,
    spread: float = 2.0,
    rho: float = 0.0,
    seed: int = 0,
) -> PosteriorData:
    """Return correlated labels with priors from ``most`` down to ``least``, and their eta."""
    if not 0 < least <= most < 1:
        raise ValueError(f"priors must satisfy 0 < least <= most < 1, got {least} and {most}")
    if not 0 <= rho < 1:
        raise ValueError(f"rho must be in [0, 1), got {rho}")
    world, *draws = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)
    )
    weights = 0.5 * world.standard_normal((num_labels, num_features)) / sqrt(num_features)
    weights[:, 0] += 0.5
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    offsets = _offsets(np.geomspace(most, least, num_labels), spread)
    sizes = (num_train, num_val, num_test)
    features, eta, labels = [], [], []
    for rng, size in zip(draws, sizes, strict=True):
        x = rng.standard_normal((size, num_features), dtype=np.float32)
        chance = expit(offsets + spread * x.astype(np.float64) @ weights.T)
        common = sqrt(rho) * rng.standard_normal((size, 1))
        own = sqrt(1 - rho) * rng.standard_normal((size, num_labels))
        features.append(x)
        eta.append(chance)
        labels.append(ndtr(common + own) < chance)
    table = LabelTable.from_arrays(
        LabelSpace(tuple(f"label{label:02d}" for label in range(num_labels))),
        FeatureRows(np.concatenate(features)),
        np.concatenate(labels),
        split=np.repeat(SPLITS, sizes),
        name="posterior",
    )
    return PosteriorData(table, np.concatenate(eta))


def _offsets(priors: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Return b where the mean of expit(b + spread z), z ~ N(0, 1), is the prior, by bisection."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(64)
    mass = mass / mass.sum()
    low, high = np.full_like(priors, -60.0), np.full_like(priors, 60.0)
    for _ in range(80):
        middle = (low + high) / 2
        over = expit(middle[:, None] + spread * nodes) @ mass > priors
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return (low + high) / 2
