"""The losses of the five papers as they are written down: ``math``, and loops over numbers.

``z`` are scores and ``y`` marks of 0 and 1, both lists of rows, B images by T labels.
"""

import random
from itertools import combinations
from math import exp, log, log1p, prod

DRAWN = random.Random(7)
B, T = 4, 5
Z = [[DRAWN.gauss(0, 2) for _ in range(T)] for _ in range(B)]
SECOND = [[DRAWN.gauss(0, 2) for _ in range(T)] for _ in range(B)]
MANY = [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
EMPTY = [*MANY[:3], [0] * T]  # the last image has no label
ONE = [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
EPS = 1e-5  # of MLSPL, inside the logarithm


def sigma(t):
    return 1 / (1 + exp(-t))


def sp(t):
    return log1p(exp(t))


def lse(values):
    return log(sum(map(exp, values)))


def softmax(row):
    return [exp(z) / sum(map(exp, row)) for z in row]


def pairs(z, y):
    """Return for each image its scores of present and of absent labels."""
    return [
        tuple([v for v, t in zip(row, marks, strict=True) if t == kind] for kind in (1, 0))
        for row, marks in zip(z, y, strict=True)
    ]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def entries(z, y):
    return [
        (v, t) for row, marks in zip(z, y, strict=True) for v, t in zip(row, marks, strict=True)
    ]


def mean_of(present, absent):
    """Return the mean over all entries of a loss of present and of absent labels."""
    return lambda z, y: mean(present(v) if t else absent(v) for v, t in entries(z, y))


def asl(gamma_pos, gamma_neg, m):
    def absent(v):
        q = max(sigma(v) - m, 0)
        return -(q**gamma_neg) * log(1 - q)

    return lambda v: (1 - sigma(v)) ** gamma_pos * -log(sigma(v)), absent


def spa(zeta_pos=1, k_pos=1, b_pos=0, zeta_neg=5, k_neg=3, b_neg=1):
    return (
        lambda v: sp(-k_pos * (v - b_pos)) / zeta_pos,
        lambda v: sp(k_neg * (v - b_neg)) / zeta_neg,
    )


def spa_odds(v, zeta_pos=1, k_pos=1, b_pos=0, zeta_neg=5, k_neg=3, b_neg=1):
    c = k_neg * zeta_pos / (k_pos * zeta_neg)
    return log(c) - sp(-k_neg * (v - b_neg)) + sp(k_pos * (v - b_pos))


def lpr(odds):
    """2 / (T (T - 1)) times the sum over pairs of -log beta, beta = p (1-p') / (both orders)."""

    def of_pair(u, other):
        p, q = sigma(u), sigma(other)
        return -log(p * (1 - q) / (p * (1 - q) + q * (1 - p)))

    def loss(z, y):
        each = (
            sum(of_pair(odds(a), odds(b)) for a in present for b in absent)
            for present, absent in pairs(z, y)
        )
        return 2 / (T * (T - 1)) * mean(each)

    return loss


def two_way(temperature, margin=0.0):
    def unit(present, absent):
        if not absent:
            return 0.0
        low = temperature * lse(-v / temperature for v in present)
        return sp(lse(absent) + low + margin)

    def side(z, y):
        return mean(unit(*pair) for pair in pairs(z, y) if pair[0])

    return lambda z, y: side(z, y) + side(list(zip(*z, strict=True)), list(zip(*y, strict=True)))


def hinges(present, absent, margin=1.0):
    return {p: [max(0.0, margin - p + n) for n in absent] for p in present}


def harmonic(rank):
    return sum(1 / i for i in range(1, rank + 1))


def warp(z, y):
    """J with exact ranks: how many absent labels violate the margin."""
    return mean(
        sum(harmonic(sum(h > 0 for h in row)) * sum(row) for row in hinges(*pair).values())
        for pair in pairs(z, y)
    )


def rml(z, y, s=-0.8, beta=0.9, c_u=5.0):
    def ramp(t):
        return max(0, 1 - t) - beta * max(0, s - t)

    def image(present, absent):
        ranked = sum(
            harmonic(sum(1 - p + n > 0 for n in absent)) * sum(ramp(p - n) for n in absent)
            for p in present
        )
        return c_u * (sum(map(ramp, present)) + sum(ramp(-n) for n in absent)) + ranked

    return mean(image(*pair) for pair in pairs(z, y))


def labelled_softmax(z, y):
    """-(1 / |P|) sum over P of log softmax, of each image that has a label."""
    return [
        -mean(log(p) for p, t in zip(softmax(row), marks, strict=True) if t)
        for row, marks in zip(z, y, strict=True)
        if any(marks)
    ]


def quasibinary(z, y):
    n = sum(map(sum, y))
    c = sum(exp(v) for row in z for v in row) / n
    return sum(-t * log(exp(v) / c) + max(log(exp(v) / c), 0) for v, t in entries(z, y)) / B


def without_label(z, y):
    return [softmax(row) for row, marks in zip(z, y, strict=True) if not any(marks)]


def uniform(z, y, beta=0.3):
    kl = (-log(T) - mean(map(log, row)) for row in without_label(z, y))
    return mean(labelled_softmax(z, y)) + beta * mean(kl)


def max_confidence(z, y):
    return mean([*labelled_softmax(z, y), *(log(max(row)) for row in without_label(z, y))])


def nl(p):
    return -log(p + EPS)


def smoothed(s):
    def at(sign):
        return lambda v: (1 - s) * nl(sigma(sign * v)) + s * nl(sigma(-sign * v))

    return mean_of(at(1), at(-1))


def epr(z, y, k=2.0):
    expected = mean(sum(map(sigma, row)) for row in z)
    return mean_of(lambda v: nl(sigma(v)), lambda v: 0.0)(z, y) + ((expected - k) / T) ** 2


def pr(z, y):
    each = (
        sum(max(0, 1 - sigma(p) + sigma(n)) for p in present for n in absent)
        for present, absent in pairs(z, y)
    )
    return sum(each) / (B * T)


def an_of_average_k(z, y):
    return mean(sp(-p) + sum(map(sp, absent)) / (T - 1) for (p,), absent in pairs(z, y))


def epr_of_average_k(z, y, k=2.0):
    expected = mean(sum(map(sigma, row)) for row in z)
    return mean(sp(-p) for (p,), _ in pairs(z, y)) + (expected - k) ** 2


def average_k(z, y, k=2, alpha=3.0):
    """The two-head loss; the proposal head's logits are ``SECOND``."""
    ranked = sorted(
        (
            (s, i, j)
            for i, row in enumerate(SECOND)
            for j, s in enumerate(softmax(row))
            if not y[i][j]
        ),
        reverse=True,
    )
    chosen = {(i, j) for _, i, j in ranked[: (k - 1) * B]}
    total = mean(labelled_softmax(SECOND, y)) + mean(sp(-p) for (p,), _ in pairs(z, y))
    for i, j in ((i, j) for i in range(B) for j in range(T) if not y[i][j]):
        if (i, j) in chosen:
            total += alpha / ((k - 1) * B) * sp(-z[i][j])
        else:
            total += alpha / ((T - k) * B) * sp(z[i][j])
    return total


def hard_top_k(z, y, k=2):
    return mean(
        max(0, 1 + sorted(row, reverse=True)[k] - p)
        for row, ((p,), _) in zip(z, pairs(z, y), strict=True)
    )


def smooth_top_k(z, y, k=2, tau=0.7):
    def symmetric(values, degree):
        return sum(prod(part) for part in combinations(values, degree))

    def image(p, absent):
        e = [exp(v / (k * tau)) for v in absent]
        good = exp(p / (k * tau)) * symmetric(e, k - 1)
        return tau * (log(good + exp(1 / tau) * symmetric(e, k)) - log(good))

    return mean(image(p, absent) for (p,), absent in pairs(z, y))
