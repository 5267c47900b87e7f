"""Do list estimates and list audits keep their word? Simulated worlds, 1,000 draws each.

    python benchmarks/list_worlds.py [--draws 1000] [--jobs 15] [--out FILE.json]

Photos with a label score N(gap, 1), others N(0, 1), with: good gap 3; fair gap 1.8; overconfident
gap 2.5 and others Student t with 3 degrees; look-alike gap 3 and 2 % of the others N(gap, 1);
useless gap 0. Held-out photos are split in half: validation and test. Each row pools the shifts
or none. Shares carry Clopper-Pearson intervals. A list is worth
it if some prefix has at most 10 % wrong.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from labelwise.decide.audits import ListAudit, size_list
from labelwise.decide.estimate import (
    ListEstimate,
    NoEstimate,
    ScoredSplit,
    estimate_library_count,
    estimate_list,
)

MODELS = ("good", "fair", "overconfident", "look-alike", "useless")
SHARES, LIBRARIES = (0.005, 0.02, 0.2), (100, 1000, 10_000)
SHIFTS, HELD_OUT, WRONG = (0.1, 0.35, 1.0, 2.5), (600, 2000), 0.1


def scored(model, size, share, rng):
    truth = rng.random(size) < share
    gap = {"good": 3.0, "fair": 1.8, "overconfident": 2.5, "look-alike": 3.0, "useless": 0.0}[model]
    noise = rng.standard_t(3, size) if model == "overconfident" else rng.normal(size=size)
    look = (model == "look-alike") & (rng.random(size) < 0.02)
    return np.where(truth, gap + rng.normal(size=size), np.where(look, gap, 0.0) + noise), truth


def draw_list(task):
    model, share, library, shift, held, seed = task
    rng = np.random.default_rng(seed)
    splits = [ScoredSplit(*scored(model, held // 2, share, rng)) for _ in range(2)]
    scores, truth = scored(model, library, share * shift, rng)
    row = {"shown": 0, "covers": 0, "width": 0.0, "wrong": 0.0, "counted": 0, "count_covers": 0}
    estimate = estimate_list(*splits, scores, wrong_at_most=WRONG)
    if isinstance(estimate, ListEstimate) and estimate.stated().kind == "estimate":
        wrong = float((~truth[scores >= estimate.cut]).mean())
        inside = estimate.low - 1e-9 <= wrong <= estimate.high + 1e-9
        row |= {"shown": 1, "covers": int(inside), "wrong": wrong, "said": estimate.wrong}
        row["width"] = estimate.high - estimate.low
    count = estimate_library_count(*splits, scores)
    if not isinstance(count, NoEstimate):
        row |= {"counted": 1, "count_covers": int(count.low <= truth.sum() <= count.high)}
        row["count_width"] = count.high - count.low
    return row


def draw_audit(task):
    """Audit a list of a library that was sized by the answers a person will give."""
    model, share, library, answers, seed = task
    rng = np.random.default_rng(seed)
    scores, truth = scored(model, library, share, rng)
    held, known = scored(model, 2000, share, rng)
    order = np.argsort(-scores, kind="stable")
    truth = truth[order]
    prefix = (~truth).cumsum() / np.arange(1, library + 1)
    good = np.flatnonzero(prefix <= WRONG)
    best = int(truth[: good[-1] + 1].sum()) if len(good) else 0
    probs = calibrated(held, known, scores[order])
    lengths = size_list(probs, answers, wrong_at_most=WRONG)
    row = {"worth": int(best > 0), "made": 0, "broken": 0, "power": 0.0, "recall": 0.0, "used": 0}
    row["best"] = best / max(int(truth.sum()), 1)
    if not lengths:
        return row
    audit = ListAudit(lengths, wrong_at_most=WRONG, prior_wrong=1 - probs, seed=seed)
    while audit.question is not None and audit.count < answers:
        audit.answer("yes" if truth[audit.question] else "no")
    row["used"] = audit.count
    if (length := audit.guaranteed) is not None:
        right = int(truth[:length].sum())
        left = length - audit.found_wrong(length)
        row |= {"made": 1, "broken": int(left - right > WRONG * left + 1e-9)}
        row["power"] = min(1.0, right / best) if best else 0.0
        row["recall"] = right / max(int(truth.sum()), 1)
    return row


def calibrated(scores, known, at):
    """Return Platt's probabilities, fitted by Newton steps on held-out photos."""
    x, y = np.stack([scores, np.ones_like(scores)]), known.astype(float)
    y = np.where(known, (y.sum() + 1) / (y.sum() + 2), 1 / (len(y) - y.sum() + 2))
    w = np.array([0.5, -3.0])
    for _ in range(30):
        p = 1 / (1 + np.exp(-np.clip(w @ x, -30, 30)))
        hessian = (x * (p * (1 - p))) @ x.T + 1e-3 * np.eye(2)
        w = w + np.clip(np.linalg.solve(hessian, x @ (y - p)), -2, 2)
    return 1 / (1 + np.exp(-np.clip(w[0] * at + w[1], -30, 30)))


