"""load: a name, a file, a folder or several of them to one checked LabelTable.

``READERS`` is the only place where the name of a format becomes its reader. ``counts`` is what the
papers state of a dataset, {split: images} and the number of labels, so that ``labelwise data
describe`` can say whether the files at hand are the whole set.
"""

import glob
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from labelwise.data.annotation_tools import read_cvat, read_fiftyone, read_label_studio
from labelwise.data.camtrap import read_camtrap
from labelwise.data.checks import Duplicates, check_table
from labelwise.data.cifar import read_cifar10, read_cifar60_40, read_cifar100
from labelwise.data.detection import COCO_MARKS, VOC_MARKS, read_coco, read_coco2014, read_voc
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
from labelwise.data.shards import ShardPart, read_shards
from labelwise.data.table import SPLIT_WORDS, LabelTable, join
from labelwise.data.tabular import TABULAR, read_tables
from labelwise.data.vqa import read_vqa
from labelwise.data.xrays import read_chestxray14, read_chexpert, read_mimic_cxr
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.folders import image_files
from labelwise.system.storage import is_uri
from labelwise.system.text import first_line
from labelwise.types import nearest

__all__ = [
    "GENERATED",
    "READERS",
    "Reader",
    "find_parts",
    "load",
    "load_for_labels",
    "recognise",
]


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
        Reader("fiftyone", read_fiftyone, "samples.json of FiftyOne", marks=("samples.json",)),
        Reader(
            "chexpert",
            read_chexpert,
            "CheXpert: train.csv, valid.csv",
            marks=("train/patient*", "valid/patient*"),
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
    for reader in READERS.values():
        if path.is_file() and path.suffix.lower() in reader.suffixes:
            return reader
        if path.is_dir() and any(any(path.glob(mark)) for mark in reader.marks):
            return reader
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


Part = tuple[str | None, Reader, Path]  # split, format, place


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")


def load(
    source: str | Path,
    *,
    format: str | None = None,
    skip_missing: bool = False,
    check_files: bool = True,
    duplicates: Duplicates = "stop",
    **options: Any,
) -> LabelTable:
    """Return the table of "scenes", "posterior", a file, a folder, or "FORMAT:path".

    Several parts are joined by ";", each may name its split and hold wildcards:
    "train=a-*.parquet;test=b.parquet". A URI ("s3://bucket/train-*.parquet") names shards whose
    images are streamed. ``options`` are those of the format's reader; ``skip_missing`` leaves
    missing images out, ``check_files=False`` does not look for them; ``duplicates`` ("stop",
    "drop" or "keep") is for rows that are there twice, labels and all.
    """
    text = str(source)
    if format is None and text in GENERATED:
        make = GENERATED[text]
        try:
            return make(**_known(options, make, text))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{text}: {error}") from None
    if format is None and _exists(text) and (Path(text) / "model.json").is_file():
        raise DataError(
            f"{text} holds a model, and load reads labelled data: labelwise.load_run opens a run, "
            "labelwise.load_model any model"
        )
    try:
        table = _read_from(text, format, options)
    except OSError as error:
        place = error.filename or text
        raise DataError(f"{place}: cannot be read ({error.strerror or error})") from None
    except UnicodeError as error:
        raise DataError(
            f"{text}: it holds text that is not Unicode ({first_line(error)})"
        ) from None
    except pa.ArrowException as error:
        what = "it holds text that is not Unicode" if "UTF8" in str(error) else "it cannot be read"
        raise DataError(f"{text}: {what} ({first_line(error)})") from None
    return check_table(
        table, skip_missing=skip_missing, check_files=check_files, duplicates=duplicates
    )


def _read_from(text: str, format: str | None, options: Mapping[str, Any]) -> LabelTable:
    shards = _shard_parts(text)
    if shards is None:
        return _read(find_parts(text, format), options)
    if format is not None:
        raise SettingsError("shards that are named by a URI are known by their ends; no format")
    return read_shards(shards, **_known(options, read_shards, "shards"))


def _shard_parts(text: str) -> list[ShardPart] | None:
    """Return the parts of a source that is all URIs, with their splits; None of any other."""
    if not is_uri(text) or _exists(text):
        return None
    parts = []
    for piece in map(str.strip, text.split(";")):
        head, equals, tail = piece.partition("=")
        split = SPLIT_WORDS.get(head) if equals else None
        place = tail if split else piece
        if not is_uri(place):
            raise DataError(f"shards that are named by a URI cannot be joined with {place!r}")
        parts.append(ShardPart(place, split))
    return parts


def _read(parts: list[Part], options: Mapping[str, Any]) -> LabelTable:
    if len(parts) > 1 and all(reader.name == "table" for _, reader, _ in parts):
        files = [(path, split) for split, _, path in parts]
        return read_tables(files, **_known(options, read_tables, "table"))
    tables = [
        (split, reader.read(path, **_known(options, reader.read, reader.name)))
        for split, reader, path in parts
    ]
    if len(tables) == 1 and tables[0][0] is None:
        return tables[0][1]
    return join(tables, name=tables[0][1].name)


def find_parts(source: str | Path, format: str | None = None) -> list[Part]:
    """Return the parts of a source that is read from files, each with its split and format."""
    text = str(source)
    parts: list[Part] = []
    pieces = [text] if _exists(text) else text.split(";")
    for piece in pieces:
        head, equals, tail = piece.strip().partition("=")
        split = SPLIT_WORDS.get(head) if equals and not _exists(piece) else None
        name, place = _divide(tail if split else piece.strip(), format)
        for path in _places(place):
            reader = READERS[name] if name is not None else recognise(path)
            if reader.name == "table" and path.suffix.lower() not in TABULAR:
                raise DataError(f"{path}: a table must end in {', '.join(TABULAR)}")
            parts.append((split, reader, path))
    return parts


def _divide(text: str, format: str | None) -> tuple[str | None, str]:
    head, colon, tail = text.partition(":")
    if format is None and colon and head in READERS:
        return head, tail
    if format is not None and format not in READERS:
        raise SettingsError(f"unknown data format {format!r}{nearest(format, READERS)}")
    return format, text


def _places(text: str) -> list[Path]:
    if text and _exists(text):
        return [Path(text)]
    found = sorted(glob.glob(text)) if text and "\0" not in text else []
    if not found:
        built_in = ", ".join(GENERATED)
        raise DataError(f"there is no file or folder {text!r} (built-in sets: {built_in})")
    return [Path(place) for place in found]


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # a name too long, or with a null byte
        return False


class UnknownOptionError(SettingsError):
    """An option that a reader does not take."""

    def __init__(self, reader: str, option: str, accepted: Iterable[str]) -> None:
        self.option = option
        super().__init__(f"{reader!r} has no option {option!r}{nearest(option, accepted)}")


def _known(
    options: Mapping[str, Any], make: Callable[..., LabelTable], name: str
) -> dict[str, Any]:
    """Return the options of a reader, of the types it takes, or raise a SettingsError."""
    accepted = dict(inspect.signature(make).parameters)
    accepted.pop("path", None)
    values = {}
    for option, value in options.items():
        if option not in accepted:
            raise UnknownOptionError(name, option, accepted)
        try:
            values[option] = TypeAdapter(accepted[option].annotation).validate_python(value)
        except ValidationError as error:
            rule = error.errors()[0]["msg"].replace("Input should", "must")
            raise SettingsError(
                f"the option {option!r} of {name!r}: {rule}, got {value!r:.60}"
            ) from None
    return values


def load_for_labels(
    source: str | Path, names: tuple[str, ...], *, check_files: bool = False, **options: Any
) -> LabelTable:
    """Return any readable labelled data; where its format lists labels, these are the ones.

    In a table of label lists a label that never occurs is absent everywhere, not unheard of.
    """
    try:
        return load(source, names=list(names), check_files=check_files, **options)
    except UnknownOptionError as error:
        if error.option != "names":
            raise
    return load(source, check_files=check_files, **options)
