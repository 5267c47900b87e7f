"""Solved heads of many labels, their memory, and a GPU: ``python benchmarks/heads_large.py``.

Features of unit variance that are drawn from a few hidden directions, as those of photos are, and
labels whose log-odds are linear in them (a share of 1 to 20 % each). What is measured:

large      seconds of 1,000 labels on 100,000 rows of 1,024 features, and the most memory above what
           features and labels took before, on the GPU if there is one, and on all cores (goal 20)
devices    the same problem with fewer labels and rows (goal 20)
portions   both on the GPU, with more and more logits at once, and how much of it the design takes
memory     how much more the most memory of three times the labels is, a fifth of the rows and a
           sixteenth of the features: what labels cost (without a GPU)
"""

import argparse
import time

import torch
from measure import Measured, measure, record
from torch import Tensor

from labelwise.learn.objectives.convex import CoinLoss
from labelwise.training import solve as solver
from labelwise.training.solve import Design, Solution, solve
from labelwise.types import Targets

HIDDEN, VALIDATION = 64, 0.1


def made(rows: int, width: int, labels: int) -> tuple[Tensor, Tensor]:
    """Return features (N, D) and labels (N, K), both in the types that training keeps them in."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, HIDDEN, generator=draw)
    mixing = torch.randn(HIDDEN, width, generator=draw) / HIDDEN**0.5
    features = hidden @ mixing + 0.3 * torch.randn(rows, width, generator=draw)
    weights = torch.randn(HIDDEN, labels, generator=draw) / HIDDEN**0.5
    bias = torch.logit(torch.linspace(0.01, 0.2, labels))
    known = torch.empty(rows, labels, dtype=torch.uint8)
    for start in range(0, rows, 8192):
        logits = 2 * hidden[start : start + 8192] @ weights + bias
        chance = torch.rand(logits.shape, generator=draw)
        known[start : start + 8192] = chance < logits.sigmoid()
    return features, known


def solved(features: Tensor, labels: Tensor, device: torch.device) -> Solution:
    held = int(len(features) * VALIDATION)
    moved = features.to(device)
    return solve(
        moved[held:],
        CoinLoss.of(Targets(labels[held:])),
        moved[:held],
        CoinLoss.of(Targets(labels[:held])),
    )


def on_gpu(features: Tensor, labels: Tensor) -> tuple[float, float, Tensor]:
    """Return seconds, the most MiB on the GPU, and the weights; a first run warms up."""
    device = torch.device("cuda")
    solved(features[:2000], labels[:2000, :4], device)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    found = solved(features, labels, device)
    torch.cuda.synchronize()
    took = time.perf_counter() - begun
    return took, torch.cuda.max_memory_allocated() / 2**20, found.weight.cpu()


def on_cores(features: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    begun = time.perf_counter()
    found = solved(features, labels, torch.device("cpu"))
    return time.perf_counter() - begun, found.weight


def measured(rows: int, width: int, labels: int) -> Measured:
    """Return the time and memory of a problem in a process of its own."""
    features, known = made(rows, width, labels)
    return measure(
        lambda: bool(solved(features, known, torch.device("cpu")).weight.isfinite()[0, 0])
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument(
        "--part", choices=("all", "large", "devices", "portions", "memory"), default="all"
    )
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    if given.part in ("all", "memory") and not gpu:
        rows, width, counts = given.rows // 5, given.width // 16, (given.labels, 3 * given.labels)
        few, many = (measured(rows, width, count) for count in counts)
        print(
            f"{rows:,} rows of {width:,}: {counts[0]:,} labels {few.peak_mib:,.0f} MiB in "
            f"{few.seconds:.1f} s of processor time, {counts[1]:,} labels {many.peak_mib:,.0f} MiB "
            f"in {many.seconds:.1f} s",
            flush=True,
        )
        record("heads-memory-of-labels", many.peak_mib - few.peak_mib)
    sizes = {
        "large": (given.rows, given.width, given.labels),
        "devices": (given.rows // 4, given.width, given.labels // 5),
    }
    for part, size in sizes.items():
        if given.part not in ("all", part):
            continue
        if gpu:
            compared(part, *made(*size))
        elif part == "large":
            found = measured(*size)
            print(f"{words(*size)}: {found.clock_seconds:.0f} s, {found.peak_mib:,.0f} MiB")
    if given.part == "portions" and gpu:
        for size in sizes.values():
            portions(*made(*size))


def compared(part: str, features: Tensor, labels: Tensor) -> None:
    """Solve a problem on the GPU and on all cores, and record both."""
    took, peak, weight = on_gpu(features, labels)
    slow, expected = on_cores(features, labels)
    apart = (weight - expected).abs().max() / expected.abs().max()
    print(
        f"{words(*features.shape, labels.shape[1])}: {took:.2f} s and {peak:,.0f} MiB on the GPU, "
        f"{slow:.1f} s on {torch.get_num_threads()} threads, {slow / took:.1f} times; "
        f"weights apart by {apart:.1e} of the largest",
        flush=True,
    )
    record("heads-gpu" if part == "large" else "heads-small-gpu", took, slow)
    if part == "large":
        record("heads-large-gpu-memory", peak)


def portions(features: Tensor, labels: Tensor) -> None:
    """Print what the number of logits at once changes, and the seconds of the design alone."""
    moved = features.cuda()
    Design.of(moved)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    Design.of(moved)
    torch.cuda.synchronize()
    print(
        f"{words(*features.shape, labels.shape[1])}: its design {time.perf_counter() - begun:.3f} s"
    )
    for power in range(22, 28):
        solver.AT_ONCE_ON_GPU = 1 << power
        took, peak, _ = on_gpu(features, labels)
        print(f"    2^{power} logits at once: {took:.2f} s, {peak:,.0f} MiB", flush=True)


def words(rows: int, width: int, labels: int) -> str:
    return f"{rows:,} rows of {width:,}, {labels:,} labels"


if __name__ == "__main__":
    main()
