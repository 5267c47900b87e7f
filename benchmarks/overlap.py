"""How much of a GPU decoding and the network leave each other: ``python benchmarks/overlap.py``.

JPEGs of 500 x 375 lie in memory; no file is read and no process is started, so that only the GPU
and the calls that feed it are measured (images per second):

decode     decoders on the JPEG engines in a thread each, and resizing, nothing else at work: two
           with batches of 256, four, and two with batches of 1,024
kernels    microseconds per image that the GPU's processors are busy with decoding (its JPEG engines
           are beside them), with resizing and with the network, by the profiler, each alone
forward    EfficientNet-Lite0 in bfloat16 as one CUDA graph: launched one by one in a thread of its
           own, cuDNN would choose its algorithms anew in each
both       decoding and the network at the same time, neither waiting for the other: what is left
           of each. Two shares whose sum is near 1 are those of work that takes turns on the same
           units; engines of their own would leave both near 1.
coupled    each batch of the network waits for its pictures: the most that an engine can reach
"""

import argparse
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, Full, Queue

import torch
from measure import record
from scoring import make_predictor
from scoring_gpu import Bfloat16, noisy_photo
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from labelwise.pictures.batches import GpuDecoder, borrowed_decoder, new_stream
from labelwise.pictures.loading import Jpeg
from labelwise.pictures.worker import Entry, Kind

SIZE, BATCH, REPEATS = (500, 375), 256, 5


class Stop:
    """Counts images of threads until a moment that all of them learn of."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.seen: dict[str, int] = {}

    def add(self, name: str, count: int) -> None:
        self.seen[name] = self.seen.get(name, 0) + count


Task = Callable[[Stop], None]


def rates(tasks: list[Task], seconds: float) -> dict[str, float]:
    """Return the images per second of tasks that run side by side, after a second of warming."""
    for length in (1.0, seconds):
        stop = Stop()
        threads = [threading.Thread(target=task, args=(stop,)) for task in tasks]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(length)
        stop.asked.set()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        took = time.perf_counter() - begun
    return {name: count / took for name, count in stop.seen.items()}


def decoding(
    decoder: GpuDecoder,
    files: list[Jpeg],
    resize: Callable[[Tensor], Tensor],
    name: str,
    out: "Queue[tuple[Tensor, torch.cuda.Event]] | None" = None,
) -> Task:
    stream = new_stream(torch.device("cuda"))

    def task(stop: Stop) -> None:
        with torch.inference_mode(), torch.cuda.stream(stream):
            while not stop.asked.is_set():
                (pictures,), _ = decoder.decode(files)
                planes = resize(pictures.values.permute(0, 3, 1, 2))
                pixels = planes.contiguous(memory_format=torch.channels_last)
                ready = stream.record_event()
                ready.synchronize()
                if out is not None and not put(out, (pixels, ready), stop):
                    return
                stop.add(name, len(files))

    return task


def put(out: Queue, item: object, stop: Stop) -> bool:
    while not stop.asked.is_set():
        try:
            out.put(item, timeout=0.1)
            return True
        except Full:
            continue
    return False


def network(
    run: Callable[[Tensor], object],
    pixels: Tensor,
    source: "Queue[tuple[Tensor, torch.cuda.Event]] | None" = None,
) -> Task:
    """Return a task that computes batches, two of them in flight."""
    stream = torch.cuda.Stream()

    def task(stop: Stop) -> None:
        flying: list[torch.cuda.Event] = []
        with torch.inference_mode(), torch.cuda.stream(stream):
            while not stop.asked.is_set():
                values = pixels
                if source is not None:
                    try:
                        values, ready = source.get(timeout=0.1)
                    except Empty:
                        continue
                    stream.wait_event(ready)
                    values.record_stream(stream)
                run(values)
                flying.append(stream.record_event())
                if len(flying) > 2:
                    flying.pop(0).synchronize()
                stop.add("forward", BATCH)
            stream.synchronize()

    return task


def as_graph(run: Callable[[Tensor], Tensor], pixels: Tensor) -> Callable[[Tensor], object]:
    """Return the network as one CUDA graph, which copies a batch to where it reads."""
    held, graph = pixels.clone(memory_format=torch.preserve_format), torch.cuda.CUDAGraph()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run(held)
        side.synchronize()
        with torch.cuda.graph(graph):
            run(held)
    torch.cuda.synchronize()

    def replay(values: Tensor) -> None:
        held.copy_(values)
        graph.replay()

    return replay


def kernel_microseconds(work: Callable[[], object], images: int) -> float | None:
    """Return how long the GPU's processors are busy per image, copies left out; None if unknown."""
    work()
    torch.cuda.synchronize()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as watched:
            for _ in range(REPEATS):
                work()
            torch.cuda.synchronize()
        kernels = [
            event
            for event in watched.key_averages()
            if not event.key.startswith(("Memcpy", "Memset"))
        ]
        total = sum(event.self_device_time_total for event in kernels)
    except RuntimeError as error:
        print(f"no profile: {repr(error)[:200]}", flush=True)
        return None
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:4]:
        print(f"    {event.self_device_time_total / REPEATS / images:8.3f} us {event.key[:90]}")
    return total / REPEATS / images or None


