"""What every export refuses before it begins."""

from collections.abc import Sequence
from pathlib import Path

from labelwise.errors import SettingsError
from labelwise.models import Predictor

__all__ = [
    "require_full_scale",
    "require_new_folder",
    "require_picture_model",
    "require_pictures",
    "require_rgb",
]


def require_picture_model(predictor: Predictor) -> None:
    """Raise if a model reads stored features."""
    if predictor.model.backbone.name == "identity":
        raise SettingsError(
            "this model reads stored features, not pictures, so there is nothing to export"
        )


def require_full_scale(predictor: Predictor) -> None:
    """Raise if a model decodes JPEGs in a way that no program beside it does."""
    if predictor.transform.reduced_jpeg:
        raise SettingsError(
            "this model decodes large JPEGs at a reduced scale (reduced_jpeg), which the program "
            "that runs an exported file does not; train without it, or give --input pixels, "
            "already decoded and scaled"
        )


def require_rgb(predictor: Predictor, what: str) -> None:
    """Raise if a model takes bands, where only 8-bit RGB can be exported."""
    if predictor.transform.bands is not None:
        raise SettingsError(
            f"{what} is for models of 8-bit RGB, and this one takes "
            f"{predictor.transform.channels} bands; export it with --format onnx, openvino or "
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
