"""``READERS``: the only place where the name of a format becomes its reader.

``counts`` is what the papers state of a dataset, {split: images} and the number of labels, so that
``labelwise data describe`` can say whether the files at hand are the whole set."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from labelwise.data.annotation_tools import read_cvat, read_fiftyone, read_label_studio
from labelwise.data.camtrap import read_camtrap
from labelwise.data.cifar import read_cifar10, read_cifar60_40, read_cifar100
from labelwise.data.coco import COCO_MARKS, read_coco, read_coco2014
from labelwise.data.earth import read_bigearthnet, read_ucmerced
from labelwise.data.feature_files import read_feature_file
from labelwise.data.folders import HUGGINGFACE_MARKS, read_folder, read_huggingface, read_webdataset
from labelwise.data.generated import posterior_table, scenes
from labelwise.data.inaturalist import read_inaturalist
from labelwise.data.official import (
    read_cub,
    read_imagenet,
    read_nuswide,
    read_tiny_imagenet,
    read_vispr,
    read_wider,
)
from labelwise.data.table import LabelTable
from labelwise.data.tabular import TABULAR, read_tables
from labelwise.data.voc import VOC_MARKS, holds_annotated_photos, read_voc
from labelwise.data.vqa import read_vqa
from labelwise.data.xrays import read_chestxray14, read_chexpert, read_mimic_cxr
from labelwise.errors import DataError
from labelwise.pictures.folders import image_files


@dataclass(frozen=True)
class Reader:
    """A format: its reader, what marks its files and folders, and the papers' counts."""

    name: str
    read: Callable[..., LabelTable]
    sentence: str
    suffixes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    labels: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")

GENERATED: dict[str, Callable[..., LabelTable]] = {"scenes": scenes, "posterior": posterior_table}

