"""READERS: the only place where a format's name becomes its reader.

``counts`` is what the papers state of a dataset, {split: images} and the number of labels, so that
``labelwise data describe`` can say whether the files at hand are the whole set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from labelwise.data.attributes import read_cub, read_vispr, read_wider
from labelwise.data.cifar import read_cifar10, read_cifar60_40, read_cifar100
from labelwise.data.coco import read_coco, read_coco2014
from labelwise.data.folder import read_folder
from labelwise.data.huggingface import MARKS as HUGGINGFACE_MARKS
from labelwise.data.huggingface import read_huggingface
from labelwise.data.imagenet import read_imagenet, read_tiny_imagenet
from labelwise.data.nuswide import read_nuswide
from labelwise.data.posterior import posterior_table
from labelwise.data.scenes import scenes
from labelwise.data.table import LabelTable
from labelwise.data.tabular import TABULAR, read_tabular
from labelwise.data.voc import read_voc
from labelwise.data.webdataset import read_webdataset
from labelwise.errors import DataError

__all__ = ["GENERATED", "READERS", "Reader", "recognise"]


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


GENERATED: dict[str, Callable[..., LabelTable]] = {"scenes": scenes, "posterior": posterior_table}

# Marks are looked for in this order, so a dataset comes before the plain folder it resembles.
READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("table", read_tabular, "CSV, TSV, JSON Lines or Parquet", tuple(TABULAR)),
        Reader("coco", read_coco, "COCO instances JSON", (".json",)),
        Reader("webdataset", read_webdataset, "WebDataset tar shards", (".tar",), ("*.tar",)),
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
        Reader("voc", read_voc, "Pascal VOC folder", marks=("ImageSets/Main/*.txt",)),
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
            "WIDER-Attribute, one row a person",
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
    for reader in READERS.values():
        if path.is_file() and path.suffix.lower() in reader.suffixes:
            return reader
        if path.is_dir() and any(any(path.glob(mark)) for mark in reader.marks):
            return reader
    raise DataError(
        f"{path}: the format is not recognised; give one of {', '.join(READERS)} as 'FORMAT:path'"
    )
