"""The default of ``labelwise train`` beside scikit-learn, on the same features and photos.

    python benchmarks/default.py SET.npz... --draws 10 --jobs 16 -o RESULTS.json
    python benchmarks/default.py SET.npz... --few 1000 --jobs 16 -o RESULTS.json
    python benchmarks/default.py --show RESULTS.json

A set holds features ``X`` (N, D), maybe as bytes with a ``scale`` (D,): X = (scale * bytes)^2; 0/1
labels ``Y`` (N, K); maybe ``test`` (N,), how many rows are test, ``groups`` (N,) and the ``names``
(K,) of labels. 2,992 features are those of the built-in network. Each draw
deals test rows and training rows anew, and both ways get the same ones:

    ours       what ``train`` does with features: fit, names of labels, link and rule
    sklearn    standardised features, one logistic regression per label, C by cross-validated log
               loss over all rows, one threshold by out-of-fold F1; multinomial where each photo has
               one label. Unknown entries are masked
    base       each label's share in training

Labels are ``clean``; ``flipped`` (one entry in ten; of exclusive labels one photo in ten);
``unknown`` (30 % of the entries); ``single`` (one label of each photo, drawn evenly, was noted).
Test labels are always clean. Differences are ours minus theirs, with 95 % intervals of Student's t
over draws. ``--few`` draws 10 to 50 photos and asks how often our log loss is above that of the
base rate, by more than 3 standard errors over test photos.
"""

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

STATES = ("clean", "flipped", "unknown", "single")
SIZES = (20, 50, 100, 200)
ALL = 0
STRENGTHS = np.logspace(-6, 1, 8)  # of scikit-learn: C
FOLDS = 5
PARTS = ((1280, 1.0), (1280, 1.0), (432, 2.0))  # of the built-in network's features, Eye.head_parts
WIDTH = sum(width for width, _ in PARTS)
FIGURES = ("map", "log_loss", "ece", "micro_f1", "image_f1", "tags")


@dataclass(frozen=True)
class Job:
    """One draw of one set at one number of photos, with labels in one state."""

    place: str
    state: str
    photos: int
    draw: int


def read(place: str) -> dict[str, Any]:
    stored = np.load(place)
    x = stored["X"].astype(np.float32)
    if "scale" in stored:
        x = (x * stored["scale"]) ** 2
    groups = stored["groups"] if "groups" in stored else np.arange(len(x))
    names = tuple(stored["names"].tolist()) if "names" in stored else None
    facts = {"test": stored["test"], "groups": groups, "names": names}
    return {"x": x, "y": stored["Y"].astype(np.float64), **facts}


