"""A Python that starts warm, for programs that start others: torchrun, and Ray its workers.

They start ``python script ...``, which spends seconds on importing torch before it does anything.
``warm_interpreter`` makes an executable to give them instead. It asks a process that has imported
torch to fork; the fork runs the script with the arguments, variables, folder and streams of who
asked, who stays, passes signals on, and ends as the fork does.

    warm_python.py PLACE WORDS...             be ``python WORDS...``
    warm_python.py PLACE serve [MODULE...]    answer those who ask, with modules imported
"""

import json
import os
import shlex
import signal
import socket
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

LENGTH = 8  # bytes that say how long an order is


@contextmanager
def warm_interpreter(warm_commands, *modules):
    """Give the path of an executable that is used as ``python`` is, with a script or ``-m``.

    Its programs find what commands need imported already, and ``modules``.
    """
    with tempfile.TemporaryDirectory() as folder:
        place, program = Path(folder, "asked"), Path(folder, "python")
        cold = [sys.executable, "-IS", __file__, str(place)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(cold)} "$@"\n')
        program.chmod(0o700)
        with warm_commands.running([place, "serve", *modules], folder, __file__) as server:
            server.line()
            yield str(program)


def ask(place, words):
    """Have a fork run a Python program, and end as it ends."""
    asked = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ)}
    order = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [len(order).to_bytes(LENGTH)], [0, 1, 2])
        server.sendall(order)
        answers = server.makefile()
        child = int(answers.readline())

        def pass_on(number, _):
            with suppress(ProcessLookupError):
                os.kill(child, number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def serve(place, modules):
    """Fork for each who asks, until this process is killed."""
    signal.alarm(0)  # it lives as long as the tests do
    for name in modules:
        __import__(name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        print("ready", flush=True)
        while True:
            caller, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                mind(caller)
                os._exit(0)
            caller.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def mind(caller):
    """Run what a caller asked for in a fork, and tell its number and its end."""
    length, streams, *_ = socket.recv_fds(caller, LENGTH, 3)
    with caller.makefile("rb") as content:
        order = json.loads(content.read(int.from_bytes(length)))
    child = os.fork()
    if child == 0:
        from warm_commands import end, run_program

        os.setsid()  # Ray ends a worker with all of its group
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        caller.close()
        os.closerange(3, max(streams) + 1)
        words = [word for word in order["words"] if word != "-u"]
        path = os.path.dirname(words[0]), *order["variables"].get("PYTHONPATH", "").split(":")
        sys.path[:0] = [place for place in path if place and place not in sys.path]
        if words[0] == "-m":
            words.pop(0)
        end(run_program(words[0], words[1:], order["folder"], order["variables"]))
    caller.sendall(f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    with suppress(OSError):  # who asked is gone
        caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    place, *words = sys.argv[1:]
    if words[:1] == ["serve"]:
        serve(place, words[1:])
    else:
        ask(place, words)
