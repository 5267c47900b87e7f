"""Photos in groups: does every interval hold the truth, and who is called better by mistake?

``python benchmarks/group_figures.py [--draws N] [--seed S] [--only labels ...] [--worlds 0 2]``

The draws have the seeds S, S + 1, ...; methods were chosen on those from 0 on, so other ones judge.

The worlds of ``groups.py``: photos of a group are alike by r in what they show and in how the model
errs. What a photo shows does not depend on r, so the truth is the same for all: the figures of
200,000 photos. Each part counts photo by photo and by whole groups, side by side.

evaluate    the share of draws in which each interval of a report's headline holds the truth
labels      the same for precision, recall, F1, specificity and false alarms of each label
            (`decide`), and for the area under its ROC curve
subgroups   the same for the figures of four sites of a quarter of the groups each, and the share of
            draws in which any is said to differ from the others, though none does (5 %)
compare     three equal methods, three seeds: the share of draws in which some method is told apart
            from the best one (at most 5 %)
ranking     mAP over labels alone, by group, for many draws: the intervals that hold the truth, and
            the draws in which one of three equal methods is told apart
few         one label's log loss: how often intervals of 5 to 40 uneven groups hold it
points      operating points fitted on one draw and judged on another: what they reach in truth, how
            often that keeps the level, and how often the interval of the other draw holds it
likeness    a library drawn like the held-out photos: the share of draws in which its pictures are
            said to differ (1 %) or its labels' shares to have moved (5 %), with all its photos and
            with one of each of its groups; of the held-out photos one of each group in both
"""

import argparse
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from groups import CUT, NOISE, share, sizes_of, world
from scipy.special import logit, ndtr

from labelwise.base.groups import Groups
from labelwise.decide import Threshold, false_alarms_at, recall_at, specificity_at
from labelwise.decide.thresholds import label_figures
from labelwise.evaluation import evaluate
from labelwise.evaluation.assemble import Subgroups, auroc_interval
from labelwise.evaluation.intervals import (
    FEW_GROUPS,
    jackknife_interval,
    mean_ap_without_groups,
    mean_interval_by_group,
    student_reach,
)
from labelwise.links import Sigmoid
from labelwise.metrics import average_precision
from labelwise.metrics.shift import compare_photos, held_out_shares
from labelwise.papers.compare import _covariance, _freedom
from labelwise.papers.comparison import compare_to_best
from labelwise.papers.measures import (
    image_effects,
    mean_ap_by_group,
    probability_figures,
)
from labelwise.predictions import Predictions

CORRELATIONS = (0.0, 0.4, 0.8)
WORLDS = ((60, 20, False), (300, 8, True), (20, 15, True))
LABELS, CUTS = 10, 0.4
METHODS, SEEDS = ("one", "other", "third"), 3
MANY = 200_000
PARTS = ("evaluate", "labels", "subgroups", "compare", "ranking", "few", "points", "likeness")
POINTS = {
    "sensitivity 0.95": (partial(recall_at, recall=0.95), "recall", 0.95, 1),
    "specificity 0.9": (partial(specificity_at, specificity=0.9), "specificity", 0.9, 1),
    "false alarms 20/1000": (partial(false_alarms_at, per_photo=0.02), "false_alarms", 0.02, -1),
}
FEW = (5, 8, 10, 15, 20, 40)


def photos(random, groups, mean, uneven, r):
    """Probabilities, labels and groups of photos; the model is calibrated."""
    scores, present, group = world(random, sizes_of(random, groups, mean, uneven), r, LABELS)
    return np.clip(ndtr((scores - CUT) / NOISE), 1e-6, 1 - 1e-6), present, group


def as_predictions(probs, present, group):
    names = tuple(f"label {k}" for k in range(LABELS))
    ids = [str(row) for row in range(len(present))]
    parts = torch.from_numpy(logit(probs)), torch.from_numpy(present).double()
    named = None if group is None else [str(one) for one in group]
    return Predictions(ids, *parts, None, names, "test", Sigmoid(), named)


def report(probs, present, group, *by):
    predictions = as_predictions(probs, present, group)
    return evaluate(predictions, Sigmoid(), Threshold(CUTS), query_length=0, by=by)


class Held:
    """How often intervals held the truth, by figure."""

    def __init__(self, title):
        self.title, self.counts = title, defaultdict(lambda: [0, 0])

    def add(self, name, by, low, high, truth):
        if low is not None and high is not None and truth is not None:
            self.counts[name, by][0] += low <= truth <= high
            self.counts[name, by][1] += 1

    def print(self):
        for name in dict.fromkeys(name for name, _ in self.counts):
            line = f"{self.title}: {name:24}"
            for by in ("photo", "group"):
                hits, shown = self.counts[name, by]
                line += f"  {by} {share(hits, shown) if shown else 'not shown'}"
            print(line, flush=True)


def both(group):
    return (("photo", None), ("group", group))


