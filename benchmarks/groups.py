"""Photos in groups: are promises kept and do intervals cover, by photo and by group?

``python benchmarks/groups.py [--draws N] [--seed S] [--only promises intervals ...]``

The draws have the seeds S, S + 1, ...; methods were chosen on those from 0 on, so other ones judge.

A made world of one label or ten: photo i of group g has the score s and carries the label if
s + noise exceeds a cut, where

    s     = sqrt(r) a_g + sqrt(1 - r) b_i          noise = sqrt(r) u_g + sqrt(1 - r) v_i

are normal, so that photos of a group are correlated by r (0 to 0.8) in what they show and in how
the model errs. The truth is that of a million photos: over photos for what is tested by photo,
and over groups, each counting the same, for what is tested by group.

promises      precision and recall of 0.8 with 95 % confidence: the share of all draws in which a
              promise was made and is broken (goal: at most 5 %), and how often one is made
intervals     mAP, F1, log loss: the share of draws whose 95 % interval holds the truth
calibration   a calibrated model: the share of draws in which it is called miscalibrated (5 %)
draws         `check` and `estimate`: photos of a list or library drawn at random, which assumes
              nothing of groups (goal: 5 % broken, 95 % covered)
"""

import argparse

import numpy as np
import torch
from scipy.special import expit, logit, ndtr

from labelwise.base.bounds import clopper_pearson
from labelwise.base.groups import Groups
from labelwise.decide import (
    Answered,
    Evidence,
    Threshold,
    estimate_count,
    promise_precision,
    promise_recall,
)
from labelwise.decide.audits import ListCheck
from labelwise.evaluation import evaluate
from labelwise.links import Sigmoid
from labelwise.metrics import average_precision, calibration_interval
from labelwise.predictions import Predictions

CUT = 0.7
NOISE = 0.6
LEVEL = 0.8
MANY = 1_000_000
TRUTH = 300_000  # photos of ten labels
CORRELATIONS = (0.0, 0.2, 0.5, 0.8)
WORLDS = ((60, 20, False), (300, 8, True), (20, 15, True))


def sizes_of(random, count, mean, uneven):
    """Photos of each group: all equal, or lognormal with most groups small."""
    if not uneven:
        return np.full(count, mean)
    return np.maximum(1, random.lognormal(np.log(mean) - 0.5, 1.0, count)).astype(int)


def world(random, sizes, r, labels=1):
    """Scores and labels (N, K) and the group (N,) of photos."""
    group = np.repeat(np.arange(len(sizes)), sizes)

    def drawn():
        common = random.normal(size=(len(sizes), labels))[group]
        return np.sqrt(r) * common + np.sqrt(1 - r) * random.normal(size=(len(group), labels))

    scores = drawn()
    return scores, scores + NOISE * drawn() > CUT, group


GRID = np.linspace(-3, 3, 121)


