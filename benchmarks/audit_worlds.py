"""Does an audit of a tag table keep its word, and at what price? Simulated worlds, 1,000 draws.

    python benchmarks/audit_worlds.py [--draws 1000] [--jobs 15] [--out FILE.json] [--rows FILE]
    python benchmarks/audit_worlds.py --page evidence/audit.md

    mixed       40 tags, log-normal volumes, 65 % of the tags near .96 right, the others near .67
    scores      the same; right uses score 1.5 standard deviations higher
    no signal   the same; scores are noise
    good        25 tags near .975 right
    broad       60 tags, precision Beta(5, 1.2)
    at the line 30 tags, each just below 90 % right: every guarantee of two or more is broken
    small       1 to 4 tags of 1 to 25 uses
    per tag     12 tags, one guarantee per tag
    frequent    38 rare tags that are right, 2 frequent ones between 84 and 89 % right
    lowered     30 tags, each just below R % right, R between 70 and 94: people ask for 95 % and
                lower the level by what they see, at most twice, on the same answers

The sentence is what is tested: level and uses are read from its text. An audit ends at 600
answers. After 20 answers, and at twice as many each time, the range of the forecast is compared
with the answers that a guarantee took in the end. A second audit of each table comes in sheets of
50 questions, whose answers are counted, and whose guarantee is compared with the truth as well.
Shares carry Clopper-Pearson intervals. The oracle knows each tag's precision, needs no answer to
choose, and keeps the most right uses that 250 answers (150 with scores) are expected to guarantee.
--rows keeps what each draw found.
"""

import argparse
import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from labelwise.decide.audits import Audit, answers_needed
from labelwise.decide.estimate import recall_of

MOST, SHEET = 600, 50
FORECASTS = (20, 40, 80, 160, 320)
NAMES = {
    "scores": "40 tags, with scores",
    "no signal": "40 tags, scores are noise",
    "mixed": "40 tags, without scores",
    "small": "1 to 4 tags of 1 to 25 uses",
    "good": "25 tags near 97.5 % right",
    "broad": "60 tags of any precision",
    "at the line": "30 tags, each just below 90 % right",
    "per tag": "12 tags, one guarantee per tag",
    "frequent": "38 rare right tags, 2 frequent ones just below 90 %",
    "lowered": "30 tags, each just below a level, lowered twice",
}
GOAL = {"scores": 150, "no signal": 150}  # answers; 250 without scores
SAID = re.compile(
    r"at least ([\d.]+) % of (?:these ([\d,]+) uses together|the uses of each) are right"
)


def table(world, rng):
    """Return which uses of each tag are right, and scores or None."""
    tags = {"good": 25, "broad": 60, "per tag": 12} | dict.fromkeys(("at the line", "lowered"), 30)
    tags = tags.get(world, 40)
    sizes = np.ceil(np.exp(rng.normal(np.log(100), 1.4, tags))).astype(int)
    near = rng.random(tags) < 0.65
    rates = np.where(near, rng.beta(48, 2, tags), rng.beta(10, 5, tags))
    if world == "good":
        rates = rng.beta(78, 2, tags)
    if world == "broad":
        rates = rng.beta(5, 1.2, tags)
    if world == "small":
        sizes = rng.integers(1, 26, rng.integers(1, 5))
        rates = rng.choice([0.6, 0.9, 1.0], len(sizes))
    if world == "frequent":
        sizes = np.concatenate([rng.integers(1500, 2500, 2), rng.integers(10, 60, 38)])
        rates = np.concatenate([rng.uniform(0.84, 0.89, 2), np.ones(38)])
    right = [rng.random(n) < p for n, p in zip(sizes, rates, strict=True)]
    if world in ("at the line", "lowered"):
        wrong = 0.1 if world == "at the line" else rng.uniform(0.06, 0.3)
        sizes = np.maximum(sizes, 20)
        right = [rng.permutation(n) >= np.floor(wrong * n) + 1 for n in sizes]
    gap = {"scores": 1.5, "no signal": 0.0}.get(world)
    return right, None if gap is None else [rng.normal(size=len(r)) + gap * r for r in right]


