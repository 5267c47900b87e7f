"""Networks of torch over images, batch by batch: on a CPU some pictures at a time, or on a GPU."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.pictures import FeatureRows, ImageSource
from labelwise.pictures.batches import Decode, Inputs, read_ahead
from labelwise.pictures.inputs import Failure
from labelwise.pictures.prefetch import started_ahead
from labelwise.pictures.transform import Transform

# On a GPU a CUDA graph launches all kernels of a network with one call: launched one by one, each
# waits for Python's lock, which the threads that feed the GPU hold.


Network = Callable[[Tensor], tuple[Tensor, ...]]


Waiting = Callable[[], tuple[Tensor, ...]]


def launch(values: tuple[Tensor, ...], device: torch.device) -> Waiting:
    """Begin to copy values to the host; return what waits for them, where a GPU computes them."""
    if device.type != "cuda":
        hosts = [value.to("cpu") for value in values]
        return lambda: tuple(hosts)
    hosts = [torch.empty_like(value, device="cpu", pin_memory=True) for value in values]
    for host, value in zip(hosts, values, strict=True):
        host.copy_(value, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(device))

    def wait() -> tuple[Tensor, ...]:
        copied.synchronize()
        return tuple(host.clone() for host in hosts)  # pinned memory is scarce

    return wait


def captured(network: Network, example: Tensor) -> Network:
    """Return the network as a CUDA graph for inputs that lie in memory as the example does."""
    try:
        held = example.clone(memory_format=torch.preserve_format)
        with torch.cuda.device(held.device):
            current = torch.cuda.current_stream()
            beside = torch.cuda.Stream()
            beside.wait_stream(current)
            with torch.cuda.stream(beside):
                network(held)  # libraries set themselves up, constants are sent
            current.wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = network(held)
    except RuntimeError:  # it waits for the GPU, or the memory does not suffice
        torch.cuda.synchronize(example.device)
        return network

    def layout(values: Tensor) -> tuple[object, ...]:
        return values.shape, values.stride(), values.dtype, values.device

    def replayed(inputs: Tensor) -> tuple[Tensor, ...]:
        if layout(inputs) != layout(held):
            return network(inputs)
        held.copy_(inputs)
        graph.replay()
        return tuple(value.clone() for value in outputs)  # the next batch is written over them

    return replayed


PICTURES_AT_ONCE = 8  # on a CPU: as fast as more, in less memory
WORTH_CAPTURING = 16  # batches on a GPU: to capture a network takes as long as some of them


@dataclass(frozen=True, eq=False)
class Inferred:
    """What a network makes of one batch: ``values`` (one row for each of ``rows``) on the CPU."""

    rows: NDArray[np.int64]
    values: tuple[Tensor, ...]
    failures: tuple[Failure, ...] = ()


def infer(
    network: Network,
    images: ImageSource,
    transform: Transform,
    *,
    rows: Sequence[int] | NDArray[np.int64] | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    decode: Decode = "cpu",
) -> Generator[Inferred]:
    """Yield what ``network`` makes of images, batch by batch, in the order of the rows."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")
    device = torch.device(device)
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
    batches = [chosen[at : at + batch_size] for at in range(0, len(chosen), batch_size)]

    on_gpu = device.type == "cuda"
    if on_gpu and len(batches) > WORTH_CAPTURING and not isinstance(images, FeatureRows):
        shape = batch_size, transform.channels, transform.size, transform.size
        whole = torch.zeros(shape, dtype=transform.dtype, device=device)
        with torch.inference_mode():
            network = captured(network, whole.contiguous(memory_format=torch.channels_last))

    whole_rows = batch_size if len(batches) > 1 else 0

    def launched(batch: Inputs) -> tuple[Inputs, Waiting]:
        with torch.inference_mode():
            values = _in_parts(network, batch.values, whole_rows) if len(batch.rows) else ()
            return batch, launch(values, device)

    read = read_ahead(images, transform, batches, workers=workers, device=device, decode=decode)
    with closing(read) as inputs:
        for batch, wait in started_ahead(inputs, launched, 1 if on_gpu else 0):
            yield Inferred(batch.rows, wait(), tuple(batch.failures))


def _in_parts(network: Network, values: Tensor, whole_rows: int) -> tuple[Tensor, ...]:
    """Return what a network makes of inputs on its device; on a CPU, of some pictures at a time.

    A GPU gets batches of ``whole_rows``: to plan convolutions of another size takes cuDNN seconds.
    """
    rows = len(values)
    if values.is_cuda and values.ndim == 4 and rows < whole_rows:
        padded = torch.cat([values, values[:1].expand(whole_rows - rows, -1, -1, -1)])
        padded = padded.contiguous(memory_format=torch.channels_last)
        return tuple(value[:rows] for value in network(padded))
    if values.is_cuda or values.ndim != 4:
        return network(values)
    starts = range(0, rows, PICTURES_AT_ONCE)
    parts = [network(values[at : at + PICTURES_AT_ONCE]) for at in starts]
    return tuple(torch.cat(some) for some in zip(*parts, strict=True))
