"""Do query probabilities mean what they say? ``python benchmarks/queries.py``.

Queries of one, two and three labels, wanted and unwanted, drawn among those that 2 % of the photos
answer. Over draws of the held-out photos, from all of them with replacement: ECE (10 equal-width
bins) of the product of marginals and of the calibrated query on the photos left over; how many
lists "at most this share wrong" could be promised, how many of those were broken on all photos, and
the exact binomial p-value of "more than delta of the promised ones"; their power, the length of the
list as a share of the longest one in hindsight; and how often the number of hits lay in its 95 %
interval.

Data: ``posterior`` with labels that depend on each other; ``--scores FILE`` for anyone's (an .npz
of ``probs`` (N, K) and ``labels``).
"""

import argparse

import numpy as np
from promises import problem
from scipy.stats import binomtest

from labelwise.retrieval import Query, bind, calibrate_query
from labelwise.types import LabelSpace


def queries(truth, length, count, least, rng):
    """Return (wanted, unwanted) columns of queries that at least ``least`` photos answer."""
    found = {}
    for _ in range(200 * count):
        columns = rng.choice(truth.shape[1], size=length, replace=False)
        sign = rng.random(length) < 0.6
        sign[0] = True
        wanted, unwanted = sorted(columns[sign]), sorted(columns[~sign])
        right = truth[:, wanted].all(1) & ~truth[:, unwanted].any(1)
        if right.sum() >= least:
            found[tuple(wanted), tuple(unwanted)] = None
        if len(found) == count:
            break
    return list(found)


def ece(probs, right):
    bins = np.minimum((probs * 10).astype(int), 9)
    gaps = np.bincount(bins, weights=probs - right, minlength=10)
    return np.abs(gaps).sum() / len(probs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scores", help="an .npz of probs and labels, instead of posterior data")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--queries", type=int, default=10, help="of each length")
    parser.add_argument("--wrong", type=float, default=0.3)
    parser.add_argument("--confidence", type=float, default=0.95)
    arguments = parser.parse_args()
    probs, truth = problem(arguments.scores)
    probs = np.clip(probs, 1e-12, 1 - 1e-12)
    log_p, log_q = np.log(probs), np.log1p(-probs)
    space = LabelSpace(tuple(f"label {k}" for k in range(truth.shape[1])))
    rng = np.random.default_rng(0)
    print(
        "length queries  draws  ECE product  ECE fitted  promised  broken  p-value  power  "
        "counts inside"
    )
    good = True
    for length in (1, 2, 3):
        asked = queries(truth, length, arguments.queries, 0.02 * len(truth), rng)
        before, after, powers = [], [], []
        broken = promised = inside = tries = 0
        for wanted, unwanted in asked:
            names = [[space.names[k] for k in part] for part in (wanted, unwanted)]
            query = bind(Query.of(*names), space)
            columns = list(query.columns)
            arrays = log_p[:, columns], log_q[:, columns], truth[:, columns]
            scores, (right, _) = query.log_scores(*arrays[:2]), query.right(arrays[2])
            ranked = right[np.argsort(-scores, kind="stable")].cumsum()
            reach = np.flatnonzero(ranked >= (1 - arguments.wrong) * np.arange(1, len(right) + 1))
            longest = (reach[-1] + 1) if len(reach) else 0
            for _ in range(max(1, arguments.draws // len(asked))):
                held = rng.integers(len(right), size=arguments.photos)
                new = np.setdiff1d(np.arange(len(right)), held)
                fitted = calibrate_query(query, *(array[held] for array in arrays))
                before.append(ece(np.exp(scores[new]), right[new]))
                after.append(ece(fitted.probs(scores[new]), right[new]))
                count = fitted.count(scores[new])
                inside += count.lower <= right[new].sum() <= count.upper
                cut = fitted.cut(arguments.wrong, arguments.confidence, library=scores)
                listed = scores >= cut.threshold
                if cut.promise is not None and listed.any():
                    promised += 1
                    broken += (~right[listed]).mean() > arguments.wrong
                if longest:
                    powers.append(listed.sum() / longest)
                tries += 1
        delta = 1 - arguments.confidence
        p = binomtest(broken, promised, delta, alternative="greater").pvalue if promised else 1.0
        good &= p > 0.01
        print(
            f"{length:6d} {len(asked):7d} {tries:6d} {np.mean(before):12.4f} "
            f"{np.mean(after):11.4f} {promised:9d} {broken:7d} {p:8.3f} "
            f"{np.mean(powers or [0]):6.2f} {inside / tries:14.3f}",
            flush=True,
        )
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
