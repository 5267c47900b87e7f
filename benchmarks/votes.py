"""What are votes worth? ``python benchmarks/votes.py FILE --weights WEIGHTS [--cache FOLDER]``.

FILE is a Parquet table with the columns ``image`` (bytes) and ``votes`` (counts of people per
class, the classes in its metadata), such as CIFAR-10H: the CIFAR-10 test photos with the answers
of about 51 people each. WEIGHTS are those of tf_efficientnet_lite0, whose features, of the photos
at 96 pixels, are computed once. A linear head is solved on 4,000 photos, its L2 weight chosen on
1,000, and judged on the other 5,000 against all their votes; nothing is calibrated afterwards.

targets   trained with the shares of the votes, with the majority, with the majority smoothed
          (bce-ls moves each label towards 1/2; for softmax 0.05 is shared out among the classes).
workers   of every photo few people answer, each for each label. A simulated worker sees what one
          of the voters saw, drawn from the photo's votes, and then says yes to what it saw with a
          chance of its own (sensitivity) and no to what it did not see (specificity); one in five
          says yes to one label in five, whatever it sees. The soft labels by counts and by the
          model of workers, beside all votes, and heads trained with them.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import labelwise
from labelwise.base.names import Names
from labelwise.metrics import brier_score, log_loss, log_loss_from_logs, reliability
from labelwise.pictures import BytesImages
from labelwise.tables import LabelTable
from labelwise.tables.votes import Votes, count_votes, model_workers
from labelwise.training.features import compute, frozen_backbone

WORKERS, GUESSERS = 50, 10
LEAST = 1e-3  # a share of 0 or 1 from few people is believed to one in a thousand, to be scored


def features(path, weights, cache):
    blobs = pq.read_table(path, columns=["image"])["image"].to_pylist()
    photos = BytesImages(blobs, [str(row) for row in range(len(blobs))])
    table = LabelTable.from_arrays(["any"], photos, np.ones((len(blobs), 1)))
    backbone = frozen_backbone("tf_efficientnet_lite0", weights=weights, image_size=96)
    return compute(table, backbone, cache).images


def judged(images, labels, shares, split, method, **options):
    """Return log loss, excess over the entropy, Brier and ECE of a head, on the test split."""
    targets = np.where((split == "test")[:, None], shares, labels)
    table = LabelTable.from_arrays(
        [f"class-{k}" for k in range(shares.shape[1])], images, targets, split=split, name="votes"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = labelwise.train(
            table,
            Path(folder) / "run",
            method=method,
            features="identity",
            calibrate="none",
            progress=False,
            options=options,
        )
        test = run.predictions("test")
    log_p, log_q = test.link.log_probs(test.logits.astype(np.float64))
    truth = shares[split == "test"]
    loss = log_loss_from_logs(log_p, log_q, truth).value
    return (
        loss,
        loss - log_loss(truth, truth).value,
        brier_score(np.exp(log_p), truth).value,
        float(reliability(np.exp(log_p), truth, bins=15).ece()),
    )


def show(words, figures):
    print(f"{words:<34}" + "".join(f"{figure:10.5f}" for figure in figures), flush=True)


def targets(images, shares, split):
    width = shares.shape[1]
    majority = np.eye(width)[shares.argmax(1)]
    print(f"{'trained with':<34}  log loss    excess     Brier       ECE")
    for words, labels, method, options in (
        ("votes, bce", shares, "bce", {}),
        ("majority, bce", majority, "bce", {}),
        ("majority smoothed by 0.05, bce-ls", majority, "bce-ls", {"smoothing": 0.05}),
        ("majority smoothed by 0.1, bce-ls", majority, "bce-ls", {"smoothing": 0.1}),
        ("votes, softmax", shares, "softmax", {}),
        ("majority, softmax", majority, "softmax", {}),
        ("majority smoothed, softmax", 0.95 * majority + 0.05 / width, "softmax", {}),
    ):
        show(words, judged(images, labels, shares, split, method, **options))


def simulated(shares, people, rng):
    """Return the votes of ``people`` workers for each photo and label."""
    rows, width = shares.shape
    sensitivity, specificity = rng.uniform(0.6, 0.98, WORKERS), rng.uniform(0.9, 0.995, WORKERS)
    sensitivity[:GUESSERS], specificity[:GUESSERS] = 0.2, 0.8
    worker = np.argsort(rng.random((rows, WORKERS)), axis=1)[:, :people]
    draws = rng.random((rows, people, 1))
    seen = np.eye(width, dtype=bool)[
        (shares.cumsum(1)[:, None] < draws).sum(-1).clip(max=width - 1)
    ]
    chance = np.where(seen, sensitivity[worker][..., None], 1 - specificity[worker][..., None])
    answer = rng.random(chance.shape) < chance
    place = np.broadcast_to(np.arange(rows)[:, None, None], answer.shape)
    label = np.broadcast_to(np.arange(width), answer.shape)
    who = np.broadcast_to(worker[..., None], answer.shape)
    return Votes(
        Names([str(row) for row in range(rows)]),
        tuple(f"class-{k}" for k in range(width)),
        tuple(f"worker-{number}" for number in range(WORKERS)),
        *(values.ravel().astype(np.int64) for values in (place, label, who)),
        answer.ravel().astype(np.int8),
    )


def workers(images, shares, split):
    held = split != "test"
    for people in (2, 3, 5, 10):
        votes = simulated(shares, people, np.random.default_rng(people))
        print(
            f"{people} people a photo: soft labels against all votes, then heads trained with them"
        )
        for words, made in (
            ("counts", count_votes(votes)),
            ("counts smoothed by 0.5", count_votes(votes, smoothing=0.5)),
            ("model of workers", model_workers(votes)),
        ):
            near = np.clip(made.shares[held], LEAST, 1 - LEAST)
            truth = shares[held]
            error = np.abs(made.shares[held] - truth).mean()
            own = log_loss(near, truth).value, brier_score(near, truth).value, error
            show(f"  {words}, labels", own)
            show(f"  {words}, bce", judged(images, made.shares, shares, split, "bce"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--cache", default="votes-features")
    parser.add_argument("--part", choices=["targets", "workers"])
    args = parser.parse_args()
    counts = np.array(pq.read_table(args.file, columns=["votes"])["votes"].to_pylist(), float)
    shares = counts / counts.sum(1, keepdims=True)
    images = features(args.file, args.weights, args.cache)
    split = np.full(len(shares), "test", "U5")
    order = np.random.default_rng(0).permutation(len(shares))
    split[order[: len(shares) * 2 // 5]] = "train"
    split[order[len(shares) * 2 // 5 : len(shares) // 2]] = "val"
    entropy = log_loss(shares[split == "test"], shares[split == "test"]).value
    print(f"{len(shares):,} photos, entropy of the test votes {entropy:.5f} per label")
    for name, part in (("targets", targets), ("workers", workers)):
        if args.part in (None, name):
            part(images, shares, split)


if __name__ == "__main__":
    main()
