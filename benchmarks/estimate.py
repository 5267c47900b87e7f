"""Coverage and width of counts when the model is wrong: calm, three times as many, blur.

    python benchmarks/estimate.py [--draws 1000] [--data DIR]

A library of 5,000 photos; scores of two normal laws 2.5 apart, probabilities exact for the share
that the model was made with. ``x3`` changes the share, ``blur`` halves the scores and adds noise.
``model`` is the count that adds up probabilities with the variance of the draw alone, ``answers``
the exact interval of the answers without the model, ``ppi`` that of ppi-python where it is
installed, ``labelwise`` ours, ``2 groups`` ours with half of the answers in each of two groups of
photos, that of the larger probabilities of another label and the rest. A width is that of the 95 %
interval, in photos.

With ``--data`` the photos are real instead (``shifts.py``): each draw takes one of the labels that
1 % of the photos carry, and a model of COCO photos.
"""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.special import expit

from labelwise.decide import Answered, estimate_count, estimate_total, exact_count_bounds

PHOTOS = 5000


def made_worlds():
    """Yield the name of each made world, and what draws (probs, truth, groups) of it."""

    def drawn(world, share):
        def library(random):
            truth = random.random(PHOTOS) < share * (3 if world == "x3" else 1)
            x = random.normal(np.where(truth, 2.5, 0.0))
            if world == "blur":
                x = 0.5 * x + random.normal(0, 0.4, PHOTOS)
            probs = expit(2.5 * x - 3.125 + np.log(share / (1 - share)))
            return probs, truth, random.random(PHOTOS) < 0.3 + 0.4 * truth

        return library

    for share in (0.3, 0.1, 0.02):
        for world in ("calm", "x3", "blur"):
            yield f"{share:g} {world}", drawn(world, share)


def real_worlds(folder):
    """Yield the name of each world of real photos, and what draws (probs, truth, groups) of it."""
    from shifts import photos_of, three_times

    def drawn(photos, threefold):
        common = np.flatnonzero(photos.labels.mean(axis=0) >= 0.01)

        def library(random):
            label, other = random.choice(common, 2, replace=False)
            own = three_times(photos, label, len(photos.labels), random) if threefold else photos
            probs, others = np.exp(own.log_p[:, label]), own.log_p[:, other]
            return probs, own.labels[:, label], others > np.median(others)

        return library

    for name in ("calm", "three", "blur", "cifar"):
        yield name, drawn(photos_of("test" if name == "three" else name, folder), name == "three")


def intervals(probs, truth, groups, answers, random):
    photos = len(probs)
    rows = random.choice(photos, answers, replace=False)
    told = truth[rows].astype(float)
    spread = 1.96 * np.sqrt((probs * (1 - probs)).sum())
    yield "model", probs.sum() - spread, probs.sum() + spread
    yield "answers", *exact_count_bounds(int(told.sum()), len(rows), photos, 0.95)
    if find_spec("ppi_py") is not None:
        from ppi_py import ppi_mean_ci

        rest = np.setdiff1d(np.arange(photos), rows)
        low, high = ppi_mean_ci(told, probs[rows], probs[rest], alpha=0.05)
        yield "ppi", photos * np.ravel(low)[0], photos * np.ravel(high)[0]
    found = estimate_count(Answered(probs, rows, told))
    yield "labelwise", found.low, found.high
    parts = []
    for own in (np.flatnonzero(groups), np.flatnonzero(~groups)):
        places = random.choice(len(own), answers // 2, replace=False)
        parts.append(Answered(probs[own], places, truth[own[places]].astype(float)))
    found = estimate_total(parts)
    yield "2 groups", found.low, found.high


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--data", type=Path, help="folder of COCO and CIFAR photos")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--answers", type=int, nargs="+", default=[50, 100, 101, 150, 200, 400])
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    print("world      answers  method      covers  width")
    figures = {}
    worlds = made_worlds() if arguments.data is None else real_worlds(arguments.data)
    for world, library in worlds:
        for answers in arguments.answers:
            held, width = {}, {}
            for _ in range(arguments.draws):
                probs, truth, groups = library(random)
                for name, low, high in intervals(probs, truth, groups, answers, random):
                    held[name] = held.get(name, 0) + (low <= truth.sum() <= high)
                    width[name] = width.get(name, 0) + high - low
            for name, count in held.items():
                covers, wide = count / arguments.draws, width[name] / arguments.draws
                words = f"{world:10} {answers:7}  {name:10} {covers:7.3f}"
                print(f"{words} {wide:6.0f}", flush=True)
                figures[f"{world}, {answers} answers, {name}"] = [covers, round(wide, 1)]
    if arguments.out is not None:
        command = "python " + " ".join(["benchmarks/estimate.py", *sys.argv[1:]])
        text = {"command": command, "covers, width": figures}
        arguments.out.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
