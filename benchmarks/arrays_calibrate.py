"""Per-label Platt scaling of all labels at once, against a loop of logistic regressions."""

import numpy as np
from arrays_metrics import problem
from measure import Contender, compare
from sklearn.linear_model import LogisticRegression

from labelwise.calibration import platt
from labelwise.links import Sigmoid

SIZES = ((40_137, 80, 2.9), (50_000, 1_000, 5.0))
SOME_LABELS = 20


def ours(scores, labels, strength):
    link = platt(scores, labels, Sigmoid(), strength=strength)
    return link.slope, link.offset


def loop(scores, labels, columns, options):
    found = []
    for k in columns:
        fit = LogisticRegression(**options).fit(scores[:, k : k + 1], labels[:, k])
        found.append((fit.coef_[0, 0], fit.intercept_[0]))
    return columns, np.array(found)


def agree(mine, peer, theirs):
    if "as exact" in peer:
        columns, found = theirs
        np.testing.assert_allclose(mine[0][columns], found[:, 0], rtol=1e-4)
        np.testing.assert_allclose(mine[1][columns], found[:, 1], rtol=1e-4, atol=1e-4)


def per_label_platt(quick):
    rows = []
    for images, labels, mean in SIZES[: 1 if quick else None]:
        scores, _, truth = problem(images, labels, mean)
        columns = np.linspace(0, labels - 1, SOME_LABELS).astype(int)
        share = labels / SOME_LABELS
        exact = {"C": np.inf, "tol": 1e-8, "max_iter": 1000}
        rows += compare(
            "per-label platt",
            f"{images:,} x {labels:,}",
            Contender("ours", lambda: ours(scores, truth, 0.0), repeats=3),  # noqa: B023
            [
                Contender(
                    "sklearn loop, as exact",
                    lambda: loop(scores.astype(np.float64), truth, columns, exact),  # noqa: B023
                    scale=share,
                ),
                Contender(
                    "sklearn loop, C=1e6",
                    lambda: loop(scores, truth, columns, {"C": 1e6}),  # noqa: B023
                    scale=share,
                ),
                Contender(
                    "sklearn loop, defaults (penalised, up to 8 % off)",
                    lambda: loop(scores, truth, columns, {}),  # noqa: B023
                    scale=share,
                    goal=5.0,  # looser than ours: shown for comparison
                ),
            ],
            goal=15.0,
            check=agree,
        )
        rows += compare(
            "platt, strength chosen",
            f"{images:,} x {labels:,}",
            Contender("ours", lambda: ours(scores, truth, None), repeats=3),  # noqa: B023
            [
                Contender(
                    "sklearn loop, C=1e6 (no strength)",
                    lambda: loop(scores, truth, columns, {"C": 1e6}),  # noqa: B023
                    scale=share,
                )
            ],
            goal=5.0,
        )
        problem.cache_clear()
    return rows


PARTS = {"platt": per_label_platt}
