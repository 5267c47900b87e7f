"""Photos of an index's model whose labels are known: what queries and promises are fitted on.

    log p, log(1 - p)    (N, K) in 64 bits, under the model's link
    p                    (N, K) in 32 bits, as rules read it: ``Link.decision_probs``

They follow from ``model.json`` and a file of predictions, and stay in the cache of the index under
a name made of the hashes of both. So a search need not compute them, which takes torch, and torch
takes seconds to import.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Evidence
from labelwise.numeric.arrays import to_numpy, to_tensor
from labelwise.numeric.groups import Groups
from labelwise.predictions import StoredPredictions
from labelwise.search.cache import CacheFiles
from labelwise.search.checksums import file_hash

if TYPE_CHECKING:
    from labelwise.links import Link

__all__ = ["KnownPhotos"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class KnownPhotos:
    """Probabilities and labels (N, K) of photos, and which of the labels are known (None: all)."""

    ids: Sequence[str]
    names: tuple[str, ...]
    log_p: Numbers
    log_q: Numbers
    probs: NDArray[np.float32]
    labels: NDArray[Any]
    observed: NDArray[np.bool_] | None
    groups: Groups | None

    @classmethod
    def read(
        cls, path: Path, cache: CacheFiles, model: str, link: "Callable[[], Link]"
    ) -> "KnownPhotos":
        """Return the photos of a predictions file under the link of a ``model`` of this name.

        ``link`` makes it where the cache lacks what follows from it.
        """
        stored = StoredPredictions.load(path)
        made_of = f"{model}-{file_hash(path).hex()[:16]}"
        cache.remove(f"{path.stem}-*", but=made_of)

        def computed(done: int, _rows: int) -> Iterator[Numbers]:
            logits, made = to_tensor(stored.logits.astype(np.float32)), link()
            parts = (*made.log_probs(logits.double()), made.decision_probs(logits).double())
            yield np.concatenate([*map(to_numpy, parts)], axis=1)[done:]

        labels = len(stored.names)
        shape = (len(stored.ids), 3 * labels)
        found = cache.grown(f"{path.stem}-{made_of}.bin", np.dtype(np.float64), shape, computed)
        log_p, log_q, probs = np.split(found, 3, axis=1)
        return cls(
            stored.ids,
            stored.names,
            log_p,
            log_q,
            probs.astype(np.float32),
            stored.labels,
            stored.observed,
            stored.groups,
        )

    @property
    def majority(self) -> NDArray[np.bool_]:
        """The labels as booleans, soft ones cut at 1/2, as ``Predictions.majority``."""
        cut: NDArray[np.bool_] = self.labels > 0.5
        return cut

    def evidence(self, photos: str) -> Evidence:
        """Return them as photos that a promise is made on; ``photos`` says which they are."""
        return Evidence.read(
            self.probs,
            self.majority,
            self.observed,
            names=self.names,
            ids=self.ids,
            photos=photos,
            groups=self.groups,
        )
