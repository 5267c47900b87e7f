"""The best photos of two mapped columns of N rows: ``python benchmarks/search_large.py FOLDER N``.

``benchmarks/search.py --large N`` writes the columns and starts this program. It imports what
``labelwise search`` imports, so that its memory is that of a search: torch is not in it.
"""

import resource
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from measure import record

from labelwise.photos.answering import answer
from labelwise.photos.checksums import CacheFiles
from labelwise.photos.model_odds import ORDER
from labelwise.photos.scan import ScanTerm, best_rows, tried_rows

TOP, REPEATS = 50, 15
USED_BY_A_SEARCH = answer  # imported for its memory


def resident():
    """Return the MiB of memory this process has, mapped files included."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def best_of_large(folder, rows):
    """Time the first search and those after it, and the memory that they leave in use."""
    files, before = CacheFiles(folder), resident()

    def mapped(name):
        return files.grown(name, np.dtype(np.float32), (rows, 1), None)[:, 0]

    def largest(name):
        order = files.grown(f"order-{name}", ORDER, (tried_rows(rows), 1), None)[:, 0]
        return order["row"], order["value"]

    terms = [ScanTerm(partial(mapped, name), partial(largest, name)) for name in ("dog", "beach")]
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        best_rows(terms, TOP)
        times.append(1e3 * (time.perf_counter() - start))
    first, again, memory = times[0], statistics.median(times[1:]), resident()
    if "torch" in sys.modules:
        raise SystemExit("torch was imported, which a search does without")
    print(f"large       {rows:>11,}  first, with the check  {first:10.2f} ms")
    print(f"large       {rows:>11,}  best {TOP}                {again:10.2f} ms")
    print(f"memory      {rows:>11,}  {memory:.0f} MiB, {memory - before:.0f} of them mapped")
    record(f"large-best-{rows:.0e}", again)
    record(f"large-memory-{rows:.0e}", memory)


if __name__ == "__main__":
    best_of_large(Path(sys.argv[1]), int(sys.argv[2]))
