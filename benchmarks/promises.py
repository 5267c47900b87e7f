"""Are promises kept? ``python benchmarks/promises.py``: draws of the photos they are made on.

All photos are the population; a promise is made on a draw from them, with replacement, and
checked on all of them, so that the check itself has no error.

For each promise: how often it was tried (once per draw, or per draw and label), how often it could
be made, how many of those made were broken, the exact binomial p-value of "more than delta of the
made ones are broken", and its power, the number of labels or photos chosen as a share of what the
best threshold in hindsight chooses, 0 where nothing is promised (for recall the other way round:
the oracle's number as a share of ours). A promise guarantees delta among all tries; the share among
those made is the stricter check.

Data: ``posterior``, of known probabilities and labels that depend on each other; with
``--scores FILE`` anyone's (an .npz of ``probs`` (N, K) and ``labels``). Cross-fitting, expectation
and MAPIE were measured by this program at `6d9d65b5`.
"""

import argparse

import numpy as np
from scipy.stats import binomtest

from labelwise.decide import (
    Evidence,
    Threshold,
    certainty,
    promise_answers,
    promise_f,
    promise_precision,
    promise_recall,
    promise_tags,
)
from labelwise.tables import posterior


def problem(path):
    if path is not None:
        with np.load(path) as file:
            return file["probs"].astype(np.float64), file["labels"].astype(bool)
    data = posterior(12_000, 1, 1, num_labels=20, spread=3.0, rho=0.5, seed=0)
    return data.eta[:12_000], data.table.targets()[0][:12_000].astype(bool)


def share(what, sets, truth):
    hits, size, labels = (sets & truth).sum(1), sets.sum(1), truth.sum(1)
    if what == "tags":
        return hits.sum() / max(size.sum(), 1)
    if what == "f":
        total = size + labels
        return np.where(total > 0, 2 * hits / np.maximum(total, 1), 1.0).mean()
    counts = labels if what == "recall" else size
    return (hits[counts > 0] / counts[counts > 0]).mean() if (counts > 0).any() else 1.0


def oracle(what, probs, truth, level):
    """Return the number of labels per image of the best shared threshold in hindsight."""
    found = []
    for t in np.unique(
        np.quantile(probs, np.r_[np.linspace(0, 0.9, 40), np.linspace(0.9, 1, 400)])
    ):
        sets = probs >= t
        if sets.any() and share(what, sets, truth) >= level:
            found.append(sets.sum() / len(sets))
    return (min if what == "recall" else max)(found, default=np.nan)


def draws(probs, truth, photos, count):
    """Yield the photos of each draw, and all photos: they are the population, known exactly."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield rng.integers(len(probs), size=photos), np.arange(len(probs))


def row(name, level, confidence, results):
    made = [result for result in results if not result[2]]
    broken = sum(result[0] for result in made)
    powers = [result[1] for result in results]
    p = binomtest(broken, len(made), 1 - confidence, alternative="greater").pvalue if made else 1.0
    power = f"{np.nanmean(powers):.2f}" if np.isfinite(powers).any() else "-"
    print(
        f"{name:<24} {level:6.2f} {confidence:6.2f} {len(results):6d} {len(made):6d} "
        f"{broken:7d} {p:8.3f} {power:>6}",
        flush=True,
    )
    return p > 0.01


def sets_row(what, make, probs, truth, level, arguments):
    best, results = oracle(what, probs, truth, level), []
    for held, new in draws(probs, truth, arguments.photos, arguments.draws):
        found = make(
            Evidence.read(probs[held], truth[held]), level=level, confidence=arguments.confidence
        )
        sets = found.rule(probs[new])
        size = sets.sum() / len(new)
        power = best / size if what == "recall" else size / best
        made = bool(found.promises)
        broken = made and sets.any() and share(what, sets, truth[new]) < level
        results.append((broken, power if made or what == "recall" else 0.0, not made))
        if what == "f":
            results[-1] = (broken, np.nan, not made)
    return row(what, level, arguments.confidence, results)


def label_row(what, make, probs, truth, level, arguments):
    results = []
    for held, new in draws(probs, truth, arguments.photos, arguments.draws):
        evidence = Evidence.read(probs[held], truth[held])
        found = make(evidence, level=level, confidence=arguments.confidence, scope="label")
        sets = found.rule(probs[new])
        for promise in found.promises:
            columns = [evidence.names.index(name) for name in promise.labels]
            value = share(what, sets[:, columns], truth[new][:, columns])
            results.append((value < level, np.nan, False))
        results += [(False, np.nan, True) for _ in found.refused]
    return row(f"{what} per label", level, arguments.confidence, results)


def answers_row(probs, truth, level, arguments):
    rule, results = Threshold(0.5), []
    exact = (rule(probs) == truth).all(1)
    for held, new in draws(probs, truth, arguments.photos, arguments.draws):
        found = promise_answers(
            Evidence.read(probs[held], truth[held]),
            rule,
            level=level,
            confidence=arguments.confidence,
        )
        answered = ~found(probs[new])[1]
        broken = answered.any() and exact[new][answered].mean() < level
        sure = certainty(probs[new], rule(probs[new]))
        ranked = exact[new][np.argsort(-sure, kind="stable")].cumsum() / np.arange(1, len(new) + 1)
        reach = np.flatnonzero(ranked >= level)
        best = (reach[-1] + 1) / len(new) if len(reach) else np.nan
        results.append((broken, answered.mean() / best, found.promise is None))
    return row("answers, whole sets", level, arguments.confidence, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scores", help="an .npz of probs and labels, instead of posterior data")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--confidence", type=float, default=0.95)
    levels = {"precision": 0.8, "recall": 0.8, "f": 0.5, "tags": 0.8, "answers": 0.8}
    for name, level in levels.items():
        parser.add_argument(f"--{name}", type=float, default=level)
    parser.add_argument("--per-label", action="store_true", help="precision per label alone")
    arguments = parser.parse_args()
    probs, truth = problem(arguments.scores)
    levels = {name: getattr(arguments, name) for name in levels}
    empty = 1 - truth.any(1).mean()
    print(
        f"{len(probs):,} photos, {truth.shape[1]} labels, {empty:.0%} without labels; "
        f"promises made on draws of {arguments.photos:,}"
    )
    print(f"{'promise':<24}  level  conf.  tries   made  broken  p-value  power")
    if arguments.per_label:
        label_row("precision", promise_precision, probs, truth, levels["precision"], arguments)
        raise SystemExit(0)
    makers = {"precision": promise_precision, "recall": promise_recall}
    kept = [
        sets_row(what, make, probs, truth, levels[what], arguments)
        for what, make in {**makers, "f": promise_f, "tags": promise_tags}.items()
    ]
    kept += [
        label_row(what, make, probs, truth, levels[what], arguments)
        for what, make in makers.items()
    ]
    kept.append(answers_row(probs, truth, levels["answers"], arguments))
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
