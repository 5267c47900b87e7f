"""Annotation tools: labels there and back, in files as the tools' documentation shows them."""

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_pictures import Folder, states
from search_setup import picture, save_model
from typed import must_run, refused

from labelwise.contrib.annotation_tools import TOOLS, Guesses, export_for_tool
from labelwise.errors import DataError
from labelwise.pictures import FileImages
from labelwise.tables import LabelTable, load

NAMES = ("dog", "café & <b>", "never", "a|b, c")
FILES = {"voc": "voc", "huggingface": "metadata.jsonl", "fiftyone": "samples.json"}


def written(table, folder, tool, guesses=None):
    """Return where the table was written for a tool; VOC gets a new folder each time."""
    name = FILES.get(tool, f"t{TOOLS[tool][0]}")
    if tool == "voc":
        name = f"voc-{len(list(folder.iterdir()))}"
    export_for_tool(table, folder / name, tool, guesses)
    return folder / name


def photos(folder, ids, rows, names=NAMES, **columns):
    """Return a table of photos that are there, of rows of 1, 0 and -1."""
    Folder(folder).pictures(*ids)
    given_ = np.array(rows)
    images = FileImages(folder, ids)
    return LabelTable.from_arrays(names, images, given_ == 1, given_ >= 0, **columns)


def states_of(table):
    """Return {id: {label: 1, 0 or ?}}, ids as they are without folders."""
    ids = (name.replace("JPEGImages/", "").replace("/", "_") for name in table.ids)
    rows = (dict(zip(table.space.names, row, strict=True)) for row in states(table))
    return dict(zip(ids, rows, strict=True))


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(*[st.sampled_from((1, 0, -1))] * 4), min_size=1, max_size=4),
    with_split=st.booleans(),
)
def test_the_way_there_and_back(tmp_path, tool, rows, with_split):
    ids = [f"photos/{row}.jpg" for row in range(len(rows))]
    split = ["train", "val", "test", "train"][: len(rows)] if with_split else None
    table = photos(tmp_path, ids, rows, split=split)
    again = load(written(table, tmp_path, tool))
    in_order = sorted if tool == "huggingface" else list  # its lists of names have no order
    assert in_order(again.space.names) == in_order(NAMES)
    assert states_of(again) == states_of(table)
    where = {name.split("_")[-1].split("/")[-1]: row for row, name in enumerate(again.ids)}
    order = [where[f"{row}.jpg"] for row in range(len(rows))]
    assert (None if again.split is None else again.split[order].tolist()) == split
    if tool != "voc":  # whose photos are called by their set
        assert list(again.ids) == ids


@pytest.mark.parametrize("tool", TOOLS)
def test_predictions_are_no_labels(tmp_path, tool):
    rows = [[-1, -1, -1, -1], [1, 0, -1, 0], [0, 0, 0, 0]]
    table = photos(tmp_path, ["0.jpg", "1.jpg", "2.jpg"], rows)
    probs = np.array([[0.9, 0.2, 0.8, 0.1], [0.0, 0.7, 0.6, 0.0], [0.9, 0.0, 0.0, 0.0]])
    guesses = Guesses(probs, probs > 0.5, "first")
    if not TOOLS[tool][2]:
        with pytest.raises(DataError, match=f"{tool} has no place for predictions"):
            written(table, tmp_path, tool, guesses)
        return
    file = written(table, tmp_path, tool, guesses)
    assert states_of(load(file)) == states_of(table)
    if tool == "cvat":
        tag = r'label="([^"]+)" source="auto".*?confidence">(0.[0-9])'
        assert re.findall(tag, file.read_text(), re.S) == [
            ("dog", "0.9"),
            ("never", "0.8"),
            ("never", "0.6"),
        ]
        return
    content = json.loads(file.read_text())
    if tool == "fiftyone":
        made = []
        for one in content["samples"]:
            listed = one["predictions"]["classifications"]
            made.append([(c["label"], c["confidence"], c.get("eval")) for c in listed])
        assert made[0] == [("dog", 0.9, None), ("never", 0.8, None)]
        assert made[1:] == [[(NAMES[1], 0.7, "fp"), ("never", 0.6, None)], [("dog", 0.9, "fp")]]
        kinds = ("tp", "fp", "fn")
        counts = [[one[f"eval_{kind}"] for kind in kinds] for one in content["samples"]]
        assert counts == [[0, 0, 0], [0, 1, 1], [0, 1, 0]]
        (own,) = content["samples"][1]["ground_truth"]["classifications"]
        assert (own["label"], own["eval"]) == ("dog", "fn")
        return
    made = [task["predictions"][0] for task in content]
    assert [one["model_version"] for one in made] == ["first"] * 3
    assert made[0]["score"] == pytest.approx(0.9 * 0.8 * 0.8 * 0.9)
    listed = [[r["value"]["choices"] for r in one["result"]] for one in made]
    assert listed == [[["dog", "never"]], [["never"]], []]


