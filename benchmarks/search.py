"""Searching an index against its peers in one run: ``python benchmarks/search.py --rows 1e6 1e7``.

Two columns of logits of labels in 3 % of the photos, ``dog, -beach``; the peers are numpy
(sum and argpartition of the whole columns), DuckDB and SQLite over the same columns, where they
are installed. Times are the median wall-clock milliseconds of a query whose columns were used
before; "first" is the query that reads them. "index" is a whole index on disk of that many photos
with a label per column: opening it, what a search touches of memory, and the search after a
correction, which maps every probability anew; "best" is its first search until the best 50 are
known. "similar" stands beside
graphs of neighbours (HNSW) by usearch and faiss, where installed, which search as widely as the
same recall takes. "rescan" looks at files that did not change, and
brings an index of them up to date. With ``--indexing FOLDER --model RUN`` a new index of a folder
is timed instead, beside decoding its photos and running the network alone.
"""

import argparse
import importlib.util
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import record

from labelwise.base.progress import Silent
from labelwise.decide import Threshold
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, ModelSpec, Predictor
from labelwise.models.scoring import score
from labelwise.photos import Index, update_index
from labelwise.photos import embeddings as similar_photos
from labelwise.photos.embeddings import LOOKED_AT, Projection, codes_of, nearest_rows
from labelwise.photos.index import IndexFacts
from labelwise.photos.ingest import Changes, look_at, photos_below
from labelwise.photos.query import answer
from labelwise.photos.topk import LabelOdds, OddsRanking, ScoreRanking, ranking_of
from labelwise.pictures import FileImages, Transform
from labelwise.pictures.decode import IMAGE_SUFFIXES
from labelwise.queries import Query, bind
from labelwise.types import LabelSpace

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
    ScoreRanking(wanted + unwanted).best(TOP)
    line("query", rows, "labelwise, first", 1e3 * (time.perf_counter() - start))
    ours, (found, _) = milliseconds(lambda: ScoreRanking(wanted + unwanted).best(TOP))
    line("query", rows, "labelwise", ours, goal)
    peer, expected = milliseconds(lambda: by_numpy(wanted, unwanted), 5)
    assert (found == expected).all()
    line("query", rows, "numpy, whole columns", peer, f"{peer / ours:.0f}x")
    counted, number = milliseconds(
        lambda: ScoreRanking(wanted + unwanted).count_at_least(np.log(0.5))
    )
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


def any_of(rows):
    """Time ``(cat | dog), -beach``, of which no sum of columns is the score."""
    logits = [columns(rows, seed)[0] for seed in range(3)]
    odds = [LabelOdds(log_p(one), log_p(-one)) for one in logits]
    query = bind(Query.parse("(cat | dog), -beach"), LabelSpace(("cat", "dog", "beach")))
    gone = np.empty(0, np.int64)
    OddsRanking(query, odds, gone).best(TOP)
    ours, (found, _) = milliseconds(lambda: OddsRanking(query, odds, gone).best(TOP))
    line("any of", rows, "labelwise", ours)
    cat, dog, beach = (one.pair[0] for one in odds)

    def by_numpy():
        scores = (1 - (1 - cat) * (1 - dog)) * (1 - beach)
        return np.argpartition(-scores, TOP)[:TOP]

    peer, expected = milliseconds(by_numpy, 5)
    assert len({*found.tolist()} & {*expected.tolist()}) >= TOP - 1  # its digits end at 1 - 6e-8
    line("any of", rows, "numpy, whole columns", peer, f"{peer / ours:.1f}x")
    if importlib.util.find_spec("duckdb"):
        import duckdb

        base = duckdb.connect()
        base.execute(f"SET threads = {os.cpu_count()}")
        source = pa.table({"row": np.arange(rows), "a": cat, "b": dog, "c": beach})
        base.register("source", source)
        base.execute("CREATE TABLE t AS SELECT * FROM source")
        score = "(1 - (1 - a) * (1 - b)) * (1 - c)"
        text = f"SELECT row FROM t ORDER BY {score} DESC, row LIMIT {TOP}"
        peer, _ = milliseconds(lambda: base.execute(text).fetchall(), 3)
        line("any of", rows, "DuckDB, in memory", peer, f"{peer / ours:.1f}x")
        record(f"any-of-{rows:.0e}", ours, peer)


