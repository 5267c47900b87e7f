"""Do query probabilities mean what they say? ``python benchmarks/queries.py``.

Queries of one, two and three labels, wanted and unwanted, drawn among those that 2 % of the photos
answer. Over divisions of the photos into held-out ones and a library, without replacement: ECE (10
equal-width bins) of the product of marginals and of the calibrated query on the library, and how
often the number of hits there lay in its 95 % interval. Over draws of held-out photos from all of
them with replacement, which all of them then check without error: how many lists "at most this
share wrong" could be promised, how many of those were broken, the exact binomial p-values of "more
than delta of all draws" (which is what is guaranteed) and "of the promised ones" (which is not:
where a promise is rarely possible, those that chance made are a larger share), and their power, the
length of the list as a share of the longest one in hindsight. The cuts to try are set by other
draws, as validation photos do, and in "split" by a fifth of the held-out ones; "ceiling" is the
power of the single best cut, known in hindsight.

Data: ``posterior`` with labels that depend on each other; ``--scores FILE`` for anyone's (an .npz
of ``probs`` (N, K) and ``labels``).
"""

import argparse

import numpy as np
from promises import problem
from scipy.stats import binom, binomtest

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


def ceiling(ranked, longest, arguments):
    """Return the expected length, as a share, of the one cut that is best to test in hindsight."""
    places = np.unique(np.geomspace(1, longest, 60).astype(int))
    trials = np.rint(places / len(ranked) * arguments.photos)
    delta, wrong = 1 - arguments.confidence, arguments.wrong
    most = binom.ppf(delta, trials, wrong)
    most = np.where(binom.cdf(most, trials, wrong) <= delta, most, most - 1)
    passing = binom.cdf(most, trials, 1 - ranked[places - 1] / places)
    return np.max(np.where(trials > 0, passing, 0) * places / longest)


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
        "length queries  draws  ECE product  ECE fitted  counts inside  promised  broken  "
        "p, draws  p, promised  power  split  ceiling"
    )
    good = True
    for length in (1, 2, 3):
        asked = queries(truth, length, arguments.queries, 0.02 * len(truth), rng)
        before, after, powers, split_powers, ceilings = [], [], [], [], []
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
            if longest:
                ceilings.append(ceiling(ranked, longest, arguments))
            for _ in range(max(1, arguments.draws // len(asked))):
                order = rng.permutation(len(right))
                held, new = order[: arguments.photos], order[arguments.photos :]
                fitted = calibrate_query(query, *(array[held] for array in arrays))
                before.append(ece(np.exp(scores[new]), right[new]))
                after.append(ece(fitted.probs(scores[new]), right[new]))
                count = fitted.count(scores[new])
                inside += count.lower <= right[new].sum() <= count.upper
                fitted, tuning = (
                    calibrate_query(query, *(array[drawn] for array in arrays))
                    for drawn in rng.integers(len(right), size=(2, arguments.photos))
                )
                cut = fitted.cut(arguments.wrong, arguments.confidence, tuning=tuning)
                listed = scores >= cut.threshold
                if cut.promise is not None and listed.any():
                    promised += 1
                    broken += (~right[listed]).mean() > arguments.wrong
                if longest:
                    powers.append(listed.sum() / longest)
                    split = fitted.cut(arguments.wrong, arguments.confidence)
                    split_powers.append((scores >= split.threshold).sum() / longest)
                tries += 1
        delta = 1 - arguments.confidence
        p, p_promised = (
            binomtest(broken, count, delta, alternative="greater").pvalue if count else 1.0
            for count in (tries, promised)
        )
        good &= p > 0.01
        print(
            f"{length:6d} {len(asked):7d} {tries:6d} {np.mean(before):12.4f} "
            f"{np.mean(after):11.4f} {inside / tries:14.3f} {promised:9d} {broken:7d} "
            f"{p:9.3f} {p_promised:12.3f} {np.mean(powers or [0]):6.2f} "
            f"{np.mean(split_powers or [0]):6.2f} {np.mean(ceilings or [0]):8.2f}",
            flush=True,
        )
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
