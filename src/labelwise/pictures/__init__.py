"""Bytes to pixels to batches: where pictures are, how they are decoded, resized and loaded."""

from labelwise.pictures.sources import (
    ArrayImages,
    BytesImages,
    CropImages,
    FeatureRows,
    FileImages,
    ImageSource,
    JoinedImages,
    PictureImages,
    SpanImages,
    as_images,
)
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
