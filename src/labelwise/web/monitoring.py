"""Is the model still right? What can be said of that while it is in use.

**Calibration alarm.** If probabilities mean what they say, then whatever happened before, an
audited photo carries the label with its probability p. Against that are set bets q on how it may
have gone wrong (too low, too high, too sure, not sure enough), each a log-odds a logit(p) + b:

    E = mean over bets of the product over audited photos of  Q / P,
    P = p^y (1 - p)^(1 - y),  Q likewise of q

Under calibration E is 1 on average at every moment, and exceeds K / alpha for any of K labels at
any time, however often one looks, with chance at most alpha (Ville). Photos are audited in an
order drawn by hash, not by interest: what people correct on their own is no random sample and is
left out.

**Share of a label now.** With calibrated probabilities p made where the label's share was s, photos
of a source where only the shares differ are most likely under the share t with

    t = mean of  p t/s / (p t/s + (1 - p) (1 - t)/(1 - s))

(Saerens, Latinne and Decaestecker 2002). It supposes that photos with the label look as they did,
and that there are only more or fewer of them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = [
    "ALPHA",
    "FEWEST",
    "RECENT",
    "Alarm",
    "LabelShare",
    "Monitor",
    "audit_order",
    "calibration_alarm",
    "estimate_share",
]

ALPHA = 0.05
CLIP = 1e-6
FEWEST = 50  # pictures before a share is estimated
RECENT = 4096  # photos whose probabilities are kept for the shares
BETS = (  # slope a and offset b of the log-odds that each bet takes for true
    *((1.0, b) for b in (-1.5, -0.7, 0.7, 1.5)),
    *((a, 0.0) for a in (0.5, 0.75, 1.5)),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alarm:
    """What audited photos say of one label: how strong the evidence is, and how it stands now.

    ``largest`` is the largest value that E ever had; ``threshold`` is where it becomes an alarm.
    """

    label: str
    audited: int
    present: int
    expected: float
    evidence: float
    largest: float
    threshold: float

    @property
    def raised(self) -> bool:
        """Whether the label's probabilities are no longer to be trusted."""
        return self.largest >= self.threshold


def calibration_alarm(
    label: str, probs: Sequence[float] | Floats, truth: Sequence[bool], labels: int = 1
) -> Alarm:
    """Return the alarm of one of ``labels`` labels after audited photos, in their order."""
    p = np.clip(np.asarray(probs, np.float64), CLIP, 1 - CLIP)
    y = np.asarray(truth, np.bool_)
    odds = np.log(p) - np.log1p(-p)
    a, b = np.array(BETS).T
    bets = a[:, None] * odds + b[:, None]  # (bets, photos)
    gain = np.where(y, _log_p(bets) - _log_p(odds), _log_p(-bets) - _log_p(-odds))
    logs = np.concatenate([np.zeros((len(BETS), 1)), gain.cumsum(axis=1)], axis=1)
    top = logs.max(axis=0)
    path = np.exp(np.minimum(top + np.log(np.exp(logs - top).mean(axis=0)), 300.0))
    return Alarm(
        label,
        len(p),
        int(y.sum()),
        float(p.sum()),
        float(path[-1]),
        float(path.max()),
        labels / ALPHA,
    )


