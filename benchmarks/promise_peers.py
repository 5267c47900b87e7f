"""Promises and counts beside MAPIE and ppi-python, on the same draws.

    python benchmarks/promise_peers.py [--draws 1000] [--mapie-draws 60] [--save FILE]

Where a step is the same, so must be the numbers; where methods differ, both are shown with how
often they hold and how much they give.

    tests          Hoeffding-Bentkus p-values of MAPIE beside ours, of sums of losses that are not
                   whole; at some whole ones MAPIE rounds 7.000000000000001 up to 8
    recall, mean   conformal risk control: MAPIE's threshold is the highest of its grid (steps of
                   0.01) that is not above ours
    count          ppi-python's point estimate, given our slope, with a yes and a no added
    precision      learn-then-test with 95 % confidence: broken, and labels per photo. 12 labels
                   that go together, 500 photos of 20,000, which are the truth. To MAPIE a photo
                   that gets no label is wholly wrong, to us it does not count
    recall         the same; MAPIE bounds the risk by bets (its default)
    interval       95 % intervals of a count from 50, 150 and 400 answers of 5,000 photos

``--save`` writes the figures as JSON; ``table`` makes of them the table of evidence/decide.md. The
peers are in the extra ``bench``; one that is not installed is left out, and said so.
"""

import argparse
import json
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from estimate import made_worlds
from scipy.special import expit

from labelwise.base.bounds import clopper_pearson, hoeffding_bentkus_p_values
from labelwise.decide import (
    Answered,
    Evidence,
    control_recall,
    estimate_count,
    promise_precision,
    promise_recall,
)

PEERS = {"MAPIE": "mapie", "ppi-python": "ppi-python"}
LEVELS, CONFIDENCE = {"precision": 0.5, "recall": 0.8}, 0.95
ANSWERS = (50, 150, 400)
PHOTOS, LABELS, EVERY = 500, 12, 20_000


def installed():
    """Return the version of each peer that is there."""
    found = {}
    for name, package in PEERS.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            print(f"{name} is not installed: its rows are left out (extra `bench`)")
    return found


def labelled_photos(random, rows):
    """Return probabilities and truth of photos that all carry a label, as MAPIE needs them."""
    odds = 2 * random.normal(size=(4 * rows, LABELS)) + random.normal(size=(4 * rows, 1)) - 2
    truth = random.random(odds.shape) < expit(odds)
    kept = truth.any(1).nonzero()[0][:rows]
    return expit(odds[kept]), truth[kept]


def digits(ours, theirs):
    """Return to how many digits numbers agree in the worst case, 16 at most."""
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    off = np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-300)
    return int(min(16, np.floor(-np.log10(max(float(off.max()), 1e-16)))))


