"""Searching an index against its peers in one run: ``python benchmarks/search.py --rows 1e6 1e7``.

Two columns of logits of labels in 3 % of the photos, ``dog, -beach``; the peers are numpy
(sum and argpartition of the whole columns), DuckDB and SQLite over the same columns, where they
are installed. Times are the median wall-clock milliseconds of a query whose columns were used
before; "first" is the query that reads them. Parts: query, never-meet, count, similar, correct,
rescan.
"""

import argparse
import importlib.util
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from labelwise.search.ranked import Term, best_rows, count_at_least
from labelwise.search.similar import Projection, codes_of, nearest_rows
from labelwise.search.walk import photos_below

TOP = 50


def milliseconds(call, repeats=15):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), value


def line(part, rows, who, value, goal=""):
    print(f"{part:11s} {rows:>11,}  {who:28s} {value:10.2f} ms  {goal}", flush=True)


def log_p(logits):
    return -np.logaddexp(0, -logits).astype(np.float32)


def columns(rows, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(np.log(0.03 / 0.97), 2, rows).astype(np.float32) for _ in range(2)]


def by_numpy(first, second):
    scores = first + second
    rows = np.argpartition(-scores, TOP)[:TOP]
    return rows[np.lexsort((rows, -scores[rows]))]


def query(rows):
    dog, beach = columns(rows)
    wanted, unwanted = log_p(dog), log_p(-beach)
    goal = "goal 2" if rows <= 10**6 else "goal 15"
    start = time.perf_counter()
    terms = [Term(log_p(dog)), Term(log_p(-beach))]
    best_rows(terms, TOP)
    line("query", rows, "labelwise, first", 1e3 * (time.perf_counter() - start))
    ours, (found, _) = milliseconds(lambda: best_rows(terms, TOP))
    line("query", rows, "labelwise", ours, goal)
    peer, expected = milliseconds(lambda: by_numpy(wanted, unwanted), 5)
    assert (found == expected).all()
    line("query", rows, "numpy, whole columns", peer, f"{peer / ours:.0f}x")
    counted, number = milliseconds(lambda: count_at_least(terms, np.log(0.5)))
    line("count", rows, "labelwise", counted, goal)
    peer, there = milliseconds(lambda: int((wanted + unwanted >= np.log(0.5)).sum()), 5)
    assert number == there
    line("count", rows, "numpy, whole columns", peer, f"{peer / counted:.1f}x")
    databases(rows, wanted, unwanted, ours, found)


def databases(rows, wanted, unwanted, ours, found):
    text = "SELECT row FROM t ORDER BY a + b DESC, row LIMIT 50"
    if importlib.util.find_spec("duckdb"):
        import duckdb
        import pyarrow as pa

        base = duckdb.connect()
        base.execute(f"SET threads = {os.cpu_count()}")
        table = pa.table({"row": np.arange(rows), "a": wanted, "b": unwanted})
        base.register("source", table)
        base.execute("CREATE TABLE t AS SELECT * FROM source")
        peer, answer = milliseconds(lambda: base.execute(text).fetchall(), 3)
        assert [row for (row,) in answer] == found.tolist()
        line("query", rows, "DuckDB, in memory", peer, f"{peer / ours:.0f}x")
    if rows <= 10**6:
        base = sqlite3.connect(":memory:")
        base.execute("CREATE TABLE t (row INTEGER PRIMARY KEY, a REAL, b REAL)")
        base.executemany(
            "INSERT INTO t VALUES (?, ?, ?)",
            zip(range(rows), wanted.tolist(), unwanted.tolist(), strict=True),
        )
        peer, _ = milliseconds(lambda: base.execute(text).fetchall(), 1)
        line("query", rows, "SQLite, in memory", peer, f"{peer / ours:.0f}x")


def never_meet(rows):
    dog, _ = columns(rows)
    first, second = log_p(dog), log_p(-dog) - 5
    terms = [Term(first), Term(second)]
    best_rows(terms, TOP)
    ours, (found, _) = milliseconds(lambda: best_rows(terms, TOP))
    line("never meet", rows, "labelwise", ours, "goal 2" if rows <= 10**6 else "goal 15")
    peer, expected = milliseconds(lambda: by_numpy(first, second), 5)
    scores = first + second
    assert (np.sort(scores[found]) == np.sort(scores[expected])).all()
    line("never meet", rows, "numpy, whole columns", peer, f"{peer / ours:.1f}x")


def similar(rows, features):
    """Real features are repeated with small changes until there are enough of them."""
    random = np.random.default_rng(0)
    if features is None:
        features = random.standard_normal((20_000, 256)).astype(np.float32)
    projection = Projection.fitted(features[:4096])
    real = projection(features)
    parts = [real]
    while sum(map(len, parts)) < rows:
        noise = random.standard_normal(real.shape).astype(np.float32)
        changed = real + 0.6 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        parts.append((changed / np.linalg.norm(changed, axis=1, keepdims=True)).astype(np.float16))
    vectors = np.concatenate(parts)[:rows]
    codes, none = codes_of(vectors), np.empty(0, np.int64)
    ours, _ = milliseconds(lambda: nearest_rows(vectors[7], vectors, codes, TOP, none))
    whole = vectors.astype(np.float32)
    peer, _ = milliseconds(lambda: np.argpartition(-(whole @ whole[7]), TOP)[:TOP], 3)
    shares = []
    for row in random.integers(0, len(real), 40):
        found, _ = nearest_rows(vectors[row], vectors, codes, TOP, none)
        exact = np.argsort(-(whole @ whole[row]), kind="stable")[:TOP]
        shares.append(len({*found.tolist()} & {*exact.tolist()}) / TOP)
    line("similar", rows, "labelwise", ours, f"goal 10; recall@50 {np.mean(shares):.4f}")
    line("similar", rows, "numpy, all embeddings", peer, f"{peer / ours:.1f}x")


def rescan(files):
    with tempfile.TemporaryDirectory() as root:
        for number in range(files):
            folder = Path(root) / f"{number // 500:04d}"
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.jpg").touch()

        def floor():
            for folder, _, names in os.walk(root):
                for name in names:
                    os.stat(os.path.join(folder, name))

        def walk():
            return sum(len(found or ()) for _, found in photos_below(root, {".jpg"}))

        ours, counted = milliseconds(walk, 3)
        assert counted == files
        peer, _ = milliseconds(floor, 3)
        line("rescan", files, "labelwise, looking", ours, f"{1e3 * ours / files:.0f} s a million")
        line("rescan", files, "os.walk and stat", peer, f"{1e3 * peer / files:.0f} s a million")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--features", type=Path, help="a .npz file with real features")
    arguments = parser.parse_args()
    for rows in map(int, arguments.rows):
        query(rows)
        never_meet(rows)
    features = None
    if arguments.features is not None:
        features = np.load(arguments.features, allow_pickle=False)["features"]
    similar(min(10**6, int(max(arguments.rows))), features)
    rescan(50_000)


if __name__ == "__main__":
    main()
