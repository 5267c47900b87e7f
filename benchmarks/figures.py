"""Do intervals cover, and do comparisons claim too much?

``python benchmarks/figures.py [--draws N] [--parts ...]``

ranking     made worlds of 10 to 20 labels that go together, 100 and 1,000 images: the share of
            draws whose 95 % interval holds the truth, the figure of 200,000 images (goal 93 to
            97 %), how wide it is, and how often it is shown.
calibration ECE of a calibrated model and of two that are too sure; the truth is the error of the
            true probabilities.
report      every other figure that a report shows with an interval: mAP over images, ECE of the
            surest labels, log loss, Brier score, false alarms; AUROC of the rarest and of the
            commonest label; figures of a subgroup that has a quarter of the images. Of a calibrated
            model, and of one that is too sure of rarer labels.
areas       AUROC of scores of five shapes, 5 to 100 images with the label: the least and the
            largest share of draws over shapes and areas.
winners     tables of equal methods, 5 seeds each: the share in which ``compare`` tells any two
            apart (goal at most 5 %).

Shares come with their 95 % binomial interval (Clopper and Pearson).
"""

import argparse

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import norm

from labelwise.base.bounds import clopper_pearson
from labelwise.decide import Threshold
from labelwise.evaluation import Subgroups, evaluate
from labelwise.evaluation.assemble import auroc_interval
from labelwise.links import Sigmoid
from labelwise.metrics import average_precision, calibration_interval, reliability
from labelwise.papers.comparison import compare_to_best
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


def answered_world(random, rows, centre, sharpness):
    """Log-odds as a model gives them, and labels: ten that go together."""
    odds = np.linspace(centre - 1, centre + 1, 10) + 1.5 * random.normal(size=(rows, 10))
    odds += random.normal(size=(rows, 1))
    return sharpness * odds, random.random(odds.shape) < expit(odds)


def every_figure(odds, present):
    """Return all figures of a report with their intervals: name to (value, low, high)."""
    rows, labels = odds.shape
    names = tuple(f"label {k}" for k in range(labels))
    ids = tuple(map(str, range(rows)))
    given = torch.from_numpy(odds), torch.from_numpy(present).double()
    by = Subgroups.of("site", np.where(np.arange(rows) % 4 == 0, "quarter", "rest"))
    found = evaluate(
        Predictions(ids, *given, None, names, "test"),
        Sigmoid(),
        Threshold(0.5),
        query_length=0,
        by=[by],
        curves=True,
    )
    figures = {one.name: (one.value, one.low, one.high) for one in found.headline}
    for one in found.curves:
        if one.part == "" and one.label in (names[0], names[-1]):
            which = "rarest" if one.label == names[0] else "commonest"
            figures[f"AUROC, {which}"] = one.auroc, one.auroc_low, one.auroc_high
    (quarter,) = (one for one in found.subgroups if one.name == "quarter")
    return figures | {f"by: {one.name}": (one.value, one.low, one.high) for one in quarter.figures}


def of_report(rows, centre, sharpness, truth, draws):
    found = {name: [] for name in truth}
    for seed in range(draws):
        world = answered_world(np.random.default_rng(1 + seed), rows, centre, sharpness)
        for name, (_, low, high) in every_figure(*world).items():
            if low is not None:
                found[name].append((low, high))
    for name, ends in found.items():
        show(name, rows, f"too sure by {sharpness:g}, about {expit(centre):.2f}", truth[name], ends,
             draws)  # fmt: skip


def report_truth(centre, sharpness):
    world = answered_world(np.random.default_rng(0), MANY, centre, sharpness)
    truth = {name: value for name, (value, _, _) in every_figure(*world).items()}
    if sharpness == 1:
        truth |= {name: 0.0 for name in truth if name.startswith("ECE")}
    return truth


SHAPES = {  # of the scores of images with the label; others are normal
    "normal": lambda random, n, gain: gain + random.normal(size=n),
    "twice as wide": lambda random, n, gain: 1.58 * gain + 2 * random.normal(size=n),
    "half as wide": lambda random, n, gain: 0.8 * gain + 0.5 * random.normal(size=n),
    "a fifth missed": lambda random, n, gain: (
        np.where(random.random(n) < 0.2, -0.5, 1.5 * gain) + random.normal(size=n)
    ),
    "one-sided": lambda random, n, gain: gain + random.exponential(size=n) - 0.5,
}


def of_areas(rows, positives, draws):
    random, shares, widths = np.random.default_rng(0), [], []
    others = np.sort(random.normal(size=MANY))
    for shape in SHAPES.values():
        for gain in (1.0, 2.5):
            truth = np.searchsorted(others, shape(random, MANY, gain)).mean() / MANY
            held = 0
            for _ in range(draws):
                count = max(2, random.binomial(rows, positives / rows))
                scores = shape(random, count, gain), random.normal(size=rows - count)
                present = np.arange(rows) < count
                _, low, high = auroc_interval(np.concatenate(scores), present)
                held += low <= truth <= high
                widths.append(high - low)
            shares.append(held / draws)
    print(
        f"AUROC, {positives:>3} of {rows:>4} images: {min(shares):.3f} to {max(shares):.3f} of "
        f"{draws} draws, {np.mean(widths):.2f} wide",
        flush=True,
    )


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
    parts = ("ranking", "calibration", "report", "areas", "winners")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    draws, parts = arguments.draws, arguments.parts
    print(f"{'figure':<22}{'images':>6}  {'world':<28}{'truth':>8}   covered{'width':>23} shown")
    for rows in (100, 1000):
        for world in ((10, 0.05, 0.4), (10, 0.2, 0.4), (20, 0.02, 0.3)) * ("ranking" in parts):
            of_ranking(rows, *world, draws)
        for sharpness in (1.0, 1.1, 1.4) * ("calibration" in parts):
            of_calibration(rows, sharpness, draws)
    for world in ((-2.5, 1.0), (-3.5, 1.4)) * ("report" in parts):
        truth = report_truth(*world)
        for rows in (100, 1000):
            of_report(rows, *world, truth, draws)
    for size in ((100, 5), (100, 10), (100, 25), (1000, 5), (1000, 10), (1000, 30), (1000, 100)) * (
        "areas" in parts
    ):
        of_areas(*size, draws)
    for methods in (2, 4, 8, 16) * ("winners" in parts):
        of_winners(methods, draws)


if __name__ == "__main__":
    main()
