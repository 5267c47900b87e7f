"""Good files become bad ones: hypothesis cuts bytes, and puts other values into what they hold."""

import io
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import settings
from hypothesis import strategies as st

NIGHT = "LABELWISE_FUZZ_SEED" in os.environ
EXAMPLES = settings(max_examples=300 if NIGHT else 3, database=None)
NASTY = (
    *("", " ", "*", "|", "-1", "nan", "1e999", "a" * 5000, "../../etc/passwd", "/dev/zero", "\x00"),
    *("\x1b[31mred", "[bold]x[/nothing]", "<script>alert(1)</script>", "=1+1", "\u202eabc", "\n"),
    *("['a', 'b'", "[" * 3000, "!!timestamp 2020-13-45", "&a [*a]", "cafe\u0301"),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(NASTY)
STRANGE = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
COLUMNS = (
    *(pa.array(["a", None]), pa.array([["a", "b"], []]), pa.array([[1.0], [0.5, 2.0]])),
    *(pa.array([[0.25] * 3] * 2, pa.list_(pa.float32(), 3)), pa.array([-2, 4]), pa.nulls(2)),
    *(pa.array([float("nan"), float("inf")]), pa.array([True, False]), pa.array([b"\xff"] * 2)),
    *(pa.array([{"bytes": b"x"}] * 2), pa.array([0, 9], pa.timestamp("us"))),
)
ARRAYS = (
    *(np.float64(0.5), np.zeros((0, 3)), np.zeros((2, 3, 4)), np.full((4, 3), np.nan)),
    *(np.full((4, 3), 1e300), np.zeros((4, 3), np.complex64), np.array(["a", "b", "a"])),
    *(np.array([["a"]], object), np.zeros(3, [("x", "f4")]), np.array(["2020"], "datetime64[D]")),
)


def cut(draw, content):
    """Return bytes with a few of them changed, removed, repeated or cut off."""
    start = draw(st.integers(0, len(content)))
    end = start + draw(st.sampled_from((0, 1, 4, 64, len(content))))
    texts = st.sampled_from([text.encode() for text in NASTY])
    new = draw(st.binary(max_size=4) | texts | st.just(content[start:end] * 50))
    return content[:start] + new + content[end:]


def changed(draw, value):
    """Return plain data with another value in one place."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 5)):
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        key, copy = draw(st.sampled_from(keys)), value.copy()
        copy[key] = changed(draw, value[key])
        return copy
    return draw(STRANGE)


def as_json(draw, content):
    return json.dumps(changed(draw, yaml.safe_load(content))).encode()


def one_line(draw, content):
    lines = content.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    return b"".join([*lines[:at], as_json(draw, lines[at]), b"\n", *lines[at + 1 :]])


def one_column(draw, content):
    table = pq.read_table(io.BytesIO(content))
    name = draw(st.sampled_from([*table.column_names, "split", "group", "unknown", "image"]))
    column = draw(st.sampled_from(COLUMNS)).take([row % 2 for row in range(len(table))])
    at = table.schema.get_field_index(name)
    other = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return parquet(other)


def one_array(draw, content):
    with np.load(io.BytesIO(content)) as opened:
        arrays = dict(opened)
    other = ARRAYS[draw(st.integers(0, len(ARRAYS) - 1))]
    return archive(**arrays | {draw(st.sampled_from([*arrays, "extra"])): other})


INSIDE = {".json": as_json, ".yaml": as_json, ".jsonl": one_line}
INSIDE |= {".parquet": one_column, ".npz": one_array}


def damaged(draw, files, only=None):
    """Return files by name, of which one is damaged: as bytes, or in what it says."""
    name = only or draw(st.sampled_from(sorted(files)))
    inside = INSIDE.get(name[name.rfind(".") :], cut)
    return files | {name: draw(st.sampled_from((cut, inside)))(draw, files[name])}


def parquet(columns, metadata=None):
    buffer = io.BytesIO()
    table = columns if isinstance(columns, pa.Table) else pa.table(columns, metadata=metadata)
    pq.write_table(table, buffer)
    return buffer.getvalue()


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
