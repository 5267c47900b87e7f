"""Writing that is whole or not at all, and tensors in safetensors files.

A file is written under a temporary name beside its place, forced to the disk, and renamed; a
killed process or a full disk leaves the old file as it was.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from labelwise.errors import CheckpointError, LabelwiseError

__all__ = ["load_tensors", "part_of", "replacing", "save_tensors", "write_error"]

T = TypeVar("T")

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

REASONS = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EACCES: "no permission to write there; choose another folder",
    errno.EPERM: "no permission to write there; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "part of that path is a file, not a folder",
    errno.EEXIST: "part of that path is a file, not a folder",
}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``: a file, or a folder, to be written by the caller.

    When the block ends well it takes the place of ``path`` in one step; when it does not, it is
    removed. A folder can only take a free place.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _force_to_disk(temporary)
        os.replace(temporary, path)
        _force_to_disk(path.parent)
    except OSError as error:
        _remove(temporary)
        raise write_error(path, error) from error
    except BaseException:
        _remove(temporary)
        raise


def write_error(path: Path, error: OSError) -> LabelwiseError:
    """Return the sentence for a file or folder that could not be written."""
    reason = REASONS.get(error.errno or 0, error.strerror or str(error))
    return LabelwiseError(f"cannot write {path}: {reason}")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to a new safetensors file at ``path``, one after the other.

    The library's own writer holds all of them in memory, hides the file from other users, and
    leaves a second temporary file behind when it is killed.
    """
    header, offset = {}, 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        kind = KINDS[tensor.dtype]
        header[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            plain = tensors[name].detach().cpu().contiguous()
            stream.write(plain.reshape(-1).view(torch.uint8).numpy().data)


def load_tensors(path: Path, part: str | None = None) -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file, on the CPU; of one ``part`` by the rest."""
    try:
        with safe_open(path, "pt") as file:
            names = {name: name for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            chosen = names if part is None else part_of(names, part)
            tensors: dict[str, Tensor] = {
                rest: file.get_tensor(name) for rest, name in chosen.items()
            }
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None
    return tensors


def part_of(named: Mapping[str, T], part: str) -> dict[str, T]:
    """Return what is named ``part.rest``, by the rest."""
    own = part + "."
    return {name.removeprefix(own): one for name, one in named.items() if name.startswith(own)}


def _force_to_disk(path: Path) -> None:
    for inner in path.iterdir() if path.is_dir() else ():
        _force_to_disk(inner)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # what went wrong before is what the user should hear
            path.unlink()
