"""Retrieval mAP over all queries of up to three labels, against the naive loop.

``python benchmarks/arrays.py --only retrieval`` times a sample of queries on one core.
``python benchmarks/arrays_retrieval.py --device cuda`` evaluates all 584,680 on an accelerator.
"""

import argparse
import sys
import time

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from labelwise.queries import count_queries, retrieval_map
from labelwise.queries.quality import CostTable, all_queries

IMAGES, LABELS = 40_137, 80
BRANCHES, SLOW_QUERIES = 16, 100
SECONDS = 60.0


def log_probs():
    """Return float32 log p, log(1 - p) and labels with a long tail, 2.9 labels an image."""
    random = np.random.default_rng(0)
    prior = 1 / np.arange(1, LABELS + 1) ** 0.8
    prior = np.minimum(prior * 2.9 / prior.sum(), 0.6)
    labels = random.random((IMAGES, LABELS)) < prior
    odds = random.standard_normal((IMAGES, LABELS)) + 2.5 * labels + np.log(prior)
    sides = -np.logaddexp(0, -odds), -np.logaddexp(0, odds)
    return *(side.astype(np.float32) for side in sides), labels


def naive(log_p, log_q, labels, queries):
    """The loop one would write: fancy indexing, then scikit-learn's average precision."""
    found = []
    for query in queries:
        wanted, unwanted = query[query < LABELS], query[query >= LABELS] - LABELS
        relevant = labels[:, wanted].all(1) & ~labels[:, unwanted].any(1)
        if relevant.any():
            scores = log_p[:, wanted].sum(1) + log_q[:, unwanted].sum(1)
            found.append(average_precision_score(relevant, scores))
    return np.array(found)


def sampled(quick):
    from measure import Contender, compare

    log_p, log_q, labels = log_probs()
    table = CostTable.of(log_p, log_q, labels, None)
    # Length 3 is 98 % of the queries; whole branches of the tree of queries are drawn.
    queries = all_queries(LABELS, 3)
    pairs, branches = np.unique(queries[:, :2], axis=0, return_inverse=True)
    random = np.random.default_rng(1)
    drawn = random.choice(len(pairs), BRANCHES, replace=False)
    inside = queries[np.isin(branches.ravel(), drawn)]
    some = inside[random.choice(len(inside), SLOW_QUERIES, replace=False)]

    def ours():
        values = (
            table.average_precision(query)
            for number in drawn
            for query in queries[branches.ravel() == number]
        )
        return [value for value in values if value is not None]

    def agree(mine, peer, theirs):
        one = naive(log_p, log_q, labels, queries[branches.ravel() == drawn[0]])
        np.testing.assert_allclose(np.sort(one), np.sort(mine[: len(one)]), rtol=1e-5)

    return compare(
        "retrieval mAP",
        f"{len(inside):,} queries",
        Contender("ours", ours, repeats=3),
        [
            Contender(
                "naive loop",
                lambda: naive(log_p, log_q, labels, some),
                scale=len(inside) / SLOW_QUERIES,
            )
        ],
        goal=30.0,
        check=agree,
    )


PARTS = {"retrieval": sampled}


def whole(device):
    """Evaluate every query of up to three labels on a device, and check a few by the loop."""
    log_p, log_q, labels = log_probs()
    tensors = [torch.from_numpy(array).to(device) for array in (log_p, log_q, labels)]
    retrieval_map(*(tensor[:, :5] for tensor in tensors), longest=2)  # starts the device
    start = time.perf_counter()
    results = retrieval_map(*tensors, longest=3)
    seconds = time.perf_counter() - start
    for result in results:
        print(result)
    total = sum(count_queries(LABELS, length) for length in (1, 2, 3))
    print(f"{total:,} queries in {seconds:.1f} s on {device} (goal {SECONDS:g} s)")
    expected = naive(log_p, log_q, labels, np.arange(LABELS)[:, None]).mean()
    assert abs(results[0].value - expected) < 1e-6, (results[0].value, expected)
    some = retrieval_map(*(tensor[:, :6] for tensor in tensors), longest=3)
    host = retrieval_map(log_p[:, :6], log_q[:, :6], labels[:, :6], longest=3)
    for here, there in zip(host, some, strict=True):
        assert abs(here.value - there.value) < 1e-9, (here, there)
        assert here.queries == there.queries
    print("as the loop and as the CPU")
    sys.exit(0 if seconds <= SECONDS else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    whole(parser.parse_args().device)
