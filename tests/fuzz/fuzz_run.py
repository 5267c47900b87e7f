"""Fuzz every target in this process: ``python tests/fuzz/fuzz_run.py --seconds 10``.

A failure is printed as one JSON line with what is needed to see it again:
``python tests/fuzz/fuzz_run.py --target csv --seed 0 --only 1234``. Another area registers its
reader by one more ``Target`` in the list of its kind.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
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

from fuzz_inputs import UnreadError
from fuzz_models import RESULTS
from fuzz_photos import KEPT, LIBRARY, PICTURES
from fuzz_servers import SERVERS
from fuzz_tables import FIELDS, OFFICIAL, TABLES

from labelwise.errors import LabelwiseError, QuestionError

FILES = (*TABLES, *OFFICIAL, *FIELDS, *RESULTS, *KEPT, *LIBRARY, *PICTURES)
TARGETS = {target.name: target for target in (*FILES, *SERVERS)}
SECONDS_EACH = 20  # one input may take this long on a busy machine
MEMORY_EACH = 600 << 20  # bytes that reading one small input may add
MEMORY_ALL = 4 << 30
WAY = re.compile(r"  \d\. .*: `--set .+`")  # a reading that a question offers


class TooSlow(BaseException):
    """Raised by the alarm, past every ``except Exception``."""


def attempt(target, seed, number, counts):
    """Return what is wrong with one input's outcome, None if nothing is; count the outcome."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for name, content in target.files(Random(f"{seed}/{target.name}/{number}")).items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(SECONDS_EACH)
        try:
            value = target.read(folder)
            counts["accepted"] += 1
            signal.alarm(SECONDS_EACH)
            with contextlib.suppress(UnreadError):
                target.check(value, folder)
                counts["read a second time"] += 1
        except LabelwiseError as error:
            counts["refused"] += 1
            first, *ways = str(error).strip().splitlines() or [""]
            if not first or (ways and not isinstance(error, QuestionError)):
                return f"the message is not one line: {error!r:.300}"
            if not all(map(WAY.fullmatch, ways)):
                return f"a way to read it has no option: {error!r:.300}"
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


def alarmed(signum, frame):
    raise TooSlow


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, help="inputs of each target, however long they take")
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
    end, counts, seen = time.monotonic() + options.seconds, Counter(), set()
    numbers = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())
    if options.only is not None or options.rounds is not None:
        numbers = range(options.rounds) if options.only is None else [options.only]
    for number in numbers:
        for name in options.target or TARGETS:
            if options.now is not None:
                options.now.write_text(f"{name} {options.seed} {number}")
            wrong = attempt(TARGETS[name], options.seed, number, counts)
            counts["inputs"] += 1
            if wrong is not None and f"{name} {wrong[-40:]}" not in seen:
                seen.add(f"{name} {wrong[-40:]}")
                found = {"target": name, "seed": options.seed, "only": number, "wrong": wrong}
                print(json.dumps(found), flush=True)
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    print(f"{told}, {len(seen)} kinds of failure", file=sys.stderr)
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
