"""Bytes and names that broke a reader once; ``tests/fuzz`` damages every format at random."""

import io
import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from labelwise.data import load
from labelwise.errors import DataError, LabelwiseError

QUIET = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "categories": [{"id": 3, "name": "x"}],
    "annotations": [{"image_id": 1, "category_id": 3}],
}


def parquet():
    buffer = io.BytesIO()
    pq.write_table(pa.table({"path": ["a.jpg"], "labels": [["x", "y"]], "split": ["val"]}), buffer)
    return buffer.getvalue()


def test_any_byte_of_a_parquet_file_may_be_wrong(tmp_path):
    good = parquet()  # Arrow aborts the process where it is asked for broken sizes of columns
    for place in range(0, len(good), 3):
        content = bytearray(good)
        content[place] = (0x11, 0x1E)[place % 2]
        (tmp_path / "t.parquet").write_bytes(content)
        with suppress(LabelwiseError):
            load(tmp_path / "t.parquet", check_files=False)


def test_broken_unicode_is_named(tmp_path):
    surrogate = "\\ud800"
    for name, content in (
        ("t.jsonl", f'{{"path": "a{surrogate}.jpg", "labels": ["x"]}}'),
        ("t.json", json.dumps(COCO).replace("a.jpg", f"a{surrogate}.jpg")),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=name):
            load(tmp_path / name, check_files=False)
    column = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"path": ["a.jpg"], "labels": column}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet"):
        load(tmp_path / "t.parquet", check_files=False)


@QUIET
@given(st.text(st.characters(exclude_characters="/.~"), max_size=40))
@example("\0")
@example("a" * 5000)
@example("train=;test=")
@example("coco:")
def test_any_source(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    if source not in ("scenes", "posterior"):
        with pytest.raises(LabelwiseError):
            load(source, check_files=False)
