"""Train on the tiny table in a process of its own: ``train_tiny.py FOLDER RUNS``.

RUNS is JSON, the flags of each run by the name of its folder; ``rows`` is the table's size.

With ``hardware.devices`` above one, it is run again in the other processes. With ``fails_in`` the
process of that number cannot read its second epoch. ``place`` is where a run is kept instead.
Processes of other nodes than the first have FOLDER on a disk of their own.
"""

import json
import os
import socket
import sys
from pathlib import Path

import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.errors import ImageError
from labelwise.models.run_folder import RunFolder
from labelwise.training.loader import Loader
from labelwise.training.run import train


def break_second_epoch() -> None:
    epoch = Loader.epoch

    def broken(loader, number, start=0):
        if number == 1:
            raise ImageError("b.jpg cannot be read: it ends early")
        return epoch(loader, number, start)

    Loader.epoch = broken


def free_port() -> int:
    """Return a port of this machine where processes can meet."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1], *(("elsewhere",) if os.environ.get("GROUP_RANK", "0") > "0" else ()))
    for name, flags in json.loads(sys.argv[2]).items():
        rows, fails_in = flags.pop("rows", 96), flags.pop("fails_in", None)
        if os.environ.get("LOCAL_RANK", "0") == str(fails_in):
            break_second_epoch()
        with RunFolder.working_in(flags.pop("place", folder / name)) as run:
            train(tiny_settings(**flags), run, table=tiny_table(rows))


if __name__ == "__main__":
    main()
