"""Pictures that are decoded on any core of a Ray cluster, for workers that only compute.

    worker --rows of a batch--> task on a free core: read, decode, resize --uint8--> worker: network

So nodes with many cores feed nodes with GPUs. A batch is a task of its own and belongs to no node:
a node that joins during a run is given the next ones, and what a node that leaves had under way is
decoded again elsewhere. Pixels, batches and so the bytes of a shard are those of a worker that
decodes by itself. What travels to a worker is a picture at the size of the network's input (150 kB
at 224 pixels).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError
from labelwise.pictures import ImageSource, Transform
from labelwise.pictures.ahead import started_ahead
from labelwise.pictures.batches import resized_inputs
from labelwise.pictures.inputs import Failure, Inputs, Resizer, sent
from labelwise.shards.engine import ATTEMPTS
from labelwise.shards.inputs import InputRow, StoredImages
from labelwise.shards.ray_cluster import SCHEDULING, require_ray, worker_losses
from labelwise.system.storage import StorageError


@dataclass(frozen=True)
class RayDecoding:
    """Reads the batches of a worker by tasks of a cluster, ``ahead`` of them at a time."""

    ahead: int

    def __call__(
        self,
        images: ImageSource,
        transform: Resizer,
        batches: Sequence[NDArray[np.int64]],
        device: torch.device,
    ) -> Iterator[Inputs]:
        """Yield the inputs of batches of rows on a device, in order."""
        if not isinstance(images, StoredImages) or not isinstance(transform, Transform):
            raise TypeError("only stored pictures and a Transform travel to other nodes")
        ray = require_ray()
        decode = ray.remote(num_cpus=1, max_retries=ATTEMPTS, scheduling_strategy=SCHEDULING)(
            _decoded
        )

        def start(batch: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
            return batch, decode.remote([images.rows[row] for row in batch.tolist()], transform)

        for batch, waiting in started_ahead(batches, start, self.ahead):
            try:
                good, pixels, failed, outage = ray.get(waiting)
            except (*worker_losses(ray), ray.exceptions.WorkerCrashedError):
                names = ", ".join(images.ids[int(row)] for row in batch[:3])
                raise LabelwiseError(
                    f"{ATTEMPTS + 1} processes died that decoded {names} or a picture beside them; "
                    "they may have run out of memory"
                ) from None
            if outage is not None:
                images.outage = outage
                raise outage
            values = torch.tensor(pixels)  # Ray's own memory may not be written to
            values = values.pin_memory() if device.type == "cuda" else values
            failures = [
                Failure(int(batch[at]), images.ids[int(batch[at])], reason) for at, reason in failed
            ]
            yield Inputs(batch[good], sent(values.permute(0, 3, 1, 2), device), failures)


def _decoded(
    rows: list[InputRow], transform: Transform
) -> tuple[NDArray[np.int64], NDArray[Any], list[tuple[int, str]], StorageError | None]:
    """Return the places that could be read, their pixels (n, size, size, C), and the others."""
    images = StoredImages(rows)
    places = np.arange(len(rows))
    (found,) = resized_inputs(images, transform, [places], 1, torch.device("cpu"))
    pixels = np.ascontiguousarray(found.values.permute(0, 2, 3, 1).numpy())
    return found.rows, pixels, [(one.row, one.reason) for one in found.failures], images.outage
