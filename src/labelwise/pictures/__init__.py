"""Bytes to pixels to batches: where pictures are, how they are decoded, resized and loaded."""

from labelwise.pictures.memory import (
    ArrayImages,
    BytesImages,
    FeatureRows,
    PictureImages,
    as_images,
)
from labelwise.pictures.sources import CropImages, FileImages, ImageSource, JoinedImages, SpanImages
from labelwise.pictures.transform import Transform

__all__ = [
    "ArrayImages",
    "BytesImages",
    "CropImages",
    "FeatureRows",
    "FileImages",
    "ImageSource",
    "JoinedImages",
    "PictureImages",
    "SpanImages",
    "Transform",
    "as_images",
]
