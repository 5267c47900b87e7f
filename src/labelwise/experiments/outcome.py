"""Outcome: what a finished run predicts, each split read when a figure asks for it."""

from functools import cached_property
from pathlib import Path

from labelwise.errors import DataError
from labelwise.predictions import Predictions

__all__ = ["Outcome"]


class Outcome:
    """The predictions in the folder of a finished run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def train(self) -> Predictions:
        """Predictions of the training images."""
        return self._read("train")

    @cached_property
    def val(self) -> Predictions | None:
        """Predictions of the validation images, None where the run has none."""
        return self._read("val") if self._path("val").exists() else None

    @cached_property
    def test(self) -> Predictions:
        """Predictions of the test images."""
        return self._read("test")

    @property
    def held_out(self) -> Predictions:
        """``val``, for figures that cannot do without it."""
        if self.val is None:
            raise DataError("this figure is fitted on a validation split, and the run has none")
        return self.val

    def _read(self, split: str) -> Predictions:
        return Predictions.load(self._path(split))

    def _path(self, split: str) -> Path:
        return self.folder / "predictions" / f"{split}.parquet"
