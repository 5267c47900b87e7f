"""Noise, grids of odd cells and good tables after an accident: a reading, or one error of ours.

A night (``make fuzz``) tries 10,000 of them.
"""

import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path

from corpus_runner import FOLDER, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from limited import limited

from labelwise.errors import LabelwiseError
from labelwise.tables import load

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
