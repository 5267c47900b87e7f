"""Train on the tiny table in a process of its own: ``train_tiny.py FOLDER RUNS``.

RUNS is JSON, the flags of each run by the name of its folder; ``rows`` is the table's size.

With ``hardware.devices`` above one, Fabric runs this script again in the other processes.
"""

import json
import sys
from pathlib import Path

import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.training.run import train


def main() -> None:
    torch.set_num_threads(1)
    for name, flags in json.loads(sys.argv[2]).items():
        rows = flags.pop("rows", 96)
        train(tiny_settings(**flags), Path(sys.argv[1]) / name, table=tiny_table(rows))


if __name__ == "__main__":
    main()
