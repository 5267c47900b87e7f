"""The probabilities of a label after people corrected some photos.

* What a person said of a photo is certain: probability 1 or 0 for that label.
* For all other photos the label's link is fitted anew on the held-out photos of the model and the
  corrected ones together, p = sigma(slope u + offset) of its log-odds u.

People correct what they happen to see, so the corrected photos are not a random sample; the
held-out ones keep the fit where it was unless corrections are many. Where fewer than 50 of these
speak of the label, the model's own probabilities of photos of the index, spread over its first
ROWS_AT_ONCE rows, make up the number, as soft labels: with eight held-out photos, one correction
could turn a fit around.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import to_numpy, to_tensor
from labelwise.photos.model_odds import (
    ROWS_AT_ONCE,
    KnownPhotos,
    LabelOdds,
    ModelOdds,
    Pair,
)
from labelwise.photos.scan import ScanTerm
from labelwise.photos.store import Correction

FAR = 50.0  # log-odds beyond which nothing changes
ENOUGH = 50  # held-out photos that keep a fit where it was

Mapped = Callable[[NDArray[np.float64], NDArray[np.float64]], Pair]


def corrected_odds(
    odds: ModelOdds, label: int, rows: int, corrections: Sequence[Correction], mapped: Mapped
) -> LabelOdds:
    """Return those of a label for all ``rows``: mapped, and certain where somebody told."""
    log_p, log_q = np.empty(rows, np.float32), np.empty(rows, np.float32)
    for start in range(0, rows, ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, rows))
        log_p[part], log_q[part] = mapped(*odds.of_label(label, part))
    for one in corrections:
        if one.state in ("present", "absent"):
            certain = one.state == "present"
            log_p[one.row] = 0.0 if certain else -np.inf
            log_q[one.row] = -np.inf if certain else 0.0
    return LabelOdds(ScanTerm(log_p), ScanTerm(log_q))


def refitted(
    odds: ModelOdds,
    label: int,
    corrections: Sequence[Correction],
    held_out: Callable[[], KnownPhotos | None],
) -> Mapped:
    """Return the map of (log p, log(1 - p)) that held-out photos and corrections call for.

    ``held_out`` reads them, where there are corrections.
    """
    known = [one for one in corrections if one.state != "unknown"]
    if not known:
        return lambda log_p, log_q: (log_p, log_q)
    from labelwise.calibration import platt

    log_p, log_q = odds.of_label(label, np.array([one.row for one in known], np.int64))
    given = [log_p - log_q]
    labels = [np.array([one.state == "present" for one in known], np.float64)]
    photos, lacking = held_out(), None
    if photos is not None:
        seen = slice(None) if photos.observed is None else photos.observed[:, label]
        given.append((photos.log_p[:, label] - photos.log_q[:, label])[seen])
        labels.append(photos.labels[seen, label].astype(np.float64))
        lacking = ENOUGH - len(labels[-1])
    if lacking is None or lacking > 0:  # the model's own word, as soft labels
        log_p, log_q = odds.of_label(label, slice(0, ROWS_AT_ONCE))
        places = np.linspace(0, len(log_p) - 1, lacking or len(log_p)).astype(np.int64)
        given.append((log_p - log_q)[places])
        labels.append(np.exp(log_p)[places])
    u = to_tensor(np.concatenate(given)[:, None].clip(-FAR, FAR))
    link = platt(u, to_tensor(np.concatenate(labels)[:, None]), None, scope="shared")

    def refit(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> Pair:
        found = link.log_probs(to_tensor((log_p - log_q).clip(-FAR, FAR)[:, None]))
        return to_numpy(found[0])[:, 0], to_numpy(found[1])[:, 0]

    return refit
