"""What happens while a model is served: counted for ``/metrics`` and for the trust view."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from labelwise.metrics.drift import Alarm, HeldOutShare, LabelShare, estimate_share
from labelwise.web.event_loop import LoopPauses

__all__ = ["FEWEST", "RECENT", "AnswerCounts", "Monitor"]

FEWEST = 50  # pictures before a share is estimated
RECENT = 4096  # photos whose probabilities are kept for the shares

Floats = NDArray[np.float64]


class AnswerCounts:
    """What one model has answered since it was loaded."""

    def __init__(self, names: Sequence[str], version: str) -> None:
        self.names, self.version = tuple(names), version
        self.recent: deque[Floats] = deque(maxlen=RECENT)
        self.photos = self.nothing = 0
        self.decided = np.zeros(len(self.names), np.int64)
        self.share_now: dict[str, float] = {}

    def answered(self, probs: Floats, chosen: NDArray[np.bool_]) -> None:
        """Count the answer for one picture."""
        self.photos += 1
        self.recent.append(probs)
        if not chosen.any():
            self.nothing += 1
        self.decided += chosen

    def shares(self, held_out: Sequence[HeldOutShare | None]) -> list[LabelShare]:
        """Return the shares of the labels among recent pictures, once they are not too few."""
        if len(self.recent) < FEWEST:
            return []
        probs = np.stack(list(self.recent))
        shares = [
            estimate_share(name, probs[:, column], known)
            for column, (name, known) in enumerate(zip(self.names, held_out, strict=True))
            if known is not None
        ]
        self.share_now = {share.label: share.now for share in shares}
        return shares


class Monitor:
    """Counts what happens to a server and its models, for ``/metrics``."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.counts: dict[str, AnswerCounts] = {}  # of each model that is served, by its name
        self.registry = CollectorRegistry()
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
        self.loop = LoopPauses(own)
        self.queue = Gauge("labelwise_queue_length", "Pictures on their way.", registry=own)
        self.failures = Counter(
            "labelwise_failures", "Pictures that could not be used.", registry=own
        )
        self.busy = Counter(
            "labelwise_busy", "Requests refused because the queue was full.", registry=own
        )
        own.register(_Answers(self))
        self.corrections = Counter(
            "labelwise_corrections", "What people said.", ["state", "source"], registry=own
        )
        self.evidence = Gauge(
            "labelwise_calibration_evalue", "Evidence against calibration.", ["label"], registry=own
        )
        self.alarm = Gauge(
            "labelwise_calibration_alarm", "1 once the alarm was raised.", ["label"], registry=own
        )

    def note_alarms(self, alarms: Iterable[Alarm]) -> None:
        """Show alarms at ``/metrics``."""
        for alarm in alarms:
            self.evidence.labels(alarm.label).set(alarm.evidence)
            self.alarm.labels(alarm.label).set(alarm.raised)


class _Answers(Collector):
    """What the models have answered: sums of arrays, made into metrics when they are read."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def collect(self) -> Iterable[Metric]:
        of_model, of_label = ["model"], ["model", "label"]
        info = GaugeMetricFamily(
            "labelwise_info", "What runs here.", labels=["version", "model", "model_version"]
        )
        photos = CounterMetricFamily("labelwise_photos", "Pictures answered.", labels=of_model)
        nothing = CounterMetricFamily(
            "labelwise_none", "Pictures without any label.", labels=of_model
        )
        decided = CounterMetricFamily(
            "labelwise_predictions", "How often a label was decided.", labels=of_label
        )
        share = GaugeMetricFamily(
            "labelwise_label_share", "Estimated share of recent pictures.", labels=of_label
        )
        for model, counts in self.monitor.counts.items():
            info.add_metric([self.monitor.version, model, counts.version], 1)
            photos.add_metric([model], counts.photos)
            nothing.add_metric([model], counts.nothing)
            for name, count in zip(counts.names, counts.decided.tolist(), strict=True):
                decided.add_metric([model, name], count)
            for name, now in counts.share_now.items():
                share.add_metric([model, name], now)
        return [info, photos, nothing, decided, share]