def test_fiftyone_as_it_exports(folder):
    def classified(*labels):
        listed = [{"_id": {"$oid": "1"}, "_cls": "Classification", "label": n} for n in labels]
        return {"_cls": "Classifications", "classifications": listed}

    one = {"_cls": "Classification", "label": "y"}
    samples = [
        {"filepath": "a.jpg", "tags": ["validation"], "scene": classified("x", "y")},
        {"filepath": "b.jpg", "tags": ["train"], "scene": classified()},
        {"filepath": "c.jpg", "tags": ["train"], "scene": None},
        {"filepath": "d.jpg", "tags": ["z", "train"], "scene": one, "predictions": classified("x")},
    ]
    folder.pictures("a.jpg", "b.jpg", "c.jpg", "d.jpg")
    folder.text("metadata.json", json.dumps({"classes": {"scene": ["x", "y", "z"]}}))
    folder.text("samples.json", json.dumps({"samples": samples}))
    table = load(folder.path)
    assert (table.space.names, states(table)) == (("x", "y", "z"), ["110", "000", "???", "010"])
    assert table.split.tolist() == ["val", "train", "train", "train"]
    samples[0]["weather"] = classified("sun")
    folder.text("samples.json", json.dumps({"samples": samples}))
    with pytest.raises(DataError, match=r"which field holds the labels.*scene, weather"):
        load(folder.path)
    assert load(folder.path, field="weather").space.names == ("sun",)


def test_label_studio_as_it_exports(folder):
    def done(*labels, **more):
        value = {"from_name": "choice", "to_name": "image", "type": "choices"}
        return {"result": [value | {"value": {"choices": list(labels)}}] if labels else []} | more

    tasks = {
        "/data/local-files/?d=a%20b.jpg": [done("x", "y")],
        "b.jpg": [done(was_cancelled=False)],
        "c.jpg": [done(was_cancelled=True)],
        "d.jpg": [],
        "e.jpg": [done("x"), done("y")],
    }
    folder.pictures("a b.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg")
    listed = [{"data": {"image": image}, "annotations": made} for image, made in tasks.items()]
    table = load(folder.text("tasks.json", json.dumps(listed)))
    assert (table.space.names, table.ids[0]) == (("x", "y"), "a b.jpg")
    assert states(table) == ["11", "00", "??", "??", "01"]


def task(number, result, **more):
    """Return a Label Studio file of one task."""
    facts = {"id": number, "data": {"image": "a.jpg"}, "annotations": [{"result": result}]}
    return json.dumps([facts | more])


def choices(name, field="labels"):
    return [{"from_name": field, "type": "choices", "value": {"choices": [name]}}]


def cvat(tags):
    """Return a CVAT file of one image and the label dog."""
    labels = "<meta><task><labels><label><name>dog</name></label></labels></task></meta>"
    return f'<annotations>{labels}<image id="3" name="a.jpg">{tags}</image></annotations>'


def coco(unknown=(), annotations=(), categories=(2,)):
    """Return a COCO file of one image."""
    image = {"id": 1, "file_name": "a.jpg", "unknown_category_ids": list(unknown)}
    named = [{"id": number, "name": f"c{n}"} for n, number in enumerate(categories)]
    return json.dumps({"images": [image], "categories": named, "annotations": list(annotations)})


def fiftyone(value):
    """Return a FiftyOne file of two samples, of which the second has this ground truth."""
    return json.dumps({"samples": [{"filepath": "a"}, {"filepath": "b", "ground_truth": value}]})