def same_tests():
    """Return to how many digits the p-values of a table of means and numbers agree."""
    from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value

    def both(count, means, level):
        numbers = np.full(len(means), float(count))
        theirs = compute_hoeffding_bentkus_p_value(means, numbers, level)[:, 0]
        return hoeffding_bentkus_p_values(means, numbers, level), np.minimum(theirs, 1)

    cases = [(count, level) for count in (50, 200, 1000) for level in (0.05, 0.1, 0.2)]
    between = [both(count, (np.arange(count // 2) + 0.5) / count, level) for count, level in cases]
    whole = [both(count, np.arange(count // 2) / count, level) for count, level in cases]
    ours, theirs = (np.concatenate(side) for side in zip(*between, strict=True))
    off = [~np.isclose(*pair, rtol=1e-9, atol=1e-300) for pair in whole]
    return {
        "digits": digits(ours, theirs),
        "pairs": len(ours),
        "whole": sum(len(one) for one in off),
        "rounded up": int(sum(one.sum() for one in off)),
    }


def controlled(risk, method, probs, truth, confidence):
    """Return the threshold that MAPIE chooses, NaN where it finds none."""
    from mapie.risk_control import MultiLabelClassificationController

    controller = MultiLabelClassificationController(
        lambda x: x,
        risk=risk,
        method=method,
        target_level=LEVELS[risk],
        confidence_level=confidence,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controller.calibrate(probs, truth.astype(int))
    return float(np.ravel(controller.best_predict_param)[0])


def same_thresholds(draws):
    """Return how often MAPIE's threshold is ours, rounded down to its grid."""
    random, same = np.random.default_rng(2), 0
    for _ in range(draws):
        probs, truth = labelled_photos(random, 300)
        ours = control_recall(probs, truth, miss_rate=1 - LEVELS["recall"], among="labelled").value
        theirs = controlled("recall", "crc", probs, truth, None)
        same += bool(np.isclose(theirs, np.floor(ours * 100 + 1e-9) / 100))
    return {"same": same, "draws": draws}


def same_counts(draws):
    """Return to how many digits counts agree, given our slope."""
    from ppi_py import ppi_mean_pointestimate

    random, ours, theirs = np.random.default_rng(3), [], []
    library = dict(made_worlds())["0.1 calm"]
    for _ in range(draws):
        probs, truth, _ = library(random)
        rows = random.choice(len(probs), 200, replace=False)
        told = truth[rows].astype(float)
        slope = np.polyfit(probs[rows], told, 1)[0]
        share = np.ravel(ppi_mean_pointestimate(told, probs[rows], probs, lam=slope))[0]
        theirs.append(len(probs) * share)
        ours.append(estimate_count(Answered(probs, rows, told)).count)
    return {"digits": digits(ours, theirs), "draws": draws}


def promised_sets(risk, draws):
    """Return how often the promise is made and broken, and the labels per photo, of both."""
    probs, truth = labelled_photos(np.random.default_rng(4), EVERY)
    make, method = {
        "precision": (promise_precision, "ltt"),
        "recall": (promise_recall, "rcps"),
    }[risk]
    kept = {name: {"made": 0, "broken": 0, "labels": 0.0} for name in ("ours", "theirs")}
    random = np.random.default_rng(5)
    for _ in range(draws):
        rows = random.choice(EVERY, PHOTOS, replace=False)
        evidence = Evidence.read(probs[rows], truth[rows])
        found = make(evidence, level=LEVELS[risk], confidence=CONFIDENCE)
        theirs = controlled(risk, method, probs[rows], truth[rows], CONFIDENCE)
        sets = {
            "ours": found.rule(probs) if found.promises else None,
            "theirs": probs > theirs if np.isfinite(theirs) else None,
        }
        for name, chosen in sets.items():
            if chosen is not None:
                kept[name]["made"] += 1
                held = mean_share(risk, chosen, truth, empty_is_wrong=name == "theirs")
                kept[name]["broken"] += bool(held < LEVELS[risk])
                kept[name]["labels"] += float(chosen.sum(1).mean())
    for one in kept.values():
        one["labels"] /= max(one["made"], 1)
    return kept | {"draws": draws}


def mean_share(risk, sets, truth, empty_is_wrong):
    """Return the mean over photos of the share that is right, or found."""
    counts = truth.sum(1) if risk == "recall" else sets.sum(1)
    shares = (sets & truth).sum(1) / np.maximum(counts, 1)
    return shares.mean() if empty_is_wrong else shares[counts > 0].mean()


def counted_intervals(world, answers, draws):
    """Return how often each interval of a count holds the truth, and its mean width."""
    from ppi_py import classical_mean_ci, ppi_mean_ci

    random, library = np.random.default_rng(6), dict(made_worlds())[world]
    held, width = {}, {}
    for _ in range(draws):
        probs, truth, _ = library(random)
        rows = random.choice(len(probs), answers, replace=False)
        rest = np.setdiff1d(np.arange(len(probs)), rows)
        told = truth[rows].astype(float)
        found = estimate_count(Answered(probs, rows, told))
        shares = {
            "ppi": ppi_mean_ci(told, probs[rows], probs[rest], alpha=0.05),
            "classical": classical_mean_ci(told, alpha=0.05),
        }
        ends = {"ours": (found.low, found.high)}
        ends |= {
            name: tuple(len(probs) * float(np.ravel(end)[0]) for end in pair)
            for name, pair in shares.items()
        }
        for name, (low, high) in ends.items():
            held[name] = held.get(name, 0) + bool(low <= truth.sum() <= high)
            width[name] = width.get(name, 0.0) + high - low
    return {name: {"held": held[name], "width": width[name] / draws} for name in held} | {
        "draws": draws
    }


def measured(draws, mapie_draws):
    """Return all figures of the peers that are installed; MAPIE is slow, and has fewer draws."""
    versions = installed()
    figures = {"versions": versions}
    if "MAPIE" in versions:
        figures["tests"] = same_tests()
        figures["thresholds"] = same_thresholds(mapie_draws)
        figures["sets"] = {risk: promised_sets(risk, mapie_draws) for risk in LEVELS}
    if "ppi-python" in versions:
        figures["counts"] = same_counts(draws)
        figures["intervals"] = {
            f"{world}, {answers} answers": counted_intervals(world, answers, draws)
            for world in ("0.1 calm", "0.02 calm", "0.1 blur")
            for answers in ANSWERS
        }
    return figures


def table(figures):
    """Return the tables of the docs as Markdown."""
    versions = figures["versions"]
    tests, counts = figures["tests"], figures["counts"]
    thresholds = figures["thresholds"]
    lines = [
        "| the same step | beside | agreement |",
        "|---|---|---|",
        f"| Hoeffding–Bentkus p-values | MAPIE {versions['MAPIE']} | {tests['digits']} digits in "
        f"{tests['pairs']:,} pairs; of {tests['whole']:,} more, of whole sums, MAPIE rounds "
        f"{tests['rounded up']:,} up by one |",
        "| `control_recall` | MAPIE, conformal risk control | "
        f"our threshold, rounded down to its grid, in {thresholds['same']:,} of "
        f"{thresholds['draws']:,} draws |",
        f"| count from 200 answers | ppi-python {versions['ppi-python']} with our slope "
        f"| {counts['digits']} digits in {counts['draws']:,} draws |",
        "",
        f"| promised with {100 * CONFIDENCE:.0f} % confidence, {PHOTOS:,} photos | made | broken | "
        "labels per photo |",
        "|---|---|---|---|",
    ]
    for risk, both in figures["sets"].items():
        for name, who in (("ours", "labelwise"), ("theirs", "MAPIE")):
            one = both[name]
            lines.append(
                f"| {risk} {LEVELS[risk]:g}, {who} | {one['made']:,} of {both['draws']:,} | "
                f"{of(one['broken'], one['made'])} | {one['labels']:.2f} |"
            )
    lines += [
        "",
        "| 95 % interval of a count, share and world | labelwise | ppi-python | answers alone |",
        "|---|---|---|---|",
    ]
    for name, row in figures["intervals"].items():
        cells = [
            f"{of(row[who]['held'], row['draws'])}, {row[who]['width']:,.0f} wide"
            for who in ("ours", "ppi", "classical")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def of(hits, count):
    """Return a share with its 95 % interval."""
    if not count:
        return "–"
    low, high = clopper_pearson(hits, count, 0.975)
    return f"{hits / count:.3f} [{low:.3f}, {high:.3f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--mapie-draws", type=int, default=60)
    parser.add_argument("--save", type=Path, help="write the figures here, as JSON")
    arguments = parser.parse_args()
    figures = measured(arguments.draws, arguments.mapie_draws)
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures) if len(figures["versions"]) == len(PEERS) else json.dumps(figures))


if __name__ == "__main__":
    main()
