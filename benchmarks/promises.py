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
``--scores FILE`` anyone's (an .npz of ``probs`` (N, K) and ``labels``). MAPIE, where it is
installed, does recall (RCPS) and precision (LTT) beside ours on photos that carry a label, as it
refuses others: time and memory of one fit each.

``--compare`` runs two comparisons instead. Cross-fitting: precision promised where half of the
photos calibrate (Platt, shared) and the others test; where both halves do both, each at half of
delta, and the better one is taken; and as ``labelwise decide --cross-fit`` does. Expectation:
what precision and F are shown with a confidence, and in expectation alone, on 200, 500 and 1,500
photos; "risk" is the mean over draws, which for the latter is what must keep the level.
"""

import argparse
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from measure import measure
from scipy.stats import binomtest

from labelwise.calibration import platt
from labelwise.decide import (
    Evidence,
    Threshold,
    certainty,
    control_f,
    control_precision,
    promise_answers,
    promise_f,
    promise_precision,
    promise_recall,
    promise_tags,
)
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions
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


def cross_fitting(probs, truth, level, arguments):
    """Print what three ways to divide photos between calibrator and promise leave."""
    odds = torch.from_numpy(np.log(probs / (1 - probs)))
    labels = torch.from_numpy(truth.astype(np.float32))
    names = tuple(f"label {k}" for k in range(truth.shape[1]))
    every = Predictions(tuple(map(str, range(len(odds)))), odds, labels, None, names, "val")
    best = oracle("precision", probs, truth, level)

    def part(rows):
        ids = tuple(map(str, range(len(rows))))
        return replace(every, ids=ids, logits=odds[rows], labels=labels[rows])

    def fit(rows):
        return platt(odds[rows], labels[rows], Sigmoid(), scope="shared")

    def made(fitted, tested, confidence):
        link = fit(fitted)
        tuning, evidence = (
            part(rows).with_link(link).evidence(photos="") for rows in (fitted, tested)
        )
        found = promise_precision(evidence, level=level, confidence=confidence, tuning=tuning)
        return found, link

    def noted(found, link, shown):
        sets = found.rule(link.decision_probs(odds).numpy())
        broken = sets.any() and share("precision", sets, truth) < level
        log_p, log_q = shown.log_probs(odds)
        loss = -(labels * log_p + (1 - labels) * log_q).sum(1).mean()
        return broken, sets.sum() / len(sets) / best, not found.promises, float(loss)

    results = {"half calibrates": [], "halves do both": [], "cross-fitted": []}
    for held, _ in draws(probs, truth, arguments.photos, arguments.draws):
        half, fifth = len(held) // 2, len(held) // 5
        confidence, strict = arguments.confidence, (1 + arguments.confidence) / 2
        found, link = made(held[:half], held[half:], confidence)
        results["half calibrates"].append(noted(found, link, link))
        both = [made(held[:half], held[half:], strict), made(held[half:], held[:half], strict)]
        results["halves do both"].append(
            max((noted(*one, one[1]) for one in both), key=lambda one: one[1])
        )
        found, link = made(held[:fifth], held[fifth:], confidence)
        results["cross-fitted"].append(noted(found, link, fit(held)))
    kept = []
    for name, values in results.items():
        kept.append(row(name, level, arguments.confidence, [value[:3] for value in values]))
        print(f"{'':<24} log loss of the probabilities {np.mean([v[3] for v in values]):.4f}")
    return all(kept)


def expectation(probs, truth, levels, arguments):
    """Print how much is chosen, and which F shown, with a confidence and in expectation."""
    grid = np.unique(np.quantile(probs, np.r_[np.linspace(0, 0.9, 40), np.linspace(0.9, 1, 400)]))
    wrong = 1 - levels["precision"]
    risks = [wrong_share_of_all(probs >= t, truth) for t in grid]
    most = max((probs >= t).mean() for t, risk in zip(grid, risks, strict=True) if risk <= wrong)
    print("photos  how               chosen, share of the most   mean risk   F1 that can be shown")
    for photos in (200, 500, 1500):
        sizes, means, shown = np.zeros((3, 2))
        for held, _ in draws(probs, truth, photos, arguments.draws):
            evidence = Evidence.read(probs[held], truth[held])
            rules = (
                promise_precision(evidence, level=1 - wrong, confidence=arguments.confidence).rule,
                control_precision(probs[held], truth[held], wrong_rate=wrong),
            )
            for which, rule in enumerate(rules):
                sets = rule(probs)
                sizes[which] += sets.mean() / most
                means[which] += wrong_share_of_all(sets, truth)
            shown += shown_f(evidence, arguments.confidence), expected_f1(probs[held], truth[held])
        for which, name in enumerate(("with a confidence", "in expectation")):
            print(
                f"{photos:6,}  {name:17} {sizes[which] / arguments.draws:26.2f} "
                f"{means[which] / arguments.draws:11.3f} {shown[which] / arguments.draws:22.3f}",
                flush=True,
            )


def wrong_share_of_all(sets, truth):
    size = sets.sum(1)
    return ((sets & ~truth).sum(1) / np.maximum(size, 1)).mean()


def shown_f(evidence, confidence):
    """Return the highest F1 that can be promised, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        promised = promise_f(evidence, level=middle, confidence=confidence).promises
        low, high = (middle, high) if promised else (low, middle)
    return low


def expected_f1(probs, truth):
    """Return the highest F1 that can be expected: what the error says of an impossible one."""
    try:
        control_f(probs, truth, level=0.999)
    except ValueError as error:
        return float(str(error).partition("images, ")[2].partition(" can")[0])
    return 0.999


def beside_mapie(probs, truth, levels, confidence):
    try:
        from mapie.risk_control import MultiLabelClassificationController
    except ImportError:
        print("MAPIE is not installed (extra `bench`)")
        return
    kept = truth.any(1)
    probs, truth = probs[kept][:5000], truth[kept][:5000]

    def theirs(risk, method):
        controller = MultiLabelClassificationController(
            lambda x: x,
            risk=risk,
            method=method,
            target_level=levels[risk],
            confidence_level=confidence,
        )
        controller.calibrate(probs, truth.astype(int))
        return np.ravel(controller.best_predict_param).tolist()[:1]

    def ours(make, risk):
        evidence = Evidence.read(probs, truth)
        return np.ravel(make(evidence, level=levels[risk], confidence=confidence).rule.value)[0]

    for risk, method, make in (
        ("recall", "rcps", promise_recall),
        ("precision", "ltt", promise_precision),
    ):
        mine, other = measure(partial(ours, make, risk), 3), measure(partial(theirs, risk, method))
        print(
            f"{risk} {levels[risk]:g}, {len(probs):,} photos: ours {mine.seconds:.3f} s "
            f"{mine.peak_mib:.0f} MiB t={mine.value:.4f}, MAPIE {method} {other.seconds:.2f} s "
            f"{other.peak_mib:.0f} MiB t={other.value}, {other.seconds / mine.seconds:.0f}x"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scores", help="an .npz of probs and labels, instead of posterior data")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--confidence", type=float, default=0.95)
    levels = {"precision": 0.8, "recall": 0.8, "f": 0.5, "tags": 0.8, "answers": 0.8}
    for name, level in levels.items():
        parser.add_argument(f"--{name}", type=float, default=level)
    parser.add_argument("--compare", action="store_true", help="cross-fitting, and expectation")
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
    if arguments.compare:
        kept = cross_fitting(probs, truth, levels["precision"], arguments)
        expectation(probs, truth, levels, arguments)
        raise SystemExit(0 if kept else 1)
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
    beside_mapie(probs, truth, levels, arguments.confidence)
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
