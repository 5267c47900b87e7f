"""Label shift: how frequent labels are among new photos, and probabilities adapted to that.

If photos with a label look as they did, and only are more or fewer, held-out photos tell the share
of each label now, with an interval that counts the error of the link (:mod:`metrics.drift`), and

    p now = sigma(a u + b - logit s + logit t)

is the probability of a photo with log-odds u, where the label's share was s and is t. It is a Platt
link with one slope and offset per label. A label whose share moved by no more than the errors
explain keeps its probabilities; so does one that no held-out photo carries, or all. Nothing of this
holds where the pictures themselves differ, which the shares alone do not show.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwise.calibration import Platt
from labelwise.errors import DataError
from labelwise.links import Link
from labelwise.metrics.drift import (
    CLIP,
    HeldOutShare,
    LabelShare,
    estimate_share,
    first_shares,
    held_out_shares,
)
from labelwise.models.run_folder import RunFolder
from labelwise.numeric.arrays import Array, to_numpy
from labelwise.numeric.special import logit
from labelwise.predictions import Predictions
from labelwise.scores.run import RunScores

LEAST_SLOPE = 1e-6


@dataclass(frozen=True, eq=False)
class ShareShift:
    """The share of each label now, None where held-out photos cannot tell, and the link for it."""

    link: Link
    known: tuple[HeldOutShare | None, ...]
    shares: tuple[LabelShare | None, ...]

    @property
    def moved(self) -> tuple[LabelShare, ...]:
        """The labels whose share moved, the largest difference first."""
        found = [one for one in self.shares if one is not None and one.moved]
        return tuple(sorted(found, key=lambda one: -abs(one.now - one.before)))

    def sentence(self) -> str:
        """Return what was adapted, and on which condition it is right."""
        moved = self.moved
        if not moved:
            return "No label's share moved by more than the errors explain; nothing was adapted."
        return (
            "Probabilities were adapted to the shares of labels among these photos "
            f"({first_shares(moved)}). "
            "That is right if photos with a label look as they did and only are more or fewer."
        )

    def adapted(self) -> Platt:
        """Return the link whose probabilities hold for the shares now."""
        slopes, offsets = [], []
        for known, share in zip(self.known, self.shares, strict=True):
            if known is None or share is None or not share.moved:
                slopes.append(1.0)
                offsets.append(0.0)
            else:
                now = min(max(share.now, CLIP), 1 - CLIP)
                slopes.append(max(known.slope, LEAST_SLOPE))
                offsets.append(known.offset + float(logit(now)))
        return Platt(self.link, slopes, offsets, float(logit(1 - CLIP)))


def held_out_of(folder: Path) -> Predictions:
    """Return the photos of a run that tell how labels look; a run without any is refused."""
    found = RunFolder(folder).held_out()
    if found is None:
        raise DataError(
            f"shares need photos whose labels are known, and {folder} has no predictions of held-"
            "out photos; give the folder of a whole run"
        )
    return found.predictions


def adapted_to_shares(folder: Path, run: RunScores) -> tuple[RunScores, str]:
    """Return scores of new photos with probabilities adapted to the shares there, and a note.

    The probabilities of the model as it is become those before, and the adapted ones those after.
    No label of the new photos is looked at.
    """
    link = run.calibrated or run.predictions.link
    shift = share_shift(held_out_of(folder), link, run.predictions.logits)
    adapted = replace(
        run, predictions=run.predictions.with_link(link), calibrated=shift.adapted(), promises=()
    )
    return adapted, shift.sentence()


def share_shift(
    held_out: Predictions, link: Link | None, logits: Array, *, confidence: float = 0.95
) -> ShareShift:
    """Return how frequent each label is among photos with these logits (m, K).

    ``link`` is the one in use, under which the held-out photos' probabilities are read too. A
    share is said to have moved where it did with ``confidence``, for all labels together.
    """
    if link is None:
        raise DataError("shares need probabilities, and the model has none; calibrate it first")
    if not len(logits):
        raise DataError("shares need at least one photo that could be read")
    own = link(held_out.logits.astype(np.float64))
    observed = held_out.observed
    known = held_out_shares(own, held_out.majority, observed)
    probs = link(to_numpy(logits).astype(np.float64))
    together = 1 - (1 - confidence) / len(known)
    shares: list[LabelShare | None] = []
    for column, (name, one) in enumerate(zip(held_out.names, known, strict=True)):
        if one is None:
            shares.append(None)
            continue
        share = estimate_share(name, probs[:, column], one, confidence)
        moved = estimate_share(name, probs[:, column], one, together).moved
        shares.append(replace(share, moved=moved))
    return ShareShift(link, tuple(known), tuple(shares))
