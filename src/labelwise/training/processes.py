"""The processes of a run: one per device, which meet before the run begins and fail together.

``--devices 2`` starts the second process with the command line of the first; torchrun and SLURM's
srun have started all. However they came to be, each process then knows torchrun's variables
(``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ...), and the others know it by a store on the first.
"""

import atexit
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from labelwise.errors import LabelwiseError, SettingsError, TrainingError
from labelwise.pictures.prefetch import available_cores
from labelwise.system.distributed import rank, world_size
from labelwise.training.settings import Hardware

COLLECTIVE = timedelta(minutes=30)  # that processes wait for each other in a step they share
ANSWER = timedelta(seconds=3)  # that an error waits to be taken by the first process
GRACE = 30.0  # seconds that the first process has to end by itself after another one failed
STARTED = "TORCHELASTIC_RUN_ID"  # says that all processes of the run were started already


def launch(hardware: Hardware) -> torch.device:
    """Return the device of this process, once all processes of the run have met.

    With several devices this starts the other processes, the first time it is called. Where the
    processes are there already, their number is the one they were started with.
    """
    os.environ.update(_srun_variables(os.environ))
    started = STARTED in os.environ
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if started else hardware.devices
    device = _device(hardware.accelerator, int(os.environ["LOCAL_RANK"]) if started else 0, here)
    if dist.is_initialized():
        return device
    if started and int(os.environ["WORLD_SIZE"]) > 1:
        store, number, world = next(rendezvous("env://"))
    elif here > 1:
        store, number, world = _start_others(here), 0, here
    else:
        return device
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, available_cores() // here))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=number,
        world_size=world,
        timeout=COLLECTIVE,
        device_id=device if device.type == "cuda" else None,
    )
    atexit.register(_leave_group)
    return device


def _device(accelerator: str, number: int, wanted: int) -> torch.device:
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if accelerator in there and there[accelerator] < wanted:
        raise SettingsError(
            f"{wanted} devices of {accelerator!r} were asked for, and there are "
            f"{there[accelerator]}; use --accelerator cpu or auto, or fewer --devices"
        )
    if accelerator != "cuda":
        return torch.device(accelerator)
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def _srun_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for one of several tasks of an srun; none for other processes."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or STARTED in environment:
        return {}
    first_node = re.sub(r"\[(\w+).*", r"\1", environment["SLURM_STEP_NODELIST"]).split(",")[0]
    job = environment["SLURM_JOB_ID"]
    return {
        STARTED: job,
        "MASTER_ADDR": environment.get("MASTER_ADDR", first_node),
        "MASTER_PORT": environment.get("MASTER_PORT", str(15000 + int(job[-4:]))),
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": environment["SLURM_STEP_TASKS_PER_NODE"].split("(")[0],
    }


def _start_others(count: int) -> Store:
    """Run this program again in ``count`` - 1 processes; return the store they will all meet at."""
    command = _own_command()
    store = TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
    shared = {
        STARTED: "labelwise",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    others = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(1, count)
    ]
    Thread(target=_end_with, args=(others,), daemon=True).start()
    return store


def _own_command() -> list[str]:
    """Return the command line that this program was started with."""
    import __main__  # here: a program that runs another puts that one in its place

    if __main__.__spec__ is not None:
        return [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]
    if not hasattr(__main__, "__file__"):
        raise SettingsError(
            "several devices need a program that can be started once for each, not a notebook or "
            "python -c; use the command labelwise train --devices, or a script"
        )
    return [sys.executable, str(Path(sys.argv[0]).absolute()), *sys.argv[1:]]


def _end_with(others: Sequence[subprocess.Popen[bytes]]) -> None:
    """End all processes some time after one failed: the rest may wait for it in a collective."""
    while not any(statuses := [other.poll() for other in others]):
        if None not in statuses:
            return
        time.sleep(1)
    time.sleep(GRACE)
    number, status = next((n, status) for n, status in enumerate(statuses, 2) if status)
    print(f"labelwise: process {number} of the run ended with status {status}", file=sys.stderr)
    for other in others:
        other.kill()
    os._exit(1)  # a collective that the main thread waits in cannot be interrupted


def _leave_group() -> None:
    """Stop gloo's threads: a process that exits while they run may abort."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def errors_told_by_the_first() -> Iterator[None]:
    """Let the first process raise what went wrong in another one, instead of a lost connection.

    The others leave their error in the store that all share and wait until it is taken; one that
    nobody takes (the first process hangs in a collective) they print themselves.
    """
    if world_size() == 1:
        yield
        return
    store = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
    try:
        yield
    except Exception as error:
        if rank() > 0:
            _leave_error(store, rank(), error)
            raise
        told = None if isinstance(error, LabelwiseError) else _error_of_another(store)
        with suppress(RuntimeError):
            store.set("labelwise/taken", "")
        if told is None:
            raise
        raise TrainingError(told) from error


def _leave_error(store: Store, rank: int, error: Exception) -> None:
    lost = not isinstance(error, LabelwiseError)
    text = f"{type(error).__name__}: {error}" if lost else str(error)
    try:
        # Whoever fails first is heard; a lost connection is what follows from it.
        if lost and store.check(["labelwise/error"]):
            return
        store.set("labelwise/error", f"process {rank + 1} of the run stopped: {text}")
        store.wait(["labelwise/taken"], ANSWER)
    except dist.DistStoreError:
        print(f"labelwise: process {rank + 1} of the run stopped: {text}", file=sys.stderr)
    except RuntimeError:
        pass  # the first process has ended, and said why


def _error_of_another(store: Store) -> str | None:
    try:
        store.wait(["labelwise/error"], ANSWER)
    except RuntimeError:
        return None
    return str(store.get("labelwise/error").decode())
