"""Folders of class folders, of Hugging Face datasets, and of WebDataset tar shards.

    class/image, split/class/image       one label per image
    metadata.csv, .jsonl or .parquet     names the image files in ``file_name``
    train-00000-of-00002.parquet, ...    the images themselves; also in the folder data
    *.tar                                files that share a key are one sample

In a shard the labels are in ``key.json`` (a list, or an object with ``labels`` and perhaps
``unknown``, ``split`` and ``group``), in ``key.txt`` (names split on ``|``) or in ``key.cls`` (one
class). The images stay in the shard; only their places are kept. Shards named ``train-...`` are a
split.
"""

import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from labelwise.data.columns import TableColumns, Vocabulary
from labelwise.data.decode import IMAGE_SUFFIXES
from labelwise.data.images import SpanImages
from labelwise.data.names import printable
from labelwise.data.rows import (
    find_images,
    from_rows,
    label_names,
    require_file,
)
from labelwise.data.table import SPLIT_WORDS, LabelTable
from labelwise.data.tabular import TableBuilder, read_tables
from labelwise.errors import DataError

__all__ = [
    "HUGGINGFACE_MARKS",
    "read_folder",
    "read_huggingface",
    "read_webdataset",
    "split_folders",
]

HUGGINGFACE_MARKS = ("metadata.*", "*/metadata.*", "*.parquet", "data/*.parquet", "train/*.parquet")
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
Span = tuple[int, int, int]  # shard, offset, size
SAMPLE_COLUMNS = ("labels", "unknown", "split", "group")


def read_folder(path: Path) -> LabelTable:
    """Return the table of ``class/image`` or ``split/class/image``; one label per image."""
    parts = split_folders(path)
    labels, split = [], []
    files, notes = find_images(path)
    for file in files:
        places = Path(file).parts[:-1]
        if parts:
            if places[:1] and places[0] not in parts:
                raise DataError(f"{path}: beside {min(parts)!r} there must be no {places[0]!r}")
            split.append(parts[places[0]] if places else "")
            places = places[1:]
        if not places:
            raise DataError(f"{path}: every image must be in the folder of its class, got {file!r}")
        labels.append([printable(places[0])])
    if not files:
        more = f" ({notes[0]})" if notes else ""
        raise DataError(f"{path}: there are no images in folders of classes{more}")
    _reject_no_classes(path, sorted({label[0] for label in labels}))
    table = from_rows((path, files), labels, split=split or None, name=printable(path.name))
    return replace(table, notes=notes)


def _reject_no_classes(path: Path, classes: list[str]) -> None:
    """Raise a DataError where the folders can hardly be classes."""
    way_out = (
        "one folder per class is needed; if the labels are in a file, give that file, and if this "
        "is a known data set, name its format as FORMAT:path, such as coco:path or voc:path"
    )
    if len(classes) == 1:
        raise DataError(f"{path}: every image would have the one label {classes[0]!r}; {way_out}")
    if all(re.sub(r"[\d_-]+$", "", name).lower() in SPLIT_WORDS for name in classes):
        listed = ", ".join(map(repr, classes))
        raise DataError(f"{path}: the folders {listed} are splits, not classes; {way_out}")


def split_folders(path: Path) -> dict[str, str]:
    """Return the folders named after a split and the split each means, {} if there are none."""
    folders = [entry.name for entry in path.iterdir() if entry.is_dir()]
    return {name: SPLIT_WORDS[name.lower()] for name in folders if name.lower() in SPLIT_WORDS}


def read_huggingface(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str = "|",
    ignore: Sequence[str] | str = (),
) -> LabelTable:
    """Return the table of a folder with metadata files or Parquet shards."""
    folders: list[tuple[Path, str | None]] = [(path, None), (path / "data", None)]
    folders += [(path / folder, split) for folder, split in sorted(split_folders(path).items())]
    files = [
        (at / name, split)
        for at, split in folders
        for name in METADATA_NAMES
        if (at / name).is_file()
    ]
    if not files:
        files = [
            (shard, split or _split_of(shard))
            for at, split in folders
            for shard in sorted(at.glob("*.parquet"))
            if shard.is_file()
        ]
    if not files:
        raise DataError(
            f"{path}: there must be a metadata.csv, metadata.jsonl or metadata.parquet, "
            "or Parquet files such as train-00000-of-00001.parquet"
        )
    return read_tables(
        files,
        columns=columns,
        names=names,
        separator=separator,
        ignore=ignore,
        called=path.resolve().name,
    )


def _split_of(shard: Path) -> str | None:
    """Return the split in a shard's name, if there is one and only one."""
    words = re.split(r"[^a-z]+", shard.stem.lower())
    splits = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else None


