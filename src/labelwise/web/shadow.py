"""A shadow model: it answers a share of the pictures too, and is compared with the one that serves.

    every (1 / share)-th request     its pictures go through the shadow after they were answered
    more than 32 pictures or 64 MiB  of those wait: the next ones are skipped, and counted
    labels                           are compared by name, those that both models have

Nobody waits for its answers. It has one picture under way at a time, and takes turns at decoders as
one more client does, and at forward passes as one more model.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import numpy as np
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from labelwise.errors import SettingsError
from labelwise.web.batching import Batcher, Tagged, Upload
from labelwise.web.models import ShadowLabel, ShadowView
from labelwise.web.served_model import ServedModel

__all__ = ["Shadow"]

MOST_PICTURES, MOST_BYTES = 32, 64 << 20
CLIENT = "the shadow"

log = logging.getLogger("labelwise.web")


class Shadow(Collector):
    """A model beside the one that serves, and how their answers differ."""

    def __init__(
        self, served: ServedModel, model: ServedModel, batcher: Batcher, share: float
    ) -> None:
        self.model, self.share, self._batcher = model, share, batcher
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = self._waiting = self._waiting_bytes = 0.0
        self._begin(served)

    def _begin(self, served: ServedModel) -> None:
        """Compare with a model from now on."""
        self.served = served
        self.labels = [name for name in served.names if name in set(self.model.names)]
        if not self.labels:
            raise SettingsError(
                f"the shadow model shares no label with {served.name!r}, so nothing can be compared"
            )
        self._columns = [
            [one.spec.space.column(name) for name in self.labels] for one in (served, self.model)
        ]
        self.pictures = self.agreed = self.skipped = self.failed = 0
        self._both, self._only_served, self._only_shadow = np.zeros((3, len(self.labels)), int)
        self._sum, self._largest = np.zeros((2, len(self.labels)))

    def offer(
        self, served: ServedModel, uploads: Sequence[Upload], answers: Sequence[Tagged]
    ) -> None:
        """Have a share of the requests answered once more, later."""
        if served is not self.served:
            self._begin(served)
        self._due += self.share
        if self._due < 1:
            return
        self._due -= 1
        pairs = [pair for pair in zip(uploads, answers, strict=True) if pair[1].probs is not None]
        size = sum(upload.size for upload, _ in pairs)
        is_much = self._waiting_bytes + size > MOST_BYTES
        if is_much or self._waiting + len(pairs) > MOST_PICTURES:
            self.skipped += len(pairs)
            return
        task = asyncio.get_running_loop().create_task(self._compare(served, pairs, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compare(
        self, served: ServedModel, pairs: Sequence[tuple[Upload, Tagged]], size: int
    ) -> None:
        self._waiting += len(pairs)
        self._waiting_bytes += size
        found: list[Tagged] = []
        try:
            async with self._turn:
                for upload, _ in pairs:
                    found += await self._batcher.answers([upload], CLIENT)
        except Exception:  # whatever it is, those who asked have their answers
            log.exception("the shadow model has no answer")
            self.failed += len(pairs)
            return
        finally:
            self._waiting -= len(pairs)
            self._waiting_bytes -= size
        if served is self.served:  # else the comparison has begun anew
            for (_, answer), other in zip(pairs, found, strict=True):
                self._note(answer, other)

    def _note(self, served: Tagged, shadow: Tagged) -> None:
        if shadow.probs is None or shadow.chosen is None:
            self.failed += 1
            return
        if served.probs is None or served.chosen is None:
            return
        here, there = self._columns
        ours, theirs = served.chosen[here], shadow.chosen[there]
        differences = np.abs(served.probs[here] - shadow.probs[there])
        self.pictures += 1
        self.agreed += bool((ours == theirs).all())
        self._both += ours & theirs
        self._only_served += ours & ~theirs
        self._only_shadow += theirs & ~ours
        self._sum += differences
        self._largest = np.maximum(self._largest, differences)

    def view(self) -> ShadowView:
        """Return how the answers differ."""
        own, other = set(self.model.names), set(self.served.names)
        labels = [
            ShadowLabel(
                label=name,
                both=int(self._both[at]),
                only_served=int(self._only_served[at]),
                only_shadow=int(self._only_shadow[at]),
                mean_difference=float(self._sum[at]) / self.pictures if self.pictures else None,
                largest_difference=float(self._largest[at]) if self.pictures else None,
            )
            for at, name in enumerate(self.labels)
        ]
        return ShadowView(
            served=self.served.version,
            shadow=self.model.version,
            share=self.share,
            pictures=self.pictures,
            agreed=self.agreed,
            skipped=self.skipped,
            failed=self.failed,
            sentence=self._sentence(),
            labels=labels,
            only_of_served=[name for name in self.served.names if name not in own],
            only_of_shadow=[name for name in self.model.names if name not in other],
        )

    def _sentence(self) -> str:
        if not self.pictures:
            return "No picture has been compared yet."
        return (
            f"Of {self.pictures:,} pictures, {self.agreed:,} get the same labels from both models, "
            f"of the {len(self.labels):,} labels that both have."
        )

    def collect(self) -> Iterable[Metric]:
        """Return the same for ``/metrics``."""
        facts = {
            "pictures": ("Pictures answered by both models.", self.pictures),
            "agreed": ("Pictures that got the same labels from both.", self.agreed),
            "skipped": ("Pictures that the shadow had no time for.", self.skipped),
            "failures": ("Pictures that the shadow has no answer for.", self.failed),
        }
        for name, (words, count) in facts.items():
            metric = CounterMetricFamily(f"labelwise_shadow_{name}", words)
            metric.add_metric([], count)
            yield metric
        decided = CounterMetricFamily(
            "labelwise_shadow_decided", "How often a label was decided.", labels=["label", "by"]
        )
        differences = CounterMetricFamily(
            "labelwise_shadow_probability_difference",
            "Sum of the distances of probabilities.",
            labels=["label"],
        )
        for one in self.view().labels:
            for by, count in (
                ("both", one.both),
                ("served", one.only_served),
                ("shadow", one.only_shadow),
            ):
                decided.add_metric([one.label, by], count)
            differences.add_metric([one.label], (one.mean_difference or 0.0) * self.pictures)
        yield decided
        yield differences
