"""posterior: features x whose true label probabilities eta(x) are known in closed form.

    x ~ N(0, I),  logit eta_k(x) = b_k + spread * w_k . x,  |w_k| = 1
    y_k = 1  where  Phi(sqrt(rho) c + sqrt(1 - rho) e_k) < eta_k(x),  c, e_k ~ N(0, 1)

Every w_k leans towards the first feature, which makes the labels correlated; rho > 0 adds a
correlation that x does not explain and leaves P(y_k = 1 | x) = eta_k(x) as it is. b_k is solved
so that P(y_k = 1) falls evenly in log from ``most`` to ``least``.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from labelwise.data.images import FeatureRows
from labelwise.data.table import SPLITS, LabelTable
from labelwise.types import LabelSpace

__all__ = ["PosteriorData", "posterior", "posterior_table"]


@dataclass(frozen=True, eq=False)
class PosteriorData:
    """A table of features, and the true probability of every label in it, (N, K)."""

    table: LabelTable
    eta: NDArray[np.float64]


def posterior(
    num_train: int = 20_000,
    num_val: int = 5_000,
    num_test: int = 5_000,
    *,
    num_labels: int = 20,
    num_features: int = 16,
    most: float = 0.3,
    least: float = 0.01,
    spread: float = 2.0,
    rho: float = 0.0,
    seed: int = 0,
) -> PosteriorData:
    """Return correlated labels with priors from ``most`` down to ``least``, and their eta."""
    if not 0 < least <= most < 1:
        raise ValueError(f"priors must satisfy 0 < least <= most < 1, got {least} and {most}")
    if not 0 <= rho < 1:
        raise ValueError(f"rho must be in [0, 1), got {rho}")
    world, *draws = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)
    )
    weights = 0.5 * world.standard_normal((num_labels, num_features)) / sqrt(num_features)
    weights[:, 0] += 0.5
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    priors = np.geomspace(most, least, num_labels)
    offsets = _offsets(priors, spread)
    sizes = (num_train, num_val, num_test)
    features, eta, labels = [], [], []
    for rng, size in zip(draws, sizes, strict=True):
        x = rng.standard_normal((size, num_features), dtype=np.float32)
        chance = expit(offsets + spread * x.astype(np.float64) @ weights.T)
        common = sqrt(rho) * rng.standard_normal((size, 1))
        own = sqrt(1 - rho) * rng.standard_normal((size, num_labels))
        features.append(x)
        eta.append(chance)
        labels.append(ndtr(common + own) < chance)
    table = LabelTable.from_arrays(
        LabelSpace(tuple(f"label{label:02d}" for label in range(num_labels))),
        FeatureRows(np.concatenate(features)),
        np.concatenate(labels),
        split=np.repeat(SPLITS, sizes),
        name="posterior",
    )
    return PosteriorData(table, np.concatenate(eta))


def posterior_table(
    num_train: int = 20_000,
    num_val: int = 5_000,
    num_test: int = 5_000,
    *,
    num_labels: int = 20,
    num_features: int = 16,
    rho: float = 0.0,
    seed: int = 0,
) -> LabelTable:
    """Return the table of :func:`posterior` without its eta."""
    return posterior(
        num_train,
        num_val,
        num_test,
        num_labels=num_labels,
        num_features=num_features,
        rho=rho,
        seed=seed,
    ).table


def _offsets(priors: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Return b where the mean of expit(b + spread z), z ~ N(0, 1), is the prior, by bisection."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(64)
    mass = mass / mass.sum()
    low, high = np.full_like(priors, -60.0), np.full_like(priors, 60.0)
    for _ in range(80):
        middle = (low + high) / 2
        over = expit(middle[:, None] + spread * nodes) @ mass > priors
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return (low + high) / 2
