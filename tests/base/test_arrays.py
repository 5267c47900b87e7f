"""One contract of arrays; the oracle is the same call with a boolean numpy mask."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import kstest

from labelwise import calibrate, decide, metrics, queries
from labelwise.base.array_api import log1mexp, log_softmax_and_rest, log_softplus
from labelwise.calibration import ZeroShare
from labelwise.decide import ExpectedF, Threshold, TopK
from labelwise.learn.objectives import (
    BCE,
    LabelPairs,
    PhiLink,
    QuasibinaryLink,
    SPALink,
    Sum,
    TwoWay,
)
from labelwise.learn.objectives.base import (
    masked_logsumexp,
    masked_mean,
    normals,
    split_labels,
    uniforms,
)
from labelwise.links import Sigmoid, Softmax

RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.normal(size=(60, 4))
LABELS = (RANDOM.random((60, 4)) < 1 / (1 + np.exp(-LOGITS))).astype(np.float64)
OBSERVED = RANDOM.random((60, 4)) < 0.8
PROBS = 1 / (1 + np.exp(-LOGITS))
LOG_P, LOG_Q = np.log(PROBS), np.log1p(-PROBS)

FUNCTIONS = {
    "average precision": lambda y, o: metrics.average_precision(LOGITS, y, o).items,
    "reliability": lambda y, o: metrics.reliability(PROBS, y, o).accuracy,
    "log loss": lambda y, o: metrics.log_loss(PROBS, y, o).value,
    "confusion": lambda y, o: metrics.confusion(PROBS > 0.5, y, o).tp,
    "zero-label rows": lambda y, o: metrics.zero_label_rows(y, o),
    "platt": lambda y, o: calibrate.platt(LOGITS, y, Sigmoid(), o)(LOGITS),
    "isotonic": lambda y, o: calibrate.isotonic(LOGITS, y, None, o)(LOGITS),
    "auto": lambda y, o: calibrate.auto(
        LOGITS, y, None, o, folds=2, candidates={"isotonic": calibrate.isotonic}
    ).link(LOGITS),
    "zero share": lambda y, o: calibrate.expect_zero_share(Sigmoid(), y, 0.5, o).ratio,
    "best f": lambda y, o: decide.best_f(PROBS, y, o, scope="label").value,
    "control recall": lambda y, o: decide.control_recall(PROBS, y, o, miss_rate=0.2).value,
    "retrieval map": lambda y, o: queries.retrieval_map(LOG_P, LOG_Q, y, o)[1].value,
    "bce": lambda y, o: BCE()(torch.from_numpy(LOGITS), y, o).item(),
    "two-way": lambda y, o: TwoWay()(torch.from_numpy(LOGITS), y, o).item(),
}
KINDS = {
    "int8": lambda mask: mask.astype(np.int8),
    "float64": lambda mask: mask.astype(np.float64),
    "float16": lambda mask: mask.astype(np.float16),
    "torch bool": torch.from_numpy,
    "torch int64": lambda mask: torch.from_numpy(mask).long(),
    "torch bfloat16": lambda mask: torch.from_numpy(mask).bfloat16(),
    "not contiguous": lambda mask: np.asfortranarray(mask)[::-1][::-1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_labels_and_observed_may_be_of_any_kind(name):
    expected, whole = FUNCTIONS[name](LABELS, OBSERVED), FUNCTIONS[name](LABELS, None)
    assert np.any(np.asarray(expected) != np.asarray(whole))
    for kind, convert in KINDS.items():
        found = FUNCTIONS[name](convert(LABELS == 1), convert(OBSERVED))
        assert_allclose(found, expected, err_msg=kind)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_numbers_and_shapes_are_refused_in_the_same_words(name):
    for convert in (np.asarray, torch.from_numpy):
        with pytest.raises(ValueError, match=r"^observed must be boolean, or 0 and 1, got 2"):
            FUNCTIONS[name](LABELS, convert(OBSERVED + 1.0))
        with pytest.raises(ValueError, match=r"^observed must have the shape of "):
            FUNCTIONS[name](LABELS, convert(OBSERVED[:3]))


LINKS = [
    Sigmoid(),
    Softmax(2.0),
    SPALink(),
    PhiLink(),
    ZeroShare(Sigmoid(), 3.0),
    calibrate.platt(LOGITS, LABELS, Sigmoid()),
    calibrate.isotonic(LOGITS, LABELS, Sigmoid()),
]


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.kind)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_link_answers_in_the_kind_it_was_asked(link, dtype):
    logits = LOGITS.astype(dtype)
    tensor = torch.from_numpy(logits)
    pairs = list(zip(link.log_probs(logits), link.log_probs(tensor), strict=True))
    pairs += [(of(logits), of(tensor)) for of in (link, link.log_odds, link.log_none)]
    for found, expected in pairs:
        assert isinstance(found, np.ndarray)
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        assert_allclose(found, expected.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "rule", [TopK(2), Threshold(0.4), Threshold((0.1, 0.2, 0.3, 0.4)), ExpectedF()]
)
def test_a_rule_answers_in_the_kind_it_was_asked(rule):
    sets, tensor = rule(PROBS), rule(torch.from_numpy(PROBS))
    assert (type(sets), sets.dtype, tensor.dtype) == (np.ndarray, bool, torch.bool)
    assert (tensor.numpy() == sets).all()


@pytest.mark.parametrize("given", [[[0.2, 0.8]], "ab"])
def test_what_is_no_array_is_refused_by_name(given):
    for measure in (metrics.auroc, metrics.reliability, metrics.confusion, metrics.log_loss):
        with pytest.raises(TypeError, match=r"must be a numpy array or a tensor, got (list|str)"):
            measure(given, given)
    with pytest.raises(TypeError, match="logits must be a numpy array or a tensor"):
        calibrate.platt(given, given, None)
    with pytest.raises(TypeError, match="logits must be a tensor or Outputs"):
        BCE()(given, given)
    with pytest.raises(Exception, match="train"):
        QuasibinaryLink()(LOGITS)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.float16])
def test_top_k_of_numbers_of_any_kind(kind):
    """The oracle is the order by (-score, column)."""
    scores = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], kind)
    wanted = [[False, True, True, False], [True, True, False, False], [True, True, False, False]]
    assert TopK(2)(scores).tolist() == wanted
    assert metrics.top_k_sets(scores, 2).tolist() == wanted


def test_a_sum_starts_from_what_its_main_objective_knew():
    class Remembering(BCE):  # stands in for ROLE, which has its own test of what it takes over
        def start_from(self, state):
            self.seen = dict(state)
            return True

    main = Remembering()
    state = {"main.estimates": torch.ones(1), "terms.x": torch.ones(1)}
    assert Sum(main, LabelPairs()).start_from(state)
    assert main.seen["estimates"] == 1


# Stable primitives and draws. Oracles: torch on the kept entries, float64, SplitMix64.


def test_masked_logsumexp_is_logsumexp_of_the_kept():
    values = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, 6) < 0.5
    mask[0], mask[1:, 0] = False, True
    found = masked_logsumexp(values, mask, 1)
    for row in range(1, 4):
        torch.testing.assert_close(found[row], values[row][mask[row]].logsumexp(dim=0))
    assert found.isfinite().all()
    found.sum().backward()
    assert values.grad.isfinite().all()
    assert (values.grad[~mask] == 0).all()


def test_masked_mean_of_nothing_is_zero_with_a_gradient():
    values = torch.full((2, 2), float("inf"), requires_grad=True)
    found = masked_mean(values, torch.zeros(2, 2, dtype=torch.bool))
    found.backward()
    assert found == 0 == values.grad.abs().max()


def test_split_labels_leaves_the_unobserved_out_of_both():
    labels = torch.tensor([0.0, 1.0, 0.7, 0.5, 1.0, 0.0])
    present, absent = split_labels(labels, torch.arange(6) < 4)
    assert present.tolist() == [False, True, True, False, False, False]
    assert absent.tolist() == [True, False, False, True, False, False]


def test_logs_keep_their_digits():
    x = torch.tensor([-1e-7, -1e-3, -0.5, -0.8, -20.0, -100.0])
    expected = torch.log(-torch.expm1(x.double()))
    torch.testing.assert_close(log1mexp(x).double(), expected, rtol=1e-6, atol=1e-30)
    x = torch.tensor([-90.0, -31.0, -29.0, 0.0, 50.0])
    expected = torch.log(torch.log1p(x.double().exp()))
    torch.testing.assert_close(log_softplus(x).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
def test_softmax_keeps_both_logs_where_p_rounds_to_one(spread):
    draws = torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
    values = (spread * draws).double().requires_grad_()
    log_p, log_rest = log_softmax_and_rest(values)
    total = values.logsumexp(dim=1)
    for k in range(5):
        others = values[:, [j for j in range(5) if j != k]].logsumexp(dim=1)
        torch.testing.assert_close(log_p[:, k], values[:, k] - total)
        torch.testing.assert_close(log_rest[:, k], others - total)
    log_rest.sum().backward()
    assert values.grad.isfinite().all()


MASK = (1 << 64) - 1


def split_mix(state):
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_it_is_split_mix():
    assert split_mix(0) == 0xE220A8397B1DCDAF  # the first number of the published generator
    positions = torch.tensor([0, 1, 2, 10**12])
    for seed in (0, 1, -5):
        start = split_mix(seed & MASK)
        slow = [split_mix(start ^ position) >> 40 for position in positions.tolist()]
        expected = torch.tensor(slow, dtype=torch.float64) / 2**24
        torch.testing.assert_close(uniforms(positions, seed).double(), expected, rtol=0, atol=0)


def test_distributions():
    positions = torch.arange(4000)
    for draw, law in ((uniforms, "uniform"), (normals, "norm")):
        chances = [kstest(draw(positions, seed).double(), law).pvalue for seed in range(20)]
        assert kstest(chances, "uniform").pvalue > 0.01
