"""Tiny real images, and a folder that small faithful copies of datasets are written into."""

import io
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image


def jpeg(seed: int = 0, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def states(table) -> list[str]:
    """Return one text per row: 1 present, 0 absent, ? unknown."""
    marks = np.where(table.unknown.dense(), "?", np.where(table.present.dense(), "1", "0"))
    return ["".join(row) for row in marks]


class Folder:
    """Writes text and pictures under a temporary folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self, name: str, content: str | bytes) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def tar(self, name: str, members: dict[str, bytes], mode: Literal["w", "w:gz"] = "w") -> Path:
        with tarfile.open(self.path / name, mode) as tar:
            for member, content in members.items():
                facts = tarfile.TarInfo(member)
                facts.size = len(content)
                tar.addfile(facts, io.BytesIO(content))
        return self.path / name

    def pictures(self, *names: str) -> None:
        for seed, name in enumerate(names):
            self.text(name, jpeg(seed))
