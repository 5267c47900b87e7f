"""Names of strangers that a spreadsheet would run: no cell is a formula, and no name is lost.

Oracles: the module ``csv``, which knows nothing of apostrophes, and the names that were given.
"""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from typed import must_run

from labelwise.answers.agreement import write_table
from labelwise.data import LabelTable, load
from labelwise.data.camera_results import cut_crops, read_camera_results, with_classes
from labelwise.data.export import export
from labelwise.data.rows import read_csv_rows
from labelwise.pictures.sources import FileImages
from labelwise.scores.embeddings import Texts, read_prompts
from labelwise.system.table_files import write_csv
from labelwise.taxonomy import Taxonomy

FORMULAS = ["=1+1", "=cmd|' /C calc'!A0", "-beach", "+33", "@SUM(A1)", "'=quoted", "''=twice"]
NAMES = [*(name for name in FORMULAS if "|" not in name), "'tis", "''", "dog"]


def cells_of(path):
    """Return all cells of a table, none of which may be a formula."""
    mark = "\t" if path.suffix == ".tsv" else ","
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream, delimiter=mark))
    assert not [cell for row in rows for cell in row if cell[:1] in tuple("=+-@\t\r")]
    return rows


@pytest.mark.parametrize("silent", [False, True], ids=["lists", "columns"])
@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
def test_a_label_table_is_read_as_it_was_made(tmp_path, name, silent):
    photos = [f"{one.replace('/', '')}.png" for one in NAMES]
    labels = np.eye(len(NAMES), dtype=np.uint8)
    labels[:, 1] = 1
    labels[:, 0] = labels[:, 0] * (not silent)
    table = LabelTable.from_arrays(
        NAMES, FileImages(tmp_path, photos), labels, group=NAMES, name="strange"
    )
    export(table, tmp_path / name)
    assert (len(cells_of(tmp_path / name)[0]) > len(NAMES)) == silent
    back = load(str(tmp_path / name), check_files=False)
    assert list(back.ids) == photos
    assert list(back.group) == NAMES
    order = [back.space.names.index(one) for one in NAMES]
    assert np.array_equal(back.targets()[0][:, order], labels)


def test_answers_of_the_labelling_page_and_texts_of_labels(tmp_path):
    answers = {f"/photos/{row}.png": {name: row == 1} for row, name in enumerate(FORMULAS)}
    write_table(tmp_path / "answers.csv", FORMULAS, answers, None)
    cells_of(tmp_path / "answers.csv")
    assert load(str(tmp_path / "answers.csv"), check_files=False).space.names == tuple(FORMULAS)
    pairs = tuple((name, f"{name} in a photo") for name in FORMULAS)
    texts = Texts(tuple(FORMULAS), np.eye(len(FORMULAS), dtype=np.float32), pairs, None, None)
    write_csv(tmp_path / "prompts.csv", ["label", "prompt"], texts.prompts)
    cells_of(tmp_path / "prompts.csv")
    assert [(label, text) for _, label, text in read_prompts(tmp_path / "prompts.csv")] == [*pairs]


def test_keywords_in_photos_of_strangers(tmp_path):
    child, parent = "=1+1", "@SUM(A1)"
    packet = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf'
        '-syntax-ns#"><rdf:Description xmlns:lr="http://ns.adobe.com/lightroom/1.0/">'
        f"<lr:hierarchicalSubject><rdf:Bag><rdf:li>{parent}|{child}</rdf:li></rdf:Bag>"
        "</lr:hierarchicalSubject></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "a.xmp").write_text(packet)
    table, above = tmp_path / "table.csv", tmp_path / "above.csv"
    must_run("data", "keywords", tmp_path / "photos", "-o", table, "--taxonomy", above)
    cells_of(table)
    assert cells_of(above)[1] == ["'=1+1", "'@SUM(A1)"]
    assert Taxonomy.read(above).parents == {child: parent}
    assert child in load(str(table), check_files=False).space.names


def test_crops_of_photos_of_strangers(tmp_path):
    name = "=1+1.png"
    Image.new("RGB", (20, 10)).save(tmp_path / name)
    found = {"category": "1", "conf": 0.9, "bbox": [0.1, 0.1, 0.5, 0.5]}
    content = {
        "info": {"format_version": "1.3"},
        "detection_categories": {"1": "@animal"},
        "images": [{"file": name, "detections": [found]}],
    }
    (tmp_path / "results.json").write_text(json.dumps(content))
    results = read_camera_results(tmp_path / "results.json")
    assert cut_crops(results, tmp_path, tmp_path / "out") == 1
    crops = tmp_path / "out" / "crops.csv"
    cells_of(crops)
    (row,) = read_csv_rows(crops, ("path", "image", "detection"))
    _, given = with_classes(content, [row], {row["path"]: {"fox": 0.5}})
    assert given == 1
