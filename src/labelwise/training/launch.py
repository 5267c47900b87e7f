"""Fabric for a run: devices, processes, precision."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

__all__ = ["fastest_convolutions", "make_fabric"]


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms on the shapes it meets while the block runs."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def make_fabric(
    *, accelerator: str = "auto", devices: int = 1, precision: Literal["32", "bf16"] = "32"
) -> Any:
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
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric
