"""How a run is computed: its precision, and the loss as one compiled function.

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

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from labelwise.training.settings import Hardware, Precision
from labelwise.types import Targets

WORTH_COMPILING = 2000  # steps: ResNet-18 on an H200 compiles in 20 s and saves 7 to 10 ms a step

# The compiler tries fewer ways to write each kernel: on an H200 a first epoch (EfficientNet-Lite0)
# took 38 s instead of 46, and steps gave the same bits at the same rate.
FEWER_TRIALS = {
    "triton.autotune_pointwise": False,
    "triton.coalesce_tiling_analysis": False,
    "triton.mix_order_reduction": False,
    "dynamic_scale_rblock": False,
    "loop_ordering_after_fusion": False,
    "comprehensive_padding": False,
}

LossFunction = Callable[[Tensor, Targets], Tensor]


def reserve_workspace() -> None:
    """Let cuBLAS compute the same sums each time; it reads this when CUDA starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def kernels(*, deterministic: bool) -> Iterator[None]:
    """Let cuDNN try its algorithms and take the fastest, or compute the same bits each time.

    Which algorithm is the fastest differs from one process to the next, and with it the last bits.
    An operation without a deterministic kernel then raises.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    tried = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = tried
        torch.use_deterministic_algorithms(before, warn_only=warns)


def autocast_type(precision: Precision, accelerator: str) -> torch.dtype | None:
    """Return the type a network is computed in under autocast; None for 32 bits throughout.

    A CPU that does not know bfloat16 emulates it, ten times slower than 32 bits, which it
    therefore gets.
    """
    if precision == "32" or (accelerator == "cpu" and not _cpu_computes_bfloat16()):
        return None
    return torch.bfloat16


def autocast(device: torch.device, precision: torch.dtype | None) -> torch.autocast:
    """Return a block whose networks are computed in ``precision``, if that is given."""
    return torch.autocast(device.type, precision or torch.bfloat16, enabled=precision is not None)


def _cpu_computes_bfloat16() -> bool:
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def compiles(
    hardware: Hardware, device: torch.device, world: int, steps: int, *, deterministic: bool = False
) -> tuple[bool, str]:
    """Return whether a run of ``steps`` is compiled, and why, if that is worth a word.

    As it was asked for, or where it pays. The compiler times kernels too, so a deterministic run
    is compiled only if it is asked for.
    """
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
    """Return the same function, computed faster.

    ``precision`` is the autocast type of the model, if any: an objective leaves autocast by itself
    and computes in float32 or more.
    """
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
        run = torch.compile(plain, dynamic=False, options=_for_cuda() if graphs else None)

    def loss(images: Tensor, targets: Targets) -> Tensor:
        if compiled and graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return run(images, targets.labels, targets.observed, targets.index)

    return loss


def _for_cuda() -> dict[str, Any]:
    """Return the compiler's options for a GPU, of which each version of torch knows its own."""
    known = torch._inductor.list_options()
    fewer = {name: value for name, value in FEWER_TRIALS.items() if name in known}
    return {"triton.cudagraphs": True, **fewer}  # graphs: what the mode "reduce-overhead" is
