"""How good inputs become bad ones: bytes, JSON trees, Arrow tables and array archives.

Everything is drawn from one ``random.Random``, so that an input is known by its number.
"""

import io
import json
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NASTY_TEXT = (
    *("", " ", "*", "|", "0", "-1", "nan", "1e999", "a" * 5000, "../../etc/passwd", "/dev/zero"),
    *("\x00", "\x1b[31mred", "[bold]x[/nothing]", "<script>alert(1)</script>", "=1+1", "\ud800"),
    *("caf\u00e9", "\u202eabc", "['a', 'b'", "line\nbreak"),
)
NASTY_VALUES = (
    *(*NASTY_TEXT, None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**70, -0.5, 1e308, math.inf),
    *(math.nan, [], {}, [[]], [None], [1, "a"], {"a": 1}),
)


def damage(rng, content):
    """Return the bytes with a few of them changed, removed, repeated or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        start, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 16, 64))
        end, text = start + size, rng.choice(NASTY_TEXT).encode("utf-8", "surrogatepass")
        mark = rng.choice((b"\0", b"\n", b'"', b",", b"\t", b"\xff", b"{"))
        again = data[start:end] * rng.choice((1, 2, 50))
        kinds = ((end, rng.randbytes(size)), (end, b""), (start, again), (start, text))
        stop, new = rng.choice((*kinds, (start + 1, mark), (len(data), b"")))
        data[start:stop] = new
    return bytes(data)


def strange_value(rng):
    """Return something a field does not expect."""
    value = rng.choice(NASTY_VALUES)
    if rng.random() < 0.05:
        for _ in range(rng.choice((5, 50, 2000))):
            value = [value]
    return value


def places_in(node):
    """Yield every place of plain data: what holds it, and its key there."""
    pairs = [*node.items()] if isinstance(node, dict) else enumerate(node)
    for key, child in pairs if isinstance(node, dict | list) else ():
        yield node, key
        yield from places_in(child) if isinstance(child, dict | list) else ()


def strange_json(rng, value):
    """Return plain data with a few places changed: another value, one less, one more."""
    places = [*places_in(value)] if isinstance(value, dict | list) else []
    if not places or rng.random() < 0.03:
        return strange_value(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        node, key = rng.choice(places)
        kind = rng.randrange(5)
        with suppress(LookupError):  # it went before
            if kind == 0:
                del node[key]
            elif kind == 1 and isinstance(node, list):
                node.append(node[key])
            else:
                node[rng.choice(NASTY_TEXT) if kind == 1 else key] = strange_value(rng)
    return value


def as_json(value):
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"[" * 3000


def damage_json(rng, content):
    """Return JSON that is still JSON, or damaged bytes."""
    if rng.random() < 0.3:
        return damage(rng, content)
    return as_json(strange_json(rng, json.loads(content)))


def damage_json_lines(rng, content):
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = damage_json(rng, lines[place])
    return b"\n".join(lines)


def strange_array(rng, rows):
    """Return an Arrow array of some type."""
    kinds = (
        pa.array([rng.choice(("a", "b|a", "", None)) for _ in range(rows)], pa.string()),
        pa.array([rng.choice(([], ["a"], ["a", "b"], None)) for _ in range(rows)]),
        pa.array([rng.choice(([1.0], [0.5, 2.0], [], None)) for _ in range(rows)]),
        pa.array([[0.25] * 3] * rows, pa.list_(pa.float32(), 3)),
        pa.array([rng.randrange(-2, 4) for _ in range(rows)], pa.int64()),
        pa.array([rng.choice((0.0, 1.0, math.nan, math.inf)) for _ in range(rows)]),
        pa.array([rng.random() < 0.5 for _ in range(rows)]),
        pa.array([b"\xff\xd8"] * rows, pa.binary()),
        pa.array([{"bytes": b"x", "path": "a"}] * rows),
        pa.nulls(rows),
        pa.array([rng.randrange(9) for _ in range(rows)], pa.timestamp("us")),
        pa.array(["a"] * rows).dictionary_encode(),
    )
    return rng.choice(kinds)


def damage_parquet(rng, content):
    """Return a Parquet file with other columns or metadata, or damaged bytes."""
    if rng.random() < 0.3:
        return damage(rng, content)
    table = pq.read_table(io.BytesIO(content))
    metadata, strange = dict(table.schema.metadata or {}), strange_array(rng, table.num_rows)
    place, kind = rng.randrange(table.num_columns), rng.randrange(4)
    if kind == 0:
        table = table.remove_column(place)
    elif kind == 1:
        table = table.set_column(place, table.column_names[place], strange)
    elif kind == 2:
        name = rng.choice([*table.column_names, "split", "group", "unknown", "image"])
        table = table.append_column(name, strange)
    for key in list(metadata):
        if key != b"ARROW:schema" and rng.random() < (0.8 if kind == 3 else 0.1):
            metadata[key] = damage_json(rng, metadata[key])
    return parquet(table, metadata)


def damage_npz(rng, content):
    """Return an archive with another array in it, or damaged bytes."""
    if rng.random() < 0.3:
        return damage(rng, content)
    with np.load(io.BytesIO(content)) as opened:
        arrays = {name: opened[name] for name in opened.files}
    name = rng.choice([*arrays, "file", "extra"])
    kinds = (
        *(np.float64(0.5), np.zeros((0, 3)), np.zeros((2, 3, 4)), np.full((4, 3), np.nan)),
        *(np.full((4, 3), 1e300), np.zeros((4, 3), np.complex64), np.array(["a", "b", "a"])),
        *(np.array([b"a", b"b"]), np.array([["a"]], object), np.zeros(3, [("x", "f4")])),
        *(np.array(["2020-01-01"], "datetime64[D]"), np.arange(12).reshape(4, 3)),
    )
    arrays[name] = rng.choice(kinds)
    if rng.random() < 0.2:
        arrays.pop(rng.choice(list(arrays)))
    return archive(**{key: value for key, value in arrays.items() if key != "file"})


BY_SUFFIX = {".json": damage_json, ".jsonl": damage_json_lines}
BY_SUFFIX |= {".npz": damage_npz, ".parquet": damage_parquet}


class UnreadError(Exception):
    """Raised by a check that has no second reading of these files."""


def unread(value, folder):
    raise UnreadError


@dataclass(frozen=True)
class Target:
    """A reader of a folder: ``good`` files, of which one is damaged, and what must then hold.

    ``check`` is given what was read and the folder: it fails where a second reading of the same
    files says something else. ``damage`` is for suffixes ("" for the rest) that are damaged in a
    way of their own; ``made`` returns other files for each draw instead.
    """

    name: str
    good: Any
    read: Callable[[Path], object]
    check: Callable[[Any, Path], None] = unread
    damage: dict[str, Callable[[Random, bytes], bytes]] = field(default_factory=dict)
    made: Callable[[Random], dict[str, bytes]] | None = None

    def files(self, rng):
        """Return the good files, one of them damaged, or files that are made anew."""
        if self.made is not None:
            return self.made(rng)
        files = self.good if isinstance(self.good, dict) else self.good()
        chosen, ways = rng.choice(sorted(files)), BY_SUFFIX | self.damage
        way = ways.get(Path(chosen).suffix, ways.get("", damage))
        return files | {chosen: way(rng, files[chosen])}


def drawn(name, made, read, *check):
    """Return the target of files that are made for each draw."""
    return Target(name, {}, read, *check, made=made)


def of_file(name, file, content, read, *more, **options):
    """Return the target of one file, read by ``read(path, *more)``."""
    return Target(name, {file: content}, lambda folder: read(folder / file, *more), **options)


def saved(save, name):
    """Return good files as the project itself writes them, once: one file, or all of a folder."""

    @cache
    def files():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / name
            save(place)
            every = [place] if place.is_file() else sorted(place.rglob("*"))
            kept = [file for file in every if file.is_file()]
            return {file.relative_to(folder).as_posix(): file.read_bytes() for file in kept}

    return files


def parquet(columns, metadata=None):
    buffer = io.BytesIO()
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata or {}), buffer)
    return buffer.getvalue()


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def same(found, stated, place=""):
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
