"""Folders of class folders, of Hugging Face datasets, and of WebDataset tar shards.

    class/image, split/class/image       one label per image
    metadata.csv, .jsonl or .parquet     names the image files in ``file_name``
    train-00000-of-00002.parquet, ...    the images themselves; also in the folder data
    *.tar, folder/*.tar                  files that share a key are one sample

In a shard the labels are in ``key.json`` (a list, or an object with ``labels`` and perhaps
``unknown``, ``split`` and ``group``), in ``key.txt`` (names split on ``|``) or in ``key.cls`` (one
class: its name, or its number among given names). The images stay in the shard; only their places
are kept. Shards named ``train-...`` are a split.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from labelwise.data.columns import TableColumns, Vocabulary
from labelwise.data.rows import from_rows, label_names, require_file
from labelwise.data.table import SPLIT_WORDS, LabelTable
from labelwise.data.table_builder import TableBuilder
from labelwise.data.tabular import read_tables
from labelwise.errors import DataError
from labelwise.pictures.decode import IMAGE_SUFFIXES, find_images
from labelwise.pictures.sources import SpanImages, TarMember, tar_members
from labelwise.system.names import printable

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
LABEL_SUFFIXES = (".json", ".txt", ".cls")
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
    classes = sorted({label[0] for label in labels})
    way_out = (
        "one folder per class is needed; if the labels are in a file, give that file, and if this "
        "is a known data set, name its format as FORMAT:path, such as coco:path or voc:path"
    )
    if len(classes) == 1:
        raise DataError(f"{path}: every image would have the one label {classes[0]!r}; {way_out}")
    if all(re.sub(r"[\d_-]+$", "", name).lower() in SPLIT_WORDS for name in classes):
        listed = ", ".join(map(repr, classes))
        raise DataError(f"{path}: the folders {listed} are splits, not classes; {way_out}")
    table = from_rows((path, files), labels, split=split or None, name=printable(path.name))
    return replace(table, notes=notes)


def split_folders(path: Path) -> dict[str, str]:
    """Return {folder: split} of the folders named after one, as train, valid or images_train."""
    folders = [entry.name for entry in path.iterdir() if entry.is_dir()]
    words = {name: name.lower().removeprefix("images_") for name in folders}
    return {name: SPLIT_WORDS[word] for name, word in words.items() if word in SPLIT_WORDS}


def read_plantnet(path: Path) -> LabelTable:
    """Return the table of Pl@ntNet-300K: ``images/train/species`` or ``images_train/species``."""
    inside = path / "images"
    return read_folder(inside if inside.is_dir() else path)


def read_huggingface(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str | None = None,
    ignore: Sequence[str] | str = (),
) -> LabelTable:
    """Return the table of a folder with metadata files or Parquet shards."""
    named = _huggingface_files(path, *METADATA_NAMES)
    files = named or _huggingface_files(path, "*.parquet")
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


def _huggingface_files(path: Path, *patterns: str) -> list[tuple[Path, str | None]]:
    splits = sorted(split_folders(path).items())
    folders = [(path, None), (path / "data", None), *((path / name, own) for name, own in splits)]
    return [
        (file, split or split_of(file.name))
        for at, split in folders
        for pattern in patterns
        for file in sorted(at.glob(pattern))
        if file.is_file()
    ]


def holds_parquet_shards(path: Path) -> bool:
    """Return whether a folder is read as Parquet files that hold their images."""
    if not path.is_dir() or any(path.glob("*.tar")):
        return False
    named = _huggingface_files(path, *METADATA_NAMES)
    return not named and bool(_huggingface_files(path, "*.parquet"))


def split_of(shard: str) -> str | None:
    """Return the split in a shard's name, if there is one and only one."""
    words = re.split(r"[^a-z]+", Path(shard).stem.lower())
    splits = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else None


def read_webdataset(
    path: Path, *, names: Sequence[str] | str | Path | None = None, separator: str = "|"
) -> LabelTable:
    """Return the table of a .tar file, or of all .tar files in and below a folder, by name."""
    root, shards = path.parent, [path]
    if path.is_dir():
        root, shards = path, [shard for shard in sorted(path.rglob("*.tar")) if shard.is_file()]
    if not shards:
        raise DataError(f"{path}: there are no .tar files")
    spans: list[tuple[int, int, int]] = []  # shard, offset, size
    ids: list[str] = []
    labels: list[dict[str, Any]] = []
    for number, shard in enumerate(shards):
        with require_file(shard).open("rb") as stream:
            samples = tar_samples(stream, shard.name, shard.stat().st_size, separator)
        name = printable(shard.relative_to(root).as_posix())
        ids += [f"{name}/{sample.name}" for sample in samples]
        spans += [(number, sample.offset, sample.size) for sample in samples]
        labels += [sample.labels for sample in samples]
    table = table_of_samples(ids, labels, names, separator, path.stem)
    where = np.array(spans, np.int64)
    return replace(
        table, images=SpanImages(root, shards, where[:, 0], where[:, 1], where[:, 2], ids)
    )


