"""Probabilities within groups of labels that exclude each other, fitted to held-out labels.

    z_k = a_g log p_k - b_g log(1 - p_k) + c_k      p: probabilities of the link, g: label k's group
    exactly-one   exp(z_k) / sum_j exp(z_j)
    at-most-one   exp(z_k) / (1 + sum_j exp(z_j))

With a = b = 1 and c = 0 this is Bayes' rule for labels that are independent but for the rule. But
labels whose own probabilities are right know the rule already, since they were learned from data
that keep it: a = 1, b = 0 leaves p_k / sum_j p_j, where Bayes' rule would make .988 and .012 of two
labels at .9 and .1. So a, b and c are fitted, by the likelihood of what is known of each row,

    P(known) = sum over the outcomes that the known labels leave of their probability,

with a normal prior (mean 0, deviation 1) on log a, log b and c, which says next to nothing against
hundreds of rows and keeps a group without rows as Bayes' rule has it.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelwise.attributes import AttributeColumns
from labelwise.calibration.beta import Beta
from labelwise.links import Grouped, Link
from labelwise.numeric.arrays import Array, check_shapes, mask_tensor, to_tensor
from labelwise.taxonomy import FAR

STEPS = 200


@torch.no_grad()
def within_groups(
    logits: Array,
    labels: Array,
    link: Link,
    columns: AttributeColumns,
    observed: Array | None = None,
) -> Grouped:
    """Return the link whose probabilities obey the groups; labels outside them keep theirs.

    Rows whose labels break the rule of a group say nothing of it.
    """
    check_shapes(logits=logits, labels=labels, observed=observed)
    odds = link.log_odds(to_tensor(logits)).double().clamp(-FAR, FAR)
    known = None if observed is None else mask_tensor(observed, "observed", odds.device)
    seen = torch.ones_like(odds, dtype=torch.bool) if known is None else known
    present = (to_tensor(labels, odds.device) > 0.5) & seen
    a, b, c = torch.ones(odds.shape[1]), torch.ones(odds.shape[1]), torch.zeros(odds.shape[1])
    for group in columns.groups:
        own = list(group)
        needs_one = group in columns.exactly_one
        fitted = _fit_group(odds[:, own], present[:, own], seen[:, own], needs_one=needs_one)
        a[own], b[own], c[own] = fitted[0].exp(), fitted[1].exp(), fitted[2:]
    inner = Beta(link, a.tolist(), b.tolist(), c.tolist(), FAR)
    return Grouped(inner, columns.exactly_one, columns.at_most_one)


def _fit_group(odds: Tensor, present: Tensor, seen: Tensor, *, needs_one: bool) -> Tensor:
    """Return log a, log b and c of each label (2 + n,), from rows (N, n) of a group's labels."""
    some = present.any(1, keepdim=True)
    possible = torch.where(some, present, ~seen)
    if not needs_one:  # beside the labels, the outcome with none of them, at 0
        possible = torch.cat([possible, ~some], dim=1)
    told = possible.any(1) & ~possible.all(1) & (present.sum(1) < 2)
    odds, ruled_out = odds[told], ~possible[told]
    rise, fall = logsigmoid(odds), logsigmoid(-odds)
    weights = odds.new_zeros(2 + present.shape[1]).requires_grad_()
    search = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        scores = weights[0].exp() * rise - weights[1].exp() * fall + weights[2:]
        if not needs_one:
            scores = torch.cat([scores, torch.zeros_like(scores[:, :1])], dim=1)
        left = scores.masked_fill(ruled_out, -torch.inf).logsumexp(1)
        value = (scores.logsumexp(1) - left).sum() + weights.square().sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        search.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach().float()
