"""Target: one reader under attack, with good input for it, the damage, and what must then hold."""

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_inputs import Files, damage, damage_json

Damage = Callable[[Random, bytes], bytes]
Check = Callable[[Any, Path], bool | None]

JSON: dict[str, Damage] = {".json": damage_json}


@dataclass(frozen=True)
class Target:
    """A reader of a folder: ``good`` files, how each kind is damaged, and what must then hold.

    ``check`` is given what was read and the folder: it fails where a second reading of the same
    files says something else, and returns False where it has no second reading.
    """

    name: str
    good: Callable[[], Files]
    read: Callable[[Path], object]
    damage: dict[str, Damage]  # by suffix, "" for the rest
    check: Check = lambda value, folder: False
    made: Callable[[Random], Files] | None = None  # other good files for each draw, not damaged

    def files(self, rng: Random) -> Files:
        """Return the good files, one of them damaged, or files that are made anew."""
        if self.made is not None:
            return self.made(rng)
        files = dict(self.good())
        chosen = rng.choice(sorted(files))
        change = self.damage.get(Path(chosen).suffix, self.damage.get("", damage))
        files[chosen] = change(rng, files[chosen])
        return files


def one(name: str, content: bytes) -> Callable[[], Files]:
    return lambda: {name: content}


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