def audit_order(label: str, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a random number per photo: the order in which they are audited for a label.

    It depends on the label and the row alone (splitmix64), so it is the same tomorrow.
    """
    seed = np.uint64(int.from_bytes(blake2b(label.encode(), digest_size=8).digest()))
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class LabelShare:
    """The share of photos with a label: when the model was fitted, and now with its interval."""

    label: str
    before: float
    now: float
    low: float
    high: float
    photos: int

    @property
    def moved(self) -> bool:
        """Whether the share before lies outside the interval."""
        return not self.low <= self.before <= self.high


def estimate_share(label: str, probs: Floats, before: float, steps: int = 200) -> LabelShare:
    """Return the share of a label among photos with these probabilities; see the module's text."""
    p = np.clip(np.asarray(probs, np.float64), CLIP, 1 - CLIP)
    s = min(max(before, CLIP), 1 - CLIP)
    present, absent = p / s, (1 - p) / (1 - s)  # likelihoods up to a factor
    t = s
    for _ in range(steps):
        posterior = present * t / (present * t + absent * (1 - t))
        following = float(np.clip(posterior.mean(), CLIP, 1 - CLIP)) if len(p) else s
        if abs(following - t) < 1e-9:
            break
        t = following
    slope = (present - absent) / (present * t + absent * (1 - t))
    information = float((slope**2).sum())
    spread = 1.96 / sqrt(information) if information > 0 else 1.0
    return LabelShare(label, before, t, max(0.0, t - spread), min(1.0, t + spread), len(p))


def _log_p(odds: Floats) -> Floats:
    """Return log p of log-odds: -log(1 + exp(-u))."""
    return -np.logaddexp(0.0, -odds)


class Monitor:
    """Counts what happens, for ``/metrics`` and for the trust view."""

    def __init__(self, names: Sequence[str], version: str, model: str) -> None:
        self.names = tuple(names)
        self.registry = CollectorRegistry()
        self.recent: deque[Floats] = deque(maxlen=RECENT)
        own = self.registry
        self.requests = Histogram(
            "http_request_duration_seconds",
            "How long requests took.",
            ["method", "route", "status"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
            registry=own,
        )
        self.batches = Histogram(
            "labelwise_batch_size",
            "Pictures per forward pass.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=own,
        )
        self.opened = Histogram(
            "labelwise_open_seconds",
            "How long pictures took to be opened.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=own,
        )
        self.forward = Histogram(
            "labelwise_forward_seconds",
            "How long forward passes took.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=own,
        )
        self.queue = Gauge("labelwise_queue_length", "Pictures on their way.", registry=own)
        self.photos = Counter("labelwise_photos", "Pictures answered.", registry=own)
        self.failures = Counter(
            "labelwise_failures", "Pictures that could not be used.", registry=own
        )
        self.nothing = Counter("labelwise_none", "Pictures without any label.", registry=own)
        self.busy = Counter(
            "labelwise_busy", "Requests refused because the queue was full.", registry=own
        )
        self.decided = np.zeros(len(self.names), np.int64)
        own.register(_Decided(self))
        self.corrections = Counter(
            "labelwise_corrections", "What people said.", ["state", "source"], registry=own
        )
        self.evidence = Gauge(
            "labelwise_calibration_evalue", "Evidence against calibration.", ["label"], registry=own
        )
        self.alarm = Gauge(
            "labelwise_calibration_alarm", "1 once the alarm was raised.", ["label"], registry=own
        )
        self.share = Gauge(
            "labelwise_label_share", "Estimated share of recent pictures.", ["label"], registry=own
        )
        about = Gauge("labelwise_info", "What runs here.", ["version", "model"], registry=own)
        about.labels(version, model).set(1)

    def batch_done(self, size: int, seconds: float) -> None:
        """Count a forward pass."""
        self.batches.observe(size)
        self.forward.observe(seconds)

    def picture_opened(self, seconds: float) -> None:
        """Count a picture that was opened."""
        self.opened.observe(seconds)

    def queue_is(self, length: int) -> None:
        """Note how many pictures are on their way."""
        self.queue.set(length)

    def answered(self, probs: Floats, chosen: NDArray[np.bool_]) -> None:
        """Count the answer for one picture."""
        self.photos.inc()
        self.recent.append(probs)
        if not chosen.any():
            self.nothing.inc()
        self.decided += chosen

    def shares(self, before: Sequence[float]) -> list[LabelShare]:
        """Return the shares of the labels among recent pictures, once they are not too few."""
        if len(self.recent) < FEWEST:
            return []
        probs = np.stack(list(self.recent))
        shares = [
            estimate_share(name, probs[:, column], before[column])
            for column, name in enumerate(self.names)
        ]
        for share in shares:
            self.share.labels(share.label).set(share.now)
        return shares

    def note_alarms(self, alarms: Iterable[Alarm]) -> None:
        """Show alarms at ``/metrics``."""
        for alarm in alarms:
            self.evidence.labels(alarm.label).set(alarm.evidence)
            self.alarm.labels(alarm.label).set(alarm.raised)


class _Decided(Collector):
    """How often each label was decided: a sum of arrays, made into metrics when they are read."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def collect(self) -> Iterable[Metric]:
        counted = CounterMetricFamily(
            "labelwise_predictions", "How often a label was decided.", labels=["label"]
        )
        for name, count in zip(self.monitor.names, self.monitor.decided.tolist(), strict=True):
            counted.add_metric([name], count)
        yield counted
