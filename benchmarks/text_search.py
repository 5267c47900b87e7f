"""Photos ranked by a text: exact, beside measuring every photo and beside what memory allows.

    python benchmarks/text_search.py --photos 1000000 --features embeddings --model all-MiniLM-L6-v2

One run times, on the same photos and texts: ``farthest_rows`` with fronts (what ``labelwise search
--text`` does); the same without them, which measures every float16 embedding; the product by NumPy
on a float32 copy in memory; and reading the fronts once without computing anything of them. Each
is the best of several rounds, taken in turns: on the clock, and time of processors, which depends
less on what else the machine does. It says what share of the photos was measured, and stops if
the answers differ.

``--features`` is the folder ``embeddings`` of a run of ``labelwise start`` and ``--model`` its
sentence encoder: its photos' features, and COCO's label names as texts. A library of a million is
made of them: each photo is the mean of two, drawn at random, and noise of a tenth of the spread.
That is not a real library. ``--real`` takes the photos as they are, however few, and only says what
share must be measured for the best in 1,000. Without ``--features``, vectors are normal.

``--products`` only times the first pass, by one thread, on random numbers: the product of
128 floats as it was, that of the fronts with three digits of a text, and reading either.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.numeric.small_products import SmallColumns, _by_numpy
from labelwise.photos import look_alikes
from labelwise.photos.checksums import CacheFiles
from labelwise.photos.fronts import LENGTHS, Fronts, front_values, fronts_of, main_axes, units_of
from labelwise.photos.look_alikes import Projection, farthest_rows
from labelwise.photos.words import ClassesAndWords
from labelwise.photos.words.word_list import usual_texts

WIDTH, COUNT = 256, 100
TEXTS = (
    *("dog", "cat", "bicycle", "umbrella", "pizza", "train", "kite", "sofa", "laptop", "giraffe"),
    *("a red bicycle against a wall", "a dog on a beach", "people at a party", "snowy mountains"),
)
NOTHING = np.empty(0, np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--features", type=Path, help="folder embeddings of a run")
    parser.add_argument("--model", type=Path, help="folder of its sentence encoder")
    parser.add_argument("--real", action="store_true", help="the photos as they are")
    parser.add_argument("--products", action="store_true", help="kinds of first passes alone")
    given = parser.parse_args()
    if given.products:
        products(given.photos, given.rounds)
        return
    if (given.features is None) != (given.model is None) or (given.real and not given.features):
        parser.error("--features and --model go together, and --real needs both")
    random = np.random.default_rng(0)
    project: Projection | None = None
    with tempfile.TemporaryDirectory() as folder:
        if given.features is None:
            texts = random.standard_normal((len(TEXTS), WIDTH))
            own = random.standard_normal((5000, WIDTH), np.float32)
        else:
            own = read_features(given.features)
            project = Projection.fitted(own)
            model = ClassesAndWords(given.model, cache=Path(folder))
            described = [usual_texts(one) if " " not in one else (one,) for one in TEXTS]
            texts = model.texts.directions(described).numpy().T @ project.numbers[1:].T
        if given.real and project is not None:
            shares(project(own), texts)
        else:
            library = written(Path(folder) / "embeddings", given.photos, own, project, random)
            measure(library, texts, given.rounds, Path(folder))


def read_features(folder: Path) -> NDArray[np.float32]:
    """Return the features of all photos of a run."""
    parts = []
    for path in sorted(folder.glob("**/*.npz")):
        with np.load(path) as arrays:
            parts.append(arrays["features"])
    return np.concatenate(parts)


def written(
    path: Path,
    photos: int,
    own: NDArray[np.float32],
    project: Projection | None,
    random: np.random.Generator,
) -> NDArray[np.float16]:
    """Return the mapped embeddings of a library that is made of some features."""
    spread = own.std(axis=0)
    library = np.memmap(path, np.float16, "w+", shape=(photos, WIDTH))
    for start in range(0, photos, 1 << 15):
        rows = min(1 << 15, photos - start)
        if project is None:
            part = random.standard_normal((rows, WIDTH), np.float32)
            library[start : start + rows] = part / np.linalg.norm(part, axis=1, keepdims=True)
        else:
            one, other = (own[random.integers(0, len(own), rows)] for _ in range(2))
            noise = random.standard_normal(one.shape, np.float32) * (0.1 * spread)
            library[start : start + rows] = project((one + other) / 2 + noise)
    library.flush()
    return np.memmap(path, np.float16, "r", shape=(photos, WIDTH)).view(np.ndarray)


def shares(embeddings: NDArray[np.float16], texts: NDArray[np.float64]) -> None:
    """Say what share of real photos has ceilings that reach the best in 1,000."""
    axes = main_axes(embeddings, 3 * WIDTH // 4 - LENGTHS)
    units = units_of(embeddings, axes)
    fronts = Fronts(axes, units, front_values(embeddings, axes, units))
    found = []
    for text in texts / np.linalg.norm(texts, axis=1, keepdims=True):
        cosines = np.sort(embeddings.astype(np.float64) @ text)[::-1]
        query, ceilings = fronts.query(text), np.empty(len(embeddings), np.int32)
        fronts.write_ceilings(query, ceilings, 0, len(ceilings))
        ceilings = ceilings * query.unit
        found.append(float((ceilings >= cosines[max(1, len(cosines) // 1000) - 1]).mean()))
    middle, most = np.median(found), max(found)
    print(
        f"{len(embeddings):,} photos: measured {middle:.1%} (median of texts), {most:.1%} at most"
    )


def products(photos: int, rounds: int) -> None:
    """Time products of (photos, 128 or 192) numbers with one text, in turns."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    wide = random.standard_normal((photos, WIDTH // 2), np.float32)
    text = random.standard_normal(WIDTH // 2).astype(np.float32)
    small = random.integers(-127, 128, (photos, 3 * WIDTH // 4)).astype(np.int8)
    columns = small[:3].copy()
    ways: dict[str, Callable[[], object]] = {
        "128 float32, NumPy": lambda: wide @ text,
        "reading 128 float32": lambda: wide.view(np.int64).max(),
        "192 int8, numkong": lambda: SmallColumns(columns).products(small),
        "192 int8, widened for NumPy": lambda: _by_numpy(small, columns),
        "reading 192 int8": lambda: small.view(np.int64).max(),
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            clock, spent = perf_counter(), process_time()
            way()
            took[name].append((perf_counter() - clock, process_time() - spent))
    for name, times in took.items():
        clock, spent = (1e3 * min(column) for column in zip(*times, strict=True))
        print(f"{name:<28} {clock:6.0f} ms on the clock {spent:6.0f} ms of processors")


def measure(
    library: NDArray[np.float16], texts: NDArray[np.float64], rounds: int, folder: Path
) -> None:
    begin = perf_counter()
    fronts = fronts_of(CacheFiles(folder), library)
    print(f"fronts made once in {perf_counter() - begin:.0f} s", flush=True)
    wide = library.astype(np.float32)
    narrow = [(text / np.linalg.norm(text)).astype(np.float32) for text in texts]
    ways: dict[str, Callable[[int], object]] = {
        "search --text": lambda n: farthest_rows(texts[n], library, COUNT, NOTHING, fronts=fronts)[
            0
        ],
        "every photo measured": lambda n: farthest_rows(texts[n], library, COUNT, NOTHING)[0],
        "NumPy, float32": lambda n: np.argpartition(-(wide @ narrow[n]), COUNT - 1)[:COUNT],
        "reading the fronts": lambda _: fronts.values.view(np.int64).max(),
    }
    for n in range(len(texts)):
        own, other = (np.asarray(way(n)).tolist() for way in list(ways.values())[:2])
        assert own == other, f"{TEXTS[n]}: the answers differ"
    looked = [
        len(
            look_alikes._possible_rows(
                text / np.linalg.norm(text), library, COUNT, NOTHING, None, fronts
            )
        )
        for text in texts
    ]
    clock: dict[str, list[list[float]]] = {name: [[] for _ in texts] for name in ways}
    spent: dict[str, list[list[float]]] = {name: [[] for _ in texts] for name in ways}
    for _ in range(rounds):
        for n in range(len(texts)):
            for name, way in ways.items():
                begin, before = perf_counter(), process_time()
                way(n)
                clock[name][n].append(perf_counter() - begin)
                spent[name][n].append(process_time() - before)
    for name in ways:
        times, work = (1e3 * np.array([min(one) for one in all_[name]]) for all_ in (clock, spent))
        print(
            f"{name:<22} {np.median(times):6.1f} ms (at most {times.max():.1f}), "
            f"of processors {np.median(work):6.1f} ms (at most {work.max():.1f})",
            flush=True,
        )
    share = np.array(looked) / len(library)
    print(f"measured {np.median(share):.1%} of the photos, at most {share.max():.1%}; all exact")


if __name__ == "__main__":
    main()