def never_meet(rows):
    dog, _ = columns(rows)
    first, second = log_p(dog), log_p(-dog) - 5
    ours, (found, _) = milliseconds(lambda: ScoreRanking(first + second).best(TOP))
    line("never meet", rows, "labelwise", ours, "goal 2" if rows <= 10**6 else "goal 15")
    peer, expected = milliseconds(lambda: by_numpy(first, second), 5)
    scores = first + second
    assert (np.sort(scores[found]) == np.sort(scores[expected])).all()
    line("never meet", rows, "numpy, whole columns", peer, f"{peer / ours:.1f}x")


def similar(rows, features):
    """Real features, or made ones, are repeated with small changes until there are enough of them.

    Each peer's graph is searched at several widths, and ours looks at fewer photos until it finds
    as many of the nearest as the peer does, and no fewer: both times are of the same recall.
    """
    random = np.random.default_rng(0)
    if features is None:
        plain = random.standard_normal((20_000, 256)).astype(np.float32)
        record(f"similar-plain-recall-{rows:.0e}", Neighbours(enough_of(plain, rows)).reached)
        # As features of photos: a few directions explain most of them, and none explains all.
        hidden = random.standard_normal((20_000, 64)) * np.geomspace(3, 0.3, 64)
        features = hidden @ random.standard_normal((64, 256)) / 8 + 0.2 * plain
    known = Neighbours(enough_of(features.astype(np.float32), rows))
    ours, _ = milliseconds(lambda: known.found(7))
    peer, _ = milliseconds(lambda: np.argpartition(-(known.whole @ known.whole[7]), TOP)[:TOP], 3)
    line("similar", rows, "labelwise", ours, f"goal 10; recall@50 {known.reached:.4f}")
    line("similar", rows, "numpy, all embeddings", peer, f"{peer / ours:.1f}x")
    record(f"similar-recall-{rows:.0e}", known.reached)
    built, _ = milliseconds(lambda: codes_of(known.vectors), 1)
    size = known.codes.nbytes / rows
    line("similar", rows, "labelwise, build", built, f"{size:.0f} bytes a photo beside the vector")
    for name, graph in graphs_of(known.vectors, known.whole).items():
        start = time.perf_counter()
        search, bytes_of = graph()
        peer_built = 1e3 * (time.perf_counter() - start)
        peer_size = bytes_of() / rows
        line("similar", rows, f"{name}, build", peer_built, f"{peer_size:.0f} bytes a photo")
        record(f"similar-{name}-build-{rows:.0e}", built, peer_built)
        record(f"similar-{name}-size-{rows:.0e}", size, peer_size)
        for width in WIDTHS:
            by_graph = partial(search, width=width)
            wide = known.recall(lambda row, by_graph=by_graph: by_graph(known.whole[row]))
            peer, _ = milliseconds(partial(by_graph, known.whole[7]))
            looked_at = known.looked_at_for(wide)
            ours, _ = milliseconds(partial(known.found, 7, looked_at))
            line("similar", rows, f"{name}, width {width}", peer, f"recall@50 {wide:.4f}")
            line("similar", rows, f"labelwise, {looked_at} looked at", ours, f"{peer / ours:.1f}x")
            if wide >= 0.99 or width == WIDTHS[-1]:
                record(f"similar-{name}-{rows:.0e}", ours, peer)
                record(f"similar-{name}-recall-{rows:.0e}", wide)
                break


def enough_of(features, rows):
    """Return embeddings: of features, then of the same with small changes, as many as asked for."""
    random = np.random.default_rng(1)
    real = Projection.fitted(features[:4096])(features)
    parts = [real]
    while sum(map(len, parts)) < rows:
        noise = random.standard_normal(real.shape).astype(np.float32)
        changed = real + 0.6 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        parts.append((changed / np.linalg.norm(changed, axis=1, keepdims=True)).astype(np.float16))
    return np.concatenate(parts)[:rows]