VOC = "<annotation><object><name>dog</name><difficult>q</difficult></object></annotation>"
LABELLED = {"labels": ["dog"]}
PERHAPS = '<tag label="dog"><attribute name="state">perhaps</attribute></tag>'
BOTH = coco(unknown=[2], annotations=[{"image_id": 1, "category_id": 2}])
ROWS = '{"file_name": "a", "labels": ["x"]}\n{"file_name": "", "labels": []}\n'


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.json", '[{"id": 7, "data": {}}]', "task 7: 'data' must name an 'image'"),
        ("t.json", "[3]", "'0': input should be an object, got 3"),
        (
            "t.json",
            '[{"id": 7, "data": {"image": "http://["}}]',
            "must be a path or an address",
        ),
        ("t.json", task(4, [{"type": "choices"}]), "task 4: choices must be a list of names"),
        (
            "t.json",
            task(9, choices("dgo"), meta=LABELLED),
            "a.jpg: unknown label 'dgo'; did",
        ),
        (
            "t.json",
            task(9, choices("dog") + choices("dog", "unknown")),
            "a.jpg: .* both present",
        ),
        ("samples.json", '{"samples": []}', "there are no samples"),
        ("samples.json", '{"samples": [{"id": 1}]}', "sample 1: must be .* with a 'filepath'"),
        ("samples.json", fiftyone(3), "sample 2: labels must be Classifications"),
        ("samples.json", fiftyone({"classifications": [{}]}), "sample 2: .* with 'label', got"),
        (
            "samples.json",
            '{"samples": [{"filepath": "a"}], "classes": "dog"}',
            "'classes': .* valid array",
        ),
        ("metadata.jsonl", ROWS, "metadata.jsonl.*2"),
        ("t.xml", "<annotations><image id='3'/></annotations>", "image 3: must have a name"),
        ("t.xml", "<annotations><image", "not XML"),
        ("t.xml", "<other/>", "must begin with <annotations>"),
        ("t.xml", "<annotations/>", "there are no images"),
        ("t.xml", cvat(PERHAPS), "image 3: every tag .* its state .* got 'dog' and 'perhaps'"),
        ("c.json", coco(unknown=[9]), "name images and categories of the file by their ids, got 9"),
        ("c.json", BOTH, "a.jpg: 'c0' cannot be both present and unknown"),
        ("Annotations/a.xml", "<other/>", "a.xml: must begin with <annotation>, got <other>"),
        ("Annotations/a.xml", VOC, "'dog' must be 0 or 1, got 'q'"),
    ],
)
def test_bad_files_name_the_task(folder, name, content, sentence):
    file = folder.text(name, content)
    place = file.parent.parent if file.parent.name == "Annotations" else file
    with pytest.raises(DataError, match=sentence):
        load(place, check_files=False)


def test_the_command_that_writes_for_a_tool(folder):
    folder.pictures("a.jpg", "b.jpg")
    table = folder.text("t.csv", "path,labels\na.jpg,x\nb.jpg,y\n")
    out = folder.path / "tasks.json"
    result = must_run("data", "convert", table, "--for", "label-studio", "-o", out)
    shown = [task["data"]["image"] for task in json.loads(out.read_text())]
    assert shown == ["/data/local-files/?d=a.jpg", "/data/local-files/?d=b.jpg"]
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={folder.path}" in result.output
    assert "must end in .xml" in refused("data", "convert", table, "--for", "cvat", "-o", out)


def test_photos_that_a_format_cannot_name_are_refused(tmp_path):
    for ids in (["a b.jpg"], ["in/c.jpg", "in_c.jpg"]):
        table = photos(tmp_path, ids, [[0]] * len(ids), ("x",))
        with pytest.raises(DataError, match="VOC knows photos by their names"):
            export_for_tool(table, tmp_path / "voc", "voc")
    table = photos(tmp_path, ["c.jpg"], [[1]], ("x",))
    with pytest.raises(DataError, match="lie in or below it"):
        export_for_tool(table, tmp_path / "in" / "metadata.jsonl", "huggingface")
    export_for_tool(table, tmp_path / "voc", "voc")
    with pytest.raises(DataError, match="is there already"):
        export_for_tool(table, tmp_path / "voc", "voc")


def test_a_model_gives_a_tool_what_to_begin_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model")
    for seed in range(3):
        picture(tmp_path / "photos" / f"{seed}.png", seed)
    must_run(
        "data",
        "review",
        "--find",
        "next",
        "photos",
        "-m",
        "model",
        "--for",
        "label-studio",
        "-o",
        "tasks.json",
    )
    assert load("tasks.json").unlabelled().all()
    words = ("data", "convert", "tasks.json", "-m", "model")
    must_run(*words, "--for", "fiftyone", "-o", "samples.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    made = [task["predictions"][0]["result"] for task in tasks]
    samples = json.loads((tmp_path / "samples.json").read_text())["samples"]
    assert any(made)
    for one, sample in zip(made, samples, strict=True):
        listed = sample["predictions"]["classifications"]
        assert {n for r in one for n in r["value"]["choices"]} == {c["label"] for c in listed}
    assert "it is for annotation tools" in refused(*words, "-o", "t.csv")
