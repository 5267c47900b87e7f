"""Window: a part of a picture, chosen before the size of the picture is known."""

from dataclasses import dataclass
from math import ceil, exp, sqrt


@dataclass(frozen=True)
class Window:
    """A share ``area`` of a picture, of shape exp(``log_shape``) = width / height.

    ``x`` and ``y``, in [0, 1], say where it lies between the edges. A side longer than the
    picture is cut to it.
    """

    area: float
    log_shape: float
    x: float
    y: float

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in the pixels of a picture."""
        stretch = exp(0.5 * self.log_shape)
        wide = min(1.0, stretch * sqrt(self.area * height / width)) * width
        high = min(1.0, sqrt(self.area * width / height) / stretch) * height
        left, top = self.x * (width - wide), self.y * (height - high)
        return left, top, min(left + wide, width), min(top + high, height)

    def at_least(self, side: int) -> int:
        """Return the shorter side a picture must have for its window to fill ``side`` pixels."""
        return ceil(side / (0.75 * sqrt(self.area)))
