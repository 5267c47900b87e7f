"""Tables that people could write: read as they were drawn, or asked about.

Photos, labels, and whether each label is present, absent or unknown are drawn first, and written in
one of many ways. What was drawn is the oracle. A label without any letter is not drawn: "&" between
"|" is read as a separator, which a note says. Nor does one begin with an apostrophe: before "-" it
is a guard against formulas. One table in five is damaged, and has no oracle: it is read or refused.
A night tries 10,000 tables; ``--hypothesis-show-statistics`` says what became of them.
"""

import csv
import gzip
import io

import numpy as np
from damaging import NIGHT, cut
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from limited import limited

from labelwise.errors import LabelwiseError
from labelwise.tables import load

WORDS = (("1", "0"), ("yes", "no"), ("ja", "nein"), ("True", "False"))
NAMES = st.text("abcdefghijkLMNOPäßéłж木 -_'0123456789()&", min_size=1, max_size=12)
LABELS = st.lists(
    NAMES.map(lambda name: " ".join(name.split())).filter(
        lambda name: any(map(str.isalpha, name)) and name[0] != "'"
    ),
    min_size=1,
    max_size=6,
    unique_by=str.casefold,
)


@st.composite
def written_tables(draw):
    """Return names (K,), states (N, K) of 1, 0 and -1 for unknown, the file's name and bytes.

    The states of a damaged table are None.
    """
    names, rows = draw(LABELS), draw(st.integers(1, 30))
    state = st.sampled_from((0, 0, 1, -1))
    states = [[draw(state) for _ in names] for _ in range(rows)]
    present, absent = draw(st.sampled_from(WORDS))
    between, header = draw(st.sampled_from(",;\t")), draw(st.sampled_from(("path", "file_name")))
    lines = [["Photos of 2024"]] if draw(st.integers(0, 20)) == 0 else []
    if draw(st.booleans()):
        lines.append([header, *names])
        marks = {1: present, 0: absent, -1: ""}
        lines += [[f"{n}.jpg", *map(marks.get, row)] for n, row in enumerate(states)]
    else:
        inside = draw(st.sampled_from([mark for mark in "|;," if mark != between]))
        lines.append([header, "labels", "unknown"])
        for n, row in enumerate(states):
            kinds = [[x for x, s in zip(names, row, strict=True) if s == k] for k in (1, -1)]
            lines.append([f"{n}.jpg", *map(inside.join, kinds)])
    text = io.StringIO()
    writer = csv.writer(
        text, delimiter=between, lineterminator=draw(st.sampled_from(("\n", "\r\n")))
    )
    writer.writerows(lines)
    content = text.getvalue().encode(draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16"))))
    name, is_packed = f"table{'.tsv' if between == chr(9) else '.csv'}", draw(st.booleans())
    packed = (f"{name}.gz", gzip.compress(content)) if is_packed else (name, content)
    if draw(st.integers(0, 4)) == 0:
        return names, None, packed[0], cut(draw, packed[1])
    return names, np.array(states), *packed


@settings(
    max_examples=10_000 if NIGHT else 60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(drawn=(["(L)"], np.array([[1]]), "t.csv", b"path,labels,unknown\n0.jpg,(L),\n"))
@given(drawn=written_tables())
def test_a_table_is_read_as_it_was_drawn_or_asked_about(tmp_path, drawn):
    """A label of no cell is left out; so is a column such as "date", if a note names it."""
    names, states, file, content = drawn
    (tmp_path / file).write_bytes(content)
    try:
        with limited():
            table = load(str(tmp_path / file), check_files=False)
            present, unknown = table.present.dense() == 1, table.unknown.dense() == 1
    except LabelwiseError:
        event("asked" if states is not None else "damaged, asked")
        return
    if states is None:
        event("damaged, read")
        return
    columns = [names.index(name) for name in table.space.names]
    assert np.array_equal(np.where(unknown, -1, present.astype(int)), states[:, columns])
    left = [k for k in range(len(names)) if k not in columns]
    silent = [k for k in left if names[k] not in " ".join(table.notes)]
    assert not (states[:, silent] == 1).any()
    event("right")
