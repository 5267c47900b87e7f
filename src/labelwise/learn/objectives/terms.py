"""Terms that are added to a loss: label pairs, and calibration."""

from collections.abc import Iterator
from math import log

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import relu

from labelwise.errors import require
from labelwise.learn.objectives.base import Term, masked_mean, reviewed_rows, running_sum
from labelwise.links import Link, require_link
from labelwise.types import Outputs, Targets

# Label-pair regulariser (LPR): Cheng and Vasconcelos, eqs. 18 to 21.
#
#     LPR = 2 / (T (T - 1))  sum_{t present} sum_{t' absent} softplus(u_t' - u_t)
#
# u is the log-odds of a label under the link of the objective it is added to; sigmoid(u_t - u_t')
# is then the probability that of two labels, one present and one absent, t is the present one (eq.
# 19). T counts the observed labels of the image; an image without a present or without an absent
# label has 0. Eq. 18 conditions on y_t' != y_t' in print: read y_t != y_t'.
#
# A soft label y_t stands for a label that is present with chance y_t, by itself: the expectation is
#
#     E LPR = 2 / (T (T - 1))  sum_{t != t'} y_t (1 - y_t') softplus(u_t' - u_t)
#
# The rarer side of each image, at most J labels, meets its row in blocks of (images, J, T) of
# bounded size; value and slope come from one visit: O(|P| T) work, O(B T) memory.


_CHUNK = {"cpu": 2**18, "cuda": 2**22}  # entries of a block
_LARGEST = 1e6  # stands in for infinite log-odds, whose differences are undefined


