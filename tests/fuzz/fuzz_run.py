"""Fuzz every target in this process: ``python tests/fuzz/fuzz_run.py --seconds 10``.

A failure is printed as one JSON line with what is needed to see it again:
``python tests/fuzz/fuzz_run.py --target csv --seed 0 --only 1234``.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).parents[1]))  # the helpers that all tests share

from fuzz_readers import Target
from fuzz_targets import TARGETS

from labelwise.errors import LabelwiseError

SECONDS_EACH = 20  # one input may take this long on a busy machine
MEMORY_EACH = 600 << 20  # bytes that reading one small input may add
MEMORY_ALL = 4 << 30


class TooSlow(BaseException):
    """Raised by the alarm, past every ``except Exception``."""


def attempt(target: Target, seed: int, number: int, counts: Counter[str]) -> str | None:
    """Return what is wrong with one input's outcome, None if nothing is; count the outcome."""
    rng = Random(f"{seed}/{target.name}/{number}")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for name, content in target.files(rng).items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(SECONDS_EACH)
        try:
            value = target.read(folder)
            counts["accepted"] += 1
            signal.alarm(SECONDS_EACH)
            if target.check(value, folder):
                counts["read a second time"] += 1
        except LabelwiseError as error:
            counts["refused"] += 1
            if not str(error).strip() or "\n" in str(error):
                return f"the message is not one line: {error!r:.300}"
        finally:
            signal.alarm(0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        return f"it took {grown >> 20} MiB" if grown > MEMORY_EACH else None
    except TooSlow:
        return f"it took more than {SECONDS_EACH} seconds"
    except (Exception, RecursionError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error!s:.300} at {Path(last.filename).name}:{last.lineno}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def alarmed(signum: int, frame: object) -> None:
    raise TooSlow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--only", type=int, help="the number of one input")
    parser.add_argument("--now", type=Path, help="a file that names the input at work")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, alarmed)
    warnings.simplefilter("ignore")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_ALL, -1))
    chosen = [TARGETS[name] for name in options.target or TARGETS]
    end, number, failures = time.monotonic() + options.seconds, 0, 0
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    while options.only is not None or time.monotonic() < end:
        for target in chosen:
            at = number if options.only is None else options.only
            if options.now is not None:
                options.now.write_text(f"{target.name} {options.seed} {at}")
            wrong = attempt(target, options.seed, at, counts)
            counts["inputs"] += 1
            if wrong is not None and f"{target.name} {wrong[-40:]}" not in seen:
                seen.add(f"{target.name} {wrong[-40:]}")
                failures += 1
                found = {"target": target.name, "seed": options.seed, "only": at, "wrong": wrong}
                print(json.dumps(found), flush=True)
        number += 1
        if options.only is not None:
            break
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    print(f"{told}, {failures} kinds of failure", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
