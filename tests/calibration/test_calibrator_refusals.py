"""Tables, options and maps that calibrators cannot use are refused with the rule."""

import pytest
import torch
from calibration_problems import problem

from labelwise.calibration import Beta, Histogram, Isotonic, Platt, Temperature, auto
from labelwise.calibration.auto import CALIBRATORS
from labelwise.calibration.isotonic import histogram, isotonic
from labelwise.calibration.regression import beta, expect_zero_share, platt
from labelwise.links import Sigmoid

V, Y, _ = problem(20)
SHARE = "share must lie strictly between 0 and 1, got"
TABLES = [
    ((V[0], Y[0]), ValueError, r"logits must be \(N, K\)"),
    ((V, Y[:5]), ValueError, "labels must have the shape of logits"),
    ((V.long(), Y), TypeError, "logits must be floating point"),
    ((V * torch.nan, Y), ValueError, "logits must not be NaN"),
    ((V, Y * 2.0), ValueError, r"labels must lie in \[0, 1\] .* got 2.0"),
    ((V, Y * -1.0), ValueError, r"labels must lie in \[0, 1\] .* got -1.0"),
    ((V, Y * torch.nan), ValueError, "labels must not be NaN"),
    ((V, Y & False), ValueError, "got no present one"),
    ((V[:0], Y[:0]), ValueError, "must not be empty"),
]
OPTIONS = [
    *((lambda fit=fit: fit(V, Y, None, scope="x"), "scope must be")
      for fit in (platt, beta, isotonic, histogram)),
    *((lambda fit=fit: fit(V, Y, None, strength=-1), "strength must not be negative")
      for fit in (platt, beta, isotonic, histogram)),
    (lambda: histogram(V, Y, None, bins=0), "bins must be at least 1"),
    (lambda: Platt(None, [1.0, 0.0], [0.0, 0.0], 1e4), r"must be positive, got \[1.0, 0.0\]"),
    (lambda: Beta(None, -1.0, 1.0, 0.0, 1e4), "a and b must not be negative"),
    (lambda: Temperature(Sigmoid(), 0, 1.0), "temperature must be positive, got 0"),
    (lambda: Histogram(None, [0.0], [[0.5]], 1.0), "one level more than edges"),
    (lambda: Histogram(None, [0.0], [[0.5, 1.0]], 1.0), "strictly between 0 and 1"),
    (lambda: Isotonic(None, [([0.0], [0.5])], [0.1], 1.0), "one curve more than shares"),
    (lambda: Isotonic(None, [([0.0, 1], [0.5, 0.4])], [], 1.0), "must not fall"),
    (lambda: Isotonic(None, [([0.0, 1], [0.0, 0.4])], [], 1.0), "strictly between"),
    (lambda: auto(V, Y, None, folds=21), "folds must lie between 2 and the 20 groups, got 21"),
    (lambda: expect_zero_share(Sigmoid(), torch.eye(3), 0.0), SHARE),
    (lambda: expect_zero_share(Sigmoid(), torch.eye(3), 1.0), SHARE),
    (lambda: expect_zero_share(Sigmoid(), torch.eye(3), 0.5), "got 0 without among 3"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "error", "rule"), TABLES)
@pytest.mark.parametrize("name", CALIBRATORS)
def test_bad_tables_are_refused(name, table, error, rule):
    with pytest.raises(error, match=rule):
        CALIBRATORS[name](*table, Sigmoid())


@pytest.mark.parametrize(("call", "rule"), OPTIONS)
def test_bad_options_are_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