class Sample(NamedTuple):
    """One image of a tar shard: its name, where its bytes are, and what is said of it."""

    name: str
    offset: int
    size: int
    labels: dict[str, Any]


def tar_samples(stream: IO[bytes], shard: str, end: int, separator: str) -> list[Sample]:
    """Return the samples of a shard of ``end`` bytes in order; each byte is read at most once."""
    split = SPLIT_WORDS.get(Path(shard).stem.replace("_", "-").split("-")[0].lower())
    stated = {"split": split} if split else {}
    samples = []
    for key, files in _files_of_samples(stream, shard, end).items():
        images = [suffix for suffix in files if Path("x" + suffix).suffix in IMAGE_SUFFIXES]
        label = next((suffix for suffix in LABEL_SUFFIXES if suffix in files), None)
        if len(images) != 1 or label is None:
            raise DataError(
                f"{shard}: sample {key!r} must have one image and a .json, .txt or .cls file, "
                f"got {', '.join(files)}"
            )
        where = f"{shard}, {key}"
        labels = _labels(f"{where}{label}", label, files[label][1], separator)
        if labels is None and ".cls" in files:  # beside it, JSON may be facts of another kind
            labels = _labels(f"{where}.cls", ".cls", files[".cls"][1], separator)
        if labels is None:
            raise DataError(f"{where}{label}: there must be a key 'labels'")
        samples.append(Sample(*files[images[0]][0], stated | labels))
    return samples


SampleFiles = dict[str, tuple[TarMember, bytes]]  # by suffix; the bytes of what says labels


def _files_of_samples(stream: IO[bytes], shard: str, end: int) -> dict[str, SampleFiles]:
    samples: dict[str, SampleFiles] = {}
    for member in tar_members(stream, shard):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, suffix = base.partition(".")
        if not dot or not stem:
            continue
        if member.offset + member.size > end:
            raise DataError(f"{shard}: the shard is cut off in {member.name!r}")
        files = samples.setdefault(folder + slash + stem, {})
        suffix = f".{suffix.lower()}"
        if suffix in files:
            raise DataError(
                f"{shard}: the file {member.name!r} is there twice; "
                "every sample must have a key of its own"
            )
        content = b""
        if suffix in LABEL_SUFFIXES:
            stream.seek(member.offset)
            content = stream.read(member.size)
        files[suffix] = member, content
    return samples


def table_of_samples(
    ids: Sequence[str],
    samples: Sequence[dict[str, Any]],
    names: Sequence[str] | str | Path | None,
    separator: str,
    name: str,
) -> LabelTable:
    """Return the table of what samples say; its images are to be put in.

    A sample's class has a name; among given names it may be a number from 0 on.
    """
    given = label_names(names)
    known = set(given or ())
    for sample_id, sample in zip(ids, samples, strict=True):
        if "class" in sample:
            word = sample.pop("class")
            if given and word not in known and word.isdecimal():
                if int(word) >= len(given):
                    last = len(given) - 1
                    raise DataError(f"{sample_id}: the class must be in 0..{last}, got {word}")
                word = given[int(word)]
            sample["labels"] = [word]
    used = [name for name in SAMPLE_COLUMNS if any(name in sample for sample in samples)]
    meanings: dict[str, Any] = {name: name if name in used else None for name in SAMPLE_COLUMNS}
    meanings |= {"path": "path", "image": None, "labels": "labels"}
    builder = TableBuilder(
        TableColumns(**meanings, one_hot=()), Vocabulary(given), separator=separator
    )
    if samples:
        arrays = [pa.array(ids, pa.large_string())]
        for column in used:
            values = [sample.get(column) for sample in samples]
            if column in ("labels", "unknown"):
                arrays.append(pa.array(values, pa.list_(pa.string())))
            else:
                texts = [None if value is None else str(value) for value in values]
                arrays.append(pa.array(texts, pa.string()))
        builder.add(pa.record_batch(arrays, ["path", *used]), name, 0)
    return builder.finish(Path(), name)


def _labels(where: str, suffix: str, content: bytes, separator: str) -> dict[str, Any] | None:
    """Return what a file says of its image; None if it is JSON that says nothing of labels."""
    try:
        text = content.decode("utf-8-sig").strip()
        if suffix == ".cls":
            return {"class": text}
        if suffix == ".txt":
            return {"labels": text.split(separator)}
        value = json.loads(text)
    except UnicodeDecodeError:
        raise DataError(f"{where}: it is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    sample = value if isinstance(value, dict) else {"labels": value}
    if "labels" not in sample:
        return None
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
