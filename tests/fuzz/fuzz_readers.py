"""Target: one reader under attack, with good input for it, the damage, and what must then hold."""

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_inputs import (
    Files,
    damage,
    damage_json,
    damage_json_lines,
    damage_npz,
    damage_parquet,
)

Damage = Callable[[Random, bytes], bytes]
Check = Callable[[Any, Path], bool | None]

BY_SUFFIX: dict[str, Damage] = {
    ".json": damage_json,
    ".jsonl": damage_json_lines,
    ".npz": damage_npz,
    ".parquet": damage_parquet,
}


@dataclass(frozen=True)
class Target:
    """A reader of a folder: ``good`` files, of which one is damaged, and what must then hold.

    ``check`` is given what was read and the folder: it fails where a second reading of the same
    files says something else, and returns False where it has no second reading. ``damage`` is for
    suffixes ("" for the rest) that are damaged in a way of their own.
    """

    name: str
    good: Files | Callable[[], Files]
    read: Callable[[Path], object]
    check: Check = lambda value, folder: False
    damage: dict[str, Damage] = field(default_factory=dict)
    made: Callable[[Random], Files] | None = None  # other files for each draw, not damaged

    def files(self, rng: Random) -> Files:
        """Return the good files, one of them damaged, or files that are made anew."""
        if self.made is not None:
            return self.made(rng)
        files = dict(self.good if isinstance(self.good, dict) else self.good())
        chosen = rng.choice(sorted(files))
        ways = BY_SUFFIX | self.damage
        files[chosen] = ways.get(Path(chosen).suffix, ways.get("", damage))(rng, files[chosen])
        return files


def drawn(name: str, made: Callable[[Random], Files], read: Any, *check: Check) -> Target:
    """Return the target of files that are made for each draw."""
    return Target(name, {}, read, *check, made=made)


def of_file(name: str, file: str, content: bytes, read: Any, *more: Any, **options: Any) -> Target:
    """Return the target of one file, read by ``read(path, *more)``."""
    return Target(name, {file: content}, lambda folder: read(folder / file, *more), **options)


def saved(save: Callable[[Path], object], name: str) -> Callable[[], Files]:
    """Return good files as the project itself writes them: one file, or all of a folder."""
    cache: Files = {}

    def files() -> Files:
        if not cache:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / name
                save(place)
                every = [place] if place.is_file() else sorted(place.rglob("*"))
                for file in every:
                    if file.is_file():
                        cache[file.relative_to(folder).as_posix()] = file.read_bytes()
        return cache

    return files


def parquet(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata or {}), buffer)
    return buffer.getvalue()


def same(found: Any, stated: Any, place: str = "") -> None:
    """Compare plain data: tuples are lists, and a number is the same number however written."""
    if isinstance(found, list | tuple) and isinstance(stated, list | tuple):
        assert len(found) == len(stated), f"{place}: {len(found)} for {len(stated)}"
        for number, pair in enumerate(zip(found, stated, strict=True)):
            same(*pair, f"{place}[{number}]")
    elif isinstance(found, dict) and isinstance(stated, dict):
        for key in stated:
            if key == "format":  # true is 1 as well
                continue
            assert key in found, f"{place}.{key} was left out"
            same(found[key], stated[key], f"{place}.{key}")
    else:
        kinds = isinstance(found, bool) == isinstance(stated, bool)
        assert kinds, f"{place}: {found!r:.60} for {stated!r:.60}"
        assert found == stated, f"{place}: {found!r:.60} for {stated!r:.60}"
