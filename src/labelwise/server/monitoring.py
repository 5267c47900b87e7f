"""What happens while models are served, counted for ``/metrics``."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from labelwise.metrics.drift import Alarm
from labelwise.server.event_loop import LoopPauses


class Monitor:
    """Counts what happens to a server and its models, for ``/metrics``."""

    def __init__(self) -> None:
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
