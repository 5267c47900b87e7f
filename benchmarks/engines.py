"""Two workers of each engine, and what a driver holds: ``python benchmarks/engines.py [--quick]``.

ray, local   pictures per second of two workers, against two plain processes that score the same
             shards without an engine (goal 0.9), from when all have begun. Shards are the same
             bytes. Seconds of the clock: run it on a machine with two cores to spare.
driver       memory that the driver takes while many more shards, of no work, pass through it
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kills import hashes, write_model, write_pictures
from streaming import private_bytes

from labelwise.shards import LocalEngine, ModelFiles, ScoringTask, predict_shards
from labelwise.shards.ray_cluster import RayEngine, joined

WORKERS, GOAL, MIB = 2, 0.9, 2**20
BEGUN = 3 * WORKERS  # shards after which all workers have begun


def score_some(task: Any, shards: list[int], answers: Any) -> None:
    work = task.start()
    for shard in shards:
        answers.put(work(shard))


class PlainProcesses:
    """What anybody would write: each process has every second shard."""

    def run(self, task: Any, shards: Iterable[int]) -> Iterator[Any]:
        context = multiprocessing.get_context("spawn")
        numbers, answers = list(shards), context.Queue()
        processes = [
            context.Process(target=score_some, args=(task, numbers[first::WORKERS], answers))
            for first in range(WORKERS)
        ]
        for process in processes:
            process.start()
        for _ in numbers:
            yield answers.get()
        for process in processes:
            process.join()


@dataclass
class Timed:
    """An engine, and when each shard came out of it."""

    engine: Any
    times: list[float]

    def run(self, task: Any, shards: Iterable[int]) -> Iterator[Any]:
        for record in self.engine.run(task, shards):
            self.times.append(time.perf_counter())
            yield record

    def rate(self, rows: int) -> float:
        return rows * (len(self.times) - BEGUN) / (self.times[-1] - self.times[BEGUN - 1])


class NoWork:
    """Shards that take no time."""

    def start(self) -> Any:
        return lambda shard: shard


def measure_rates(pictures: int, rows: int) -> bool:
    engines = {
        "plain processes": PlainProcesses(),
        "local": LocalEngine(WORKERS),
        "ray": RayEngine(WORKERS),
    }
    rates = dict.fromkeys(engines, 0.0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = ModelFiles.read(write_model(folder / "model"))
        write_pictures(folder / "photos", pictures)
        found = {}
        for turn in range(2):
            for name, engine in engines.items():
                out = folder / f"{name} {turn}"
                task = ScoringTask(str(out), model, 64, decoders=1)
                timed = Timed(engine, [])
                predict_shards(task, [str(folder / "photos")], timed, shard_rows=rows)
                rates[name] = max(rates[name], timed.rate(rows))
                found[name] = hashes(out)
    assert found["ray"] == found["local"] == found["plain processes"]
    plain = rates.pop("plain processes")
    print(f"{pictures:,} pictures in shards of {rows}: {WORKERS} plain processes {plain:,.0f} /s")
    for name, value in rates.items():
        ratio = value / plain
        print(f"  {name:6}{value:8,.0f} /s, {ratio:.2f} x (goal {GOAL})")
    return min(rates.values()) >= GOAL * plain


def measure_driver(counts: list[int]) -> None:
    for name, engine in (("local", LocalEngine(WORKERS)), ("ray", RayEngine(WORKERS))):
        for _ in engine.run(NoWork(), range(WORKERS)):
            pass
        for count in counts:
            before, most = private_bytes(), 0
            for number, _ in enumerate(engine.run(NoWork(), range(count))):
                if number % 100 == 0:
                    most = max(most, private_bytes() - before)
            print(f"driver of {name}: {count:,} shards passed, {most / MIB:.1f} MiB more")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    with joined(WORKERS):
        met = measure_rates(2000 if given.quick else 8000, 50)
        measure_driver([500, 2000] if given.quick else [4000, 12_000])
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
