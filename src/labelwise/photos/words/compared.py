"""A run of words beside a run that was trained on the same answers, on the photos set aside.

    d      = figure of the trained run - figure of the words, on the same photos
    var d  = sum over photos m of (U_am - U_bm)^2         U_m: how much photo m moves a figure

The infinitesimal jackknife, as in :mod:`labelwise.papers.statistics`. The 95 % interval of d
says whether the runs are told apart: it does not hold zero. Two figures are compared, so each
interval is held to 97.5 %, and the chance of any false claim is at most about 5 %.
"""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import DataError
from labelwise.evaluation.jackknife import mean_ap_influence, mean_influence
from labelwise.links import Link
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.numeric.special import ndtri

LEAST = 20  # photos; below, the spread of the photos is not known well enough
LEVEL = 1 - 0.05 / 2 / 2  # of one side: two figures, two sides


@dataclass(frozen=True)
class RunDifference:
    """A figure of both runs on the same photos, and the interval of the difference."""

    figure: str
    words: float
    trained: float
    low: float
    high: float
    photos: int
    higher_is_better: bool

    @property
    def told_apart(self) -> bool:
        """Whether the interval does not hold zero."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        verdict = "not told apart"
        if self.told_apart:
            verdict = "better" if (self.low > 0) == self.higher_is_better else "worse"
            verdict = f"the trained run is {verdict}"
        return (
            f"{self.figure} on the {self.photos:,} photos set aside: words {self.words:.3f}, "
            f"trained {self.trained:.3f}, difference {self.trained - self.words:+.3f} "
            f"({self.low:+.3f} to {self.high:+.3f}): {verdict}"
        )


@dataclass(frozen=True, eq=False)
class _Answers:
    """What a run says of photos: logits and log-probabilities (n, K) by photo and label."""

    rows: dict[str, int]
    names: tuple[str, ...]
    logits: Tensor
    labels: Tensor
    observed: Tensor | None
    link: Link

    @classmethod
    def of(cls, folder: Path) -> "_Answers":
        run = RunFolder(folder)
        held_out, link = run.held_out(), run.spec.made_link
        if held_out is None or not held_out.may_promise or link is None:
            raise DataError(
                f"{folder} has no answered photos that fitted nothing and so cannot be compared; "
                "set some aside, or train on answers.csv of the run of `labelwise start`"
            )
        made = held_out.predictions
        rows = {str(one): row for row, one in enumerate(made.ids)}
        return cls(rows, made.names, made.logits, made.labels, made.observed, link)

    def taken(self, photos: list[str], names: list[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits, loss, labels and which are known (n, K), of some photos and labels."""
        rows = torch.tensor([self.rows[photo] for photo in photos])
        columns = torch.tensor([self.names.index(name) for name in names])
        logits, labels = self.logits.double()[rows], self.labels[rows] > 0.5
        with torch.no_grad():
            log_p, log_q = self.link.log_probs(logits)
        loss = -torch.where(labels, log_p, log_q)
        known = torch.ones_like(labels) if self.observed is None else self.observed[rows]
        return logits[:, columns], loss[:, columns], labels[:, columns], known[:, columns]


def compare_runs(words: Path, trained: Path) -> list[RunDifference]:
    """Return mAP and log loss of both runs on the photos that neither was fitted on."""
    one, other = _Answers.of(words), _Answers.of(trained)
    photos = sorted(one.rows.keys() & other.rows.keys())
    names = [name for name in one.names if name in other.names]
    if len(photos) < LEAST or not names:
        raise DataError(
            f"{words} and {trained} must share at least {LEAST} photos that are set aside in both, "
            f"and a label, got {len(photos):,} and {len(names):,}; train on "
            f"{words / 'answers.csv'}, whose split test they are"
        )
    logits, loss, labels, known = one.taken(photos, names)
    their_logits, their_loss, _, _ = other.taken(photos, names)
    counts = known.sum(dim=1).double().numpy()
    sums = [(part * known).sum(dim=1).numpy() for part in (loss, their_loss)]
    losses = [float(part.sum() / counts.sum()) for part in sums]
    precisions = [
        float(average_precision(part, labels.double(), known).value)
        for part in (logits, their_logits)
    ]
    moved = [mean_influence(part, counts) for part in sums]
    ranked = [mean_ap_influence(part, labels, known) for part in (logits, their_logits)]
    return [
        _difference("mAP", precisions, ranked, higher_is_better=True),
        _difference("log loss", losses, moved, higher_is_better=False),
    ]


def _difference(
    figure: str,
    values: list[float],
    influences: list[NDArray[np.float64]],
    *,
    higher_is_better: bool,
) -> RunDifference:
    apart = influences[1] - influences[0]
    half = float(ndtri(LEVEL)) * sqrt(float(apart @ apart))
    middle = values[1] - values[0]
    return RunDifference(
        figure, values[0], values[1], middle - half, middle + half, len(apart), higher_is_better
    )
