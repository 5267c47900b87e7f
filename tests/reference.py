"""Slow loops that restate formulas literally: oracles for the fast forms."""

from math import exp, log, log1p

from torch import Tensor


def softplus(x: float) -> float:
    return max(x, 0.0) + log1p(exp(-abs(x)))


def harmonic(rank: int) -> float:
    return sum(1 / r for r in range(1, rank + 1))


def sides(labels: Tensor, row: int, observed: Tensor | None = None) -> tuple[list[int], list[int]]:
    """Return the present and the absent columns of a row."""
    seen = [t for t in range(labels.shape[1]) if observed is None or observed[row, t]]
    return [t for t in seen if labels[row, t] == 1], [t for t in seen if labels[row, t] == 0]


def label_pairs(log_odds: Tensor, labels: Tensor, observed: Tensor | None = None) -> list[float]:
    """Eqs. 19 and 20 over all T^2 pairs, through the pair probability itself."""
    values = []
    for row, u in enumerate(log_odds.tolist()):
        present, absent = sides(labels, row, observed)
        count = len(present) + len(absent)
        total = 0.0
        for t in present:
            for other in absent:
                p, q = 1 / (1 + exp(-u[t])), 1 / (1 + exp(-u[other]))
                total -= log(p * (1 - q) / (p * (1 - q) + q * (1 - p)))
        values.append(2 * total / max(count * (count - 1), 1))
    return values


def two_way_unit(
    scores: list[float], present: list[int], absent: list[int], t_pos: float, t_neg: float
) -> float:
    high = t_neg * log(sum(exp(scores[n] / t_neg) for n in absent))
    low = t_pos * log(sum(exp(-scores[p] / t_pos) for p in present))
    return softplus(high + low)


def lsep(scores: list[float], present: list[int], absent: list[int]) -> float:
    return log1p(sum(exp(scores[n] - scores[p]) for p in present for n in absent))


def pairwise_hinge(scores: list[float], present: list[int], absent: list[int]) -> float:
    return sum(max(0.0, 1 - scores[p] + scores[n]) for p in present for n in absent)


def warp_exact(scores: list[float], present: list[int], absent: list[int]) -> float:
    total = 0.0
    for p in present:
        hinges = [max(0.0, 1 - scores[p] + scores[n]) for n in absent]
        total += harmonic(sum(hinge > 0 for hinge in hinges)) * sum(hinges)
    return total


def rml_exact(scores: list[float], present: list[int], absent: list[int]) -> float:
    def ramp(gap: float) -> float:
        return max(0.0, 1 - gap) - 0.9 * max(0.0, -0.8 - gap)

    total = 5 * sum(ramp(scores[p]) for p in present) + 5 * sum(ramp(-scores[n]) for n in absent)
    for p in present:
        gaps = [scores[p] - scores[n] for n in absent]
        total += harmonic(sum(gap < 1 for gap in gaps)) * sum(ramp(gap) for gap in gaps)
    return total


def quasibinary(logits: Tensor, labels: Tensor) -> float:
    rows = logits.tolist()
    c = sum(exp(z) for row in rows for z in row) / labels.sum().item()
    total = 0.0
    for row, truth in zip(rows, labels.tolist(), strict=True):
        for z, y in zip(row, truth, strict=True):
            log_q = log(exp(z) / c)
            total += -y * log_q + max(log_q, 0.0)
    return total / len(rows)
