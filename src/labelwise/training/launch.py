"""Fabric for a run: devices, processes, precision."""

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from labelwise.training.settings import Precision

__all__ = ["autocast_type", "fastest_convolutions", "make_fabric"]


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms on the shapes it meets while the block runs."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


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


def make_fabric(*, accelerator: str = "auto", devices: int = 1, precision: Precision = "32") -> Any:
    """Return a launched Fabric; with several devices this starts the other processes.

    Under torchrun the processes are there already, and their number is torchrun's.
    """
    from lightning.fabric import Fabric

    for name in ("lightning.fabric", "lightning.pytorch"):  # importing them set their own levels
        logging.getLogger(name).setLevel(logging.WARNING)
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    nodes = 1
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    fabric = Fabric(
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


def _leave_group() -> None:
    """Stop gloo's threads: a process that exits while they run may abort."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
