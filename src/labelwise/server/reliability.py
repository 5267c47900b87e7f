"""How far to trust a probability: what became of held-out photos that got about the same one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.evaluation import Curve
from labelwise.links import Link
from labelwise.markup import Markup
from labelwise.metrics import Reliability, label_reliability
from labelwise.numeric.bounds import clopper_pearson
from labelwise.predictions import Predictions
from labelwise.report.charts import reliability_chart

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Held-out photos whose probability for a label lay in (low, high]."""

    low: float
    high: float
    photos: int
    carried: int
    share_low: float
    share_high: float
    mean: float | None

    def sentence(self, label: str, split: str) -> str:
        """Return what became of these photos, in words."""
        spoken = f"{100 * self.low:.0f}–{100 * self.high:.0f} %"
        if not self.photos:
            return f"No photo of the {split} split got {spoken} for {label}."
        return (
            f"Of {self.photos:,} held-out photos that got {spoken} for {label}, "
            f"{self.carried:,} carried it."
        )


@dataclass(frozen=True)
class LabelTrust:
    """The reliability of one label on held-out photos: its bins, and how many carry it."""

    label: str
    bins: tuple[Bin, ...]
    photos: int
    carried: int
    ece: float | None


def label_trust(held_out: Predictions, link: Link) -> list[LabelTrust]:
    """Return the reliability of every label on held-out predictions."""
    with torch.no_grad():
        probs = link(held_out.logits.double())
    found = label_reliability(probs, held_out.labels, held_out.observed, bins=BINS)
    errors = found.ece()
    return [
        LabelTrust(
            name,
            bins := tuple(_bins(found, column)),
            sum(one.photos for one in bins),
            sum(one.carried for one in bins),
            None if np.isnan(errors[column]) else float(errors[column]),
        )
        for column, name in enumerate(held_out.names)
    ]


def _bins(found: Reliability, column: int) -> list[Bin]:
    bins = []
    counts, present = found.counts[column], np.rint(found.present_sums[column]).astype(int)
    means: NDArray[np.float64] = found.confidence[column]
    for at, (low, high) in enumerate(zip(found.edges, found.edges[1:], strict=False)):
        photos, carried = int(counts[at]), int(present[at])
        share = clopper_pearson(carried, photos, 0.975)
        mean = float(means[at]) if photos else None
        bins.append(Bin(float(low), float(high), photos, carried, *share, mean))
    return bins


def trust_chart(trust: LabelTrust) -> Markup:
    """Return the reliability diagram of one label, drawn as the report draws it."""
    bins: Sequence[Bin] = trust.bins
    curve = Curve(
        (0.0, *(one.high for one in bins)),
        tuple(one.mean for one in bins),
        tuple(one.carried / one.photos if one.photos else None for one in bins),
        tuple(one.photos for one in bins),
        trust.ece,
        None,
        None,
        "held-out photos",
    )
    stages = [("after", "held-out photos", curve)]
    return reliability_chart(stages, title=f"Reliability of {trust.label}")
