"""Lists promised with strength shared over queries (empirical Bayes): tried, and not offered.

    python benchmarks/shared_lists.py [--data DIR] [--sittings 100]

The wrong share of a list has a beta law of mean m and weight phi around what tuning photos expect
of it (mu):   m = floor + (1 - floor) sigma(logit mu + shift).   shift, phi and floor are those of
the largest marginal likelihood over 40 queries of the same held-out photos, at the cuts where mu is
.05, .1 and .2. Held-out photos above a cut are added; the longest list is taken whose predictive
chance of more than a tenth wrong is at most .05. A sitting asks ten other queries. Worlds are those
of ``promised_lists.py``; 1,000 held-out and 1,000 tuning photos, a library of 1,000.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
from promised_lists import MADE, WORLDS, calibrated, scores_of, world_of
from scipy.optimize import minimize
from scipy.special import betaln, expit, logit
from scipy.stats import betabinom, binomtest

WRONG, DELTA, PHOTOS = 0.1, 0.05, 1000
LEARNT, ASKED = 40, 10
CUTS = (0.05, 0.1, 0.2)


def above(tuning, scores):
    """Return scores in falling order, and the mean miss expected above each."""
    ranked = np.sort(scores)[::-1]
    return ranked, (1 - tuning.probs(ranked)).cumsum() / np.arange(1, len(ranked) + 1)


def learnt(world, queries, held, tuned):
    """Return shift, phi and floor of the largest marginal likelihood over queries."""
    found = []
    for bound, hits in queries:
        tuning = calibrated(world, bound, tuned)
        scores = scores_of(world, bound, held)
        order = np.argsort(-scores, kind="stable")
        _, expected = above(tuning, scores)
        misses = (~hits[held][order]).cumsum()
        for cut in CUTS:
            length = int(np.searchsorted(expected, cut, side="right"))
            if length:
                found.append((length, misses[length - 1], expected[length - 1]))
    counts, wrong, mu = np.array(found, float).T
    mu = np.clip(mu, 1e-4, 1 - 1e-4)

    def loss(numbers):
        a, b = law(mu, *numbers)
        return -(betaln(a + wrong, b + counts - wrong) - betaln(a, b)).sum()

    return minimize(loss, [0.0, 3.0, -4.0], method="Nelder-Mead").x


def law(mu, shift, log_phi, floor):
    low = expit(floor)
    mean = low + (1 - low) * expit(logit(mu) + shift)
    phi = np.exp(np.clip(log_phi, -2, 8))
    return np.clip(mean * phi, 1e-6, None), np.clip((1 - mean) * phi, 1e-6, None)


def length_of(numbers, tuning, scores, right, library):
    ranked, expected = above(tuning, library)
    lengths = np.unique(np.rint(np.geomspace(1, len(ranked), 120)).astype(int))
    mu = np.clip(expected[lengths - 1], 1e-4, 1 - 1e-4)
    cuts = ranked[lengths - 1]
    counts = (scores[:, None] >= cuts).sum(0)
    wrong = ((scores[:, None] >= cuts) & ~right[:, None]).sum(0)
    a, b = law(mu, *numbers)
    chance = betabinom.sf(np.floor(WRONG * lengths + 1e-9), lengths, a + wrong, b + counts - wrong)
    passing = np.flatnonzero(chance <= DELTA)
    return int(lengths[passing[-1]]) if len(passing) else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sittings", type=int, default=100)
    arguments = parser.parse_args()
    print("world       labels  attempts   made  broken of attempts      of made  power")
    for name in WORLDS if arguments.data else MADE:
        world = world_of(name, arguments.data)
        for labels in (1, 2):
            results = []
            for sitting in range(arguments.sittings):
                rng = np.random.default_rng([sitting, labels])
                held, tuned, library = rng.integers(len(world.labels), size=(3, PHOTOS))
                queries = world.queries(labels, rng)
                numbers = learnt(world, islice(queries, LEARNT), held, tuned)
                for bound, hits in islice(queries, ASKED):
                    tuning = calibrated(world, bound, tuned)
                    listed = scores_of(world, bound, library)
                    given = scores_of(world, bound, held), hits[held], listed
                    length = length_of(numbers, tuning, *given)
                    truth = hits[library][np.argsort(-listed, kind="stable")]
                    share = (~truth).cumsum() / np.arange(1, PHOTOS + 1)
                    reach = np.flatnonzero(share <= WRONG)
                    best = truth[: reach[-1] + 1].sum() if len(reach) else 0
                    power = min(1.0, truth[:length].sum() / best) if best else np.nan
                    results.append((length > 0, length > 0 and share[length - 1] > WRONG, power))
            made, broken, power = np.array(results, float).T
            low, high = binomtest(int(broken.sum()), len(made)).proportion_ci(method="exact")
            print(
                f"{name:10} {labels:7} {len(made):9,} {made.mean():6.2f}  "
                f"{broken.mean():.3f} [{low:.3f}, {high:.3f}] {broken.sum() / made.sum():10.3f} "
                f"{np.nanmean(power):6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
