"""iNaturalist: the table that its export page writes, beside photos that were downloaded.

A row is one observation: ``id``, ``scientific_name``, ``quality_grade`` and others, as many as were
ticked on that page.
Its photos are the files ``ID.jpg`` or ``ID_1.jpg``, ``ID_2.jpg``, ... beside the table, or under
``root``; nothing is downloaded. The observation says what was seen, not what was not: its species
is present and every other label unknown. Where the community does not agree yet (a grade other than
"research") the species is unknown too, unless ``grades`` names that grade. Photos of one
observation are a group.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labelwise.data.rows import AllBut, from_rows, read_csv_rows
from labelwise.data.table import LabelTable
from labelwise.errors import DataError
from labelwise.pictures.folders import image_files
from labelwise.system.text import counted

NEEDED = ("id", "quality_grade")
GRADES = ("research", "needs_id", "casual")


def read_inaturalist(
    path: Path,
    *,
    root: str | Path | None = None,
    grades: Sequence[str] = ("research",),
    names: str = "scientific_name",
) -> LabelTable:
    """Return the downloaded photos of an export; ``names`` is the column that labels come from."""
    listed = [grades] if isinstance(grades, str) else list(grades)
    for grade in listed:
        if grade not in GRADES:
            raise DataError(f"grades must be of {', '.join(GRADES)}, got {grade!r}")
    folder = Path(root) if root is not None else path.parent
    rows: dict[str, dict[str, str]] = {}
    for place, row in enumerate(read_csv_rows(path, (*NEEDED, names)), 1):
        if row["id"] and rows.setdefault(row["id"], row) is not row:
            raise DataError(f"{path}, row {place}: {row['id']!r} stands there twice; keep one")
    photos: list[str] = []
    group: list[str] = []
    strange: list[str] = []
    for file in image_files(folder):
        number = Path(file).stem.partition("_")[0]
        if number in rows:
            photos.append(file)
            group.append(number)
        else:
            strange.append(file)
    if not photos:
        raise DataError(
            f"{folder}: no photo is named like an observation of {path.name}, such as "
            f"{next(iter(rows), '1')}.jpg; download them, or say where they are with root="
        )
    missing = len(rows) - len(set(group))
    labels = [rows[number][names].strip() for number in group]
    agreed = [rows[number]["quality_grade"] in listed for number in group]
    every = sorted({label for label in labels if label})
    present = [
        [label] if label and sure else [] for label, sure in zip(labels, agreed, strict=True)
    ]
    unknown = [AllBut(own) for own in present]
    found = from_rows(
        (folder, photos), present, name=path.name, names=every, unknown=unknown, group=group
    )
    notes = []
    if missing:
        notes.append(
            f"{missing:,} observations of {path.name} have no photo here and are left out."
        )
    if strange:
        notes.append(
            f"{counted(len(strange), 'photo')} of no observation of {path.name} left out, first "
            f"{strange[0]}."
        )
    return replace(found, notes=(*found.notes, *notes))
