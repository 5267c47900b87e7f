"""How a run is computed: its precision, and the loss as one compiled function.

    def loss_of(images, targets):
        return objective(model(images), targets)

    loss_of = accelerated(loss_of, precision=torch.bfloat16, compiled=True)
    loss_of(batch.images, batch.targets).backward()

On CUDA, forward and backward pass are each one CUDA graph: a step of a small network costs a few
launches instead of hundreds. Capturing them takes a second or two; the compiler, which also fuses
kernels, half a minute. A graph is for one shape, so the last short batch of an epoch should be
dropped (``Loader(drop_last=True)``); it is otherwise compiled a second time.
Nothing here waits for the device: the loss stays there until someone asks for its value, and must
be copied before the next call, which writes the same memory again.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn

from labelwise.training.settings import Hardware, Precision
from labelwise.types import Outputs, Targets

# Steps: on an H200 EfficientNet-Lite0 compiles in 30 s more than its graphs are captured in, and
# saves 5 ms of 17 a step.
WORTH_COMPILING = 6000

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
CAPTURED = ("labelwise", "timm", "torch", "torchvision")  # libraries whose layers are captured
WARMING = 3  # passes before a capture, in which libraries choose their kernels


def reserve_workspace() -> None:
    """Let cuBLAS compute the same sums each time; it reads this when CUDA starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def kernels(*, deterministic: bool) -> Iterator[None]:
    """Compute the same bits each time, where that is asked for.

    An operation without a deterministic kernel then raises. cuDNN takes the algorithms it holds for
    the fastest without trying them: compiled on an H200, trials made the first epoch 85 s
    instead of 38, and later ones no shorter.
    """
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


class GraphedModel:
    """A network whose forward and backward pass are captured as CUDA graphs with its first batch.

    They are the kernels of the network itself. Gradients are written to the same memory each time,
    so each backward pass must end a step. Batches of other shapes, networks with layers of other
    libraries, whose Python code a graph would leave out, and networks that wait for the GPU are
    computed kernel by kernel.
    """

    def __init__(self, model: nn.Module, precision: torch.dtype | None) -> None:
        self.model, self.precision = model, precision
        self.shape: torch.Size | None = None  # of the images that are replayed
        self.replay: Callable[[Tensor], Outputs] | None = None
        layers = (type(layer).__module__.partition(".")[0] for layer in model.modules())
        self.known = all(library in CAPTURED for library in layers)

    def __call__(self, images: Tensor) -> Outputs:
        if self.known and self.shape is None:
            self.shape = images.shape
            with torch.cuda.device(images.device):
                self.replay = self._kept(images)
        if self.replay is None or images.shape != self.shape:
            outputs: Outputs = self.model(images)
            return outputs
        return self.replay(images)

    def _kept(self, images: Tensor) -> Callable[[Tensor], Outputs] | None:
        """Capture both passes if possible; buffers and random numbers are left as they were."""
        before = [buffer.clone() for buffer in self.model.buffers()]
        drawn = torch.cuda.get_rng_state()
        try:
            return self._captured(images)
        except RuntimeError:
            return None
        finally:
            torch.cuda.synchronize()
            for buffer, value in zip(self.model.buffers(), before, strict=True):
                buffer.data.copy_(value)
            torch.cuda.set_rng_state(drawn)

    def _captured(self, images: Tensor) -> Callable[[Tensor], Outputs]:
        held = images.clone(memory_format=torch.preserve_format)
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        names: list[str] = []

        def forward() -> list[Tensor]:
            kind = self.precision or torch.bfloat16
            enabled = self.precision is not None
            with torch.autocast("cuda", kind, enabled=enabled, cache_enabled=False):
                outputs: Outputs = self.model(held)
            names[:] = outputs.aux
            return [outputs.logits, *outputs.aux.values()]

        def backward(values: list[Tensor], slopes: list[Tensor]) -> tuple[Tensor | None, ...]:
            given = [pair for pair in zip(values, slopes, strict=True) if pair[0].requires_grad]
            ends, starts = zip(*given, strict=True)
            return torch.autograd.grad(ends, weights, starts, allow_unused=True)

        current, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(current)
        with torch.cuda.stream(beside), catch_warnings():
            simplefilter("ignore")  # the first product of a thread warns that it starts CUDA there
            for _ in range(WARMING):
                values = forward()
                slopes = [torch.zeros_like(value) for value in values]
                backward(values, slopes)
                del values
        current.wait_stream(beside)
        ahead, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(ahead, capture_error_mode="thread_local"):
            values = forward()
        with torch.cuda.graph(back, pool=ahead.pool(), capture_error_mode="thread_local"):
            gradients = backward(values, slopes)
        values = [value.detach() for value in values]  # let go of nodes made in another stream

        class Replayed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, images: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
                held.copy_(images)
                ahead.replay()
                return tuple(value.detach() for value in values)

            @staticmethod
            def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
                for slope, value in zip(slopes, given, strict=True):
                    slope.copy_(value)
                back.replay()
                return None, *(None if one is None else one.detach() for one in gradients)

        def replayed(images: Tensor) -> Outputs:
            logits, *aux = Replayed.apply(images, *weights)  # type: ignore[no-untyped-call]
            return Outputs(logits, dict(zip(names, aux, strict=True)))

        return replayed


def _for_cuda() -> dict[str, Any]:
    """Return the compiler's options for a GPU, of which each version of torch knows its own."""
    known = torch._inductor.list_options()
    fewer = {name: value for name, value in FEWER_TRIALS.items() if name in known}
    return {"triton.cudagraphs": True, **fewer}  # graphs: what the mode "reduce-overhead" is
