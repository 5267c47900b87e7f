"""Images to batches of a network's inputs on its device, made before they are asked for.

    on the CPU     file --threads: decode, resize--> uint8 (n, 3, size, size)
    on a GPU       file --processes: decode--> shared memory --one thread: copy, resize--> ...
    decode="cuda"  file --processes: read--> shared memory --threads: nvJPEG, resize--> ...

Processes do not share Python's lock, which sixteen threads that feed a GPU wait for most of their
time. For few images, which would be done before processes have started, and for pictures that are
in no file, threads take their place.

Pixels are the same in the first two: :meth:`Transform.resize_planes` is Pillow's resize to the bit.
nvJPEG's differ by a few levels, since it upsamples colours in its own way, and large JPEGs are
decoded whole instead of at a fraction of their size. What it does not take is decoded as usual.

Rows come in order, each once: as an input, or as a failure with its reason.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.pictures.device import DeviceFeeder
from labelwise.pictures.inputs import (
    CHUNK,
    Decode,
    Failure,
    Inputs,
    PlanesResizer,
    Resizer,
    available_cores,
    decodes_on_gpu,
    sent,
)
from labelwise.pictures.loading import PictureLoader
from labelwise.pictures.mapped import MappedFeatures
from labelwise.pictures.memory import ArrayImages, FeatureRows
from labelwise.pictures.processes import are_worth_it
from labelwise.pictures.resized import resized_inputs
from labelwise.pictures.sources import ImageSource

__all__ = [
    "CHUNK",
    "Decode",
    "Failure",
    "Inputs",
    "PlanesResizer",
    "Resizer",
    "available_cores",
    "decodes_on_gpu",
    "read_ahead",
    "resized_array",
]


def read_ahead(
    images: ImageSource,
    transform: Resizer,
    batches: Sequence[NDArray[np.int64]],
    *,
    workers: int | None = None,
    device: torch.device,
    decode: Decode = "cpu",
) -> Iterator[Inputs]:
    """Yield the inputs of batches of rows on a device."""
    on_gpu = decodes_on_gpu(decode, device, transform.bands)
    array = resized_array(images, transform)
    if array is not None:
        as_planes = isinstance(images, ArrayImages)
        yield from _from_array(array, batches, device, as_planes)
    elif device.type == "cuda" and isinstance(transform, PlanesResizer):
        processes = are_worth_it(sum(map(len, batches)), workers or available_cores())
        loader = PictureLoader(images, transform, transform, device, on_gpu, processes)
        yield from DeviceFeeder(loader).batches(batches, workers)
    else:
        yield from resized_inputs(images, transform, batches, workers, device)


def resized_array(
    images: ImageSource, transform: Resizer
) -> NDArray[np.generic] | MappedFeatures | None:
    """Return the inputs of all images if they are in memory as they should be, else None."""
    if isinstance(images, FeatureRows):
        return images.features
    if isinstance(images, ArrayImages):
        height, width = images.pixels.shape[1:3]
        kept = images.resized or (width, height) == transform.scale_size(width, height)
        as_input = transform.bands is None and images.is_rgb  # of bands, gaps are filled first
        if kept and (images.resized or as_input) and (height, width) == (transform.size,) * 2:
            return images.pixels
    return None


def _from_array(
    array: NDArray[np.generic] | MappedFeatures,
    batches: Sequence[NDArray[np.int64]],
    device: torch.device,
    as_planes: bool,
) -> Iterator[Inputs]:
    pinned = device.type == "cuda"
    for batch in batches:
        values = torch.from_numpy(array[batch])  # indexing copies
        values = sent(values.pin_memory() if pinned else values, device)
        yield Inputs(batch, values.permute(0, 3, 1, 2) if as_planes else values)
