"""Whatever the bytes of a table are, only a labelwise error may come out, in one line."""

import io
import json
import tarfile
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sample_pictures import jpeg

from labelwise.data import load
from labelwise.errors import DataError, LabelwiseError

QUIET = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DAMAGE = st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=3)), min_size=1, max_size=4)


def shard():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in (("a.jpg", jpeg()), ("a.json", b'{"labels": ["x"]}')):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def parquet():
    buffer = io.BytesIO()
    pq.write_table(pa.table({"path": ["a.jpg"], "labels": [["x", "y"]], "split": ["val"]}), buffer)
    return buffer.getvalue()


COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "categories": [{"id": 3, "name": "x"}],
    "annotations": [{"image_id": 1, "category_id": 3}],
}
GOOD = {
    "t.csv": b'path,labels,unknown,split\na.jpg,x|y,z,train\n"b.jpg",,*,val\n',
    "t.tsv": b"path\tx\ty\na.jpg\t1\t\nb.jpg\t0\t1\n",
    "t.jsonl": b'{"path": "a.jpg", "labels": ["x"]}\n{"path": "b.jpg", "labels": []}\n',
    "t.json": json.dumps(COCO).encode(),
    "t.parquet": parquet(),
    "t.tar": shard(),
}


@pytest.mark.parametrize("name", GOOD)
@QUIET
@given(damage=DAMAGE)
@example(damage=[(0, b"")])
def test_damaged_files(tmp_path, name, damage):
    content = bytearray(GOOD[name])
    for place, new in damage:
        start = place % len(content)
        content[start : start + 2] = new
    (tmp_path / name).write_bytes(bytes(content))
    with suppress(LabelwiseError):
        load(tmp_path / name, check_files=False)


@pytest.mark.parametrize("wrong", [0x11, 0x1E])
def test_any_byte_of_a_parquet_file_may_be_wrong(tmp_path, wrong):
    good = parquet()  # Arrow aborts the process where it is asked for broken sizes of columns
    for place in range(len(good)):
        content = bytearray(good)
        content[place] = wrong
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


CELL = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    CELL,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)
KEYS = st.sampled_from(["path", "labels", "unknown", "split", "group", "image", "x"])


@QUIET
@given(st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=3))
def test_any_json_lines(tmp_path, rows):
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with suppress(LabelwiseError):
        load(path, check_files=False)


@QUIET
@given(
    st.fixed_dictionaries(
        {
            key: JSON
            | st.lists(
                st.fixed_dictionaries(
                    {
                        "id": JSON,
                        "name": JSON,
                        "file_name": JSON,
                        "image_id": JSON,
                        "category_id": JSON,
                    }
                ),
                max_size=2,
            )
            for key in COCO
        }
    )
    | JSON
)
def test_any_coco_json(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    with suppress(LabelwiseError):
        load(path, check_files=False)


@QUIET
@given(st.binary(max_size=200), st.sampled_from(sorted(GOOD)))
def test_any_bytes(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    with suppress(LabelwiseError):
        load(tmp_path / name, check_files=False)


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


@QUIET
@given(st.text(max_size=80))
def test_any_voc(tmp_path, text):
    for name in ("ImageSets/Main/train.txt", "ImageSets/Main/dog_train.txt", "Annotations/a.xml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\n")
    (tmp_path / "ImageSets/Main/dog_train.txt").write_bytes(text.encode())
    (tmp_path / "Annotations/a.xml").write_bytes(b"<annotation>" + text.encode())
    for annotations in ("main", "xml"):
        with suppress(LabelwiseError):
            load(tmp_path, format="voc", annotations=annotations, check_files=False)
