"""Special functions; the oracle is scipy's function of the same name and arguments."""

import math

import numpy as np
import pytest
import scipy.special

from labelwise.numeric import special

ODDS = np.concatenate([np.linspace(-40, 40, 81), [-800.0, -710.0, 710.0, 800.0, -np.inf, np.inf]])
SHARES = np.array([0.0, 1e-300, 1e-9, 0.1, 0.3, 0.5, 0.75, 1 - 1e-9, 1.0, -0.1, 1.1, np.nan])
OWN = {"expit": ODDS, "log_expit": ODDS, "logit": SHARES}
OF_SCIPY = {
    "betaincinv": (2.0, 3.0, 0.4),
    "gammaln": (7.5,),
    "logsumexp": (np.array([[1.0, 2.0], [3.0, 4.0]]), 1),
}


def test_ways_to_choose_are_those_counted_with_whole_numbers():
    for n, k in ((7, 0), (7, 3), (7, 7), (400, 150)):
        ways = math.log(math.perm(n, k)), math.log(math.comb(n, k))
        found = special.log_falling(n, k), special.log_choose(n, k)
        assert found == pytest.approx(ways, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("dtype", "digits"), [(np.float64, 4e-15), (np.float32, 1e-6)])
def test_functions_written_here_are_those_of_scipy(name, dtype, digits):
    given = OWN[name].astype(dtype)
    found, expected = getattr(special, name)(given), getattr(scipy.special, name)(given)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=digits, atol=1e-300)
    one = getattr(special, name)(float(given[3]))
    assert one == pytest.approx(float(getattr(scipy.special, name)(float(given[3]))), rel=digits)


@pytest.mark.parametrize("p", [*SHARES.tolist(), 0.95, 0.975, 0.9999, 1e-20])
def test_normal_quantiles_are_those_of_scipy(p):
    assert special.ndtri(p) == pytest.approx(scipy.special.ndtri(p), rel=4e-15, nan_ok=True)
    assert math.isnan(special.ndtri(p)) == (not 0 <= p <= 1)


@pytest.mark.parametrize("name", OF_SCIPY)
def test_the_others_are_scipy_s_own(name):
    found = getattr(special, name)(*OF_SCIPY[name])
    np.testing.assert_array_equal(found, getattr(scipy.special, name)(*OF_SCIPY[name]))