def oracle(right, answers):
    """Return the share of right uses in the largest set that so many answers guarantee."""
    sizes, wrong = (np.array([f(one) for one in right]) for f in (len, lambda r: (~r).sum()))
    order = np.argsort(wrong / sizes)
    uses, wrong = sizes[order].cumsum(), wrong[order].cumsum()
    fits = answers_needed(np.log(20) + 1, wrong / uses, 0.1) <= answers
    return float((uses - wrong)[fits].max(initial=0) / max((uses - wrong)[-1], 1))


def is_broken(audit, right):
    """Whether a guaranteed set holds fewer right uses than its sentence says."""
    said, kept = SAID.search(audit.verdict().sentence()), audit.kept()
    if not said:
        return False
    hits = sum((own & kept[k][audit.bins[k]]).sum() for k, own in enumerate(right))
    return bool(hits < float(said[1]) / 100 * int(said[2].replace(",", "")) - 1e-9)


def draw_lowered(seed):
    """Return whether a guarantee came after levels that answers led people to, and was broken."""
    right, _ = table("lowered", np.random.default_rng((5, seed)))
    sizes, answers, level = [len(one) for one in right], {}, 0.95
    for place, most in enumerate((150, 300, MOST)):
        audit = Audit(sizes, seed=seed, right_at_least=level)
        while (use := audit.question) is not None and audit.count < most:
            answers[use] = "yes" if right[use[0]][use[1]] else "no"
            audit.answer(answers[use])
        if audit.verdict().guaranteed:
            return {"tested": place + 1, "made": 1, "broken": int(is_broken(audit, right))}
        share = np.mean([word == "yes" for word in answers.values()])
        level = round(min(np.floor(100 * share) / 100, level - 0.01), 2)
    return {"tested": place + 1, "made": 0, "broken": 0}


def draw(task):
    world, seed = task
    if world == "lowered":
        return draw_lowered(seed)
    rng = np.random.default_rng((5, seed))
    right, scores = table(world, rng)
    sizes = [len(one) for one in right]
    audit = Audit(sizes, scores=scores, seed=seed, per_tag=world == "per tag")
    most = 4000 if world == "per tag" else MOST
    forecasts = []
    while (use := audit.question) is not None and audit.count < most:
        if audit.count in FORECASTS and (said := audit.forecast()) is not None:
            forecasts.append((audit.count, *said, float(audit.more())))
        audit.answer("yes" if right[use[0]][use[1]] else "no")
    verdict, kept = audit.verdict(), audit.kept()
    in_kept = [kept[k][audit.bins[k]] for k in range(len(right))]
    hits = np.array([(one & mask).sum() for one, mask in zip(right, in_kept, strict=True)])
    uses = np.array([mask.sum() for mask in in_kept])
    total = sum(one.sum() for one in right)
    said = SAID.search(verdict.sentence())
    broken = tags_broken = 0
    if said and said[2]:
        broken = int(is_broken(audit, right))
    elif said:
        tags_broken = int((hits < float(said[1]) / 100 * uses - 1e-9).sum())
        broken = int(tags_broken > 0)
    inside = [
        (one.low - 1e-9 <= right[k].mean() <= one.high + 1e-9)
        for k in range(len(right))
        if (one := audit.precision(k)).answered
    ]
    share = hits.sum() / max(uses.sum(), 1)
    return {
        "made": int(said is not None),
        "broken": broken,
        "tags_broken": tags_broken,
        "tags_made": len(verdict.kept) if said else 0,
        "rare_kept": len({*verdict.kept} - {0, 1}) if said else 0,  # of the 38 of "frequent"
        "answers": audit.count,
        "right_kept": float(hits.sum() / total) if said and total else 0.0,
        "precision": float(share),
        "oracle": oracle(right, GOAL.get(world, 250)),
        "tag_intervals": [int(sum(inside)), len(inside)],
        "forecasts": [
            (at, low, high, verdict.guaranteed and at + low <= audit.count <= at + high, more)
            for at, low, high, more in forecasts
        ],
        **(sheets(right, scores, seed) if world != "per tag" else {}),
    }


