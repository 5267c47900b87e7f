"""Random numbers for the images of an epoch, each a function of key, place and draw alone.

    streams = scramble(key + place g)          number of draw n = scramble(stream + n g)

with the golden gamma g and the scrambler of SplitMix64 (Steele, Lea and Flood 2014), 64-bit
integers that wrap around. An image's numbers depend on its place in the epoch, not on the batch
it travels in, the device, the number of processes or workers, or where a run was resumed; so any
number of batches can be augmented at once.
"""

import numpy as np
from torch import Tensor

__all__ = ["Dice", "mix"]

GAMMA = 0x9E3779B97F4A7C15
MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
FLOAT_BITS = 24  # as many as a float32 holds exactly


def mix(*numbers: int) -> int:
    """Return one 63-bit key of several numbers, far apart for neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Dice:
    """Draws for the images at ``places`` (B,) of an epoch, on the device of ``places``."""

    def __init__(self, key: int, places: Tensor) -> None:
        self._streams = _scramble(places * _signed(GAMMA) + _signed(key))
        self._draws = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return (B,) float32 in [low, high)."""
        share = _shift(self._next(), 64 - FLOAT_BITS).float() * 2.0**-FLOAT_BITS
        return share * (high - low) + low

    def integers(self, low: int, high: int) -> Tensor:
        """Return (B,) int64 in [low, high)."""
        return _shift(self._next(), 1) % (high - low) + low

    def coin(self) -> Tensor:
        """Return (B,) bool, true with probability one half."""
        return self._next() < 0

    def _next(self) -> Tensor:
        self._draws += 1
        return _scramble(self._streams + _signed(self._draws * GAMMA))


def _scramble(words: Tensor) -> Tensor:
    for bits, factor in MIXERS:
        words = (words ^ _shift(words, bits)) * _signed(factor)
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Return the words shifted right with zeros coming in, as if they were unsigned."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """Return the 64-bit integer that has the bits of ``word``."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)
