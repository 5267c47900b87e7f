"""What a picture looks like from afar: a fingerprint that survives another size, quality or trim.

    fingerprint = unit vector of the 8 x 8 lowest frequencies (DCT) of the grey picture at 32 x 32,
                  without its mean

Pictures whose fingerprints have a cosine of at least NEAR are near-duplicates. Pictures of one
colour have a fingerprint of zeros and are near nothing. ``looks_of`` takes the pixels that a model
sees anyway, whose transform may cut the edges off: its fingerprints are compared with each other
alone.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.pictures.decode import decode

if TYPE_CHECKING:  # a search asks this file only what NEAR is
    import torch
    from torch import Tensor

NEAR = 0.95
SIDE, KEPT = 32, 8
LEAST_SIDE = 2 * SIDE  # to which a large picture may be reduced while it is decoded
WIDTH = KEPT * KEPT - 1
PLAIN = 1.0  # length of a vector that is rounding alone
GREY = (0.299, 0.587, 0.114)  # as Pillow weighs red, green and blue
WHITE = 255.0


def fingerprint(content: bytes, name: str) -> NDArray[np.float32]:
    """Return the fingerprint (WIDTH,) of an encoded picture, or raise an ImageError."""
    with decode(content, name, LEAST_SIDE) as picture:
        return look_of(picture)


def look_of(picture: Image.Image) -> NDArray[np.float32]:
    """Return the fingerprint (WIDTH,) of a picture."""
    from scipy.fft import dctn

    grey = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    waves = dctn(np.asarray(grey, np.float64), norm="ortho")[:KEPT, :KEPT].ravel()[1:]
    length = float(np.linalg.norm(waves))
    return np.asarray(waves / length if length > PLAIN else np.zeros(WIDTH), np.float32)


def looks_of(inputs: "Tensor") -> "Tensor":
    """Return the fingerprints (n, WIDTH), float32, of pixels (n, 3, H, W) or bands (n, C, H, W).

    Bands have no common range: the mean of them is taken from its darkest to its brightest place.
    """
    import torch
    from torch.nn.functional import adaptive_avg_pool2d

    values = inputs.float()
    if inputs.dtype == torch.uint8:
        grey = torch.einsum("nchw,c->nhw", values, _constants(values.device)[0])
    else:
        mean = values.mean(dim=1)
        low, high = mean.amin(dim=(1, 2), keepdim=True), mean.amax(dim=(1, 2), keepdim=True)
        grey = WHITE * (mean - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    small = adaptive_avg_pool2d(grey[:, None], SIDE)[:, 0]
    base = _constants(values.device)[1]
    waves = (base @ small @ base.T).flatten(1)[:, 1:]
    length = waves.norm(dim=1, keepdim=True)
    return torch.where(length > PLAIN, waves / length.clamp_min(PLAIN), 0.0)


@lru_cache(maxsize=32)  # a copy to a GPU is waited for
def _constants(device: "torch.device") -> tuple["Tensor", "Tensor"]:
    """Return the weights of the colours, and the lowest waves (KEPT, SIDE), on a device."""
    import torch
    from scipy.fft import dct

    lowest = dct(np.eye(SIDE), norm="ortho", axis=0)[:KEPT]
    with torch.inference_mode(False):  # they are used inside and outside of it
        return torch.tensor(GREY, device=device), torch.from_numpy(lowest).float().to(device)
