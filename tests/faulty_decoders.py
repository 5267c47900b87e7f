"""Decoding processes that pictures made for it do harm to.

:func:`harmful` makes such a picture; one made by :func:`once` does harm as long as the file it
names is there, which goes then, and is an image after that.
"""

import os
import signal
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

from labelwise.errors import ImageError
from labelwise.pictures import sources, worker
from labelwise.pictures import worker_starter as forks

HARM, ONCE = b"harm ", b"once\n"
COMMAND = forks.COMMAND.replace("labelwise.pictures.worker", "faulty_decoders")


@contextmanager
def started_by(command):
    """Processes that start in this block are started so, and end with it."""
    from labelwise.pictures import processes  # it imports torch, which starters do without

    processes.close_kept()
    forks.close_starter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "COMMAND", command)
        yield
        processes.close_kept()
        forks.close_starter()


def harmful(harm, content=b""):
    """Return a picture that does harm, such as ``die`` or ``write PATH``, before it is decoded."""
    return HARM + harm.encode() + b"\n" + content


def once(harm, path, content):
    """Return a picture that does harm once, while a file is there."""
    return ONCE + f"{harm}\n{path}\n".encode() + content


def do_harm(harm, *given):
    if harm == "eat":
        np.ones(1 << 32, np.uint8)
    if harm == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if harm == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if harm == "full":
        raise ImageError("a: cannot be read (MemoryError)") from MemoryError()
    if harm == "write":
        with open(given[0], "w") as file:
            file.write("x")
    if harm == "warn":
        warnings.warn(" ".join(given), stacklevel=1)
    while harm == "spin":
        time.process_time()


def main(control):
    """Be the starter, whose workers come to harm."""
    decode = sources.decode

    def harmed(content, *more):
        if content.startswith(ONCE):
            _, harm, path, content = content.split(b"\n", 3)
            if os.path.exists(path):  # workers can remove a file, though not open one
                os.unlink(path)
                do_harm(harm.decode())
        elif content.startswith(HARM):
            line, _, content = content.partition(b"\n")
            do_harm(*line.decode().split(" ")[1:])
        return decode(content, *more)

    sources.decode = harmed
    worker.main(control)
