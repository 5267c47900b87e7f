"""How often a library of other photos is told from the held-out ones: COCO, blur, CIFAR, shares.

    python benchmarks/likeness.py --data DIR [--draws 300] [--shift-draws 40]

Held-out photos and library are drawn from photos that fitted nothing (``shifts.py``), without
replacement and apart from each other; ``three`` has one label three times as often. What is counted
are the outcomes as an index finds them (alike / shares differ / pictures differ): of what the model
says, and of the embeddings of both sides by a projection that photos of training have set. Where
nothing changed (``calm``), "pictures differ" is meant in at most 1 % of draws and "shares differ"
in at most 5 %; brackets are the 95 % interval of the share of draws that are not alike.
``--photos`` times the comparison of so many photos with 1,000 others, in processor seconds.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from shifts import photos_of, three_times

from labelwise.base.bounds import clopper_pearson
from labelwise.metrics.shift import PointsOfPhotos, compare_photos, far_points, held_out_shares
from labelwise.photos.embeddings import WIDTH, Projection

OUTCOMES = ("alike", "shares differ", "pictures differ")
HELD_OUT = 500  # whose embeddings an index keeps
LIBRARIES = (50, 300, 2500)
WORLDS = ("calm", "three", "blur", "cifar")


def outcome(held, photos, projection):
    """Return what an index would say of a library, given held-out photos."""
    p, now = np.exp(held.log_p), np.exp(photos.log_p)
    points = [(one.log_p - one.log_q).astype(np.float32) for one in (held, photos)]
    known = held_out_shares(p, held.labels)
    names = [f"l{k}" for k in range(p.shape[1])]
    labels = held.labels.astype(float)
    own, others = (projection(one.features.astype(np.float32)) for one in (held, photos))
    more = PointsOfPhotos(
        np.arange(len(own)), np.asarray(own, np.float32), np.asarray(others, np.float32)
    )
    found = compare_photos(names, points[0], labels, known, points[1], now, own_probs=p, more=more)
    return found.outcome


def timed(photos):
    """Print how long the comparison of a large library takes, and how far its photos are."""
    random = np.random.default_rng(0)
    held = random.normal(-2, 2, (1000, 80)).astype(np.float32)
    library = random.normal(-2, 2, (photos, 80)).astype(np.float32)
    pictures, looks = (
        random.standard_normal((size, WIDTH), np.float32) for size in (HELD_OUT, photos)
    )
    labels = (random.random(held.shape) < 1 / (1 + np.exp(-held))).astype(float)
    start = time.process_time()
    own = 1 / (1 + np.exp(-held.astype(float)))
    known = held_out_shares(own, labels > 0.5)
    few = library[:4096]
    probs = 1 / (1 + np.exp(-few.astype(float)))
    more = PointsOfPhotos(np.arange(HELD_OUT), pictures, looks[: len(few)])
    names = [f"l{k}" for k in range(80)]
    compare_photos(names, held, labels, known, few, probs, own_probs=own, more=more)
    compared = time.process_time() - start
    far_points(held, library)
    far_points(pictures, looks)
    whole = time.process_time() - start
    print(
        f"{photos:,} photos, 80 labels, embeddings of {WIDTH}: compared in {compared:.1f} s of a "
        f"processor, {whole:.1f} s with far ones"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of COCO and CIFAR photos")
    parser.add_argument("--draws", type=int, default=300, help="where nothing changed")
    parser.add_argument("--shift-draws", type=int, default=40)
    parser.add_argument("--library", type=int, nargs="+", default=LIBRARIES)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS)
    parser.add_argument("--photos", type=int, default=100_000)
    arguments = parser.parse_args()
    timed(arguments.photos)
    if arguments.data is None:
        return
    random = np.random.default_rng(0)
    photos = {name: photos_of(name, arguments.data) for name in ("test", "blur", "cifar")}
    photos["test"] = photos["test"].rows(slice(len(photos["blur"].labels)))  # those blurred
    fitted = photos_of("train", arguments.data).features
    few = random.permutation(len(fitted))[:HELD_OUT]
    projection = Projection.fitted(fitted[few].astype(np.float32))
    common = np.flatnonzero(photos["test"].labels.mean(axis=0) >= 0.03)
    print("library  world   alike / shares differ / pictures differ   not alike")
    for library in arguments.library:
        for world in arguments.worlds:
            counts = dict.fromkeys(OUTCOMES, 0)
            draws = arguments.draws if world == "calm" else arguments.shift_draws
            for _ in range(draws):
                order = random.permutation(len(photos["test"].labels))
                held = photos["test"].rows(order[:HELD_OUT])
                drawn = library_of(world, photos, order[HELD_OUT:], library, common, random)
                counts[outcome(held, drawn, projection)] += 1
            words = " / ".join(str(counts[one]) for one in OUTCOMES)
            least, most = clopper_pearson(draws - counts["alike"], draws, 0.975)
            share = f"{1 - counts['alike'] / draws:.3f} [{least:.3f}, {most:.3f}]"
            print(f"{library:7,}  {world:6}  {words:42} {share}", flush=True)


def library_of(world, photos, rest, size, common, random):
    """Return so many photos of a world; ``rest`` are the rows that are not held out."""
    if world == "calm":
        return photos["test"].rows(rest[:size])
    if world == "three":
        return three_times(photos["test"].rows(rest), random.choice(common), size, random)
    if world == "blur":
        return photos["blur"].rows(rest[:size])
    return photos["cifar"].rows(random.permutation(len(photos["cifar"].labels))[:size])


if __name__ == "__main__":
    main()
