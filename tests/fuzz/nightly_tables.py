"""Tables that hypothesis draws and people could write: ``python tests/fuzz/nightly_tables.py``.

Each table is drawn first: photos, labels, and whether each label is present, absent or unknown. It
is written in one of many ways, and some are damaged. What the reader says is then compared with
what was drawn. A label without any letter is not drawn: "&" between "|" is read as a separator,
which a note says. Nor does one begin with an apostrophe: before "-" it is a guard against
formulas. A line of JSON counts the tables that were

    right      read as they were drawn
    asked      answered by a question, or by one sentence that names a remedy
    damaged    damaged, and read, or answered by a sentence: no oracle says what is in them
    wrong      read as something else
    internal   ended in an error that is no sentence
    slow       took more than 5 seconds of processor, or more than 300 MiB

and the exit status is 1 if one of the last three was seen. It is not part of ``make test``.
"""

import argparse
import gzip
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from labelwise.errors import LabelwiseError
from labelwise.tables import load

SECONDS, MEMORY, MOST_MEMORY = 5, 300 << 10, 6 << 30
WORDS = {"1": ("1", "0"), "yes": ("yes", "no"), "ja": ("ja", "nein"), "true": ("True", "False")}
NAMES = st.text("abcdefghijkLMNOPäßéłж木 -_'0123456789()&", min_size=1, max_size=12)
LABELS = st.lists(
    NAMES.map(lambda name: " ".join(name.split())).filter(
        lambda name: any(map(str.isalpha, name)) and name[0] != "'"
    ),
    min_size=1, max_size=6, unique_by=str.casefold,
)  # fmt: skip


@st.composite
def tables(draw):
    """Draw names (K,), states (N, K) of 1, 0 and -1 for unknown, and how they are written."""
    names, rows = draw(LABELS), draw(st.integers(1, 30))
    states = draw(st.lists(st.sampled_from((0, 0, 1, -1)), min_size=rows * len(names),
                           max_size=rows * len(names)))  # fmt: skip
    how = {
        "wide": draw(st.booleans()),
        "words": draw(st.sampled_from(sorted(WORDS))),
        "between": draw(st.sampled_from(",;\t")),
        "inside": draw(st.sampled_from("|;,")),
        "encoding": draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16"))),
        "end": draw(st.sampled_from(("\n", "\r\n"))),
        "header": draw(st.sampled_from(("path", "filename", "image", "file_name"))),
        "title": draw(st.integers(0, 20)) == 0,
        "packed": draw(st.integers(0, 9)) == 0,
        "damage": draw(st.integers(0, 4)) == 0,
        "at": draw(st.integers(0, 10_000)),
        "bytes": draw(st.binary(max_size=4)),
    }
    return names, np.array(states).reshape(rows, len(names)), how


def cell(text, between):
    quoted = any(mark in text for mark in (between, '"', "\n", "\r"))
    return '"' + text.replace('"', '""') + '"' if quoted else text


def written(names, states, how):
    """Return the bytes of a table, and whether they say all that was drawn."""
    present, absent = WORDS[how["words"]]
    lines, is_whole = [], True
    if how["wide"]:
        lines.append([how["header"], *names])
        for row, values in enumerate(states):
            marks = [{1: present, 0: absent, -1: ""}[value] for value in values.tolist()]
            lines.append([f"{row}.jpg", *marks])
    else:
        inside = how["inside"] if how["inside"] != how["between"] else "|"
        is_whole = not any(inside in name for name in names)
        lines.append([how["header"], "labels", "unknown"])
        for row, values in enumerate(states.tolist()):
            kinds = [[n for n, v in zip(names, values, strict=True) if v == k] for k in (1, -1)]
            lines.append([f"{row}.jpg", *(inside.join(some) for some in kinds)])
    if how["title"]:
        lines.insert(0, ["Photos of 2024"])
    text = how["end"].join(
        how["between"].join(cell(word, how["between"]) for word in line) for line in lines
    )
    content = (text + how["end"]).encode(how["encoding"])
    if how["damage"]:
        at = how["at"] % len(content)
        content = content[:at] + how["bytes"] + content[at + 1 :]
    return gzip.compress(content) if how["packed"] else content, is_whole and not how["damage"]


def is_drawn(table, names, states):
    """Compare what was read with what was drawn.

    A label that no cell names is left out; so is a column that may be something else, such as
    "date", if a note names it.
    """
    order = {name: k for k, name in enumerate(names)}
    if not set(table.space.names) <= order.keys() or len(table.ids) != len(states):
        return False
    present, unknown = table.present.dense().astype(bool), table.unknown.dense().astype(bool)
    read = np.where(unknown, -1, present.astype(int))
    columns = [order[name] for name in table.space.names]
    left = [k for k in range(len(names)) if k not in columns]
    silent = [k for k in left if names[k] not in " ".join(table.notes)]
    return np.array_equal(read, states[:, columns]) and not (states[:, silent] == 1).any()


class TooSlow(BaseException):
    """Raised by the alarm, past every ``except Exception``."""


def alarmed(signum, frame):
    raise TooSlow


def judge(place, drawn):
    names, states, how = drawn
    content, is_whole = written(names, states, how)
    place = place / f"table{'.tsv' if how['between'] == chr(9) else '.csv'}{'.gz' * how['packed']}"
    place.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        table = load(str(place), check_files=False)
        kind = "right" if is_drawn(table, names, states) else "wrong"
    except LabelwiseError:
        kind = "asked"
    except TooSlow:
        kind = "slow"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"internal: {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        place.unlink()
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > MEMORY:
        kind = "slow"
    return kind if is_whole or kind not in ("right", "wrong", "asked") else "damaged", content


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, alarmed)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    counts, shown, began = Counter(), Counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:

        @seed(options.seed)
        @settings(
            max_examples=options.tables, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(tables())
        def each(drawn):
            kind, content = judge(Path(folder), drawn)
            counts[kind.partition(":")[0]] += 1
            shown[kind] += 1
            if kind.startswith(("wrong", "internal", "slow")) and shown[kind] <= 3:
                found = {"kind": kind, "names": drawn[0], "how": {**drawn[2], "bytes": ""}}
                found["content"] = content.decode("utf-8", "backslashreplace")[:400]
                print(json.dumps(found, ensure_ascii=False), flush=True)

        each()
    counts["seconds"] = round(time.monotonic() - began)
    print(json.dumps({"tables": options.tables, "seed": options.seed, **counts}))
    return int(any(counts[kind] for kind in ("wrong", "internal", "slow")))


if __name__ == "__main__":
    sys.exit(main())
