"""Do query probabilities mean what they say? ``python benchmarks/queries.py``.

Queries of one to five labels, wanted and unwanted, and of two labels joined by ``|`` with a third
one wanted or not, drawn among those that 2 % of the photos answer. Over divisions of the photos
into held-out ones and a library, without replacement: ECE (10 equal-width bins) of the product of
marginals and of the calibrated query on the library, and how often the number of hits there lay in
its 95 % interval. Lists with a promise are measured by ``promises.py --lists``.

Data: ``posterior`` with labels that depend on each other; ``--scores FILE`` for anyone's (an .npz
of ``probs`` (N, K) and ``labels``).
"""

import argparse

import numpy as np
from promises import problem

from labelwise.queries import Query, bind, calibrate_query
from labelwise.types import LabelSpace

KINDS = ("1", "2", "3", "4", "5", "a | b", "(a | b), c")


def asked(kind, names, rng):
    """Return a query of a kind as text, of labels that are drawn."""
    if "|" in kind:
        a, b, c = rng.permutation(names)[:3]
        more = f", {'-' * bool(rng.random() < 0.5)}{c}" if "c" in kind else ""
        return f"({a} | {b}){more}"
    signs = ["" if place == 0 or rng.random() < 0.6 else "-" for place in range(int(kind))]
    chosen = rng.permutation(names)[: int(kind)]
    return ", ".join(sign + name for sign, name in zip(signs, chosen, strict=True))


def queries(kind, space, truth, count, rng):
    """Return bound queries that at least 2 % of the photos answer."""
    found = {}
    for _ in range(200 * count):
        text = asked(kind, space.names, rng)
        bound = bind(Query.parse(text, space), space)
        right, _ = bound.right(truth[:, list(bound.columns)])
        if right.mean() >= 0.02:
            found[text] = bound
        if len(found) == count:
            break
    return list(found.values())


def ece(probs, right):
    bins = np.minimum((probs * 10).astype(int), 9)
    gaps = np.bincount(bins, weights=probs - right, minlength=10)
    return np.abs(gaps).sum() / len(probs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scores", help="an .npz of probs and labels, instead of posterior data")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--queries", type=int, default=10, help="of each kind")
    arguments = parser.parse_args()
    probs, truth = problem(arguments.scores)
    probs = np.clip(probs, 1e-12, 1 - 1e-12)
    log_p, log_q = np.log(probs), np.log1p(-probs)
    space = LabelSpace(tuple(f"label{k:02}" for k in range(truth.shape[1])))
    rng = np.random.default_rng(0)
    print("labels      queries  draws  ECE product  ECE fitted  counts inside")
    good = True
    for kind in KINDS:
        before, after, inside = [], [], []
        every = queries(kind, space, truth, arguments.queries, rng)
        for query in every:
            columns = list(query.columns)
            arrays = log_p[:, columns], log_q[:, columns], truth[:, columns]
            scores, (right, _) = query.log_scores(*arrays[:2]), query.right(arrays[2])
            for _ in range(max(1, arguments.draws // len(every))):
                order = rng.permutation(len(right))
                held, new = order[: arguments.photos], order[arguments.photos :]
                fitted = calibrate_query(query, *(array[held] for array in arrays))
                before.append(ece(np.exp(scores[new]), right[new]))
                after.append(ece(fitted.probs(scores[new]), right[new]))
                count = fitted.count(scores[new])
                inside.append(count.lower <= right[new].sum() <= count.upper)
        good &= np.mean(after) <= 0.01
        print(
            f"{kind:11} {len(every):7d} {len(after):6d} {np.mean(before):12.4f} "
            f"{np.mean(after):11.4f} {np.mean(inside):14.3f}",
            flush=True,
        )
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
