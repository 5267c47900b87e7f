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

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from labelwise.server.batching import Batcher, Tagged
from labelwise.server.models import ShadowView
from labelwise.server.served_model import ServedModel
from labelwise.server.shadow_comparison import ShadowComparison
from labelwise.server.uploads import Upload

MOST_PICTURES, MOST_BYTES = 32, 64 << 20
CLIENT = "the shadow"

log = logging.getLogger("labelwise.server")


class Shadow(Collector):
    """A model beside the one that serves, and how their answers differ."""

    def __init__(
        self, served: ServedModel, model: ServedModel, batcher: Batcher, share: float
    ) -> None:
        self.model, self.share, self._batcher = model, share, batcher
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = self._waiting = self._waiting_bytes = 0.0
        self.compared = ShadowComparison.begin(served, model)

    def follow(self, served: ServedModel) -> None:
        """Compare with another model that serves from now on, from the beginning."""
        self.compared = ShadowComparison.begin(served, self.model)

    def offer(
        self, served: ServedModel, uploads: Sequence[Upload], answers: Sequence[Tagged]
    ) -> None:
        """Have a share of the requests answered once more, later."""
        if served is not self.compared.served:
            return  # the request began with the model before
        self._due += self.share
        if self._due < 1:
            return
        self._due -= 1
        pairs = [pair for pair in zip(uploads, answers, strict=True) if pair[1].probs is not None]
        size = sum(upload.size for upload, _ in pairs)
        is_much = self._waiting_bytes + size > MOST_BYTES
        if is_much or self._waiting + len(pairs) > MOST_PICTURES:
            self.compared = self.compared.with_skipped(len(pairs))
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
                    found.append(await self._batcher.answer(upload, CLIENT))
        except Exception:  # whatever it is, those who asked have their answers
            log.exception("the shadow model has no answer")
            self.compared = self.compared.with_failed(len(pairs))
            return
        finally:
            self._waiting -= len(pairs)
            self._waiting_bytes -= size
        if served is self.compared.served:  # else the comparison has begun anew
            for (_, answer), other in zip(pairs, found, strict=True):
                self.compared = self.compared.with_answers(answer, other)

    def view(self) -> ShadowView:
        """Return how the answers differ; of many labels that takes long, in any thread."""
        return self.compared.view(self.share)

    def collect(self) -> Iterable[Metric]:
        """Return the same for ``/metrics``."""
        view = self.view()
        facts = {
            "pictures": ("Pictures answered by both models.", view.pictures),
            "agreed": ("Pictures that got the same labels from both.", view.agreed),
            "skipped": ("Pictures that the shadow had no time for.", view.skipped),
            "failures": ("Pictures that the shadow has no answer for.", view.failed),
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
        for one in view.labels:
            for by, count in (
                ("both", one.both),
                ("served", one.only_served),
                ("shadow", one.only_shadow),
            ):
                decided.add_metric([one.label, by], count)
            differences.add_metric([one.label], (one.mean_difference or 0.0) * view.pictures)
        yield decided
        yield differences