class Neighbours:
    """Embeddings, their signs, and the exact nearest of some of them."""

    def __init__(self, vectors):
        self.vectors, self.codes = vectors, codes_of(vectors)
        self.whole = vectors.astype(np.float32)
        self.asked = np.random.default_rng(2).integers(0, min(len(vectors), 20_000), 40)
        self.exact = [
            {*np.argsort(-(self.whole @ self.whole[row]), kind="stable")[:TOP].tolist()}
            for row in self.asked
        ]
        self.reached = self.recall(self.found)

    def found(self, row, looked_at=None):
        """Return the nearest of a row, with fewer photos looked at than a search does if given."""
        none = np.empty(0, np.int64)
        usual, similar_photos.LOOKED_AT = similar_photos.LOOKED_AT, looked_at or LOOKED_AT
        try:
            return nearest_rows(self.vectors[row], self.vectors, self.codes, TOP, none)[0]
        finally:
            similar_photos.LOOKED_AT = usual

    def recall(self, search):
        found = [{*map(int, search(row))} for row in self.asked]
        return float(np.mean([len(a & b) / TOP for a, b in zip(found, self.exact, strict=True)]))

    def looked_at_for(self, recall):
        """Return how many photos must be looked at for a recall, or the usual number at most."""
        for count in (4 * TOP, 300, 400, 600, 800, 1200, 1600):
            if self.recall(partial(self.found, looked_at=count)) >= recall:
                return count
        return LOOKED_AT


WIDTHS = (256, 1024, 4096, 16384)  # of a graph's search


