"""Photos ranked by a text: all embeddings of an index measured, beside what memory allows.

    python benchmarks/text_search.py --photos 1000000

One run times, on the same photos: ``farthest_rows`` on mapped float16 embeddings (what ``labelwise
search --text`` does); the same product by NumPy on a float32 copy in memory, which reads twice as
much; and reading the float16 embeddings once without computing anything of them, which no method
that looks at every photo can beat. The best of several rounds, taken in turns.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from labelwise.search.similar import farthest_rows

WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder) / "embeddings", given.photos, given.rounds)


def measure(path: Path, photos: int, rounds: int) -> None:
    random = np.random.default_rng(0)
    written = np.memmap(path, np.float16, "w+", shape=(photos, WIDTH))
    for start in range(0, photos, 1 << 16):
        part = random.standard_normal((min(1 << 16, photos - start), WIDTH), np.float32)
        written[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    written.flush()
    mapped = np.memmap(path, np.float16, "r", shape=(photos, WIDTH))
    wide = mapped.astype(np.float32)
    direction, nothing = random.standard_normal(WIDTH), np.empty(0, np.int64)
    narrow = (direction / np.linalg.norm(direction)).astype(np.float32)
    ways: dict[str, Callable[[], object]] = {
        "search --text": lambda: farthest_rows(direction, mapped, 100, nothing)[0],
        "NumPy, float32": lambda: np.argpartition(-(wide @ narrow), 99)[:100],
        "reading only": lambda: mapped.view(np.int64).max(),
    }
    own, other = (set(np.asarray(ways[name]()).tolist()) for name in list(ways)[:2])
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = perf_counter()
            way()
            seconds[name].append(perf_counter() - begin)
    best = {name: min(values) for name, values in seconds.items()}
    for name, value in best.items():
        ratio = value / best["reading only"]
        print(f"{name:<16} {1e3 * value:7.1f} ms   {ratio:5.2f} times reading only", flush=True)
    print(f"{len(own & other)} of the best 100 are the same")


if __name__ == "__main__":
    main()