@dataclass(frozen=True)
class Ways:
    """How the network is launched, by name, and the pixels that it is given alone."""

    runs: dict[str, Callable[[Tensor], object]]
    pixels: Tensor

    @staticmethod
    def of(logits: Callable[[Tensor], Tensor], pixels: Tensor) -> "Ways":
        return Ways({"graph": as_graph(logits, pixels)}, pixels)


def show_kernels(
    decoder: GpuDecoder, files: list[Jpeg], resize: Callable[[Tensor], Tensor], ways: Ways
) -> None:
    """Print what each part takes of the GPU's processors, and what that leaves at most."""
    pixels = torch.zeros(BATCH, *SIZE[::-1], 3, dtype=torch.uint8, device="cuda")
    side = ways.pixels
    parts: dict[str, Callable[[], object]] = {
        "decode": lambda: decoder.decode(files),
        "resize": lambda: resize(pixels.permute(0, 3, 1, 2)).contiguous(
            memory_format=torch.channels_last
        ),
        **{name: (lambda run=run: run(side)) for name, run in ways.runs.items()},
    }
    found = {}
    for name, work in parts.items():
        with torch.inference_mode():
            took = kernel_microseconds(work, BATCH)
        if took is None:
            return
        found[name] = took
        print(f"kernels of {name:20s} {took:8.2f} us per image", flush=True)
    feeding = found["decode"] + found["resize"]
    for name in ways.runs:
        if name in found:
            print(f"one at a time with {name}: {1e6 / (feeding + found[name]):,.0f} images/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    device = torch.device("cuda")
    predictor = make_predictor().fused()
    predictor.model.to(device, torch.bfloat16, memory_format=torch.channels_last)
    scorer, resize = Bfloat16(predictor), predictor.transform.resize_planes
    contents = [noisy_photo(SIZE, seed) for seed in range(BATCH)]
    header = Entry(Kind.JPEG, 0, 0, *SIZE[::-1])
    files = [
        Jpeg(place, place, torch.frombuffer(bytearray(content), dtype=torch.uint8), header)
        for place, content in enumerate(contents)
    ]
    side = predictor.transform.size
    pixels = torch.zeros(BATCH, side, side, 3, dtype=torch.uint8, device=device)
    ways = Ways.of(scorer.logits, pixels.permute(0, 3, 1, 2))
    best, limit = 0.0, 0.0
    with ExitStack() as stack:
        decoders = [stack.enter_context(borrowed_decoder(device)) for _ in range(4)]

        def decoders_into(out: Queue | None, count: int = 2, batches: int = 1) -> list[Task]:
            return [
                decoding(one, files * batches, resize, f"decode {number}", out)
                for number, one in enumerate(decoders[:count])
            ]

        def images_per_second(count: int, batches: int) -> float:
            tasks = decoders_into(None, count, batches)
            found = sum(rates(tasks, given.seconds).values())
            print(
                f"decode alone, {count} threads, batches of {batches * BATCH:5,d} "
                f"{found:10,.0f} images/s",
                flush=True,
            )
            return found

        alone = images_per_second(2, 1)
        images_per_second(4, 1)
        images_per_second(2, 4)
        show_kernels(decoders[0], files, resize, ways)
        for name, run in ways.runs.items():
            own = rates([network(run, ways.pixels)], given.seconds)["forward"]
            both = rates([*decoders_into(None), network(run, ways.pixels)], given.seconds)
            forward = both.pop("forward")
            decoded = sum(both.values())
            shares = decoded / alone, forward / own
            queue: Queue = Queue(4)
            tasks = [*decoders_into(queue), network(run, ways.pixels, queue)]
            coupled = rates(tasks, given.seconds)["forward"]
            if coupled / min(alone, own) > best / (limit or 1):
                best, limit = coupled, min(alone, own)
            print(
                f"{name}: forward alone {own:10,.0f}; both at once: decode {decoded:,.0f} "
                f"({shares[0]:.2f} of alone), forward {forward:,.0f} ({shares[1]:.2f}), "
                f"sum of shares {sum(shares):.2f}; coupled {coupled:,.0f}; "
                f"one after the other {1 / (1 / alone + 1 / own):,.0f}",
                flush=True,
            )
            record(f"overlap-{name}", sum(shares))
    record("nvjpeg-coupled", best, limit)


if __name__ == "__main__":
    main()
