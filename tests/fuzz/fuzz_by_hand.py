"""Label tables read a second time, by hand: the standard library and the plainest loop.

Each reading returns {image: (present, unknown)}, or None where the form of the file is not the one
it knows: then it has no opinion. ``unknown`` is ALL where nothing is known of an image.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pyarrow as pa
import pyarrow.parquet as pq

ALL = frozenset("*")
State = tuple[frozenset[str], frozenset[str]]
Rows = dict[str, State]


def agrees(table: Any, rows: Rows | None) -> bool:
    """Compare a table with a second reading; return whether there was one."""
    if rows is None:
        return False
    names = table.space.names
    assert list(table.ids) == list(rows), f"{list(table.ids)!r:.200} for {list(rows)!r:.200}"
    for number, (image, (present, unknown)) in enumerate(rows.items()):
        found = {names[k] for k in table.present.row(number)}
        hidden = {names[k] for k in table.unknown.row(number)}
        wanted = set(names) - found if unknown >= ALL else set(unknown)
        assert found == set(present), f"{image!r:.60}: present {found!r:.80}, not {present!r:.80}"
        assert hidden == wanted, f"{image!r:.60}: unknown {hidden!r:.80}, not {wanted!r:.80}"
    return True


def parted(text: str, mark: str = "|") -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(mark)) - {""}


def csv_by_hand(content: bytes, header: list[str]) -> Rows | None:
    try:
        cells = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error):
        return None
    rows = [dict(zip(header, row, strict=False)) for row in cells[1:] if row]
    if not cells or cells[0] != header or any(len(row) != len(header) for row in rows):
        return None
    if "labels" not in header:
        labels = [name for name in header if name not in ("path", "group")]
        words = {"1": 1, "0": 0, "": -1}
        if any(row[name].strip() not in words for row in rows for name in labels):
            return None
        states = [(row["path"], {n: words[row[n].strip()] for n in labels}) for row in rows]
        return {
            path: (
                frozenset(n for n, state in given.items() if state == 1),
                frozenset(n for n, state in given.items() if state == -1),
            )
            for path, given in states
        }
    if any(mark in row["labels"] for row in rows for mark in ",;[") or not any(
        "|" in row["labels"] for row in rows
    ):
        return None  # other marks, or none: which one parts labels is another question
    return {row["path"]: (parted(row["labels"]), parted(row["unknown"])) for row in rows}


def lines_by_hand(content: bytes) -> Rows | None:
    rows: Rows = {}
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        one = json.loads(line.decode("utf-8-sig"))
        lists = one.get("labels"), one.get("unknown")
        if not all(isinstance(each, list) and set(map(type, each)) <= {str} for each in lists):
            return None
        present, unknown = (frozenset(word.strip() for word in each) - {""} for each in lists)
        rows[one["path"]] = present, unknown
    return rows


def parquet_by_hand(content: bytes) -> Rows | None:
    table = pq.read_table(io.BytesIO(content))
    if set(table.column_names) - {"path", "labels", "split", "group"}:
        return None
    lists = table.schema.field("labels").type == pa.list_(pa.string())
    if not lists or table.schema.field("path").type != pa.string():
        return None
    return {
        row["path"]: (frozenset(row["labels"]) - {"", None}, frozenset())
        if row["labels"] is not None
        else (frozenset(), ALL)
        for row in table.to_pylist()
    }


def coco_by_hand(content: bytes) -> Rows | None:
    facts = json.loads(content.decode("utf-8-sig"))
    if any("neg_category_ids" in image for image in facts["images"]):
        return None
    named = {one["id"]: one["name"].strip() for one in facts["categories"]}
    rows: Rows = {}
    for image in facts["images"]:
        found = [n["category_id"] for n in facts["annotations"] if n["image_id"] == image["id"]]
        hidden = image.get("unknown_category_ids", [])
        name = image.get("file_name", "/".join(image.get("coco_url", "").split("/")[-2:]))
        rows[name] = frozenset(map(named.get, found)), frozenset(map(named.get, hidden))  # type: ignore[arg-type]
    return rows


def label_studio_by_hand(content: bytes) -> Rows | None:
    rows: Rows = {}
    for task in json.loads(content.decode("utf-8-sig")):
        image = task["data"].get("image", task["data"].get("img"))
        if any(mark in image for mark in ":?%"):
            return None  # an address, whose path is the name
        done = task.get("annotations", task.get("completions", []))
        done = [one for one in done if not one.get("was_cancelled")]
        chosen: dict[bool, set[str]] = {True: set(), False: set()}
        for result in done[-1].get("result", []) if done else ():
            kind = result.get("type") if isinstance(result, dict) else None
            if isinstance(kind, str) and (kind == "choices" or kind.endswith("labels")):
                chosen[result.get("from_name") == "unknown"].update(result["value"][kind])
        rows[image] = frozenset(chosen[False]), frozenset(chosen[True]) if done else ALL
    return rows


def cvat_by_hand(content: bytes) -> Rows | None:
    if b"<!" in content or b"<?" in content:
        return None
    rows: Rows = {}
    for image in minidom.parseString(content).documentElement.childNodes:
        if image.nodeName != "image":
            continue
        present, unknown = set(), set()
        for tag in image.childNodes:
            if tag.nodeName != "tag":
                if tag.nodeType == tag.ELEMENT_NODE:
                    return None  # perhaps a shape
                continue
            inner = [one for one in tag.childNodes if one.nodeName == "attribute"]
            states = [one.firstChild.data for one in inner if one.getAttribute("name") == "state"]
            label = tag.getAttribute("label").strip()
            if states in (["unknown"], ["predicted"]):
                unknown.add(label)
            elif states != ["absent"]:
                present.add(label)
        rows[image.getAttribute("name")] = frozenset(present), frozenset(unknown)
    return rows


def fiftyone_by_hand(content: bytes) -> Rows | None:
    rows: Rows = {}
    samples = json.loads(content.decode("utf-8-sig"))["samples"]
    if not any("ground_truth" in sample for sample in samples):
        return None
    for sample in samples:
        truth = sample.get("ground_truth")
        hidden = None if truth is None else sample.get("unknown")
        found, unseen = (
            [] if one is None else [each["label"] for each in one.get("classifications", [one])]
            for one in (truth, hidden)
        )
        rows[sample["filepath"]] = frozenset(found), ALL if truth is None else frozenset(unseen)
    return rows


def voc_by_hand(folder: Path) -> Rows | None:
    """Read the class files of ImageSets/Main, one for each part."""
    sets = folder / "ImageSets" / "Main"
    rows: Rows = {}
    for part in ("train", "val"):
        images = [line.split()[0] for line in _lines(sets / f"{part}.txt")]
        said = [line.split() for line in _lines(sets / f"dog_{part}.txt")]
        if any(len(one) != 2 for one in said):
            return None  # then the XML speaks
        states = {image: state for image, state in said}
        if len(states) != len(said):
            return None
        for image in images:
            state = states.get(image, "-1")
            present = frozenset({"dog"} if state == "1" else ())
            rows[f"JPEGImages/{image}.jpg"] = present, frozenset({"dog"} if state == "0" else ())
    return rows


def _lines(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8-sig")
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