def sheets(right, scores, seed):
    """Return how many answers of sheets of 50 questions an audit uses."""
    noted, answers = {}, {}
    audit = Audit([len(one) for one in right], scores=scores, seed=seed, sheets=noted)
    while audit.question is not None and audit.count < MOST:
        noted[audit.count] = SHEET
        audit.lay_down(SHEET)
        printed = deepcopy(audit)
        for _ in range(1 + len(printed.sheet)):
            if (use := printed.question) is None:
                break
            answers[use] = "yes" if right[use[0]][use[1]] else "no"
            printed.answer("yes")
        audit.resume(answers)
    return {
        "sheet_answers": len(answers),
        "sheet_used": len(audit.used),
        "sheet_made": int(audit.verdict().guaranteed),
        "sheet_broken": int(is_broken(audit, right)),
    }


def draw_recall(seed):
    rng = np.random.default_rng((6, seed))
    photos, share, recall = (
        int(rng.integers(200, 5000)),
        rng.choice([0.01, 0.05, 0.3]),
        rng.random(),
    )
    shows = rng.random(photos) < share
    tagged = np.where(shows, rng.random(photos) < recall, rng.random(photos) < 0.02)
    drawn = rng.permutation(photos)[: rng.integers(20, 200)]
    pairs = [
        (int(part.sum()), int((part & shows[drawn]).sum()))
        for part in (~tagged[drawn], tagged[drawn])
    ]
    said = recall_of(photos, int(tagged.sum()), *pairs)
    missed, there = int((shows & ~tagged).sum()), int(shows.sum())
    truth = 1 - missed / there if there else None
    return (
        said.least_missing <= missed <= said.most_missing,
        truth is None or said.low - 1e-9 <= truth <= said.high + 1e-9,
    )


def interval(hits, of):
    if not of:
        return None
    ends = binomtest(int(hits), int(of)).proportion_ci(0.95)
    return [round(float(one), 4) for one in (hits / of, ends.low, ends.high)]


def summary_of_lowered(rows):
    allowed = [0.05 * row["tested"] for row in rows if row["made"]]
    return {
        "draws": len(rows),
        "made": interval(len(allowed), len(rows)),
        "broken_of_draws": interval(sum(row["broken"] for row in rows), len(rows)),
        "broken_after": {
            tested: interval(
                sum(row["broken"] for row in rows if row["tested"] == tested), len(rows)
            )
            for tested in (1, 2, 3)
        },
        "error_told_on_average": round(float(np.mean(allowed)), 4) if allowed else None,
    }


def summary(rows):
    if "answers" not in rows[0]:
        return summary_of_lowered(rows)
    made = [row for row in rows if row["made"]]
    covered = np.sum([row["tag_intervals"] for row in rows], 0)
    answers = sorted(row["answers"] for row in made)
    first = [row["forecasts"][0] for row in made if row["forecasts"]]
    every = [one for row in made for one in row["forecasts"]]
    of_all = [row["forecasts"][0][3] for row in rows if row["forecasts"]]
    widths = [high / max(low, 10) for _, low, high, _, _ in first]
    given = sum(row.get("sheet_answers", 0) for row in rows)
    return {
        "draws": len(rows),
        "made": interval(len(made), len(rows)),
        "broken_of_draws": interval(sum(row["broken"] for row in rows), len(rows)),
        "broken_of_made": interval(sum(row["broken"] for row in made), len(made)),
        "tags_broken_of_made": interval(
            sum(row["tags_broken"] for row in rows), sum(row["tags_made"] for row in rows)
        ),
        "median_answers": float(np.median(answers)) if made else None,
        "answers_90": float(np.quantile(answers, 0.9)) if made else None,
        "right_uses_kept": round(float(np.mean([r["right_kept"] for r in made])), 4)
        if made
        else None,
        "oracle_keeps": round(float(np.mean([r["oracle"] for r in rows])), 4),
        "true_precision": round(float(np.mean([r["precision"] for r in made])), 4)
        if made
        else None,
        "tag_intervals_cover": interval(*covered),
        "first_forecast_kept": interval(sum(one[3] for one in first), len(first)),
        "first_forecast_kept_of_all": interval(sum(of_all), len(of_all)),
        "forecasts_kept": interval(sum(one[3] for one in every), len(every)),
        "forecast_widths": [float(np.median(widths)), float(np.max(widths))] if widths else None,
        "median_forecast": np.median([one[1:3] for one in first], 0).tolist() if first else None,
        "sheet_answers_used": interval(sum(row.get("sheet_used", 0) for row in rows), given),
        "sheet_made": interval(sum(row.get("sheet_made", 0) for row in rows), len(rows)),
        "sheet_broken": interval(sum(row.get("sheet_broken", 0) for row in rows), len(rows)),
        "sheet_answers": float(np.median([row.get("sheet_answers", 0) for row in rows])),
        "rare_right_tags_kept": round(float(np.mean([row["rare_kept"] for row in rows])), 2),
    }


