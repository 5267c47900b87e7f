"""A Hugging Face image folder: ``metadata.csv``, ``.jsonl`` or ``.parquet`` with ``file_name``.

Each split may have its own folder with its own metadata file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from labelwise.data.folder import split_folders
from labelwise.data.table import LabelTable
from labelwise.data.tabular import read_files
from labelwise.errors import DataError

__all__ = ["read_huggingface"]

NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def read_huggingface(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    names: Sequence[str] | str | Path | None = None,
    separator: str = "|",
    ignore: Sequence[str] | str = (),
) -> LabelTable:
    """Return the table of a folder with a metadata file, or with one in each split's folder."""
    files: list[tuple[Path, str | None]] = [
        (path / name, None) for name in NAMES if (path / name).is_file()
    ]
    for folder, split in sorted(split_folders(path).items()):
        files += [(path / folder / n, split) for n in NAMES if (path / folder / n).is_file()]
    if not files:
        raise DataError(f"{path}: there must be a metadata.csv, metadata.jsonl or metadata.parquet")
    return read_files(files, columns=columns, names=names, separator=separator, ignore=ignore)
