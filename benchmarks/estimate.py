"""Coverage and width of counts when the model is wrong: calm, three times as many, blur.

    python benchmarks/estimate.py [--draws 1000]

A library of 5,000 photos; scores of two normal laws 2.5 apart, probabilities exact for the share
that the model was made with. ``x3`` changes the share, ``blur`` halves the scores and adds noise.
``model`` is the count that adds up probabilities with the variance of the draw alone, ``answers``
the exact interval of the answers without the model, ``ppi`` that of ppi-python where it is
installed, ``labelwise`` ours. A width is that of the 95 % interval, in photos.
"""

import argparse
from importlib.util import find_spec

import numpy as np
from scipy.special import expit

from labelwise.decide import Answered, estimate_count, exact_count_bounds

PHOTOS = 5000


def library(random, world, share):
    truth = random.random(PHOTOS) < share * (3 if world == "x3" else 1)
    x = random.normal(np.where(truth, 2.5, 0.0))
    if world == "blur":
        x = 0.5 * x + random.normal(0, 0.4, PHOTOS)
    return expit(2.5 * x - 3.125 + np.log(share / (1 - share))), truth


def intervals(probs, truth, rows):
    answers = truth[rows].astype(float)
    spread = 1.96 * np.sqrt((probs * (1 - probs)).sum())
    yield "model", probs.sum() - spread, probs.sum() + spread
    yield "answers", *exact_count_bounds(int(answers.sum()), len(rows), PHOTOS, 0.95)
    if find_spec("ppi_py") is not None:
        from ppi_py import ppi_mean_ci

        rest = np.setdiff1d(np.arange(PHOTOS), rows)
        low, high = ppi_mean_ci(answers, probs[rows], probs[rest], alpha=0.05)
        yield "ppi", PHOTOS * np.ravel(low)[0], PHOTOS * np.ravel(high)[0]
    found = estimate_count(Answered(probs, rows, answers))
    yield "labelwise", found.low, found.high


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    random = np.random.default_rng(0)
    print("share  world  answers  method      covers  width")
    for share in (0.1, 0.02):
        for world in ("calm", "x3", "blur"):
            for answers in (50, 100, 150, 400):
                held, width = {}, {}
                for _ in range(draws):
                    probs, truth = library(random, world, share)
                    rows = random.choice(PHOTOS, answers, replace=False)
                    for name, low, high in intervals(probs, truth, rows):
                        held[name] = held.get(name, 0) + (low <= truth.sum() <= high)
                        width[name] = width.get(name, 0) + high - low
                for name, count in held.items():
                    covers, wide = count / draws, width[name] / draws
                    words = f"{share:<6} {world:6} {answers:7}  {name:10} {covers:7.3f}"
                    print(f"{words} {wide:6.0f}", flush=True)


if __name__ == "__main__":
    main()
