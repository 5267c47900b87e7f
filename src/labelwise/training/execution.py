"""Where a run is computed: devices, processes, precision, and the loss as one compiled function.

    def loss_of(images, targets):
        return objective(model(images), targets)

    loss_of = accelerated(loss_of, precision=torch.bfloat16, compiled=True)
    loss_of(batch.images, batch.targets).backward()

Compiled for CUDA, forward and backward pass are each one CUDA graph: a step of a small network
costs a few launches instead of hundreds. A graph stands for one shape, so the last short batch of
an epoch should be dropped (``Loader(drop_last=True)``); it is otherwise compiled a second time.
Nothing here waits for the device: the loss stays there until someone asks for its value, and must
be copied before the next call, which writes the same memory again.
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from labelwise.errors import LabelwiseError, SettingsError, TrainingError
from labelwise.training.settings import Hardware, Precision
from labelwise.types import Targets

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = [
    "LossFunction",
    "accelerated",
    "autocast_type",
    "compiles",
    "errors_told_by_the_first",
    "fabric_class",
    "fastest_convolutions",
    "make_fabric",
]

WORTH_COMPILING = 2000  # steps: ResNet-18 on an H200 compiles in 20 s and saves 7 to 10 ms a step

ANSWER = timedelta(seconds=3)  # the launcher ends all processes five seconds after the first

LossFunction = Callable[[Tensor, Targets], Tensor]


def make_fabric(hardware: Hardware, precision: Precision = "32") -> "Fabric":
    """Return a launched Fabric; with several devices this starts the other processes.

    Under torchrun the processes are there already, and their number is torchrun's.
    """
    accelerator: str = hardware.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    _check_there(accelerator, hardware.devices)
    devices, nodes = hardware.devices, 1
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    fabric = fabric_class()(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision="bf16-mixed" if autocast_type(precision, accelerator) else "32-true",
    )
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave_group)
    return fabric


def fabric_class() -> "type[Fabric]":
    """Return Lightning's ``Fabric``, imported without torchmetrics where nobody has imported that.

    Fabric asks for its version by importing it, which takes longer than all the rest of Fabric, and
    uses the answer for a callback that is not used here.
    """
    hidden = "torchmetrics" not in sys.modules
    if hidden:
        sys.modules["torchmetrics"] = None  # type: ignore[assignment]
    try:
        from lightning_fabric import Fabric
    finally:
        if hidden:
            del sys.modules["torchmetrics"]
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # importing it set its own
    return Fabric


def _check_there(accelerator: str, devices: int) -> None:
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if accelerator in there and there[accelerator] < devices:
        raise SettingsError(
            f"{devices} devices of {accelerator!r} were asked for, and there are "
            f"{there[accelerator]}; use --accelerator cpu or auto, or fewer --devices"
        )


def _leave_group() -> None:
    """Stop gloo's threads: a process that exits while they run may abort."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms on the shapes it meets while the block runs."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def errors_told_by_the_first(fabric: "Fabric") -> Iterator[None]:
    """Let the first process raise what went wrong in another one, instead of a lost connection.

    The others leave their error in the store that all share and wait until it is taken; one that
    nobody takes (the first process hangs in a collective) they print themselves.
    """
    if fabric.world_size == 1:
        yield
        return
    # The variables that the processes found each other by lead to the store that stands already.
    store, _, _ = next(rendezvous("env://", fabric.global_rank, fabric.world_size))
    try:
        yield
    except Exception as error:
        if fabric.global_rank > 0:
            _leave_error(store, fabric.global_rank, error)
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
    except torch.distributed.DistStoreError:
        print(f"labelwise: process {rank + 1} of the run stopped: {text}", file=sys.stderr)
    except RuntimeError:
        pass  # the first process has ended, and said why


def _error_of_another(store: Store) -> str | None:
    try:
        store.wait(["labelwise/error"], ANSWER)
    except RuntimeError:
        return None
    return str(store.get("labelwise/error").decode())


def autocast_type(precision: Precision, accelerator: str) -> torch.dtype | None:
    """Return the type a network is computed in under autocast; None for 32 bits throughout.

    A CPU that does not know bfloat16 emulates it, ten times slower than 32 bits, which it
    therefore gets.
    """
    if precision == "32" or (accelerator == "cpu" and not _cpu_computes_bfloat16()):
        return None
    return torch.bfloat16


def _cpu_computes_bfloat16() -> bool:
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def compiles(hardware: Hardware, device: torch.device, world: int, steps: int) -> bool:
    """Return whether a run of ``steps`` is compiled: as it was asked for, or where it pays."""
    if hardware.compile is not None:
        return hardware.compile
    return device.type == "cuda" and world == 1 and steps >= WORTH_COMPILING


def accelerated(
    loss_of: LossFunction, *, precision: torch.dtype | None = None, compiled: bool = False
) -> LossFunction:
    """Return the same function, computed faster.

    ``precision`` is the autocast type of the model, if any: an objective leaves autocast by itself
    and computes in float32 or more.
    """

    def plain(
        images: Tensor, labels: Tensor, observed: Tensor | None, index: Tensor | None
    ) -> Tensor:
        kind = images.device.type
        with torch.autocast(kind, precision or torch.bfloat16, enabled=precision is not None):
            return loss_of(images, Targets(labels, observed, index))

    graphs = torch.cuda.is_available()
    mode = "reduce-overhead" if graphs else "default"
    run = torch.compile(plain, mode=mode, dynamic=False) if compiled else plain

    def loss(images: Tensor, targets: Targets) -> Tensor:
        if compiled and graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return run(images, targets.labels, targets.observed, targets.index)

    return loss
