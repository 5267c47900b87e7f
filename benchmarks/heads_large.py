"""Solved heads of many labels, their memory, and a GPU: ``python benchmarks/heads_large.py``.

Features of unit variance that are drawn from a few hidden directions, as those of photos are, and
labels whose log-odds are linear in them (a share of 1 to 20 % each). What is measured:

large      seconds of 1,000 labels on 100,000 rows of 1,024 features, and the most memory above what
           features and labels took before, on the GPU if there is one
devices    the same problem with fewer labels and rows, on the GPU and on all cores (goal 20)
memory     how much more the most memory of three times the labels is, a fifth of the rows and a
           sixteenth of the features: what labels cost (without a GPU)
"""

import argparse
import time

import torch
from measure import Measured, measure, record
from torch import Tensor

from labelwise.objectives.convex import CoinLoss
from labelwise.training.solve import Solution, solve
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
    parser.add_argument("--part", choices=("all", "large", "devices", "memory"), default="all")
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
    if given.part in ("all", "large"):
        size = f"{given.rows:,} rows of {given.width:,}, {given.labels:,} labels"
        if gpu:
            took, peak, _ = on_gpu(*made(given.rows, given.width, given.labels))
            print(f"{size}: {took:.1f} s and {peak:,.0f} MiB on the GPU", flush=True)
            record("heads-large-gpu-memory", peak)
        else:
            found = measured(given.rows, given.width, given.labels)
            print(f"{size}: {found.clock_seconds:.0f} s, {found.peak_mib:,.0f} MiB", flush=True)
    if given.part in ("all", "devices") and gpu:
        features, labels = made(given.rows // 4, given.width, given.labels // 5)
        took, peak, weight = on_gpu(features, labels)
        slow, expected = on_cores(features, labels)
        apart = (weight - expected).abs().max() / expected.abs().max()
        print(
            f"{len(features):,} rows, {labels.shape[1]} labels: {took:.2f} s on the GPU, "
            f"{slow:.1f} s on {torch.get_num_threads()} threads, {slow / took:.0f} times; "
            f"weights apart by {apart:.1e} of the largest",
            flush=True,
        )
        record("heads-gpu", took, slow)


if __name__ == "__main__":
    main()
