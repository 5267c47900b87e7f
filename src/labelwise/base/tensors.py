"""Named tensors in safetensors files, with the checksum of the whole file in their header."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from labelwise.base.files import require_regular
from labelwise.errors import CheckpointError

T = TypeVar("T")

KINDS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
KINDS |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"}
KINDS |= {torch.uint8: "U8", torch.bool: "BOOL"}

CHECKSUM = "labelwise_sha256"
NO_CHECKSUM = "0" * 64


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to a safetensors file, one after the other.

    The library's own writer holds all of them in memory and hides the file from other users. The
    header holds the SHA-256 of the file with zeros in its place.
    """
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: NO_CHECKSUM}}
    offset = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        kind = KINDS[tensor.dtype]
        header[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(start)
    with open(path, "wb") as stream:
        stream.write(start)
        for name in order:
            plain = tensors[name].detach().cpu().contiguous()
            data = plain.reshape(-1).view(torch.uint8).numpy().data
            stream.write(data)
            digest.update(data)
        stream.seek(start.index(NO_CHECKSUM.encode()))
        stream.write(digest.hexdigest().encode())


def load_tensors(path: Path, part: str | None = None) -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file, on the CPU.

    With ``part``, only those named ``part.rest``, by the rest. The checksum is checked.
    """
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