# Marks are looked for in this order, so a dataset comes before the plain folder it resembles.
READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("fiftyone", read_fiftyone, "samples.json of FiftyOne", marks=("samples.json",)),
        Reader(
            "chexpert",
            read_chexpert,
            "CheXpert: train.csv, valid.csv",
            marks=("train/patient*", "valid/patient*", "CheXpert-v1.0 batch 1 *"),
            labels=14,
            counts={"train": 223_414, "val": 234},
        ),
        Reader(
            "mimic-cxr",
            read_mimic_cxr,
            "MIMIC-CXR-JPG",
            marks=("mimic-cxr-2.0.0-split.csv*",),
            labels=14,
            counts={"train": 368_960, "val": 2_991, "test": 5_159},
        ),
        Reader(
            "chestxray14",
            read_chestxray14,
            "NIH ChestX-ray14",
            marks=("Data_Entry_2017*.csv",),
            labels=14,
            counts={"train": 86_524, "test": 25_596},
        ),
        Reader(
            "bigearthnet",
            read_bigearthnet,
            "BigEarthNet v2: metadata.parquet, BigEarthNet-S2",
            marks=("BigEarthNet-S2",),
            labels=19,
            counts={"train": 237_871, "val": 122_342, "test": 119_825},
        ),
        Reader(
            "ucmerced",
            read_ucmerced,
            "UC Merced, 17 labels",
            marks=("LandUse_Multilabeled.txt",),
            labels=17,
        ),
        Reader("table", read_tables, "CSV, TSV, JSON Lines or Parquet", tuple(TABULAR)),
        Reader("features", read_feature_file, "features and labels as arrays", (".npz",)),
        Reader(
            "webdataset", read_webdataset, "WebDataset tar shards", (".tar",), ("*.tar", "*/*.tar")
        ),
        Reader(
            "huggingface",
            read_huggingface,
            "folder with a metadata file or Parquet shards",
            marks=HUGGINGFACE_MARKS,
        ),
        Reader(
            "coco2014",
            read_coco2014,
            "MS-COCO 2014",
            marks=("annotations/instances_train2014.json",),
            labels=80,
            counts={"train": 82_081, "test": 40_137},
        ),
        Reader(
            "coco", read_coco, "COCO instances JSON, or a folder of them", (".json",), COCO_MARKS
        ),
        Reader(
            "camtrap-dp",
            read_camtrap,
            "Camtrap DP, a package of camera trap data",
            marks=("datapackage.json",),
        ),
        Reader("inaturalist", read_inaturalist, "an export of iNaturalist with its photos"),
        Reader("label-studio", read_label_studio, "tasks of Label Studio"),
        Reader("cvat", read_cvat, "CVAT for images", (".xml",)),
        Reader("voc", read_voc, "Pascal VOC folder", marks=VOC_MARKS),
        Reader(
            "voc2007",
            partial(read_voc, parts={"trainval": "train", "test": "test"}),
            "Pascal VOC 2007: trainval and test",
            labels=20,
            counts={"train": 5_011, "test": 4_952},
        ),
        Reader(
            "voc2012",
            partial(read_voc, parts={"train": "train", "val": "test"}),
            "Pascal VOC 2012: train, and val as test",
            labels=20,
            counts={"train": 5_717, "test": 5_823},
        ),
        Reader(
            "cifar10",
            read_cifar10,
            "CIFAR-10, python or binary",
            marks=("data_batch_1", "data_batch_1.bin"),
            labels=10,
            counts={"train": 50_000, "test": 10_000},
        ),
        Reader(
            "cifar100",
            read_cifar100,
            "CIFAR-100, python or binary",
            marks=("meta", "fine_label_names.txt"),
            labels=100,
            counts={"train": 50_000, "test": 10_000},
        ),
        Reader(
            "cifar60+40",
            read_cifar60_40,
            "CIFAR-100 where 40 classes lost their label",
            labels=60,
            counts={"train": 50_000, "test": 10_000},
        ),
        Reader(
            "tiny-imagenet",
            read_tiny_imagenet,
            "Tiny-ImageNet",
            marks=("wnids.txt",),
            labels=200,
            counts={"train": 100_000, "test": 10_000},
        ),
        Reader(
            "imagenet",
            read_imagenet,
            "ImageNet (ILSVRC2012)",
            marks=("LOC_val_solution.csv", "ILSVRC2012_devkit*"),
            labels=1000,
            counts={"train": 1_281_167, "test": 50_000},
        ),
        Reader(
            "nuswide",
            read_nuswide,
            "NUS-WIDE, official split, labelled photos",
            marks=("ImageList/TrainImagelist.txt",),
            labels=81,
            counts={"train": 125_449, "test": 83_898},
        ),
        Reader(
            "nuswide-gong",
            partial(read_nuswide, flavour="gong"),
            "NUS-WIDE, 150,000 labelled photos drawn for training",
            labels=81,
            counts={"train": 150_000, "test": 59_347},
        ),
        Reader(
            "wider",
            read_wider,
            "WIDER-Attribute, one row per person",
            marks=("Anno/wider_attribute_*.json", "wider_attribute_*.json"),
            labels=14,
            counts={"train": 28_340, "test": 29_117},
        ),
        Reader(
            "vispr",
            read_vispr,
            "VISPR, visual privacy",
            marks=("train2017/*.json", "*/train2017/*.json"),
            labels=68,
            counts={"train": 14_167, "test": 8_000},
        ),
        Reader(
            "cub",
            read_cub,
            "CUB-200-2011 attributes",
            marks=("attributes/image_attribute_labels.txt",),
            labels=312,
            counts={"train": 5_994, "test": 5_794},
        ),
        Reader(
            "vqa",
            read_vqa,
            "VQA v2: soft labels of questions with stored features",
            marks=("v2_mscoco_train2014_annotations.json",),
            labels=3129,
            counts={"train": 443_757, "test": 214_354},
        ),
        Reader(
            "plantnet",
            read_folder,
            "Pl@ntNet-300K: its folder 'images'",
            labels=1081,
            counts={"train": 243_916, "val": 31_118, "test": 31_112},
        ),
        Reader("folder", read_folder, "class/image or split/class/image", marks=("*/*",)),
    )
}


def recognise(path: Path) -> Reader:
    """Return the reader of a file by its suffix, of a folder by the files that mark it."""
    if path.is_file() and path.suffix.lower() == ".json":
        begin = _beginning(path)
        if begin.startswith(b"["):
            return READERS["label-studio"]
        if re.match(rb'\{\s*"samples"', begin):
            return READERS["fiftyone"]
    if path.suffix.lower() in SPREADSHEETS:
        raise DataError(
            f"{path}: a spreadsheet is not read; save the sheet as CSV (in Excel: 'CSV UTF-8') "
            "and give that file"
        )
    for reader in READERS.values():
        if path.is_file() and path.suffix.lower() in reader.suffixes:
            return reader
        if path.is_dir() and any(any(path.glob(mark)) for mark in reader.marks):
            beside = reader.name == "folder" and holds_annotated_photos(path)
            return READERS["voc"] if beside else reader
    if path.is_dir() and holds_annotated_photos(path):
        return READERS["voc"]
    if path.is_dir():
        _reject_unlabelled(path)
    raise DataError(
        f"{path}: the format is not recognised; give one of {', '.join(READERS)} as 'FORMAT:path'"
    )


def _reject_unlabelled(path: Path) -> None:
    """Raise for a folder that is empty, or holds photos and nothing about them."""
    if not any(path.iterdir()):
        raise DataError(f"{path}: the folder is empty; give one with photos, or a table of labels")
    photos = len(image_files(path))
    if photos:
        raise DataError(
            f"{path}: there are {photos:,} photos and nothing says what they show; give a table "
            "with the columns path and labels, or put the photos into one folder per label; a "
            f"trained model tags them with `labelwise predict RUN {path}`"
        )


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