def graphs_of(vectors, whole):
    """Return what builds each installed peer's graph: its search, and its bytes beside vectors."""

    def by_usearch():
        from usearch.index import Index as Graph

        graph = Graph(ndim=vectors.shape[1], metric="ip", dtype="f16", connectivity=16)
        graph.add(np.arange(len(vectors)), vectors, threads=os.cpu_count())

        def search(vector, width):
            graph.expansion_search = width
            return graph.search(vector, TOP).keys

        return search, lambda: graph.serialized_length - vectors.nbytes

    def by_faiss():
        import faiss

        graph = faiss.IndexHNSWFlat(vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        graph.add(whole)

        def search(vector, width):
            graph.hnsw.efSearch = width
            return graph.search(vector[None], TOP)[1][0]

        return search, lambda: len(faiss.serialize_index(graph)) - whole.nbytes

    ways = {"usearch": by_usearch, "faiss": by_faiss}
    return {name: way for name, way in ways.items() if importlib.util.find_spec(name)}


LABELS = ("dog", "beach", "cat", "car")


def whole_index(rows, folder):
    """Time an index on disk: opening, searching, and searching after a correction."""
    make_index(rows, folder)
    for call in ("prepared", "best_of_index", "touched"):
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


def resident():
    """Return the MiB of memory this process has, mapped files included."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


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


def touched(folder, rows):
    """Open an index in a process of its own and search it."""
    query = Query.parse("dog, -beach")
    before = resident()
    start = time.perf_counter()
    index = Index(Path(folder))  # open until the process ends
    len(index)
    line("open", rows, "labelwise", 1e3 * (time.perf_counter() - start), "goal 300")
    start = time.perf_counter()
    answer(index, query)
    line("search", rows, "labelwise, first of 2 labels", 1e3 * (time.perf_counter() - start))
    size = 2 * 4 * rows / 2**20
    print(
        f"memory      {rows:>11,}  grown by {resident() - before:.0f} MiB; 2 columns of {size:.0f}"
    )
    whole, _ = milliseconds(lambda: answer(index, query), 5)
    line("search", rows, "labelwise, whole answer", whole)
    either = Query.parse("(cat | dog), -beach")
    answer(index, either)
    whole, _ = milliseconds(lambda: answer(index, either), 5)
    line("search", rows, "whole answer, (cat | dog)", whole, "goal 30 over HTTP")
    times = []
    for row in range(3):
        index.correct(row, {"dog": "present"}, who="benchmark")
        start = time.perf_counter()
        index.probability(rows - 1, "dog")
        times.append(1e3 * (time.perf_counter() - start))
    line("correct", rows, "all probabilities anew", min(times), "goal 1000 at 1,000,000")


def rescan(files):
    """Look at files that are known: the walk alone, and an update of an index of them."""
    with tempfile.TemporaryDirectory() as place:
        root, folder = Path(place, "photos"), Path(place, "index")
        make_index(files, folder)
        for number in range(files):
            if number % 1000 == 0:
                (root / f"{number // 1000:04d}").mkdir(parents=True)
            (root / f"{number // 1000:04d}" / f"{number}.jpg").touch()
        index = Index(folder)
        with index.store.transaction() as base:
            base.execute("UPDATE roots SET path = ?, raw = ?", (str(root), os.fsencode(root)))
            base.executemany(
                "UPDATE files SET size = 0, mtime_ns = ? "
                "WHERE root = 1 AND folder = ? AND name = ?",
                (
                    (one.mtime_ns, below, one.name)
                    for below, found in photos_below(str(root), {".jpg"})
                    for one in found
                ),
            )
        changes = Changes()

        def floor():
            for below, _, names in os.walk(root):
                for name in names:
                    os.stat(os.path.join(below, name))

        ours, todo = milliseconds(lambda: look_at(index.store, str(root), changes), 3)
        assert not todo
        assert changes.unchanged == 3 * files
        peer, _ = milliseconds(floor, 3)
        line("rescan", files, "labelwise", ours, f"{1e3 * ours / files:.1f} s a million, goal 37")
        line("rescan", files, "os.walk and stat", peer, f"{1e3 * peer / files:.1f} s a million")
        index.store.close()


def indexing(folder, model, repeats):
    """Time a new index of a folder beside decoding its photos and running the network alone."""
    predictor = Predictor.load(model)
    paths = [
        os.path.join(at, one.name)
        for at, found in photos_below(folder, IMAGE_SUFFIXES)
        for one in found or ()
    ]
    images = FileImages(folder, paths)

    def plain():
        return sum(len(part) for part in score(predictor, images, embed=True))

    def indexed(some):
        with tempfile.TemporaryDirectory() as place:
            return update_index(Path(place), [some], model=model, watch=Silent()).new

    with tempfile.TemporaryDirectory() as single:
        Path(single, "one.jpg").write_bytes(Path(folder, paths[0]).read_bytes())
        ways = {
            "decode and forward alone": plain,
            "labelwise index": lambda: indexed(folder),
            "labelwise index, one photo": lambda: indexed(single),
        }
        plain()  # reads the files into the system's memory
        best = {}
        for _ in range(repeats):
            for name, call in ways.items():
                start, used = time.perf_counter(), time.process_time()
                call()
                spent = time.perf_counter() - start, time.process_time() - used
                best[name] = tuple(map(min, best.get(name, spent), spent))
    for name, (wall, used) in best.items():
        line("indexing", len(paths), name, 1e3 * wall, f"{1e3 * used:.0f} ms of processor time")
    alone, ours, once = (np.array(best[name]) for name in ways)
    for words, ratio in (
        ("all of it", alone / ours),
        ("what it costs once apart", alone / (ours - once)),
    ):
        print(
            f"indexing    {len(paths):>11,}  share of the speed of decode and forward, {words}: "
            f"{ratio[0]:.1%}, by processor time {ratio[1]:.1%} (goal 95%)"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="*", default=[1e6, 1e7])
    parser.add_argument("--similar", type=float, default=1e6, help="rows of embeddings")
    parser.add_argument("--features", type=Path, help="a .npz file with real features")
    parser.add_argument("--files", type=float, default=1e6, help="to look at again")
    parser.add_argument("--indexing", type=Path, help="a folder of photos; needs --model")
    parser.add_argument("--model", type=Path, help="the folder of a run")
    parser.add_argument("--repeats", type=int, default=3, help="of --indexing")
    arguments = parser.parse_args()
    if arguments.indexing is not None:
        indexing(str(arguments.indexing), arguments.model, arguments.repeats)
        return
    for rows in map(int, arguments.rows):
        query(rows)
        any_of(rows)
        never_meet(rows)
        with tempfile.TemporaryDirectory() as folder:
            whole_index(rows, Path(folder) / "photos.index")
    features = None
    if arguments.features is not None:
        features = np.load(arguments.features, allow_pickle=False)["features"]
    if arguments.similar:
        similar(int(arguments.similar), features)
    if arguments.files:
        rescan(int(arguments.files))


if __name__ == "__main__":
    main()