def read_webdataset(
    path: Path, *, names: Sequence[str] | str | Path | None = None, separator: str = "|"
) -> LabelTable:
    """Return the table of a .tar file, or of all .tar files in a folder, in order of name."""
    shards = [path]
    if path.is_dir():
        shards = [shard for shard in sorted(path.glob("*.tar")) if shard.is_file()]
    if not shards:
        raise DataError(f"{path}: there are no .tar files")
    spans: list[Span] = []
    ids: list[str] = []
    samples: list[dict[str, Any]] = []
    for number, shard in enumerate(shards):
        split = SPLIT_WORDS.get(shard.stem.replace("_", "-").split("-")[0].lower())
        for key, files in _samples(shard).items():
            image, labels = _parts(shard, key, files)
            spans.append((number, *files[image]))
            ids.append(f"{shard.name}/{key}{image}")
            sample = _labels(shard, key, labels, files[labels], separator)
            samples.append({"split": split, **sample} if split else sample)
    used = [name for name in SAMPLE_COLUMNS if any(name in sample for sample in samples)]
    found = {name: name if name in used else None for name in SAMPLE_COLUMNS}
    layout = TableColumns(
        **{**found, "path": "path", "image": None, "labels": "labels"}, one_hot=()
    )
    gather = TableBuilder(layout, Vocabulary(label_names(names)), separator=separator)
    if samples:
        gather.add(_batch(ids, samples, used), path.name, 0)
    table = gather.finish(path, path.stem)
    where = np.array(spans, np.int64)
    return replace(table, images=SpanImages(shards, where[:, 0], where[:, 1], where[:, 2], ids))


def _samples(shard: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """Return {key: {suffix: (offset, size)}} of the regular files of a shard, in order."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    end = shard.stat().st_size
    try:
        with tarfile.open(require_file(shard), "r:") as tar:
            for member in tar:
                folder, slash, base = member.name.rpartition("/")
                stem, dot, suffix = base.partition(".")
                if not member.isfile() or not dot or not stem:
                    continue
                if member.offset_data + member.size > end:
                    raise DataError(f"{shard.name}: the shard is cut off in {member.name!r}")
                files = samples.setdefault(folder + slash + stem, {})
                if f".{suffix.lower()}" in files:
                    raise DataError(
                        f"{shard.name}: the file {member.name!r} is there twice; "
                        "every sample must have a key of its own"
                    )
                files[f".{suffix.lower()}"] = (member.offset_data, member.size)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DataError(f"{shard.name}: not an uncompressed tar file ({error})") from None
    return samples


def _parts(shard: Path, key: str, files: dict[str, tuple[int, int]]) -> tuple[str, str]:
    images = [suffix for suffix in files if Path("x" + suffix).suffix in IMAGE_SUFFIXES]
    labels = [suffix for suffix in (".json", ".txt", ".cls") if suffix in files]
    if len(images) != 1 or not labels:
        raise DataError(
            f"{shard.name}: sample {key!r} must have one image and a .json, .txt or .cls file, "
            f"got {', '.join(files)}"
        )
    return images[0], labels[0]


def _labels(
    shard: Path, key: str, suffix: str, span: tuple[int, int], separator: str
) -> dict[str, Any]:
    with shard.open("rb") as stream:
        stream.seek(span[0])
        content = stream.read(span[1])
    where = f"{shard.name}, {key}{suffix}"
    try:
        text = content.decode("utf-8-sig").strip()
        if suffix == ".cls":
            return {"labels": [text]}
        if suffix == ".txt":
            return {"labels": text.split(separator)}
        value = json.loads(text)
    except UnicodeDecodeError:
        raise DataError(f"{where}: it is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    sample = value if isinstance(value, dict) else {"labels": value}
    if "labels" not in sample:
        raise DataError(f"{where}: there must be a key 'labels'")
    for name in ("labels", "unknown"):
        listed = sample.get(name)
        if isinstance(listed, str):
            sample[name] = listed.split(separator)
        elif listed is not None and not (
            isinstance(listed, list) and all(isinstance(word, str) for word in listed)
        ):
            raise DataError(f"{where}: {name!r} must be a list of names, got {listed!r:.60}")
    for name in ("split", "group"):
        if name in sample and not isinstance(sample[name], str | int):
            raise DataError(f"{where}: {name!r} must be text, got {sample[name]!r:.60}")
    return {name: sample[name] for name in SAMPLE_COLUMNS if name in sample}


def _batch(ids: list[str], samples: list[dict[str, Any]], used: list[str]) -> Any:
    arrays = [pa.array(ids, pa.large_string())]
    for name in used:
        values = [sample.get(name) for sample in samples]
        if name in ("labels", "unknown"):
            arrays.append(pa.array(values, pa.list_(pa.string())))
        else:
            arrays.append(pa.array([None if v is None else str(v) for v in values], pa.string()))
    return pa.record_batch(arrays, ["path", *used])
