"""Noise, grids of odd cells and good tables after an accident: a reading, or one error of ours.

A night (``make fuzz``) tries 10,000 of them.
"""

import os
import random
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from time import process_time

import pytest
from corpus_runner import FOLDER, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from limited import limited

from labelwise.errors import DataError, LabelwiseError
from labelwise.tables import load
from labelwise.tables.text_files import workbook_as_csv

NIGHT = "LABELWISE_FUZZ_SEED" in os.environ
CELLS = (
    *("1", "0", "", "x", "?", "nan", "dog", "cat|dog", "a,b", '"', "\n", "ü", "1,0", "a.jpg", "'"),
    *("path", "labels", "split", "group", "unknown", "soft", "shares", "reviewed", "image"),
)
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".csv.gz", ".xlsx", ".parquet")


@st.composite
def damaged_tables(draw):
    """Return (suffix, bytes): noise, a grid of odd cells, or a good table after an accident."""
    suffix = draw(st.sampled_from(SUFFIXES))
    kind = draw(st.sampled_from(("noise", "grid", "accident", "accident")))
    if kind == "noise":
        return suffix, draw(st.binary(max_size=300))
    if kind == "grid":
        row = st.lists(st.sampled_from(CELLS), max_size=6)
        return suffix, "\n".join(map(",".join, draw(st.lists(row, max_size=8)))).encode()
    case = draw(st.sampled_from(cases()))
    content = bytearray((FOLDER / case["file"]).read_bytes()[:4000])
    drawn = random.Random(draw(st.integers(0, 1 << 32)))
    for _ in range(draw(st.integers(1, 4))):
        start, size = drawn.randrange(len(content) + 1), drawn.randrange(1, 20)
        part = content[start : start + size]
        content[start : start + size] = drawn.choice(
            (b"", part * 3, drawn.randbytes(3), b'"', b"\n", b",", b"\0", b"\xff", b"\xef\xbb\xbf")
        )
    return draw(st.sampled_from((suffix, Path(case["file"]).suffix))), bytes(content)


@settings(max_examples=10_000 if NIGHT else 150)
@given(damaged_tables())
def test_no_table_ends_in_anything_but_a_reading_or_one_error_of_ours(damaged):
    suffix, content = damaged
    with tempfile.TemporaryDirectory() as folder, limited():
        table = Path(folder, f"t{suffix}")
        table.write_bytes(content)
        read = None
        with suppress(LabelwiseError):
            read = load(table, check_files=False)
        if read is not None:
            assert len(read)
            assert len(read.space)


def test_a_workbook_of_empty_cells_is_not_unfolded_in_memory(tmp_path):
    """A few kB of zip say millions of cells, of 300 bytes each in memory; oracle: the sentence."""
    table = book(tmp_path / "t.xlsx", b"<row>" + b"<c/>" * (1 << 24) + b"</row>")
    with pytest.raises(DataError, match="the workbook is too large; save it as CSV UTF-8"):
        workbook_as_csv(table)


def test_a_workbook_as_wide_as_excel_writes_is_read_in_seconds(tmp_path):
    """16,384 columns whose cells do not say where they are took 10 s a row."""
    table = book(tmp_path / "t.xlsx", b"".join([b"<row>", b"<c><v>1</v></c>" * 16384, b"</row>"]))
    start = process_time()
    assert workbook_as_csv(table) == b",".join([b"1"] * 16384) + b"\r\n"
    assert process_time() - start < 2


def book(path: Path, rows: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as parts:
        parts.writestr("xl/workbook.xml", "<workbook/>")
        parts.writestr("xl/worksheets/sheet1.xml", b"<worksheet>" + rows + b"</worksheet>")
    return path
