"""Label tables, where their images are, and every format they are read from."""

from labelwise.pictures.memory import (
    ArrayImages,
    BytesImages,
    FeatureRows,
    PictureImages,
    as_images,
)
from labelwise.pictures.sources import CropImages, FileImages, ImageSource, JoinedImages, SpanImages
from labelwise.tables.checks import (
    Description,
    UnreadableImage,
    describe,
    find_unreadable,
    fingerprint,
    without_unreadable,
)
from labelwise.tables.derived import (
    Obeyed,
    flip_labels,
    keep_known,
    mlspl_split,
    obey_taxonomy,
    observe_uniform,
    single_positive,
    stratified_split,
    with_validation,
)
from labelwise.tables.export import export
from labelwise.tables.generated import PosteriorData, posterior, scenes
from labelwise.tables.load import Reader, load
from labelwise.tables.opened import Table, open_table
from labelwise.tables.table import LabelSets, LabelTable, SoftLabels

__all__ = [
    "ArrayImages",
    "BytesImages",
    "CropImages",
    "Description",
    "FeatureRows",
    "FileImages",
    "ImageSource",
    "JoinedImages",
    "LabelSets",
    "LabelTable",
    "Obeyed",
    "PictureImages",
    "PosteriorData",
    "Reader",
    "SoftLabels",
    "SpanImages",
    "Table",
    "UnreadableImage",
    "as_images",
    "describe",
    "export",
    "find_unreadable",
    "fingerprint",
    "flip_labels",
    "keep_known",
    "load",
    "mlspl_split",
    "obey_taxonomy",
    "observe_uniform",
    "open_table",
    "posterior",
    "scenes",
    "single_positive",
    "stratified_split",
    "with_validation",
    "without_unreadable",
]
