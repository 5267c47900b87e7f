"""Searching an index against its peers in one run: ``python benchmarks/search.py --rows 1e6 1e7``.

Labels are in 3 % of the photos. Times are the median wall-clock milliseconds of a query whose
columns were used before. "best" is the first search of an index on disk, with a label per column,
until the best 50 are known, and the same search again. More was measured by this program: nearest
photos at `e2bcf06e`; whole columns, SQLite, graphs of neighbours and indexing at `6d9d65b5`; and
queries that are no sum, beside DuckDB, at `03689262`.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import record

from labelwise.base.progress import Silent
from labelwise.decide import Threshold
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, ModelSpec
from labelwise.photos import Index
from labelwise.photos.index import IndexFacts
from labelwise.photos.query import answer
from labelwise.photos.topk import ranking_of
from labelwise.pictures import Transform
from labelwise.queries import Query, bind

TOP = 50
LABELS = ("dog", "beach", "cat", "car")


def milliseconds(call, repeats=15):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), value


def line(part, rows, who, value, goal=""):
    print(f"{part:11s} {rows:>11,}  {who:28s} {value:10.2f} ms  {goal}", flush=True)


def whole_index(rows, folder):
    """Time an index on disk: opening, searching, and searching after a correction."""
    make_index(rows, folder)
    for call in ("prepared", "best_of_index"):
        in_a_process_of_its_own(f"{call}({str(folder)!r}, {rows})")


def in_a_process_of_its_own(call):
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path[:0] = [{here!r}]; import search; search.{call}"
    subprocess.run([sys.executable, "-c", code], check=True)


def prepared(folder, rows):
    """Write the columns end to end, as ``labelwise index`` does at its end."""
    with Index(Path(folder)) as index:
        index.prepare(Silent())
        answer(index, Query.parse("dog, -beach"))


def best_of_index(folder, rows):
    """Open an index and find the best photos of two labels, first and again."""
    index = Index(Path(folder))  # open until the process ends
    query = bind(Query.parse("dog, -beach"), index.space)

    def best():
        return ranking_of(query, index.odds, np.empty(0, np.int64)).best(TOP)

    len(index)
    used, start = time.process_time(), time.perf_counter()
    best()
    first = 1e3 * (time.perf_counter() - start)
    used = 1e3 * (time.process_time() - used)
    line("best", rows, "first, two labels", first, f"{used:.1f} ms of processor time")
    record(f"first-best-{rows:.0e}", first)
    again, _ = milliseconds(best)
    line("best", rows, "again", again)
    record(f"again-best-{rows:.0e}", again)


def make_index(rows, folder):
    """Write an index of made logits; no photo of it exists."""
    spec = ModelSpec(
        labels=LABELS,
        backbone={"name": "small-cnn", "channels": 8},
        transform=Transform(32),
        head=HeadSpec("linear"),
        link=link_to_spec(Sigmoid()),
        rule=rule_to_spec(Threshold(0.5)),
        weights_sha256="0" * 64,
    )
    store = Index.create(folder, spec, IndexFacts(model="nowhere")).store
    random = np.random.default_rng(0)
    (folder / "scores").mkdir(exist_ok=True)
    for first in range(0, rows, 1 << 20):
        size = min(1 << 20, rows - first)
        numbers = np.arange(first, first + size)
        logits = random.normal(np.log(0.03 / 0.97), 2, (len(LABELS), size)).astype(np.float32)
        table = pa.table([numbers, *logits], names=["row", *LABELS])
        pq.write_table(table, folder / "scores" / f"{first:012d}.parquet")
        with store.transaction() as base:
            base.executemany(
                "INSERT INTO contents (row, hash, size, alive) VALUES (?, ?, 1, 1)",
                ((row, row.to_bytes(32, "big")) for row in numbers.tolist()),
            )
    with store.transaction() as base:
        base.execute("INSERT INTO roots (path, raw) VALUES ('/nowhere', '/nowhere')")
        base.execute(
            "INSERT INTO files (root, folder, name, size, mtime_ns, row, state) "
            "SELECT 1, printf('%04d', row / 1000), row || '.jpg', 1, 1, row, 'ok' FROM contents"
        )
    store.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="*", default=[1e6, 1e7])
    arguments = parser.parse_args()
    for rows in map(int, arguments.rows):
        with tempfile.TemporaryDirectory() as folder:
            whole_index(rows, Path(folder) / "photos.index")


if __name__ == "__main__":
    main()
