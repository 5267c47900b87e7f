"""Links of one label and of all. Oracle: the column that the link of all labels gives, JSON."""

import json

import numpy as np
import pytest
import torch

from labelwise import calibrate, objectives
from labelwise.links import Consistent, Grouped, Sigmoid, Softmax
from labelwise.methods import LINKS, link_from_spec, link_to_spec

RANDOM = np.random.default_rng(0)
LOGITS = torch.from_numpy(RANDOM.normal(-1, 2, (300, 4)))
LABELS = (RANDOM.random((300, 4)) < Sigmoid()(LOGITS - 0.5).numpy()).astype(float)


LIST = [
    Sigmoid(),
    Softmax(),
    objectives.SoftmaxOrNoneLink(),
    objectives.SPALink(),
    objectives.PhiLink(),
    objectives.FocalMarginLink(),
    objectives.WeightedSigmoid([0.5, 1.0, 2.0, 5.0]),
    objectives.WeightedSigmoid([3.0]),
    objectives.QuasibinaryLink(1.5),
    calibrate.temperature(LOGITS, LABELS, Sigmoid()),
    *(
        calibrate.platt(LOGITS, LABELS, objectives.SPALink(), scope=s)
        for s in ("shared", "offset", "label")
    ),
    *(calibrate.beta(LOGITS, LABELS, None, scope=s) for s in ("shared", "label")),
    *(calibrate.histogram(LOGITS, LABELS, Sigmoid(), scope=s) for s in ("shared", "label")),
    *(calibrate.isotonic(LOGITS, LABELS, Sigmoid(), scope=s) for s in ("shared", "label")),
    calibrate.platt(LOGITS, LABELS, Softmax()),
    calibrate.expect_zero_share(Sigmoid(), LABELS, 0.5),
    Consistent(Sigmoid(), [-1, 0, 1, 1]),
    Consistent(objectives.WeightedSigmoid([0.5, 1.0, 2.0, 5.0]), [1, -1, -1, 2]),
    Consistent(Softmax(), [1, -1, -1, 2]),
    Grouped(Sigmoid(), [[0, 2]], [[1, 3]]),
    calibrate.AveragedCurves(
        Sigmoid(), [[1, 2, 3, 4], [2, 1, 1, 2]], [[0, 1, 0, 1], [1, 0, 2, 1]], [0.3, 1.0], 50.0
    ),
]


def test_every_kind_of_link_is_tried():
    assert {link.kind for link in LIST} == set(LINKS)


@pytest.mark.parametrize("link", LIST, ids=lambda link: link.kind)
def test_every_link_goes_through_plain_data(link):
    spec = json.loads(json.dumps(link_to_spec(link), allow_nan=False))
    again = link_from_spec(spec)
    assert link_to_spec(again) == link_to_spec(link)
    for found, expected in zip(again.log_probs(LOGITS), link.log_probs(LOGITS), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("link", LIST, ids=lambda link: link.kind)
@torch.no_grad()
def test_one_label_alone_has_the_probability_it_has_among_all(link):
    whole = link.log_probs(LOGITS)
    changed = LOGITS.clone()
    changed[:, 0] += 3
    others = link.log_probs(changed)[0][:, 1:]
    assert torch.equal(others, whole[0][:, 1:]) != link.couples_labels
    for column in range(4):
        pair = link.label_log_probs(column, lambda k: LOGITS[:, k], 4)
        for found, expected in zip(pair, whole, strict=True):
            torch.testing.assert_close(found, expected[:, column], rtol=1e-12, atol=1e-12)
    if link.couples_labels:
        return
    for column in range(4):
        alone = link.of_label(column).log_probs(LOGITS[:, [column]])
        for found, expected in zip(alone, whole, strict=True):
            torch.testing.assert_close(found, expected[:, [column]], rtol=1e-12, atol=1e-12)
