"""How the answers of two models differ, label by label, for the labels that both have.

    both, only one   how often a label was decided by both models, or by one of them
    difference       of its two probabilities: |p - q|, the mean and the largest of all pictures

A comparison never changes: a picture more makes another one. So a thread can describe one of many
labels while pictures go on.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import SettingsError
from labelwise.server.batching import Tagged
from labelwise.server.models import ShadowLabel, ShadowView
from labelwise.server.served_model import ServedModel


@dataclass(frozen=True, eq=False)
class ShadowComparison:
    """A model that serves and its shadow, and what has been seen of them so far."""

    served: ServedModel
    shadow: ServedModel
    labels: list[str]
    columns: tuple[list[int], list[int]]  # of the labels, in the answers of either
    both: NDArray[Any]
    only_served: NDArray[Any]
    only_shadow: NDArray[Any]
    total: NDArray[Any]  # of the differences
    largest: NDArray[Any]
    pictures: int = 0
    agreed: int = 0
    skipped: int = 0
    failed: int = 0

    @classmethod
    def begin(cls, served: ServedModel, shadow: ServedModel) -> "ShadowComparison":
        """Return a comparison without a picture."""
        known = set(shadow.names)
        labels = [name for name in served.names if name in known]
        if not labels:
            raise SettingsError(
                f"the shadow model shares no label with {served.name!r}, so nothing can be compared"
            )
        here, there = ([one.spec.space.column(name) for name in labels] for one in (served, shadow))
        counts, sums = np.zeros(len(labels), int), np.zeros(len(labels))
        return cls(served, shadow, labels, (here, there), counts, counts, counts, sums, sums)

    def with_skipped(self, count: int) -> "ShadowComparison":
        """Return the comparison after pictures that the shadow had no time for."""
        return replace(self, skipped=self.skipped + count)

    def with_failed(self, count: int) -> "ShadowComparison":
        """Return the comparison after pictures that the shadow has no answer for."""
        return replace(self, failed=self.failed + count)

    def with_answers(self, served: Tagged, shadow: Tagged) -> "ShadowComparison":
        """Return the comparison after a picture."""
        if shadow.probs is None or shadow.chosen is None:
            return self.with_failed(1)
        if served.probs is None or served.chosen is None:
            return self
        here, there = self.columns
        ours, theirs = served.chosen[here], shadow.chosen[there]
        differences = np.abs(served.probs[here] - shadow.probs[there])
        return replace(
            self,
            pictures=self.pictures + 1,
            agreed=self.agreed + bool((ours == theirs).all()),
            both=self.both + (ours & theirs),
            only_served=self.only_served + (ours & ~theirs),
            only_shadow=self.only_shadow + (theirs & ~ours),
            total=self.total + differences,
            largest=np.maximum(self.largest, differences),
        )

    def view(self, share: float) -> ShadowView:
        """Return the comparison as the API gives it; of many labels that takes long."""
        own, other = set(self.shadow.names), set(self.served.names)
        labels = [
            ShadowLabel(
                label=name,
                both=int(self.both[at]),
                only_served=int(self.only_served[at]),
                only_shadow=int(self.only_shadow[at]),
                mean_difference=float(self.total[at]) / self.pictures if self.pictures else None,
                largest_difference=float(self.largest[at]) if self.pictures else None,
            )
            for at, name in enumerate(self.labels)
        ]
        return ShadowView(
            served=self.served.version,
            shadow=self.shadow.version,
            share=share,
            pictures=self.pictures,
            agreed=self.agreed,
            skipped=self.skipped,
            failed=self.failed,
            sentence=self._sentence(),
            labels=labels,
            only_of_served=[name for name in self.served.names if name not in own],
            only_of_shadow=[name for name in self.shadow.names if name not in other],
        )

    def _sentence(self) -> str:
        if not self.pictures:
            return "No picture has been compared yet."
        return (
            f"Of {self.pictures:,} pictures, {self.agreed:,} get the same labels from both models, "
            f"of the {len(self.labels):,} labels that both have."
        )