def evaluate_part(title, draws, size, r, truth):
    real = {figure.name: figure.value for figure in report(*truth[:2], None).headline}
    real |= {name: 0.0 for name in real if name.startswith("ECE")}
    held = Held(title)
    for seed in draws:
        probs, present, group = photos(np.random.default_rng(seed), *size, r)
        for by, some in both(group):
            for figure in report(probs, present, some).headline:
                held.add(figure.name, by, figure.low, figure.high, real[figure.name])
    held.print()


def labels_part(title, draws, size, r, truth):
    kinds = ("precision", "recall", "f1", "specificity", "false_alarms")
    names = [f"label {k}" for k in range(LABELS)]
    real = label_figures(truth[0] > CUTS, truth[1], names=names)[0]
    area = auroc_interval(truth[0][:, 0], truth[1][:, 0])[0]
    held = Held(title)
    for seed in draws:
        probs, present, group = photos(np.random.default_rng(seed), *size, r)
        for by, some in both(Groups.of(group)):
            for found in label_figures(probs > CUTS, present, names=names, groups=some):
                for kind in kinds:
                    value = getattr(found, kind)
                    if value is not None:
                        held.add(kind, by, *value[1:], getattr(real, kind)[0])
            for k in range(LABELS):
                found = auroc_interval(probs[:, k], present[:, k], some)
                if found is not None:
                    held.add("ROC area", by, *found[1:], area)
    held.print()


def subgroups_part(title, draws, size, r, truth):
    everywhere = Subgroups("site", np.full(len(truth[0]), "all"))
    whole = report(*truth[:2], None, everywhere).subgroups[0]
    real = {one.name: one.value for one in whole.figures}
    held, told = Held(title), {"photo": 0, "group": 0}
    for seed in draws:
        probs, present, group = photos(np.random.default_rng(seed), *size, r)
        site = np.array(list("abcd"))[group % 4]
        for by, some in both(group):
            rows = report(probs, present, some, Subgroups("site", site)).subgroups
            told[by] += any(one.differs for row in rows for one in row.figures)
            for row in rows:
                for one in row.figures:
                    held.add(one.name, by, one.low, one.high, real[one.name])
    held.print()
    line = "  ".join(f"{by} {share(hits, len(draws))}" for by, hits in told.items())
    print(f"{title}: some site said to differ  {line}", flush=True)


def methods_of(random, scores, group, r):
    """The logits of three equal methods, which err alike in groups, three seeds each."""
    for name in METHODS:
        own = 0.5 * world(random, np.bincount(group), r, LABELS)[0]
        for seed in range(SEEDS):
            yield name, seed, 3 * (scores - CUT + own + 0.2 * random.normal(size=scores.shape))


def ranking_part(title, draws, size, r, truth):
    real = average_precision(truth[0], truth[1]).value
    held = shown = told = 0
    for draw in draws:
        random = np.random.default_rng(draw)
        scores, present, group = world(random, sizes_of(random, *size), r, LABELS)
        groups, labels = Groups.of(group), torch.from_numpy(present)
        if (groups.counted(present).sum(0) >= FEW_GROUPS).all():
            values = mean_ap_without_groups(torch.from_numpy(scores), labels, None, groups)
            reach = student_reach(values - values.mean())
            low, high = jackknife_interval(average_precision(scores, present).value, values, reach)
            held, shown = held + (low <= real <= high), shown + 1
        figures, moved = defaultdict(dict), defaultdict(list)
        for name, seed, logits in methods_of(random, scores, group, r):
            figures[name][seed] = average_precision(logits, present).value
            moved[name].append(mean_ap_by_group(torch.from_numpy(logits), labels, None, groups))
        scale = np.sqrt((groups.count - 1) / groups.count)
        mean = {name: scale * np.mean(parts, axis=0) for name, parts in moved.items()}
        gaps = compare_to_best(
            figures,
            higher_is_better=True,
            image_covariance=_covariance(mean),
            freedom=_freedom(mean),
        )
        told += any(gap.distinguishable for gap in gaps)
    print(f"{title}: mAP held {share(held, shown)} of {shown} shown", flush=True)
    print(f"{title}: false winner by mAP {share(told, len(draws))}", flush=True)


def compare_part(title, draws, size, r):
    told = defaultdict(int)
    for draw in draws:
        random = np.random.default_rng(draw)
        scores, present, group = world(random, sizes_of(random, *size), r, LABELS)
        runs = {(name, seed): part for name, seed, part in methods_of(random, scores, group, r)}
        for by, some in both(group):
            effects, figures = defaultdict(dict), defaultdict(lambda: defaultdict(dict))
            for (name, seed), logits in runs.items():
                test = as_predictions(1 / (1 + np.exp(-logits)), present, some)
                run = SimpleNamespace(test=test, calibrated=None)
                for what, moved in image_effects(run).items():
                    effects[what].setdefault(name, []).append(moved)
                values = {
                    f"{what} before": value
                    for what, value in probability_figures(test.link, test).items()
                }
                for kind, key in (("label", "mAP@class"), ("image", "mAP@sample")):
                    values[key] = average_precision(test.logits, test.majority, by=kind).value
                for what, value in values.items():
                    figures[what][name][seed] = value
            for what, moved in effects.items():
                mean = {name: np.mean(parts, axis=0) for name, parts in moved.items()}
                gaps = compare_to_best(
                    figures[what],
                    higher_is_better=what.startswith("mAP"),
                    image_covariance=_covariance(mean),
                    freedom=np.inf if some is None else _freedom(mean),
                )
                told[what, by] += any(gap.distinguishable for gap in gaps)
    for what in dict.fromkeys(what for what, _ in told):
        line = "  ".join(f"{by} {share(told[what, by], len(draws))}" for by in ("photo", "group"))
        print(f"{title}: false winner by {what:18} {line}", flush=True)


