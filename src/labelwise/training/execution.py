"""How a run is computed: its precision, and the loss as one compiled function."""

import atexit
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from labelwise.base.distributed import rank, world_size
from labelwise.errors import LabelwiseError, SettingsError, TrainingError
from labelwise.pictures.prefetch import available_cores
from labelwise.training.settings import Hardware, Precision
from labelwise.types import Targets

WORTH_COMPILING = 6000  # steps: EfficientNet-Lite0 on an H200 compiles in 30 s, saves 5 ms a step

LossFunction = Callable[[Tensor, Targets], Tensor]


@contextmanager
def kernels(*, deterministic: bool) -> Iterator[None]:
    """Compute the same bits each time, where that is asked for."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    tried, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    if deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = tried
        torch.use_deterministic_algorithms(before, warn_only=warns)


def autocast_type(precision: Precision, accelerator: str) -> torch.dtype | None:
    """Return the type a network is computed in under autocast; None for 32 bits throughout."""
    if precision == "32" or (accelerator == "cpu" and not _cpu_computes_bfloat16()):
        return None
    return torch.bfloat16


def autocast(device: torch.device, precision: torch.dtype | None) -> torch.autocast:
    """Return a block whose networks are computed in ``precision``, if that is given."""
    return torch.autocast(device.type, precision or torch.bfloat16, enabled=precision is not None)


def _cpu_computes_bfloat16() -> bool:
    there = torch.backends.mkldnn.is_available()
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def compiles(
    hardware: Hardware, device: torch.device, world: int, steps: int, *, deterministic: bool = False
) -> tuple[bool, str]:
    """Return whether a run of ``steps`` is compiled, and why, if that is worth a word."""
    if hardware.compile is not None or deterministic:
        return bool(hardware.compile), ""
    if device.type != "cuda" or world > 1:
        return False, ""
    if steps >= WORTH_COMPILING:
        return True, f"compiling the network, which pays in {steps:,} steps"
    pays = f"compiling pays from {WORTH_COMPILING:,} on (--set hardware.compile=true)"
    return False, f"{steps:,} steps: not compiled, {pays}"


def accelerated(
    loss_of: LossFunction, *, precision: torch.dtype | None = None, compiled: bool = False
) -> LossFunction:
    """Return the same function, computed faster."""
    if precision is None and not compiled:
        return loss_of

    def plain(
        images: Tensor, labels: Tensor, observed: Tensor | None, index: Tensor | None
    ) -> Tensor:
        with autocast(images.device, precision):
            return loss_of(images, Targets(labels, observed, index))

    graphs = torch.cuda.is_available()
    run = plain
    if compiled:
        options: Any = {"triton.cudagraphs": True}  # what "reduce-overhead" is
        run = torch.compile(plain, dynamic=False, options=options if graphs else None)

    def loss(images: Tensor, targets: Targets) -> Tensor:
        if compiled and graphs:
            torch.compiler.cudagraph_mark_step_begin()
        return run(images, targets.labels, targets.observed, targets.index)

    return loss


# The processes of a run: one per device, which meet before the run begins and fail together.
#
# ``--devices 2`` starts the second process with the command line of the first; torchrun and srun
# have started all. Each process knows torchrun's variables (``RANK``, ``WORLD_SIZE``, ...), and the
# others know it by a store on the first.

COLLECTIVE = timedelta(minutes=30)  # that processes wait for each other in a step they share
ANSWER = timedelta(seconds=3)  # that an error waits to be taken by the first process
GRACE = 30.0  # seconds that the first process has to end by itself after another one failed
STARTED = "TORCHELASTIC_RUN_ID"  # says that all processes of the run were started already


def launch(hardware: Hardware) -> torch.device:
    """Return the device of this process, once all processes of the run have met."""
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
    import __main__  # here: a program that runs another puts that one in its place

    if __main__.__spec__ is not None:
        command = [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]
    elif hasattr(__main__, "__file__"):
        command = [sys.executable, str(Path(sys.argv[0]).absolute()), *sys.argv[1:]]
    else:
        raise SettingsError(
            "several devices need a program that can be started once for each, not a notebook or "
            "python -c; use the command labelwise train --devices, or a script"
        )
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
    """Let the first process raise what went wrong in another one, instead of a lost connection."""
    if world_size() == 1:
        yield
        return
    store = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
    try:
        yield
    except Exception as error:
        lost = not isinstance(error, LabelwiseError)
        told: str | None = None
        if rank() > 0:
            _leave_error(store, f"{type(error).__name__}: {error}" if lost else str(error), lost)
            raise
        if lost:
            with suppress(RuntimeError):
                store.wait(["labelwise/error"], ANSWER)
                told = str(store.get("labelwise/error").decode())
        with suppress(RuntimeError):
            store.set("labelwise/taken", "")
        if told is None:
            raise
        raise TrainingError(told) from error


def _leave_error(store: Store, text: str, lost: bool) -> None:
    text = f"process {rank() + 1} of the run stopped: {text}"
    try:
        if lost and store.check(["labelwise/error"]):  # it follows from the error of another
            return
        store.set("labelwise/error", text)
        store.wait(["labelwise/taken"], ANSWER)
    except dist.DistStoreError:
        print(f"labelwise: {text}", file=sys.stderr)
    except RuntimeError:
        pass  # the first process has ended, and said why
