"""Do intervals cover, and do comparisons claim too much?

``python benchmarks/figures.py [--draws N]``

intervals   made worlds of 10 to 20 labels that go together, 100 and 1,000 images: the share of
            draws whose 95 % interval holds the truth, the figure of 200,000 images (goal 93 to
            97 %), how wide it is, and how often it is shown. ECE: a calibrated model and two that
            are too sure; the truth is the error of the true probabilities.
winners     tables of equal methods, 5 seeds each: the share in which ``compare`` tells any two
            apart (goal at most 5 %).

Shares come with their 95 % binomial interval (Clopper and Pearson).
"""

import argparse

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import norm

from labelwise.decide import Threshold
from labelwise.evaluate import evaluate
from labelwise.experiments.statistics import compare_to_best
from labelwise.links import Sigmoid
from labelwise.metrics import average_precision, calibration_interval, reliability
from labelwise.numeric.bounds import clopper_pearson
from labelwise.predictions import Predictions

MANY = 200_000


def ranked_world(random, rows, labels, rarest, commonest):
    """Scores and labels: each label's present images score 1 to 2.5 higher."""
    shares = np.geomspace(rarest, commonest, labels)
    gain = np.linspace(1.0, 2.5, labels)[::-1]
    latent = 0.5 * random.normal(size=(rows, 1)) + 0.75**0.5 * random.normal(size=(rows, labels))
    present = latent > norm.isf(shares)
    return gain * present + random.normal(size=(rows, labels)), present


def macro_f1(scores, present, cut):
    chosen = scores > cut
    return float(np.mean(2 * (chosen & present).sum(0) / (chosen.sum(0) + present.sum(0))))


def of_ranking(rows, labels, rarest, commonest, draws):
    cut = 1.5
    scores, present = ranked_world(np.random.default_rng(0), MANY, labels, rarest, commonest)
    truth = {
        "mAP over labels": average_precision(scores, present).value,
        "F1, mean over labels": macro_f1(scores, present, cut),
    }
    found = {name: [] for name in truth}
    for seed in range(draws):
        drawn = ranked_world(np.random.default_rng(1 + seed), rows, labels, rarest, commonest)
        predictions = Predictions(
            tuple(map(str, range(rows))),
            torch.from_numpy(drawn[0] - cut),
            torch.from_numpy(drawn[1]).double(),
            None,
            tuple(f"label {k}" for k in range(labels)),
            "test",
        )
        for figure in evaluate(predictions, Sigmoid(), Threshold(0.5), query_length=0).headline:
            if figure.name in found and figure.low is not None:
                found[figure.name].append((figure.low, figure.high))
    world = f"{labels} labels in {rarest:g} to {commonest:g}"
    for name, ends in found.items():
        show(name, rows, world, truth[name], ends, draws)


def of_calibration(rows, sharpness, draws):
    def drawn(random, rows):
        odds = 1.5 * random.normal(size=(rows, 20)) - 1.5 + 0.8 * random.normal(size=(rows, 1))
        return expit(odds), expit(odds / sharpness)

    probs, chances = drawn(np.random.default_rng(0), MANY)
    truth = float(reliability(probs, chances).ece()) if sharpness > 1 else 0.0
    ends = []
    for seed in range(draws):
        random = np.random.default_rng(1 + seed)
        probs, chances = drawn(random, rows)
        one = calibration_interval(probs, random.random(probs.shape) < chances, seed=seed)
        ends.append((one.low, one.high))
    show("ECE", rows, f"too sure by {sharpness:g}", truth, ends, draws)


def show(name, rows, world, truth, ends, draws):
    shown = f"{len(ends) / draws:6.2f}"
    if not ends:
        print(f"{name:<22}{rows:>6}  {world:<28}{truth:8.4f}{'':>26}{'':>9}{shown}")
        return
    low, high = np.array(ends).T
    held = int(((low <= truth) & (truth <= high)).sum())
    least, most = clopper_pearson(held, len(ends), 0.975)
    width = float((high - low).mean())
    print(
        f"{name:<22}{rows:>6}  {world:<28}{truth:8.4f}"
        f"   {held / len(ends):.3f} [{least:.3f}, {most:.3f}]{width:9.4f}{shown}",
        flush=True,
    )


def of_winners(methods, draws):
    false = 0
    for seed in range(draws):
        values = np.random.default_rng(seed).normal(size=(methods, 5))
        table = {f"method {m}": dict(enumerate(row)) for m, row in enumerate(values)}
        gaps = compare_to_best(table, higher_is_better=True)
        false += any(gap.distinguishable for gap in gaps)
    least, most = clopper_pearson(false, draws, 0.975)
    print(f"{methods:>3} equal methods: {false / draws:.3f} [{least:.3f}, {most:.3f}]", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    print(f"{'figure':<22}{'images':>6}  {'world':<28}{'truth':>8}   covered{'width':>23} shown")
    for rows in (100, 1000):
        for world in ((10, 0.05, 0.4), (10, 0.2, 0.4), (20, 0.02, 0.3)):
            of_ranking(rows, *world, draws)
        for sharpness in (1.0, 1.1, 1.4):
            of_calibration(rows, sharpness, draws)
    for methods in (2, 4, 8, 16):
        of_winners(methods, draws)


if __name__ == "__main__":
    main()
