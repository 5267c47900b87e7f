"""Speed and memory of the array part against its peers: ``python benchmarks/arrays.py``.

Parts live in ``arrays_*.py`` beside this file; each has ``PARTS``, a dict from a part's name to a
function that takes ``quick`` and returns rows. ``--only NAME`` runs some, ``--quick`` the smallest
size of each, ``--save FILE`` writes the rows as JSON. One thread throughout.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
from pathlib import Path

import torch
from measure import finish, record, slug

torch.set_num_threads(1)


def parts():
    found = {}
    for file in sorted(Path(__file__).parent.glob("arrays_*.py")):
        found.update(importlib.import_module(file.stem).PARTS)
    return found


def main():
    every = parts()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=sorted(every), default=list(every))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only:
        found = every[name](arguments.quick)
        for row in found:
            job, size, peer = slug(row.job), slug(row.size), slug(row.peer)
            record(f"array-{job}-{size}-{peer}", row.our_seconds, row.peer_seconds)
        rows += found
    finish(rows, arguments.save)


if __name__ == "__main__":
    main()