def page(text):
    """Return the table of the evidence page."""
    head = ["simulated table", "audits", "guarantee made, %", "broken, of those made, %"]
    head += ["median answers", "right uses kept, %", "an oracle keeps, %", "interval covers, %"]
    head += ["first forecast kept, of those made, %", "answers of sheets used, %"]
    lines = [head, ["---"] * len(head)]
    for world, name in NAMES.items():
        if (own := text.get(world)) is None or "median_answers" not in own:
            continue
        key = "tags_broken_of_made" if world == "per tag" else "broken_of_made"
        shares = [own["made"], own[key] or [0.0, 0.0, 1.0]]
        ends = [f"{100 * a:.1f} ({100 * b:.1f} to {100 * c:.1f})" for a, b, c in shares]
        kept, answers = own["right_uses_kept"], own["median_answers"]
        cells = [name, f"{own['draws']:,}", *ends, "" if answers is None else f"{answers:.0f}"]
        cells += ["" if kept is None else f"{100 * kept:.1f}"]
        cells += [f"{100 * own['oracle_keeps']:.1f}" if world in ("mixed", "frequent") else ""]
        cells += [f"{100 * own['tag_intervals_cover'][0]:.1f}"]
        part, used = own["first_forecast_kept"], own["sheet_answers_used"]
        ends = part and " ({1:.1f} to {2:.1f})".format(*(100 * one for one in part))
        cells.append("" if part is None else f"{100 * part[0]:.1f}{ends}")
        cells.append("" if used is None else f"{100 * used[0]:.1f}")
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--worlds", nargs="*", default=NAMES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit_worlds.json"))
    parser.add_argument("--rows", type=Path, help="what each draw found, one line a world")
    parser.add_argument("--page", type=Path, help="put the figures of --out into this page alone")
    arguments = parser.parse_args()
    if arguments.page is not None:
        words = arguments.page.read_text()
        start = words.index("| simulated table")
        words = (
            words[:start]
            + page(json.loads(arguments.out.read_text()))
            + "\n"
            + (words[words.index("\n\n", start) + 2 :])
        )
        arguments.page.write_text(words)
        return
    command = "python " + " ".join(["benchmarks/audit_worlds.py", *sys.argv[1:]])
    text = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for world in arguments.worlds:
            start = time.monotonic()
            first = arguments.first_seed
            tasks = [(world, seed) for seed in range(first, first + arguments.draws)]
            rows = list(pool.map(draw, tasks, chunksize=4))
            seconds = round(time.monotonic() - start)
            text[world] = {"command": command, "seconds": seconds, **summary(rows)}
            print(world, text[world], flush=True)
            arguments.out.write_text(json.dumps(text, indent=1) + "\n")
            if arguments.rows is not None:
                with arguments.rows.open("a") as file:
                    file.write(json.dumps({world: rows}) + "\n")
        rows = list(pool.map(draw_recall, range(arguments.draws), chunksize=50))
    missed, recall = np.sum(rows, 0)
    text["recall"] = {
        "command": command,
        "missed_count_covers": interval(missed, len(rows)),
        "recall_covers": interval(recall, len(rows)),
    }
    print("recall", text["recall"])
    arguments.out.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