def few_part(draws, r, truth):
    def losses(probs, present):
        return -np.log(np.where(present, probs, 1 - probs))[:, 0]

    real = losses(*truth[:2]).mean()
    for groups in FEW:
        held = 0
        for seed in draws:
            random = np.random.default_rng(seed)
            scores, present, group = world(random, sizes_of(random, groups, 15, True), r)
            loss = losses(np.clip(ndtr((scores - CUT) / NOISE), 1e-6, 1 - 1e-6), present)
            ends = mean_interval_by_group(
                loss.mean(), loss, np.ones(len(loss)), Groups.of(group), np.inf
            )
            held += ends[0] <= real <= ends[1]
        print(f"{groups} groups of 15 uneven, r {r:.1f}: log loss  group {share(held, len(draws))}")


def points_part(title, draws, size, r, truth):
    """``truth`` are probabilities and labels of one label (N,) of very many photos."""
    held, reached = Held(title), defaultdict(list)
    for seed in draws:
        random = np.random.default_rng(seed)
        fitted, judged = (world(random, sizes_of(random, *size), r) for _ in range(2))
        if not fitted[1].any() or not judged[1].any():
            continue
        probs = [
            np.clip(ndtr((part[0] - CUT) / NOISE), 1e-6, 1 - 1e-6) for part in (fitted, judged)
        ]
        for name, (fit, kind, *_) in POINTS.items():
            rule = fit(probs[0], fitted[1])
            chosen = rule(truth[0])
            real = {
                "recall": chosen[truth[1]].mean(),
                "specificity": 1 - chosen[~truth[1]].mean(),
                "false_alarms": (chosen & ~truth[1]).mean(),
            }
            reached[name].append(float(real[kind]))
            for by, some in both(Groups.of(judged[2])):
                found = label_figures(rule(probs[1]), judged[1], names=["label"], groups=some)[0]
                value = getattr(found, kind)
                if value is not None:
                    held.add(name, by, *value[1:], reached[name][-1])
    for name, (_, _, level, sign) in POINTS.items():
        values = np.array(reached[name])
        kept = share(int((sign * values >= sign * level).sum()), len(values))
        print(f"{title}: {name:24}  reaches {values.mean():.3f} on average, kept in {kept}")
    held.print()


def likeness_part(title, draws, size, r):
    found = defaultdict(int)
    names = [f"label {k}" for k in range(LABELS)]
    for seed in draws:
        random = np.random.default_rng(seed)
        held, labels, own = photos(random, *size, r)
        kept = Groups.of(own).one_of_each()
        held, labels = held[kept], labels[kept]
        library, _, group = photos(random, *size, r)
        one_each = Groups.of(group).one_of_each()
        for which, now in (("all photos", library), ("one of a group", library[one_each])):
            points = [logit(part).astype(np.float32) for part in (held, now)]
            known = held_out_shares(held, labels)
            outcome = compare_photos(
                names, points[0], labels.astype(float), known, points[1], now, own_probs=held
            ).outcome
            found[which, outcome] += 1
    for which in ("all photos", "one of a group"):
        line = "  ".join(
            f"{outcome} {share(found[which, outcome], len(draws))}"
            for outcome in ("shares differ", "pictures differ")
        )
        print(f"{title}: library of {which:15} {line}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--correlations", type=float, nargs="*", default=CORRELATIONS)
    parser.add_argument("--worlds", type=int, nargs="*", default=range(len(WORLDS)))
    given = parser.parse_args()
    draws = range(given.seed, given.seed + given.draws)
    truth = photos(np.random.default_rng(99), MANY, 1, False, 0.0)
    if "few" in given.only:
        for r in given.correlations:
            few_part(draws, r, truth)
    for groups, mean, uneven in (WORLDS[number] for number in given.worlds):
        for r in given.correlations:
            title = f"{groups} groups of {mean}{' uneven' if uneven else ''}, r {r:.1f}"
            size = groups, mean, uneven
            if "evaluate" in given.only:
                evaluate_part(title, draws, size, r, truth)
            if "labels" in given.only:
                labels_part(title, draws, size, r, truth)
            if "subgroups" in given.only:
                subgroups_part(title, draws, size, r, truth)
            if "compare" in given.only:
                compare_part(title, draws, size, r)
            if "ranking" in given.only:
                ranking_part(title, draws, size, r, truth)
            if "points" in given.only:
                points_part(title, draws, size, r, [part[:, :1] for part in truth[:2]])
            if "likeness" in given.only:
                likeness_part(title, draws, size, r)


if __name__ == "__main__":
    main()
