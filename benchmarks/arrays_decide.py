"""Conformal risk control: recall at least 0.9 with a guarantee, against MAPIE."""

import numpy as np
from arrays_metrics import problem
from measure import Contender, compare

from labelwise.decide import control_recall

SIZES = ((4_757, 80, 2.9), (19_006, 80, 2.9))
GRID = 0.01


def mapie(probs, labels):
    from mapie.risk_control import MultiLabelClassificationController

    controller = MultiLabelClassificationController(
        lambda x: x, risk="recall", method="crc", target_level=0.9
    )
    return float(np.ravel(controller.calibrate(probs, labels).best_predict_param)[0])


def agree(mine, peer, theirs):
    assert abs(mine - theirs) <= GRID * 1.01, (mine, theirs)


def risk_control(quick):
    rows = []
    for images, labels, mean in SIZES[: 1 if quick else None]:
        _, probs, truth = problem(images, labels, mean)
        truth = truth.copy()
        truth[truth.sum(1) == 0, 0] = 1  # MAPIE refuses images without labels
        rows += compare(
            "risk control",
            f"{images:,} x {labels:,}",
            Contender("ours", lambda: control_recall(probs, truth, miss_rate=0.1).value, 5),  # noqa: B023
            [Contender("MAPIE", lambda: mapie(probs, truth.astype(int)))],  # noqa: B023
            goal=1000.0,
            check=agree,
        )
        problem.cache_clear()
    return rows


PARTS = {"risk": risk_control}
