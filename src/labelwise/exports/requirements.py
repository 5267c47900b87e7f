"""What is asked of a model and of a folder before a model is exported."""

from collections.abc import Sequence
from pathlib import Path

from labelwise.errors import SettingsError
from labelwise.learn.predictor import Predictor


def require_exportable(
    predictor: Predictor, *, rgb_for: str | None = None, full_scale: bool = False
) -> None:
    """Raise if a model reads stored features."""
    transform = predictor.transform
    if predictor.model.backbone.name == "identity":
        raise SettingsError(
            "this model reads stored features, not pictures, so there is nothing to export"
        )
    if full_scale and transform.reduced_jpeg:
        raise SettingsError(
            "this model decodes large JPEGs at a reduced scale (reduced_jpeg), which the program "
            "that runs an exported file does not; train without it, or give --input pixels, "
            "already decoded and scaled"
        )
    if rgb_for is not None and transform.bands is not None:
        raise SettingsError(
            f"{rgb_for} is for models of 8-bit RGB, and this one takes "
            f"{transform.channels} bands; export it with --format onnx or "
            "torch-export, and --input pixels"
        )


def require_pictures(rows: Sequence[int]) -> None:
    """Raise if there is no picture to compare an export with its model on."""
    if not len(rows):
        raise SettingsError("an export is compared with its model on pictures; none were given")


def require_new_folder(folder: Path) -> None:
    """Raise if there is a file or folder of this name already."""
    if folder.exists():
        raise SettingsError(f"{folder} is there already; name a new folder, or remove it")