def interval(hits, of):
    if not of:
        return None
    ends = binomtest(int(hits), int(of)).proportion_ci(0.95)
    return [round(float(one), 4) for one in (hits / of, ends.low, ends.high)]


def summary_of_lists(rows):
    shown, counted = [r for r in rows if r["shown"]], [r for r in rows if r["counted"]]
    mean = lambda of, key: round(float(np.mean([r[key] for r in of])), 4) if of else None  # noqa: E731
    return {
        "draws": len(rows),
        "shown": round(len(shown) / len(rows), 4),
        "covers": interval(sum(r["covers"] for r in shown), len(shown)),
        "width": mean(shown, "width"),
        "widest": round(max((r["width"] for r in shown), default=0.0), 4),
        "true_wrong": mean(shown, "wrong"),
        "true_wrong_error": round(float(np.std([r["wrong"] for r in shown])) / len(shown) ** 0.5, 4)
        if shown
        else None,
        "more_than_asked": interval(sum(r["wrong"] > WRONG for r in shown), len(shown)),
        "said_wrong": mean(shown, "said"),
        "counted": round(len(counted) / len(rows), 4),
        "count_covers": interval(sum(r["count_covers"] for r in counted), len(counted)),
    }


def summary_of_audits(rows):
    worth = [r for r in rows if r["worth"]]
    made = [r for r in rows if r["made"]]
    return {
        "draws": len(rows),
        "worth": len(worth),
        "made_of_worth": interval(sum(r["made"] for r in worth), len(worth)),
        "broken_of_draws": interval(sum(r["broken"] for r in rows), len(rows)),
        "broken_of_made": interval(sum(r["broken"] for r in made), len(made)),
        "median_answers": float(np.median([r["used"] for r in made])) if made else None,
        "power": round(float(np.mean([r["power"] for r in worth])), 4) if worth else None,
        "longest_right_list": round(float(np.mean([r["best"] for r in worth])), 4),
        "recall_of_made": round(float(np.mean([r["recall"] for r in made])), 4) if made else None,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/list_worlds.json"))
    arguments = parser.parse_args()
    lists, audits, every = {}, {}, []
    command = "python " + " ".join(["benchmarks/list_worlds.py", *sys.argv[1:]])
    text = {"command": command, "figures": {"lists": lists, "audits": audits}}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for model, share, moved in product(arguments.models, SHARES, (False, True)):
            settings = list(product(LIBRARIES, [s for s in SHIFTS if (s != 1) == moved], HELD_OUT))
            tasks = [
                (model, share, *settings[i % len(settings)], (1, i)) for i in range(arguments.draws)
            ]
            rows = list(pool.map(draw_list, tasks, chunksize=50))
            name = f"{model}, share {share}, {'shift' if moved else 'no shift'}"
            lists[name], every = summary_of_lists(rows), every + rows
            print(name, lists[name], flush=True)
            arguments.out.write_text(json.dumps(text, indent=1) + "\n")
        lists["all"] = summary_of_lists(every)
        for library, answers in product((1000, 10_000), (12, 30, 60)):
            settings = list(product(MODELS[:4], (0.02, 0.2)))
            tasks = [
                (*settings[i % len(settings)], library, answers, (2, i))
                for i in range(arguments.draws)
            ]
            name = f"library {library}, up to {answers} answers"
            audits[name] = summary_of_audits(list(pool.map(draw_audit, tasks, chunksize=50)))
            print(name, audits[name], flush=True)
            arguments.out.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