def deal(data: dict[str, Any], photos: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return rows of training and of test, whole groups on one side."""
    names = rng.permutation(np.unique(data["groups"]))
    share = data["test"].mean()
    test = np.isin(data["groups"], names[: round(share * len(names))])
    return rng.permutation(np.flatnonzero(~test))[: photos or None], np.flatnonzero(test)


def spoil(y: Any, state: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return labels as they were noted, and which are known."""
    exclusive, known = bool((y.sum(1) == 1).all()), np.ones(y.shape, bool)
    if state == "flipped" and exclusive:
        wrong = rng.random(len(y)) < 0.1
        moved = (y.argmax(1) + rng.integers(1, y.shape[1], len(y))) % y.shape[1]
        return np.eye(y.shape[1])[np.where(wrong, moved, y.argmax(1))], known
    if state == "flipped":
        return np.where(rng.random(y.shape) < 0.1, 1 - y, y), known
    if state == "unknown":
        return y, rng.random(y.shape) >= 0.3
    if state == "single":
        noted = (y * (1 + rng.random(y.shape))).argmax(1)
        return np.eye(y.shape[1])[noted] * y.any(1)[:, None], known
    return y, known


def ours(x: Any, y: Any, known: Any, new: Any, seed: int, names: Any = None) -> tuple[Any, Any]:
    """Return probabilities and sets (M, K) of new rows, as ``train`` makes them."""
    from labelwise.calibration.shrunken import shrunken_with_errors
    from labelwise.decide.parse_rule import fit_rule
    from labelwise.eyes.fit import MOST_NAMED, fit, fit_named, fit_noted, loss_of

    observed = None if known.all() else known
    method = "softmax" if observed is None and (y.sum(1) == 1).all() else "bce"
    how: dict[str, Any] = {"seed": seed, "parts": PARTS if x.shape[1] == WIDTH else ()}
    fitted = fit_noted(x, y, observed, **how) if method == "softmax" else None
    rule_text = "auto" if fitted is None else "expected-f"
    if fitted is None:
        loss, own = loss_of(method, y, observed)
        how |= {"loss": loss, "link": own}
        fitted = fit(x, y, observed, **how)
        if names is not None and method == "bce" and len(x) <= MOST_NAMED:
            from labelwise.eyes import Eye
            from labelwise.eyes.kinds import directions

            towards = directions(Eye.open(), names, x)
            if towards is not None:
                fitted = fit_named(x, y, observed, towards, fitted, **how) or fitted
        link = fitted.link
        if not own.couples_labels:
            link = shrunken_with_errors(fitted.out_of_fold, y, own, observed)[0]
    else:
        link = fitted.link
    held, probs = (
        np.exp(link.log_probs(logits.astype(np.float64))[0])
        for logits in (fitted.out_of_fold, fitted.logits(new))
    )
    rule = fit_rule(rule_text, held, y, observed)[0]
    return probs, np.asarray(rule(probs))


def cut_of(probs: Any, y: Any, known: Any) -> float:
    """Return the threshold of the best F1 over all known entries."""
    p, there = probs[known], y[known]
    order = np.argsort(-p, kind="stable")
    right = np.cumsum(there[order])
    best = int((2 * right / (np.arange(1, len(p) + 1) + max(there.sum(), 1))).argmax())
    return float(p[order][best])


def theirs(x: Any, y: Any, known: Any, new: Any, seed: int) -> tuple[Any, Any]:
    """Return the probabilities and sets (M, K) of scikit-learn."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, StratifiedKFold
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    x, new = (scaler.transform(side).astype(np.float64) for side in (x, new))
    if len(x) < x.shape[1]:  # the same optimum in fewer columns
        basis = np.linalg.svd(x, full_matrices=False)[2].T
        x, new = x @ basis, new @ basis

    def head(strength: float) -> Any:
        return LogisticRegression(C=strength, max_iter=300)

    if known.all() and (y.sum(1) == 1).all():
        return multinomial(x, y, new, seed, head, KFold)
    cuts, probs = np.zeros(y.shape), np.zeros((len(new), y.shape[1]))
    losses = np.full((y.shape[1], len(STRENGTHS)), np.nan)
    held = np.zeros((len(STRENGTHS), *y.shape))
    for k in range(y.shape[1]):
        rows = np.flatnonzero(known[:, k])
        target = y[rows, k]
        fewest = int(min(target.sum(), len(target) - target.sum()))
        share = (target.sum() + 0.5) / (len(target) + 1)
        held[:, :, k] = probs[:, k] = share
        if fewest < 2:
            continue
        folds = StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=seed)
        for train, rest in folds.split(x[rows], target):
            for at, strength in enumerate(STRENGTHS):
                fit = head(strength).fit(x[rows[train]], target[train])
                held[at, rows[rest], k] = fit.predict_proba(x[rows[rest]])[:, 1]
        p = np.clip(held[:, rows, k], 1e-12, 1 - 1e-12)
        losses[k] = -(target * np.log(p) + (1 - target) * np.log1p(-p)).mean(1)
    chosen = np.where(np.isnan(losses).any(1), -1, np.nan_to_num(losses).argmin(1))
    usual = int(np.median(chosen[chosen >= 0])) if (chosen >= 0).any() else 2
    for k in range(y.shape[1]):
        rows = np.flatnonzero(known[:, k])
        at = usual if chosen[k] < 0 else int(chosen[k])
        cuts[:, k] = held[at, :, k]
        if len(np.unique(y[rows, k])) == 2:
            fit = head(STRENGTHS[at]).fit(x[rows], y[rows, k])
            probs[:, k] = fit.predict_proba(new)[:, 1]
    return probs, probs >= cut_of(cuts, y, known)


def multinomial(x: Any, y: Any, new: Any, seed: int, head: Any, folds: Any) -> tuple[Any, Any]:
    labels, width = y.argmax(1), y.shape[1]
    count = min(FOLDS, len(x))
    held = np.zeros((len(STRENGTHS), len(x), width))
    for train, rest in folds(count, shuffle=True, random_state=seed).split(x):
        if len(np.unique(labels[train])) < 2:
            continue
        for at, strength in enumerate(STRENGTHS):
            fit = head(strength).fit(x[train], labels[train])
            held[at][np.ix_(rest, fit.classes_)] = fit.predict_proba(x[rest])
    likely = np.maximum(held[:, np.arange(len(x)), labels], 0.5 / len(x) / width)
    fit = head(STRENGTHS[int(np.log(likely).mean(1).argmax())]).fit(x, labels)
    probs = np.zeros((len(new), width))
    probs[:, fit.classes_] = fit.predict_proba(new)
    return probs, np.eye(width, dtype=bool)[probs.argmax(1)]


def base(y: Any, known: Any, rows: int) -> tuple[Any, Any]:
    share = ((y * known).sum(0) + 0.5) / (known.sum(0) + 1)
    probs = np.repeat(share[None], rows, 0)
    return probs, probs >= 0.5


def average_precision(scores: Any, y: Any) -> float:
    there = y[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(there) / np.arange(1, len(y) + 1))[there > 0].mean())


def figures(probs: Any, sets: Any, y: Any) -> dict[str, float]:
    """Return figures over test photos; a probability of 0 counts as one in ten million."""
    p = np.clip(probs, 1e-7, 1 - 1e-7)
    cell = np.minimum((p * 10).astype(int), 9).ravel()
    apart = np.bincount(cell, p.ravel(), 10) - np.bincount(cell, y.ravel(), 10)
    right, size = (sets * y).sum(1), sets.sum(1) + y.sum(1)
    image = np.where(size == 0, 1.0, 2 * right / np.maximum(size, 1))
    found = np.flatnonzero(y.any(0))
    values = (
        np.mean([average_precision(p[:, k], y[:, k]) for k in found]),
        -(y * np.log(p) + (1 - y) * np.log1p(-p)).mean(),
        np.abs(apart).sum() / y.size,
        2 * right.sum() / max(size.sum(), 1),
        image.mean(),
        sets.sum(1).mean(),
    )
    return dict(zip(FIGURES, map(float, values), strict=True))


def work(job: Job) -> dict[str, Any]:
    """Return the figures of one draw."""
    warnings.simplefilter("ignore")
    data = read(job.place)
    rng = np.random.default_rng([job.photos, job.draw])
    train, test = deal(data, job.photos, rng)
    x, y = data["x"][train], data["y"][train]
    y, known = spoil(y, job.state, rng)
    if job.state == "single":
        x, y, known = (side[y.any(1)] for side in (x, y, known))
    new, truth = data["x"][test], data["y"][test]
    result: dict[str, Any] = {**asdict(job), "set": Path(job.place).stem, "rows": len(x)}
    result["true_tags"] = float(truth.sum(1).mean())
    for name, way, more in (("ours", ours, (data["names"],)), ("sklearn", theirs, ())):
        began = time.process_time()
        result[name] = figures(*way(x, y, known, new, job.draw, *more), truth)
        result[name]["seconds"] = time.process_time() - began
    result["base"] = figures(*base(y, known, len(new)), truth)
    return result


def few(job: Job) -> dict[str, Any]:
    """Return by how much our log loss is above the base rate's with few photos, and the error."""
    warnings.simplefilter("ignore")
    data = read(job.place)
    rng = np.random.default_rng([7, job.draw])
    train, test = deal(data, int(rng.integers(10, 51)), rng)
    x, y = data["x"][train], data["y"][train]
    y, known = spoil(y, job.state, rng)
    truth = data["y"][test]

    def losses(probs: Any) -> Any:
        p = np.clip(probs, 1e-7, 1 - 1e-7)
        return -(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean(1)

    mine = losses(ours(x, y, known, data["x"][test], job.draw, data["names"])[0])
    guess = losses(base(y, known, len(test))[0])
    apart = mine - guess
    error = float(apart.std(ddof=1) / len(apart) ** 0.5)
    figures_of = {"ours": float(mine.mean()), "base": float(guess.mean()), "error": error}
    return {**asdict(job), "set": Path(job.place).stem, "rows": len(x), **figures_of}


def show_few(results: list[dict[str, Any]]) -> None:
    print("| set | labels | draws | above by more than 3 errors | most above | ours | base |")
    print("|---|---|---|---|---|---|---|")
    for name, state in sorted({(r["set"], r["state"]) for r in results}):
        some = [r for r in results if (r["set"], r["state"]) == (name, state)]
        above = np.array([r["ours"] - r["base"] for r in some])
        errors = np.array([r["error"] for r in some])
        mine, guess = (np.mean([r[way] for r in some]) for way in ("ours", "base"))
        print(
            f"| {name} | {state} | {len(some)} | {(above > 3 * errors).sum()} | "
            f"{above.max():+.4f} | {mine:.4f} | {guess:.4f} |"
        )


def show(results: list[dict[str, Any]]) -> None:
    """Print ours, theirs and the paired difference of each set, state and number of photos."""
    cells = sorted({(r["set"], STATES.index(r["state"]), r["photos"] or 10**9) for r in results})
    print(
        "| set | labels | photos | mAP | ours - sklearn | log loss | ours - sklearn | base | ECE |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, state, photos in cells:
        key = name, STATES[state], photos % 10**9
        some = [r for r in results if (r["set"], r["state"], r["photos"]) == key]

        def both(figure: str, scale: float = 1, some: list[dict[str, Any]] = some) -> str:
            pairs = np.array([[r["ours"][figure], r["sklearn"][figure]] for r in some]) * scale
            gap = pairs[:, 0] - pairs[:, 1]
            wide = half_width(gap)
            mine, peer = pairs.mean(0)
            digits = 2 if scale == 100 else 4
            mark = "" if abs(gap.mean()) <= wide else "*"
            return (
                f"{mine:.{digits}f} / {peer:.{digits}f} | "
                f"{gap.mean():+.{digits}f} ± {wide:.{digits}f}{mark}"
            )

        ece = " / ".join(f"{np.mean([r[w]['ece'] for r in some]):.4f}" for w in ("ours", "sklearn"))
        least = np.mean([r["base"]["log_loss"] for r in some])
        rows = f"{np.mean([r['rows'] for r in some]):.0f}"
        cells_of = (
            name,
            STATES[state],
            rows,
            both("map", 100),
            both("log_loss"),
            f"{least:.4f}",
            ece,
        )
        print(f"| {' | '.join(cells_of)} |")


def half_width(gap: Any) -> float:
    from scipy.stats import t

    if len(gap) < 2:
        return float("inf")
    return float(t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / len(gap) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--all-draws", type=int, default=3, help="draws of all photos")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[*SIZES, ALL], help="0 is all")
    parser.add_argument("--states", nargs="*", default=STATES, choices=STATES)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--few", type=int, default=0, help="draws of 10 to 50 photos")
    parser.add_argument("--show", type=Path)
    chosen = parser.parse_args()
    if chosen.show:
        stored = json.loads(chosen.show.read_text())
        (show_few if "error" in stored[0] else show)(stored)
        return
    jobs = []
    for place in chosen.sets:
        data = read(place)
        exclusive = bool((data["y"].sum(1) == 1).all())
        for state in chosen.states:
            if exclusive and state == "single":
                continue
            if chosen.few:
                jobs += [Job(place, state, 50, draw) for draw in range(chosen.few)]
            for photos in () if chosen.few else chosen.sizes:
                draws = chosen.draws if photos else chosen.all_draws
                jobs += [Job(place, state, photos, draw) for draw in range(draws)]
    jobs.sort(key=lambda job: (job.photos != ALL, -job.photos))  # the longest first
    results = []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for done in as_completed([pool.submit(few if chosen.few else work, job) for job in jobs]):
            results.append(done.result())
            if chosen.out and (len(results) % 20 == 0 or len(results) == len(jobs)):
                chosen.out.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{len(results)} of {len(jobs)}", end="\r", flush=True)
    (show_few if chosen.few else show)(results)


if __name__ == "__main__":
    main()
