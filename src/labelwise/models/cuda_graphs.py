"""A network that computes one batch after the other on a GPU, while Python does other things.

    inputs --copy--> those of the graph --one call: all kernels--> values --copy--> pinned memory

A network is some hundred kernels, each of them launched by a call from Python. Where threads of the
same process feed the GPU, every such call waits for Python's lock: ResNet-50 on 256 tiles is 5.8 ms
of kernels, which took 9 ms to launch with nothing beside it and 16 ms beside the feeding threads.
A CUDA graph launches them all at once. They are the same kernels, so its values are the same.

What the CPU then makes of the values takes one thread: torch would give a part of it to each core,
and wait until cores that are decoding have looked at theirs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

Network = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class Launched:
    """Values that a device computes and copies to the host, and the event that ends this."""

    values: tuple[Tensor, ...]
    copied: "torch.cuda.Event | None" = None

    def wait(self) -> tuple[Tensor, ...]:
        """Return the values on the CPU, once they are there."""
        if self.copied is None:
            return self.values
        self.copied.synchronize()
        return tuple(value.clone() for value in self.values)  # pinned memory is scarce


def launch(values: tuple[Tensor, ...], device: torch.device) -> Launched:
    """Begin to copy values to the host; on a GPU they may be computed later than this returns."""
    if device.type != "cuda":
        return Launched(tuple(value.to("cpu") for value in values))
    hosts = [torch.empty_like(value, device="cpu", pin_memory=True) for value in values]
    for host, value in zip(hosts, values, strict=True):
        host.copy_(value, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(device))  # type: ignore[no-untyped-call]
    return Launched(tuple(hosts), copied)


def captured(network: Network, example: Tensor) -> Network:
    """Return the network as a CUDA graph for inputs that lie in memory as the example does.

    Others are computed as before, and so is everything by a network that cannot be captured:
    one that waits for the GPU, or for whose second copy of its values the memory does not suffice.
    """
    try:
        graph, held, found = _capture(network, example)
    except RuntimeError:
        torch.cuda.synchronize(example.device)
        return network

    def replayed(inputs: Tensor) -> tuple[Tensor, ...]:
        if _layout(inputs) != _layout(held):
            return network(inputs)
        held.copy_(inputs)
        graph.replay()
        return tuple(value.clone() for value in found)  # the next batch is written over them

    return replayed


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread of the CPU inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _capture(
    network: Network, example: Tensor
) -> tuple[torch.cuda.CUDAGraph, Tensor, tuple[Tensor, ...]]:
    held = example.clone(memory_format=torch.preserve_format)
    with torch.cuda.device(held.device):
        current = torch.cuda.current_stream()
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            network(held)  # libraries set themselves up, constants are sent
        current.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = network(held)
    return graph, held, found


def _layout(inputs: Tensor) -> tuple[object, ...]:
    return inputs.shape, inputs.stride(), inputs.dtype, inputs.device
