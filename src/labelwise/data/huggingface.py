"""A Hugging Face dataset folder: images beside a metadata file, or Parquet shards that hold them.

    metadata.csv, .jsonl or .parquet     names the image files in ``file_name``
    train-00000-of-00002.parquet, ...    the images themselves; also in the folder data

Each split may have its own folder; a shard's split is in its name, or in a column.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from labelwise.data.folder import split_folders
from labelwise.data.gather import SPLIT_WORDS
from labelwise.data.table import LabelTable
from labelwise.data.tabular import read_files
from labelwise.errors import DataError

__all__ = ["MARKS", "read_huggingface"]

MARKS = ("metadata.*", "*/metadata.*", "*.parquet", "data/*.parquet", "train/*.parquet")
NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


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
    files = [(at / name, split) for at, split in folders for name in NAMES if (at / name).is_file()]
    if not files:
        files = [
            (shard, split or _split_of(shard))
            for at, split in folders
            for shard in sorted(at.glob("*.parquet"))
        ]
    if not files:
        raise DataError(
            f"{path}: there must be a metadata.csv, metadata.jsonl or metadata.parquet, "
            "or Parquet files such as train-00000-of-00001.parquet"
        )
    return read_files(
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
