"""Pascal VOC: the XML of each image, or the ``ImageSets/Main/<class>_<part>.txt`` files.

In ``Main`` a class is 1 (present), -1 (absent) or 0 (only "difficult" objects); in the XML each
object may be difficult. ``difficult`` says what such a label is: "unknown" or "absent" (the choice
of single-positive training). A label with one plain object is present whatever the others are.
"""

from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from labelwise.data.rows import from_rows, read_lines
from labelwise.data.table import LabelTable
from labelwise.errors import DataError, SettingsError

__all__ = ["read_voc"]

PARTS = {"train": "train", "val": "val", "test": "test", "trainval": "train"}
Difficult = Literal["unknown", "absent"]
States = dict[str, dict[str, bool]]  # image: {class: whether there is a plain object}


def read_voc(
    path: Path,
    *,
    parts: dict[str, str] | None = None,
    difficult: Difficult = "unknown",
    annotations: Literal["main", "xml"] = "main",
) -> LabelTable:
    """Return a VOC folder (``JPEGImages``, ``Annotations``, ``ImageSets/Main``).

    ``parts`` maps image sets to splits, for example {"train": "train", "val": "test"}; if it is not
    given, train, val and test are taken as far as they are there.
    """
    if difficult not in ("unknown", "absent"):
        raise SettingsError(f"difficult must be 'unknown' or 'absent', got {difficult!r}")
    if annotations not in ("main", "xml"):
        raise SettingsError(f"annotations must be 'main' or 'xml', got {annotations!r}")
    sets = path / "ImageSets" / "Main"
    chosen = parts or {part: part for part in PARTS if (sets / f"{part}.txt").is_file()}
    if len(chosen) > 1 and parts is None:
        chosen.pop("trainval", None)
    if not chosen:
        raise DataError(f"{path}: a VOC folder must have ImageSets/Main/train.txt or the like")
    names: list[str] = []
    labels, unknown, split, order = [], [], [], []
    for part, target in chosen.items():
        images = [line.split()[0] for line in read_lines(sets / f"{part}.txt")]
        states = _from_xml(path, images) if annotations == "xml" else _from_main(sets, part)
        for image in images:
            state = states.get(image, {})
            labels.append([name for name, plain in state.items() if plain])
            hidden = [name for name, plain in state.items() if not plain]
            unknown.append(hidden if difficult == "unknown" else [])
        order.extend(images)
        split.extend([PARTS.get(target, target)] * len(images))
        names.extend(name for state in states.values() for name in state)
    return from_rows(
        (path, [f"JPEGImages/{image}.jpg" for image in order]),
        labels,
        names=sorted(set(names) | set(_classes(sets))),
        unknown=unknown,
        split=split,
        name=path.name,
    )


def _classes(sets: Path) -> list[str]:
    ends = tuple(f"_{part}" for part in PARTS)
    stems = (file.stem for file in sorted(sets.glob("*_*.txt")))
    return sorted({stem.rsplit("_", 1)[0] for stem in stems if stem.endswith(ends)})


def _from_main(sets: Path, part: str) -> States:
    states: States = {}
    classes = _classes(sets)
    if not classes:
        raise DataError(f"{sets}: there must be files such as dog_{part}.txt")
    for name in classes:
        file = sets / f"{name}_{part}.txt"
        for number, line in enumerate(read_lines(file), 1):
            fields = line.split()
            if len(fields) != 2 or fields[1] not in ("1", "-1", "0"):
                raise DataError(
                    f"{file}, line {number}: must be an image and 1, -1 or 0, got {line!r}"
                )
            if fields[1] != "-1":
                states.setdefault(fields[0], {})[name] = fields[1] == "1"
    return states


def _from_xml(path: Path, images: list[str]) -> States:
    states: States = {}
    for image in images:
        file = path / "Annotations" / f"{image}.xml"
        try:
            objects = ElementTree.fromstring(file.read_bytes()).findall("object")
        except FileNotFoundError:
            raise DataError(f"{file}: the annotation is missing") from None
        except (ElementTree.ParseError, ValueError, LookupError) as error:
            raise DataError(f"{file}: not XML ({error})") from None
        state = states.setdefault(image, {})
        for thing in objects:
            name = (thing.findtext("name") or "").strip()
            if not name:
                raise DataError(f"{file}: every object must have a name")
            plain = (thing.findtext("difficult") or "0").strip() != "1"
            state[name] = state.get(name, False) or plain
    return states
