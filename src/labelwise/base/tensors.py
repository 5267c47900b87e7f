"""Named tensors in safetensors files, with the checksum of the whole file in their header."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import is_tensor
from labelwise.base.files import require_regular
from labelwise.errors import CheckpointError

T = TypeVar("T")

if TYPE_CHECKING:
    from torch import Tensor

KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
KINDS |= {
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}

CHECKSUM = "labelwise_sha256"
NO_CHECKSUM = "0" * 64


def save_tensors(path: Path, tensors: "Mapping[str, Tensor | NDArray[Any]]") -> None:
    """Write named tensors, or arrays, to a safetensors file, one after the other.

    The library's own writer holds all of them in memory and hides the file from other users. The
    header holds the SHA-256 of the file with zeros in its place.
    """
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: NO_CHECKSUM}}
    offset = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # aligned
    for name in order:
        tensor = tensors[name]
        end = offset + prod(tensor.shape) * tensor.dtype.itemsize
        kind = KINDS[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(start)
    with open(path, "wb") as stream:
        stream.write(start)
        for name in order:
            data = _bytes_of(tensors[name])
            stream.write(data)
            digest.update(data)
        stream.seek(start.index(NO_CHECKSUM.encode()))
        stream.write(digest.hexdigest().encode())


def _bytes_of(tensor: "Tensor | NDArray[Any]") -> memoryview:
    if not is_tensor(tensor):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def load_tensors(path: Path, part: str | None = None) -> "dict[str, Tensor]":
    """Return the named tensors of a safetensors file, on the CPU.

    With ``part``, only those named ``part.rest``, by the rest. The checksum is checked.
    """
    from safetensors import SafetensorError, safe_open

    try:
        _check_sum(path)
        with safe_open(path, "pt") as file:
            names = {name: name for name in file.keys()}  # noqa: SIM118 (it is not a mapping)
            chosen = names if part is None else part_of(names, part)
            return {rest: file.get_tensor(name) for rest, name in chosen.items()}
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a safetensors file, without that package and without torch."""
    numpy_names = {kind: name for name, kind in KINDS.items() if name != "bfloat16"}
    try:
        _check_sum(path)
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        header.pop("__metadata__", None)
        return {
            name: np.frombuffer(
                content[slice(*(start + at for at in entry["data_offsets"]))],
                numpy_names[entry["dtype"]],
            ).reshape(entry["shape"])
            for name, entry in header.items()
        }
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None


def _check_sum(path: Path) -> None:
    require_regular(path)
    with open(path, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > os.fstat(stream.fileno()).st_size:
            return  # no safetensors file at all
        header = stream.read(size)
        stated = re.search(rb'"%b": "([0-9a-f]{64})"' % CHECKSUM.encode(), header)
        if stated is None:
            return
        unsealed = header.replace(stated[1], NO_CHECKSUM.encode(), 1)
        digest = hashlib.sha256(size.to_bytes(8, "little") + unsealed)
        while data := stream.read(1 << 20):
            digest.update(data)
    if digest.hexdigest().encode() != stated[1]:
        raise CheckpointError(f"{path} is damaged: it is not what was written")


def part_of(named: Mapping[str, T], part: str) -> dict[str, T]:
    """Return what is named ``part.rest``, by the rest."""
    own = f"{part}."
    return {name[len(own) :]: value for name, value in named.items() if name.startswith(own)}