def label_pair_loss(log_odds: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """Return the (B,) regulariser from log-odds and two masks, of soft labels their chances."""
    labels = ((present > 0) | (absent > 0)).sum(dim=1)
    pair_sum: Tensor = _pair_sums(log_odds, present, absent)[0]
    return pair_sum * 2 / (labels * (labels - 1)).clamp(min=1)


class LabelPairs(Term):
    """Mean of LPR over the images of a batch, under the link of the objective."""

    soft_labels = True

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        log_odds = require_link(link, "LabelPairs' objective").log_odds(outputs.logits)
        present, absent = targets.labels, 1 - targets.labels
        if targets.observed is not None:
            # Labels stand at 0 where they are not observed.
            absent = torch.where(targets.observed, absent, 0.0)
        loss = label_pair_loss(log_odds.clamp(-_LARGEST, _LARGEST), present, absent)
        return masked_mean(loss, reviewed_rows(targets.observed))


@torch.library.custom_op("labelwise::pair_sums", mutates_args=())
def _pair_sums(log_odds: Tensor, present: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (B,) sums over pairs, and their (B, T) slope.

    An operator of its own because the number of pairs depends on the data, which a compiler
    cannot trace.
    """
    # softplus(u_n - u_p) = softplus((-u_p) - (-u_n)): sides swap where absent labels are rarer.
    here, gone = present > 0, absent > 0
    swap = (gone.sum(dim=1) < here.sum(dim=1))[:, None]
    scores = torch.where(swap, -log_odds, log_odds)
    rare, other = torch.where(swap, gone, here), torch.where(swap, here, gone)

    counts, order = rare.sum(dim=1).sort(descending=True)
    scores, rare = scores[order], rare[order]
    sizes = counts.tolist()
    # A gap of -inf stands for no pair: its softplus and its slope are 0.
    many = torch.where(other[order], scores, float("-inf"))
    few = scores.new_full((len(scores), sizes[0] if sizes else 0), float("inf"))
    rows, columns = rare.nonzero(as_tuple=True)
    places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    few[rows, places] = scores[rows, columns]

    soft = bool((here & gone).any())
    if soft:  # a label that may be either stands on both sides
        chance_of_many = torch.where(swap, present, absent)[order]
        chance_of_few = torch.zeros_like(few)
        chance_of_few[rows, places] = torch.where(swap, absent, present)[order][rows, columns]
    total, from_many, from_few = scores.new_zeros(len(scores)), 0 * scores, torch.zeros_like(few)
    for block, chunk in _blocks(sizes, many.shape[1], _CHUNK.get(scores.device.type, 2**20)):
        gap = many[block, None, :] - few[block, chunk, None]  # (images, J, T)
        # softplus(x) = max(x, 0) + log(1 + exp(-|x|))
        high, low = gap.relu(), gap.abs().neg_().exp_()
        pull = gap.sigmoid_()
        if soft:
            chances = chance_of_few[block, chunk, None] * chance_of_many[block, None, :]
            total[block] += (chances * (high + low.log1p_())).sum(dim=(1, 2))
            pull.mul_(chances)
        else:
            total[block] += high.sum(dim=(1, 2)) + _log1p_sum(low)
        from_many[block] += pull.sum(dim=1)
        from_few[block, chunk] = pull.sum(dim=2)
    from_many[rows, columns] -= from_few[rows, places]
    back = order.argsort()
    if soft:  # a label with itself: a gap of 0, without a slope
        total = total - log(2) * (present * absent).sum(dim=1)[order]
    return total[back], torch.where(swap, -from_many[back], from_many[back])


def _log1p_sum(values: Tensor) -> Tensor:
    """Return the (B,) sums of ``log(1 + x)`` of (B, J, T) x in [0, 1]; overwrites ``values``.

    (1 + a)(1 + b) - 1 = a + b + a b loses nothing of small a and b, and 32 factors fit any float:
    one logarithm serves that many entries.
    """
    count = values.shape[1]
    for _ in range(5):
        half = (count + 1) // 2
        left, right = values[:, : count - half], values[:, half:count]
        left.add_(torch.addcmul(right, left, right))
        count = half
    return values[:, :count].log1p().sum(dim=(1, 2))


def _blocks(sizes: list[int], labels: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """Cut rows with falling ``sizes`` into blocks of at most ``limit`` entries, little padded."""
    first = 0
    while first < len(sizes) and sizes[first]:
        size = sizes[first]
        images = max(1, limit // (size * labels))
        last = first + 1
        while last < min(first + images, len(sizes)) and 2 * sizes[last] > size:
            last += 1
        step = size if last > first + 1 else max(1, limit // labels)
        for start in range(0, size, step):
            yield slice(first, last), slice(start, min(start + step, size))
        first = last


@_pair_sums.register_fake
def _(log_odds: Tensor, present: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    return log_odds.new_empty(len(log_odds)), torch.empty_like(log_odds)


@torch.library.custom_op("labelwise::pair_curvature", mutates_args=())
def _pair_curvature(log_odds: Tensor, present: Tensor, absent: Tensor, along: Tensor) -> Tensor:
    """Return the second derivative of the sums over pairs applied to ``along``, (B, T)."""
    slope = torch.zeros_like(log_odds)
    for row, (here, gone) in enumerate(zip(present > 0, absent > 0, strict=True)):
        gap, change = (x[row, gone] - x[row, here, None] for x in (log_odds, along))  # (P, N)
        pull = gap.sigmoid()
        bend = present[row, here, None] * absent[row, gone] * pull * (1 - pull) * change
        slope[row, gone] += bend.sum(dim=0)
        slope[row, here] -= bend.sum(dim=1)
    return slope


@_pair_curvature.register_fake
def _(log_odds: Tensor, present: Tensor, absent: Tensor, along: Tensor) -> Tensor:
    return torch.empty_like(log_odds)


def _keep_slope(
    ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]
) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.set_materialize_grads(False)


def _through_slope(
    ctx: FunctionCtx, grad_total: Tensor | None, grad_slope: Tensor | None
) -> tuple[Tensor | None, None, None]:
    *inputs, slope = ctx.saved_tensors  # type: ignore[attr-defined]
    gradient = None if grad_total is None else grad_total[:, None] * slope
    if grad_slope is not None:  # only where a second derivative is asked for
        bend: Tensor = _pair_curvature(*inputs, grad_slope)
        gradient = bend if gradient is None else gradient + bend
    return gradient, None, None


_pair_sums.register_autograd(_through_slope, setup_context=_keep_slope)


# Terms that ask for calibration while a head is trained, under the link of the objective.
#
# p is the probability and u the log-odds of an entry, M the number of observed entries of a batch:
#
#     MMCE   1 / M^2  sum_ij (y_i - p_i) (y_j - p_j) exp(-|p_i - p_j| / 0.4)     Kumar et al. 2018
#     MDCA   mean over labels of |mean of y - mean of p|                         Hebbalaguppe 2022
#     MbLS   mean of max(0, |u| - m),  m = 6                                     Liu et al. 2022
#
# Under the square of MMCE, without the root, a strictly proper loss stays so. Sorted by p the
# kernel is a product of two factors on either side. The authors' mean of MbLS is half of this one.


def kernel_calibration_error(
    probs: Tensor, labels: Tensor, weights: Tensor, width: float = 0.4
) -> Tensor:
    """Return the squared MMCE of entries (M,), of which those of weight 0 do not count."""
    order = probs.argsort()
    p, error = probs[order], (weights * (labels - probs))[order]
    up, down = torch.exp(p / width), torch.exp(-p / width)
    before = running_sum(error * up, 0) - error * up  # the entries with a smaller p
    return (error.square() + 2 * error * down * before).sum() / weights.sum().clamp(min=1).square()


class MMCE(Term):
    """The squared maximum mean calibration error of all observed entries of a batch."""

    couples_batch = True

    def __init__(self, width: float = 0.4) -> None:
        super().__init__()
        require(width > 0.05, f"width must be above 0.05, got {width}")
        self.width = width

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        probs = require_link(link, "MMCE's objective").log_probs(outputs.logits)[0].exp()
        seen = torch.ones_like(probs) if targets.observed is None else targets.observed.to(probs)
        p, y, weights = (side.flatten() for side in (probs, targets.labels, seen))
        return kernel_calibration_error(p, y, weights, self.width)


class MeanDifference(Term):
    """MDCA: how far the mean probability of a label is from its share in the batch, over labels."""

    couples_batch = True

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        probs = require_link(link, "MDCA's objective").log_probs(outputs.logits)[0].exp()
        gap = probs - targets.labels
        if targets.observed is None:
            return gap.mean(dim=0).abs().mean()
        count = targets.observed.sum(dim=0)
        means = torch.where(targets.observed, gap, 0.0).sum(dim=0) / count.clamp(min=1)
        return masked_mean(means.abs(), count > 0)


class LogitMargin(Term):
    """MbLS: what log-odds exceed a margin by, mean over the observed entries."""

    soft_labels = True

    def __init__(self, margin: float = 6.0) -> None:
        super().__init__()
        require(margin >= 0, f"margin must not be negative, got {margin}")
        self.margin = margin

    def forward(self, outputs: Outputs, targets: Targets, link: Link | None) -> Tensor:
        log_odds = require_link(link, "MbLS's objective").log_odds(outputs.logits)
        excess = relu(log_odds.clamp(-_LARGEST, _LARGEST).abs() - self.margin)
        return masked_mean(excess, targets.observed)
