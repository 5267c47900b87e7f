"""What a picture looks like from afar: a fingerprint that survives another size, quality or trim.

    fingerprint = unit vector of the 8 x 8 lowest frequencies (DCT) of the grey picture at 32 x 32,
                  without its mean

Pictures whose fingerprints have a cosine of at least NEAR are near copies. Plain pictures, all of
one colour, have a fingerprint of zeros and are near nothing. How many copies are found, and how
many pictures are taken for copies: ``benchmarks/near_copies.py``.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from labelwise.pictures.decode import decode

__all__ = ["NEAR", "WIDTH", "fingerprint"]

NEAR = 0.95
SIDE, KEPT = 32, 8
WIDTH = KEPT * KEPT - 1
PLAIN = 1.0  # length of a vector that is rounding alone


def fingerprint(content: bytes, name: str) -> NDArray[np.float32]:
    """Return the fingerprint (WIDTH,) of an encoded picture, or raise an ImageError."""
    with decode(content, name, 2 * SIDE) as picture:
        grey = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    waves = dctn(np.asarray(grey, np.float64), norm="ortho")[:KEPT, :KEPT].ravel()[1:]
    length = float(np.linalg.norm(waves))
    unit = waves / length if length > PLAIN else np.zeros(WIDTH)
    return np.asarray(unit, np.float32)
