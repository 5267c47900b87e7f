"""Annotation tools: the states of every label are the same after the way there and back.

The files of the tools are written by hand as their documentation shows them.
"""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import jpeg
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.data import FileImages, LabelTable, export_for_tool, load
from labelwise.errors import DataError

NAMES = ("dog", "café & <b>", "never", "a|b, c")
TOOLS = {"label-studio": "t.json", "cvat": "t.xml", "coco": "t.json"}


@pytest.mark.parametrize("tool", TOOLS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    states=st.lists(
        st.lists(st.sampled_from((1, 0, -1)), min_size=4, max_size=4), min_size=1, max_size=4
    ),
    with_split=st.booleans(),
)
def test_the_way_there_and_back(tmp_path, tool, states, with_split):
    array = np.array(states)
    ids = [f"photos/{row}.jpg" for row in range(len(states))]
    (tmp_path / "photos").mkdir(exist_ok=True)
    for name in ids:
        (tmp_path / name).write_bytes(jpeg())
    split = ["train", "val", "test", "train"][: len(states)] if with_split else None
    table = LabelTable.from_arrays(
        NAMES, FileImages(tmp_path, ids), array == 1, array >= 0, split=split
    )
    export_for_tool(table, tmp_path / TOOLS[tool], tool)
    again = load(tmp_path / TOOLS[tool])
    assert again.space.names == NAMES
    assert list(again.ids) == ids
    assert (again.present.dense() == (array == 1)).all()
    assert (again.unknown.dense() == (array == -1)).all()
    assert (None if again.split is None else again.split.tolist()) == split


def test_label_studio_as_it_exports(folder):
    def chosen(*labels):
        value = {"from_name": "choice", "to_name": "image", "type": "choices"}
        return [value | {"value": {"choices": list(labels)}}]

    tasks = [
        {
            "data": {"image": "/data/local-files/?d=a%20b.jpg"},
            "annotations": [{"result": chosen("x", "y")}],
        },
        {"data": {"image": "b.jpg"}, "annotations": [{"result": [], "was_cancelled": False}]},
        {"data": {"image": "c.jpg"}, "annotations": [{"result": [], "was_cancelled": True}]},
        {"data": {"image": "d.jpg"}, "annotations": []},
        {
            "data": {"image": "e.jpg"},
            "annotations": [{"result": chosen("x")}, {"result": chosen("y")}],
        },
    ]
    folder.pictures("a b.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg")
    table = load(folder.text("tasks.json", json.dumps(tasks)))
    assert table.space.names == ("x", "y")
    assert table.ids[0] == "a b.jpg"
    assert table.present.dense().tolist() == [
        [True, True],
        [False, False],
        [False, False],
        [False, False],
        [False, True],
    ]
    assert table.zero_label().tolist() == [False, True, False, False, False]
    assert table.unlabelled().tolist() == [False, False, True, True, False]


def test_cvat_as_it_exports(folder):
    folder.pictures("a.jpg", "b.jpg")
    file = folder.text(
        "annotations.xml",
        '<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version><meta><task>'
        "<labels><label><name>dog</name></label><label><name>cat</name></label></labels></task>"
        '</meta><image id="0" name="a.jpg" subset="Train" width="8" height="6">'
        '<tag label="dog" source="manual"><attribute name="p">0.83</attribute></tag></image>'
        '<image id="1" name="b.jpg" subset="Validation" width="8" height="6"/></annotations>',
    )
    table = load(file)
    assert table.space.names == ("dog", "cat")
    assert table.present.dense().tolist() == [[True, False], [False, False]]
    assert table.split.tolist() == ["train", "val"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.json", '[{"id": 7, "data": {}}]', "task 7: 'data' must name an 'image'"),
        ("t.json", "[3]", "task 1: must be an object with 'data'"),
        (
            "t.json",
            '[{"id": 4, "data": {"image": "a"}, '
            '"annotations": [{"result": [{"type": "choices"}]}]}]',
            "task 4: choices must be a list of names",
        ),
        ("t.xml", "<annotations><image id='3'/></annotations>", "image 3: must have a name"),
        ("t.xml", "<annotations><image", "not XML"),
        ("t.xml", "<other/>", "must begin with <annotations>"),
        ("t.xml", "<annotations/>", "there are no images"),
    ],
)
def test_bad_files_name_the_task(folder, name, content, sentence):
    with pytest.raises(DataError, match=sentence):
        load(folder.text(name, content), check_files=False)


def test_the_command_that_writes_for_a_tool(folder):
    folder.pictures("a.jpg", "b.jpg")
    table = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\n")
    out = folder.path / "tasks.json"
    result = CliRunner().invoke(
        app, ["data", "export", str(table), "--for", "label-studio", "-o", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert [task["data"]["image"] for task in json.loads(out.read_text())] == ["a.jpg", "b.jpg"]
    result = CliRunner().invoke(
        app, ["data", "export", str(table), "--for", "cvat", "-o", str(out)]
    )
    assert "must end in .xml" in str(result.exception)
