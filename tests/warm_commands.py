"""Commands in processes of their own that start warm: forked from one that has imported torch.

``WarmCommands`` starts this file once as a program, which imports what commands need, for seconds,
and forks itself for each. A command has its own folder, session, streams and exit status. One that
takes longer than ``PATIENCE`` seconds is killed. Several may run at a time, and one that does not
end by itself, such as a server, is started by ``running``.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import PIL.Image
import typer.main
import typer.testing
from patience import PATIENCE, wait_until

import labelwise.cli.app

PRELOADED = (
    "labelwise.api",
    "labelwise.photos.words",
    "labelwise.report.page",
    "labelwise.server",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "array_api_compat.torch",
    "pyarrow.dataset",
    "scipy.optimize",
    "scipy.stats",
    "torch._dynamo",  # a second of every training: optimizers import it when they are made
)


def put_together_once():
    """Have Typer read the options of all verbs (45 ms) once per process, not for each command."""
    typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)


def wait_for_no_disk():
    """Have ``os.fsync`` look at the file and no more, here and in forks: no power fails in tests.

    What is synced, and what happens where that fails, tests see at ``os.fsync``, called as ever.
    """

    def looked_at(file):
        os.fstat(file if isinstance(file, int) else file.fileno())

    os.fsync = looked_at


class StartedCommand:
    """A command under way; ``pid`` is its process and its session."""

    def __init__(self, server, order):
        self.server, self.arguments = server, order["arguments"]
        self.streams = tempfile.TemporaryDirectory()
        self.out, self.err = (Path(self.streams.name, name) for name in ("out", "err"))
        self.pid = self._ask(order | {"out": str(self.out), "err": str(self.err)})

    def _ask(self, question):
        self.server.stdin.write(json.dumps(question) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def line(self, number=0):
        """Return a line that it has written, with its end, as soon as it is whole."""

        def lines():
            return self.out.read_text().splitlines(keepends=True) if self.out.exists() else []

        def is_whole():
            return len(lines()) > number and lines()[number].endswith("\n")

        wait_until(is_whole)
        return lines()[number]

    def wait(self, *, text=True):
        """Return its status and what it wrote, as text or bytes, once it has ended."""
        status = self._ask(self.pid)
        with self.streams:
            read = Path.read_text if text else Path.read_bytes
            written = read(self.out), read(self.err)
        self.streams = None
        return subprocess.CompletedProcess(self.arguments, status, *written)


class WarmCommands:
    """Run ``labelwise`` commands as ``subprocess.run`` would: ``run(arguments, cwd)``.

    ``module`` is another module to run instead, or a script.
    """

    def __init__(self):
        self.process = None

    def run(self, arguments, cwd, module="labelwise", *, text=True):
        return self.start(arguments, cwd, module).wait(text=text)

    def start(self, arguments, cwd, module="labelwise", **environment):
        if self.process is None:
            program = [sys.executable, __file__]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True)
        order = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "module": str(module)}
        return StartedCommand(self.process, order | {"environment": {**os.environ, **environment}})

    @contextmanager
    def running(self, arguments, cwd, module="labelwise"):
        """Start a command that is killed at the end of the block unless it was waited for."""
        command = self.start(arguments, cwd, module)
        try:
            yield command
        finally:
            if command.streams is not None:
                with suppress(ProcessLookupError):
                    os.kill(command.pid, signal.SIGKILL)
                command.wait()

    def close(self):
        if self.process is not None:
            with self.process:
                self.process.stdin.close()


def run_command(order):
    """Be ``python -m labelwise``, or another program, until it ends; return its exit status."""
    os.setsid()
    for number, name in enumerate((os.devnull, order["out"], order["err"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    return run_program(order["module"], order["arguments"], order["cwd"], order["environment"])


def run_program(module, arguments, folder, variables):
    """Run a module or a script in this process; return the exit status it asks for."""
    signal.alarm(int(PATIENCE))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [module, *arguments]
    sys.executable = variables.get("PYTHON_EXEC", sys.executable)  # which it starts others with
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(status):
    """End this process, which was forked, as one ends that was not."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def preload():
    """Import what commands and runs import, so that forked processes need not."""
    verbs = (info.name for info in walk_packages(labelwise.cli.__path__, "labelwise.cli."))
    for name in (*PRELOADED, *verbs):
        import_module(name)
    if find_spec("pandas"):  # pyarrow imports it where it is installed
        import_module("pandas")
    put_together_once()
    wait_for_no_disk()
    PIL.Image.init()
    typer.main.get_command(labelwise.cli.app.app)
    gc.freeze()  # what was imported is shared by all forks: none looks through it


def main():
    preload()
    for line in sys.stdin:
        question = json.loads(line)  # to start a command, or to say how one ended
        if isinstance(question, int):
            _, status = os.waitpid(question, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if child == 0:
            end(run_command(question))
        print(child, flush=True)


if __name__ == "__main__":
    main()
