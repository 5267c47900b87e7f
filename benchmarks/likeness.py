"""How often a library of other photos is told from the held-out ones: COCO, blur, CIFAR, shares.

    python benchmarks/likeness.py --data DIR [--draws 40]

Held-out photos and library are drawn from photos that fitted nothing (``shifts.py``), without
replacement and apart from each other; ``three`` has one label three times as often. ``logits`` are
the outcomes as an index finds them (alike / shares differ / pictures differ). ``features`` is the
share of draws in which the same test on embeddings of the pictures (64 fixed random directions)
says at 1 % that they differ. ``--photos`` times the comparison of so many photos with 1,000 others.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from shifts import photos_of, three_times

from labelwise.metrics.drift import held_out_shares
from labelwise.metrics.likeness import compare_photos, energy_test, far_points

OUTCOMES = ("alike", "shares differ", "pictures differ")
SIZES = ((300, 300), (1000, 1500))
DIRECTIONS = 64


def outcome(held, photos):
    """Return what an index would say of a library, given held-out photos."""
    p, now = np.exp(held.log_p), np.exp(photos.log_p)
    points = [(one.log_p - one.log_q).astype(np.float32) for one in (held, photos)]
    known = held_out_shares(p, held.labels)
    names = [f"l{k}" for k in range(p.shape[1])]
    labels = held.labels.astype(float)
    found = compare_photos(names, points[0], labels, known, points[1], now, own_probs=p)
    return found.outcome


def embedded(features, scale):
    directions = np.random.default_rng(0).standard_normal((features.shape[1], DIRECTIONS))
    turned = (features / scale) @ directions
    return (turned / np.linalg.norm(turned, axis=1, keepdims=True)).astype(np.float32)


def timed(photos):
    """Print how long the comparison of a large library takes, and how far its photos are."""
    random = np.random.default_rng(0)
    held = random.normal(-2, 2, (1000, 80)).astype(np.float32)
    library = random.normal(-2, 2, (photos, 80)).astype(np.float32)
    labels = (random.random(held.shape) < 1 / (1 + np.exp(-held))).astype(float)
    start = time.perf_counter()
    own = 1 / (1 + np.exp(-held.astype(float)))
    known = held_out_shares(own, labels > 0.5)
    few = library[:4096]
    probs = 1 / (1 + np.exp(-few.astype(float)))
    compare_photos([f"l{k}" for k in range(80)], held, labels, known, few, probs, own_probs=own)
    compared = time.perf_counter() - start
    far_points(held, library)
    whole = time.perf_counter() - start
    print(
        f"{photos:,} photos, 80 labels: compared in {compared:.1f} s, {whole:.1f} s with far ones"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of COCO and CIFAR photos")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--photos", type=int, default=100_000)
    arguments = parser.parse_args()
    timed(arguments.photos)
    if arguments.data is None:
        return
    random = np.random.default_rng(0)
    worlds = {name: photos_of(name, arguments.data) for name in ("test", "blur", "cifar")}
    worlds["test"] = worlds["test"].rows(slice(len(worlds["blur"].labels)))  # those blurred
    scale = photos_of("train", arguments.data).features.std(axis=0) + 1e-6
    common = np.flatnonzero(worlds["test"].labels.mean(axis=0) >= 0.03)
    print("held-out  library  world  alike / shares differ / pictures differ  features")
    for held_out, library in SIZES:
        for name in ("calm", "three", "blur", "cifar"):
            counts, seen = dict.fromkeys(OUTCOMES, 0), 0
            for _ in range(arguments.draws):
                order = random.permutation(len(worlds["test"].labels))
                held = worlds["test"].rows(order[:held_out])
                rest = worlds["test"].rows(order[held_out:])
                if name == "calm":
                    photos = rest.rows(slice(library))
                elif name == "three":
                    photos = three_times(rest, random.choice(common), library, random)
                elif name == "blur":
                    photos = worlds["blur"].rows(order[held_out : held_out + library])
                else:
                    photos = worlds["cifar"].rows(
                        random.permutation(len(worlds["cifar"].labels))[:library]
                    )
                counts[outcome(held, photos)] += 1
                points = [embedded(one.features, scale)[:1000] for one in (held, photos)]
                seen += energy_test(*points, random) <= 0.01
            words = " / ".join(str(counts[one]) for one in OUTCOMES)
            share = seen / arguments.draws
            print(f"{held_out:8,} {library:8,}  {name:6} {words:38} {share:8.2f}", flush=True)


if __name__ == "__main__":
    main()