def risks(mean, uneven, r):
    """The true precision and recall on a grid of thresholds, over photos and over groups."""
    random = np.random.default_rng(99)
    sizes = sizes_of(random, MANY // mean, mean, uneven)
    scores, present, group = world(random, sizes, r)
    groups, found = Groups.of(group), {}
    for place, cut in enumerate(GRID):
        chosen, right = scores[:, 0] >= cut, present[:, 0]
        for name, counted in (("precision", chosen), ("recall", right)):
            inside = groups.sums(counted) > 0
            of_groups = groups.ratios(chosen & right, counted)[inside]
            truth = found.setdefault(name, np.empty((2, len(GRID))))
            truth[:, place] = (chosen & right).sum() / max(counted.sum(), 1), of_groups.mean()
    return found


def share(hits, count):
    low, high = clopper_pearson(hits, count, 0.975)
    return f"{hits / count:.3f} [{low:.3f}, {high:.3f}]"


def promises(draws, groups, mean, uneven, r):
    truth = risks(mean, uneven, r)
    for name, fit in (("precision", promise_precision), ("recall", promise_recall)):
        found = {"photo": [0, 0], "group": [0, 0]}
        effects = []
        for seed in draws:
            random = np.random.default_rng(seed)
            sizes = sizes_of(random, groups, mean, uneven)
            scores, present, group = world(random, sizes, r)
            for by, some in (("photo", None), ("group", Groups.of(group))):
                evidence = Evidence.read(expit(scores), present, groups=some)
                made = fit(evidence, level=LEVEL, seed=seed)
                if made.promises:
                    found[by][0] += 1
                    value = np.log(made.rule.value) - np.log1p(-made.rule.value)
                    real = truth[name][0 if by == "photo" else 1]
                    found[by][1] += np.interp(value, GRID, real) < LEVEL
                    if by == "group" and made.promises[0].design_effect is not None:
                        effects.append(made.promises[0].design_effect)
        line = f"{name:9} groups {groups:4} of {mean:3}{' uneven' if uneven else '':7} r {r:.1f}: "
        for by, (made, broken) in found.items():
            line += f"{by} made {made / len(draws):.2f} broken {share(broken, len(draws))}  "
        print(
            line + f"design effect {np.median(effects) if effects else float('nan'):.1f}",
            flush=True,
        )


def intervals(draws, groups, mean, uneven, r, labels=10):
    """Do 95 % intervals hold the figure of 300,000 photos?"""
    random = np.random.default_rng(99)
    scores, present, _ = world(random, sizes_of(random, TRUTH // mean, mean, uneven), r, labels)
    cut = 0.5
    chosen = scores > cut
    probs = np.clip(ndtr((scores - CUT) / NOISE), 1e-6, 1 - 1e-6)
    real = {
        "mAP over labels": average_precision(scores, present).value,
        "F1, mean over labels": float(
            np.mean(2 * (chosen & present).sum(0) / (chosen.sum(0) + present.sum(0)))
        ),
        "Log loss": float(-np.log(np.where(present, probs, 1 - probs)).mean()),
    }
    covered = {(name, by): [0, 0] for name in real for by in ("photo", "group")}
    for seed in draws:
        random = np.random.default_rng(seed)
        drawn, truth, group = world(random, sizes_of(random, groups, mean, uneven), r, labels)
        odds = logit(np.clip(ndtr((drawn - CUT) / NOISE), 1e-6, 1 - 1e-6))
        at = float(logit(ndtr((cut - CUT) / NOISE)))
        for by, named in (("photo", None), ("group", [str(one) for one in group])):
            predictions = Predictions(
                [str(row) for row in range(len(group))],
                torch.from_numpy(odds),
                torch.from_numpy(truth).double(),
                None,
                tuple(f"label {k}" for k in range(labels)),
                "test",
                Sigmoid(),
                named,
            )
            found = evaluate(predictions, Sigmoid(), Threshold(float(expit(at))), query_length=0)
            for figure in found.headline:
                if figure.name in real and figure.low is not None:
                    hit = figure.low <= real[figure.name] <= figure.high
                    covered[figure.name, by][0] += hit
                    covered[figure.name, by][1] += 1
    for name in real:
        line = f"{name:21} groups {groups:4} of {mean:3}{' uneven' if uneven else '':7} r {r:.1f}: "
        for by in ("photo", "group"):
            hits, shown = covered[name, by]
            line += f"{by} {share(hits, shown) if shown else 'not shown'}  "
        print(line, flush=True)


def calibration(draws, groups, mean, uneven, r):
    """How often is a calibrated model called miscalibrated?"""
    refuted = {"photo": 0, "group": 0}
    for seed in draws:
        random = np.random.default_rng(seed)
        scores, present, group = world(random, sizes_of(random, groups, mean, uneven), r)
        probs = ndtr((scores - CUT) / NOISE)
        for by, some in (("photo", None), ("group", Groups.of(group))):
            error = calibration_interval(probs, present, groups=some, draws=500)
            refuted[by] += error.p_value < 0.05
    line = f"ECE       groups {groups:4} of {mean:3}{' uneven' if uneven else '':7} r {r:.1f}: "
    print(
        line + "  ".join(f"{by} {share(hits, len(draws))}" for by, hits in refuted.items()),
        flush=True,
    )


def draws_of_a_library(draws, mean, uneven, r):
    """Checks and estimates draw single photos of a library, whatever its groups."""
    covered = broken = made = 0
    for seed in draws:
        random = np.random.default_rng(seed)
        scores, present, _ = world(random, sizes_of(random, 40, mean, uneven), r)
        truth = present[:, 0]
        drawn = random.permutation(len(truth))[:60]
        part = Answered.read(ndtr((scores[:, 0] - CUT) / NOISE), drawn, truth[drawn] * 1.0)
        found = estimate_count(part)
        covered += found.low <= truth.sum() <= found.high
        best = np.argsort(-scores[:, 0])[: len(truth) // 5]
        order, check = random.permutation(best), ListCheck(len(best), 0.2)
        for checked in range(1, min(80, len(order)) + 1):
            check = check.after(checked, int((~truth[order[:checked]]).sum()))
            if check.promised:
                made += 1
                left = np.setdiff1d(best, order[:checked][~truth[order[:checked]]])
                broken += (~truth[left]).mean() > 0.2
                break
    line = f"draws     40 groups of {mean:3}{' uneven' if uneven else '':7} r {r:.1f}: "
    line += (
        f"estimate covers {share(covered, len(draws))}  check promises {made / len(draws):.2f}, "
    )
    print(line + f"broken {share(broken, len(draws))}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worlds", type=int, nargs="*", default=range(len(WORLDS)))
    parts = ("promises", "intervals", "calibration", "draws")
    parser.add_argument("--only", nargs="*", default=parts, choices=parts)
    given = parser.parse_args()
    draws = range(given.seed, given.seed + given.draws)
    for groups, mean, uneven in (WORLDS[number] for number in given.worlds):
        for r in CORRELATIONS:
            if "promises" in given.only:
                promises(draws, groups, mean, uneven, r)
            if "intervals" in given.only:
                intervals(draws[: len(draws) // 2], groups, mean, uneven, r)
            if "calibration" in given.only:
                calibration(draws, groups, mean, uneven, r)
            if "draws" in given.only:
                draws_of_a_library(draws, mean, uneven, r)


if __name__ == "__main__":
    main()
