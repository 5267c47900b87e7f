"""Commands in processes of their own that start warm: forked from one that has imported torch.

A process that starts ``labelwise`` spends seconds on imports before it does anything. Tests about
what a command does, and not about how it starts, run it here: ``WarmCommands`` starts this file
once as a program, which imports what commands need and forks itself for each. A command has its
own folder, streams and exit status, and what it leaves in its memory ends with it. One that takes
longer than ``PATIENCE`` seconds is killed.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

PATIENCE = 300
PRELOADED = (
    "labelwise.api",
    "labelwise.search",
    "labelwise.training.run",
    "sklearn.datasets",
)


class WarmCommands:
    """Run ``labelwise`` commands as ``subprocess.run`` would: ``run(arguments, cwd)``."""

    def __init__(self):
        self.process = None

    def run(self, arguments, cwd):
        if self.process is None:
            program = [sys.executable, __file__]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True)
        with tempfile.TemporaryDirectory() as streams:
            out, err = Path(streams, "out"), Path(streams, "err")
            order = {"arguments": [*map(str, arguments)], "cwd": str(cwd)}
            order |= {"out": str(out), "err": str(err)}
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            status = json.loads(self.process.stdout.readline())
            return subprocess.CompletedProcess(arguments, status, out.read_text(), err.read_text())

    def close(self):
        if self.process is not None:
            with self.process:
                self.process.stdin.close()


def run_command(order):
    """Be ``python -m labelwise`` until it ends, and return its exit status."""
    signal.alarm(PATIENCE)
    os.chdir(order["cwd"])
    for number, name in enumerate((os.devnull, order["out"], order["err"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["labelwise", *order["arguments"]]
    try:
        runpy.run_module("labelwise", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def preload():
    """Import what commands and runs import, so that forked processes need not."""
    for name in PRELOADED:
        import_module(name)
    if find_spec("pandas"):  # pyarrow imports it where it is installed
        import_module("pandas")
    import_module("labelwise.training.execution").fabric_class()


def main():
    preload()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = run_command(json.loads(line))
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, end = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(end), flush=True)


if __name__ == "__main__":
    main()
