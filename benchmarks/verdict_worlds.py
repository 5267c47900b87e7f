"""How often the verdict is true: its range of words, its test of probabilities, its one cause.

    python benchmarks/verdict_worlds.py [range] [trust] [advice] [--draws 1000] [--jobs 15] [-o F]

Worlds have exact probabilities by construction: photo i and label k have

    logit_ik = a_k + b_k e_ik,   e_ik = sqrt(s) g_i + sqrt(1 - s) h_ik,   y_ik ~ Bernoulli

with a_k from the prevalence and b_k from the skill of the world. The true skill is that of 200,000
photos. Worlds of the make `plain` have ten labels, normal g, h, and s = .2. Those of the make
`other`, on which no line was chosen, have 25 labels, Student t with 4 degrees, and s = .5. For
advice, they have 8 labels, 40 heavy-tailed features, and other shares of wrong and missing labels.
Results are added to F, with Clopper-Pearson intervals.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from labelwise.base.special import expit, fit_slope_and_offset, logit, ndtr
from labelwise.evaluation.calibration import Known
from labelwise.evaluation.cause import TrainingRows, likeliest_cause
from labelwise.evaluation.judge import Skill, skill_range, trust_of
from labelwise.evaluation.verdict import LINES

RESULTS = Path(__file__).parent / "results" / "verdict_worlds.json"
CUT, SKILLS = 0.4, (0.08, 0.2, 0.37, 0.52, 0.7, 0.82, 0.92)
SHARES = {"common": (0.1, 0.4), "mixed": (0.01, 0.4), "rare": (0.003, 0.05)}
SIZES = (12, 25, 50, 200, 1000)


@dataclass(frozen=True)
class Make:
    """How worlds of a make are drawn. ``degrees`` of Student's t, or 0 of the normal law."""

    labels: int
    shared: float
    degrees: int
    features: int
    labelled: int
    tested: int
    few: int
    shares: tuple[float, float]  # of the labels in worlds with one cause
    wrong: float
    missing: float

    def noise(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        if not self.degrees:
            return rng.standard_normal(shape)
        return rng.standard_t(self.degrees, shape) * np.sqrt(1 - 2 / self.degrees)

    def latent(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        own = self.noise(rng, rows, self.labels)
        return np.sqrt(self.shared) * self.noise(rng, rows, 1) + np.sqrt(1 - self.shared) * own


MAKES = {
    "plain": Make(10, 0.2, 0, 24, 500, 400, 25, (0.04, 0.3), 0.1, 0.5),
    "other": Make(25, 0.5, 4, 40, 700, 300, 35, (0.06, 0.4), 0.15, 0.4),
}
OTHER_LABELS = 8  # of worlds with one cause


def interval(hits: float, of: int) -> list[float]:
    ends = binomtest(round(hits), of).proportion_ci(0.95)
    return [round(float(one), 4) for one in (hits / of, ends.low, ends.high)]


def offsets(steep: np.ndarray, shares: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return a (K,) at which the mean of sigmoid(a + b e) is the share of each label."""
    low, high = np.full(len(shares), -400.0), np.full(len(shares), 400.0)
    for _ in range(40):
        middle = (low + high) / 2
        above = expit(middle + steep * drawn).mean(0) > shares
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def true_skill(probs: np.ndarray, labels: np.ndarray) -> float:
    skill = Skill.of(probs, Known(labels, None), probs >= CUT)
    return float(skill(np.ones((1, len(labels)), np.float32))[0])


class World:
    """A mix of labels and a skill, by the steepness of its logits."""

    def __init__(self, make: str, mix: str, wanted: float) -> None:
        rng, self.make = np.random.default_rng(3), MAKES[make]
        labels = self.make.labels
        self.shares, wide = np.geomspace(*SHARES[mix], labels), np.linspace(0.6, 1.4, labels)
        wide = rng.permutation(wide)
        few, uniform = self.make.latent(rng, 20_000), rng.random((20_000, labels))
        low, high = 0.05, 60.0
        for _ in range(12):
            middle = np.sqrt(low * high)
            self.set(middle * wide, few[:6000])
            probs = expit(self.a + self.b * few)
            below = true_skill(probs, uniform < probs) < wanted
            low, high = (middle, high) if below else (low, middle)
        self.set(low * wide, few)
        self.skill = true_skill(*self.test(rng, 200_000))

    def set(self, steep: np.ndarray, drawn: np.ndarray) -> None:
        self.b, self.a = steep, offsets(steep, self.shares, drawn)

    def test(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        probs = expit(self.a + self.b * self.make.latent(rng, rows))
        return probs, rng.random(probs.shape) < probs


@cache
def world_of(make: str, mix: str, skill: float) -> World:
    return World(make, mix, skill)


def range_cell(cell: tuple[str, str, int, int]) -> dict:
    """Return how often the range of a mix and a size holds the true word."""
    make, mix, size, draws = cell
    rng, by_world = np.random.default_rng(size), []
    for skill in SKILLS:
        world, held = world_of(make, mix, skill), []
        true = int(np.digitize(world.skill, LINES))
        for _ in range(-(-draws // len(SKILLS))):
            probs, labels = world.test(rng, size)
            low, high = skill_range(probs, Known(labels, None), probs >= CUT)
            first, last = (0, 4) if low is None else np.digitize((low, high), LINES)
            held.append((first <= true <= last, last - first + 1, low is None))
        by_world.append(np.array(held, float))
    every = np.concatenate(by_world)
    some = every[every[:, 2] == 0]  # a test without any label tells nothing: five words
    return {
        "make": make,
        "photos": size,
        "labels": mix,
        "draws": len(every),
        "holds": interval(every[:, 0].sum(), len(every)),
        "worst world": min(interval(cell[:, 0].sum(), len(cell)) for cell in by_world),
        "no label": round(every[:, 2].mean(), 3),
        "words": round(some[:, 1].mean(), 2),
        "words of all tests": round(every[:, 1].mean(), 2),
        "one word": round((some[:, 1] == 1).mean(), 3),
        "cannot tell": round((some[:, 1] == 5).mean(), 3),
    }


def range_cells(draws: int) -> list[tuple]:
    return [(make, mix, size, draws) for size in SIZES[::-1] for make in MAKES for mix in SHARES]


BENT = {
    "exact": lambda odds: odds,
    "exact, labels depend": lambda odds: odds,
    "too sure (x 2)": lambda odds: 2 * odds,
    "too unsure (x 1/2)": lambda odds: odds / 2,
    "too many (+ 0.7)": lambda odds: odds + 0.7,
    "labels by turns +- 1": lambda odds: odds + np.where(np.arange(odds.shape[1]) % 2, 1, -1),
}


def trust_cell(cell: tuple[str, int, str, str, int]) -> dict:
    """Return what is said of probabilities of one kind, in three worlds of a mix."""
    make, size, what, mix, draws = cell
    rng, rows = np.random.default_rng([size, *what.encode(), *mix.encode()]), []
    for world in (world_of(make, mix, skill) for skill in (0.2, 0.52, 0.82)):
        for _ in range(-(-draws // 3)):
            probs = expit(world.a + world.b * world.make.latent(rng, size))
            uniform = rng.random(probs.shape)
            if "depend" in what:
                both = rng.standard_normal((size, 1)) + rng.standard_normal(probs.shape)
                uniform = ndtr(np.sqrt(0.5) * both)
            bent = expit(BENT[what](logit(probs.clip(1e-9, 1 - 1e-9))))
            trust = trust_of(bent, uniform < probs, None, None)
            true = float(np.abs(bent - probs).mean())
            held = trust.low <= true <= trust.high
            rows.append((trust.wrong, true, trust.size, trust.shown, held))
    every = np.array(rows, float)
    clear = every[:, 1] > every[:, 3]
    return {
        "make": make,
        "photos": size,
        "probabilities": what,
        "labels": mix,
        "draws": len(every),
        "called wrong": interval(every[:, 0].sum(), len(every)),
        "true size": round(100 * every[:, 1].mean(), 2),
        "told size": round(100 * every[:, 2].mean(), 2),
        "interval holds": round(every[:, 4].mean(), 3),
        "would show above": round(100 * every[:, 3].mean(), 2),
        "found above it": round(every[clear, 0].mean(), 3) if clear.any() else None,
    }


def trust_cells(draws: int) -> list[tuple]:
    return [
        (make, size, what, mix, draws if what.startswith("exact") else draws // 3)
        for size in (1000, 200, 50, 12)
        for make in MAKES
        for what in BENT
        for mix in SHARES
    ]


CAUSES = (
    "nothing",
    "few test photos",
    "wrong labels",
    "missing labels",
    "missing in training",
    "few of a label",
    "other photos",
    "calibration",
)


def ridge(x: np.ndarray, y: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """Return the coefficients (D + 1, K) of ridge logistic regressions, all labels at once."""
    design = np.c_[x, np.ones(len(x))]
    width = design.shape[1]
    penalty = np.append(np.ones(width - 1), 1e-3)
    weights = np.zeros((width, y.shape[1])) if start is None else start.copy()
    pairs = np.einsum("ni,nj->nij", design, design).reshape(len(x), -1)
    for _ in range(15):
        p = expit(design @ weights)
        hessian = ((p * (1 - p)).T @ pairs).reshape(-1, width, width) + np.diag(penalty)
        gradient = (design.T @ (p - y) + penalty[:, None] * weights).T
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0].T
        weights -= step
        if np.abs(step).max() < 1e-3:
            break
    return weights


def spoiled(
    labels: np.ndarray, missing: float, wrong: float, rng: np.random.Generator
) -> np.ndarray:
    """Return labels of which a share is missing, and of which a share was invented besides."""
    kept = labels & (rng.random(labels.shape) >= missing)
    return kept | (~labels & (rng.random(labels.shape) < wrong * labels.mean(0)))


def made_world(make: Make, cause: str, strength: float, rng: np.random.Generator) -> tuple:
    k = OTHER_LABELS if make.degrees else make.labels
    shares, big = np.geomspace(*make.shares, k), make.noise(rng, 4000, make.features)
    b = rng.standard_normal((make.features, k))
    b *= strength / np.linalg.norm(b, axis=0)
    odds = big @ b
    low, high = np.full(k, -40.0), np.full(k, 40.0)
    for _ in range(20):
        a = (low + high) / 2
        above = expit(a + odds).mean(0) > shares
        low, high = np.where(above, low, a), np.where(above, a, high)
    x = make.noise(rng, make.labelled, make.features)
    z = make.noise(rng, make.few if cause == "few test photos" else make.tested, make.features)
    if cause == "other photos":
        z = z * rng.uniform(0.7, 1.3, make.features) + 0.5 * rng.standard_normal(make.features)
    y, t = (rng.random((len(f), k)) < expit(f @ b + a) for f in (x, z))
    if cause == "wrong labels":
        y, t = (spoiled(side, make.wrong, make.wrong, rng) for side in (y, t))
    if cause == "missing labels":
        y, t = (spoiled(side, make.missing, 0, rng) for side in (y, t))
    if cause == "missing in training":
        y = spoiled(y, make.missing, 0, rng)
    if cause == "few of a label":  # photos that showed it were not collected
        rare = rng.integers(k)
        kept = ~(y[:, rare] & (np.cumsum(y[:, rare]) > 5))
        x, y = x[kept], y[kept]
    return x, y, z, t


def cause_told(make: Make, cause: str, strength: float, rng: np.random.Generator) -> str:
    x, y, z, t = made_world(make, cause, strength, rng)
    whole, fold = ridge(x, y), rng.permutation(len(x)) % 5
    logits = np.zeros(y.shape)
    for part in range(5):
        left = fold != part
        weights = ridge(x[left], y[left], whole)
        logits[~left] = np.c_[x[~left], np.ones((~left).sum())] @ weights
    slope, offset = fit_slope_and_offset(logits.ravel(), y.ravel() * 1.0, np.full(2, 1e-6))[0]
    test = offset + slope * (np.c_[z, np.ones(len(z))] @ whole)
    if cause == "calibration":
        test = 2 * test
    training = TrainingRows(offset + slope * logits, y, None, y.sum(0), x, z)
    trust = trust_of(expit(test), t, None, None)
    names = [str(k) for k in range(t.shape[1])]
    found = likeliest_cause(np.full(t.shape[1], len(z)), t.sum(0), trust, training, names)
    return "nothing" if found is None else found.kind


def advice_cell(cell: tuple[str, float, int, str, int]) -> dict:
    """Return which cause is told where one was built in."""
    make, strength, number, cause, draws = cell
    told = Counter(
        cause_told(MAKES[make], cause, strength, np.random.default_rng([7, draw, number]))
        for draw in range(draws)
    )
    row = {"make": make, "strength": strength, "built in": cause, "draws": draws}
    return row | {"told": interval(told[cause], draws), "all": dict(told.most_common())}


def advice_cells(draws: int) -> list[tuple]:
    return [
        (make, strength, number, cause, draws)
        for make in MAKES
        for strength in (6.0, 3.0)
        for number, cause in enumerate(CAUSES)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["range", "trust", "advice"])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    with Pool(asked.jobs) as pool:
        for part in asked.parts:
            cells, rows = globals()[f"{part}_cells"](asked.draws), []
            for row in pool.imap(globals()[f"{part}_cell"], cells, chunksize=1):
                rows.append(row)
                print(row, flush=True)
            known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
            known[part] = {"command": "python " + " ".join(sys.argv), "rows": rows}
            asked.out.write_text(json.dumps(known, indent=1) + "\n")
