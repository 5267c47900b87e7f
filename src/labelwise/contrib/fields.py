"""Sets of two fields in the folders that their authors publish: chest X-rays, satellite images.

CheXpert and MIMIC-CXR state each of 14 findings as 1 (present), 0 (absent), -1 (the report is not
certain) or nothing (the report does not mention it):

    1, 0     present, absent
    -1       unknown
    nothing  unknown, or absent with ``blank="absent"``, as the authors' own models take it

ChestX-ray14 names the findings that were mined from a report; the others are taken to be absent,
and "No Finding" is an image without labels. A patient's images are a group in all three.

BigEarthNet v2 (reBEN): patches of Sentinel-2, one TIFF per band and patch.

    metadata.parquet                           patch_id, labels (19 classes), split, ...
    BigEarthNet-S2/TILE/PATCH/PATCH_B02.tif    12 bands of 10, 20 and 60 m; train with --bands
    Reference_Maps/TILE/PATCH/PATCH_reference_map.tif

With ``labels=43`` a patch has the CORINE Land Cover classes that its reference map shows. Patches
of one tile are a group; one that the published splits divide is a group in each of them.

UC Merced: aerial photos with the 17 labels of Chaudhuri et al. (2018).

    Images/CLASS/CLASS00.tif, LandUse_Multilabeled.txt (columns by tabs)
"""

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from labelwise.base.table_files import read_parquet
from labelwise.base.text import counted, first_line
from labelwise.errors import DataError
from labelwise.pictures.multiband import open_cube
from labelwise.pictures.sources import FileImages, read_image_file
from labelwise.tables.rows import from_rows, read_fields, read_lines, require_file
from labelwise.tables.table import LabelTable

LISTED = tomllib.loads(Path(__file__).with_name("label_names.toml").read_text(encoding="utf-8"))
FINDINGS, MINED = tuple(LISTED["chexpert"]), tuple(LISTED["chestxray14"])
STATES = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "-1": -1, "-1.0": -1, "": -2}
CSV_BATCH = "CheXpert-v1.0 batch 1 (validate & csv)"
TEST_TABLES = ("test.csv", "test_labels.csv")
MIMIC_SPLITS = {"train": "train", "validate": "val", "test": "test"}

Blank = Literal["unknown", "absent"]
Views = Literal["all", "frontal", "lateral"]
Columns = dict[str, list[str]]


def read_chexpert(path: Path, blank: Blank = "unknown", views: Views = "all") -> LabelTable:
    """Return CheXpert: train.csv, valid.csv and, if there, the test labels, also in its batches."""
    tables = path / CSV_BATCH if (path / CSV_BATCH).is_dir() else path
    parts = {"train.csv": "train", "valid.csv": "val"}
    parts |= {name: "test" for name in TEST_TABLES if (tables / name).is_file()}
    batches: dict[str, str] = {}  # the folder that holds each part of a set in batches
    if tables != path:
        batches = {f"{part}/": f"{CSV_BATCH}/{part}/" for part in ("valid", "test")}
        folders = path.glob("CheXpert-v1.0 batch [234] (train *)/*")
        batches |= {f"train/{f.name}/": f"{f.parent.name}/{f.name}/" for f in folders}
    files: list[str] = []
    split: list[str] = []
    states: list[np.ndarray[Any, np.dtype[np.int8]]] = []
    for name, part in parts.items():
        columns = _columns(tables / name, ("Path", *FINDINGS))
        end = "" if views == "all" else f"_{views}.jpg"
        kept = [row for row, file in enumerate(columns["Path"]) if file.endswith(end)]
        for row in kept:
            stated = columns["Path"][row]  # which begins with the name of the folder
            first, _, rest = stated.partition("/")
            if not rest:
                raise DataError(
                    f"{path}, {name}, row {row + 1}: Path must be FOLDER/train/..., got {stated!r}"
                )
            inside = stated if first in ("train", "valid", "test") else rest
            files.append(_in_batch(inside, batches))
        states.append(_states(columns, FINDINGS, tables / name)[kept])
        split += [part] * len(kept)
    patients = [
        next((level for level in file.split("/") if level.startswith("patient")), file)
        for file in files
    ]
    return _of_states(path, files, np.concatenate(states), split, patients, blank, "chexpert")


def _in_batch(file: str, batches: dict[str, str]) -> str:
    """Return where a file lies: its patient's folder in a batch, or that of its part, or here."""
    split, patient, rest = file.split("/", 2) if file.count("/") > 1 else (file, "", "")
    for start, within in ((f"{split}/{patient}/", rest), (f"{split}/", f"{patient}/{rest}")):
        if start in batches:
            return f"{batches[start]}{within}"
    return file


def read_mimic_cxr(
    path: Path, blank: Blank = "unknown", labeler: Literal["chexpert", "negbio"] = "chexpert"
) -> LabelTable:
    """Return MIMIC-CXR-JPG: files/, and mimic-cxr-2.0.0-{split,chexpert,negbio}.csv, or .csv.gz."""
    file = _found(path, f"mimic-cxr-2.0.0-{labeler}.csv")
    labels = _columns(file, ("study_id", *FINDINGS))
    by_study = {study: row for row, study in enumerate(labels["study_id"])}
    stated = np.vstack([_states(labels, FINDINGS, file), np.full((1, len(FINDINGS)), -2, np.int8)])
    parts_file = _found(path, "mimic-cxr-2.0.0-split.csv")
    parts = _columns(parts_file, ("dicom_id", "study_id", "subject_id", "split"))
    named = zip(parts["dicom_id"], parts["study_id"], parts["subject_id"], strict=True)
    files = [f"files/p{who[:2]}/p{who}/s{study}/{image}.jpg" for image, study, who in named]
    rows = [by_study.get(study, len(by_study)) for study in parts["study_id"]]
    split = _splits(parts["split"], MIMIC_SPLITS, parts_file)
    patients = [f"p{subject}" for subject in parts["subject_id"]]
    return _of_states(path, files, stated[rows], split, patients, blank, "mimic-cxr")


def _of_states(
    path: Path,
    files: Sequence[str],
    states: np.ndarray[Any, np.dtype[np.int8]],
    split: Sequence[str],
    patients: Sequence[str],
    blank: Blank,
    name: str,
) -> LabelTable:
    uncertain, silent = states == -1, states == -2
    unknown = uncertain if blank == "absent" else uncertain | silent
    table = LabelTable.from_arrays(
        FINDINGS,
        FileImages(path, files),
        states == 1,
        ~unknown,
        split=split,
        group=patients,
        name=name,
    )
    note = (
        f"{int(uncertain.sum()):,} entries of -1 are read as unknown, "
        f"{int(silent.sum()):,} blank ones as {blank}"
    )
    way_out = "absent" if blank == "unknown" else "unknown"
    return replace(table, notes=(f"{note} (`--set blank={way_out}` if otherwise)",))


def read_chestxray14(path: Path) -> LabelTable:
    """Return ChestX-ray14: Data_Entry_2017*.csv, train_val_list.txt, test_list.txt and images."""
    entry, *others = sorted(path.glob("Data_Entry_2017*.csv")) or [path / "Data_Entry_2017.csv"]
    if others:
        both = f"{entry.name} and {others[0].name}, whose findings may differ"
        raise DataError(f"{path}: holds {both}; keep the one you mean")
    columns = _columns(entry, ("Image Index", "Finding Labels", "Patient ID"))
    photos = path.glob("images_*/images/*")  # those in ``images`` need no list
    places = {file.name: file.relative_to(path).as_posix() for file in photos}
    labels = [
        [word for word in text.split("|") if word != "No Finding"]
        for text in columns["Finding Labels"]
    ]
    for row, words in enumerate(labels, 1):
        for word in set(words) - set(MINED):
            raise DataError(f"{entry}, row {row}: {word!r} is none of the 14 findings")
    names = columns["Image Index"]
    lists = {"train_val_list.txt": "train", "test_list.txt": "test"}
    split = None
    if any((path / file).is_file() for file in lists):
        split_of = {
            line.strip(): part for file, part in lists.items() for line in read_lines(path / file)
        }
        unlisted = next((name for name in names if name not in split_of), None)
        if unlisted is not None:
            raise DataError(
                f"{path}: {unlisted} is in neither train_val_list.txt nor test_list.txt"
            )
        split = [split_of[name] for name in names]
    files = [places.get(name, f"images/{name}") for name in names]
    table = from_rows(
        (path, files),
        labels,
        names=MINED,
        split=split,
        group=[f"patient {number}" for number in columns["Patient ID"]],
        name="chestxray14",
    )
    note = "findings were mined from reports: those that are not named are taken to be absent"
    return replace(table, notes=(*table.notes, note))


def _found(path: Path, name: str) -> Path:
    packed = path / f"{name}.gz"
    return packed if packed.is_file() else path / name


def _columns(file: Path, wanted: Sequence[str]) -> Columns:
    """Return columns of a CSV file, perhaps packed, as text; nothing is an empty text."""
    require_file(file)
    options = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(wanted, pa.string()), include_columns=list(wanted)
    )
    try:
        table = arrow_csv.read_csv(file, convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        named, reason = ", ".join(wanted[:4]), first_line(error)[:200]
        raise DataError(
            f"{file}: must be a CSV file with the columns {named}, ...: {reason}"
        ) from None
    return {name: table.column(name).to_pylist() for name in wanted}


def _states(
    columns: Columns, findings: Sequence[str], file: Path
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return states (rows, findings): 1, 0, -1 for uncertain, -2 for nothing."""
    cells = [[STATES.get(text, 2) for text in columns[name]] for name in findings]
    states = np.array(cells, np.int8).T
    wrong = np.argwhere(states == 2)
    if len(wrong):
        row, name = int(wrong[0][0]), findings[wrong[0][1]]
        raise DataError(
            f"{file}, row {row + 1}: {name!r} must be 1, 0, -1 or empty, got {columns[name][row]!r}"
        )
    return states


SPLITS = {"train": "train", "validation": "val", "test": "test"}
UNCLASSIFIED = (0, 335, 999)  # no data, glaciers (none of the 43), and what CORINE left open
CLASSES_43 = {int(code): name for code, name in LISTED["corine"].items()}


def read_bigearthnet(
    path: Path, labels: Literal[19, 43] = 19, splits: Literal["published", "none"] = "published"
) -> LabelTable:
    """Return BigEarthNet v2: metadata.parquet beside BigEarthNet-S2, each patch a folder."""
    file = require_file(path / "metadata.parquet")
    wanted = ["patch_id", "split", *(["labels"] if labels == 19 else [])]
    table = read_parquet(file, wanted)
    absent = [name for name in wanted if name not in table.column_names]
    if absent:
        raise DataError(f"{file}: must have the columns {', '.join(wanted)}, lacks {absent[0]!r}")
    patches: list[str] = _texts(table.column("patch_id"), "patch_id", file)
    split = _splits(_texts(table.column("split"), "split", file), SPLITS, file)
    tiles = []
    for row, patch in enumerate(patches):
        tile, *numbers = patch.rsplit("_", 2)
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise DataError(
                f"{file}, row {row + 1}: patch_id must end in _ROW_COLUMN, got {patch!r}"
            )
        tiles.append(tile)
    names: Sequence[str] = LISTED["bigearthnet_19"]
    if labels == 19:
        rows = _texts(table.column("labels"), "labels", file, lists=True)
    else:
        names = list(CLASSES_43.values())
        with ThreadPoolExecutor() as pool:
            rows = list(pool.map(partial(_mapped, path), tiles, patches))
    images = [f"BigEarthNet-S2/{t}/{p}" for t, p in zip(tiles, patches, strict=True)]
    notes = ["each patch is a folder of bands: train with --bands, such as B02,B03,B04,B08"]
    groups = tiles
    parts: dict[str, set[str]] = defaultdict(set)
    for tile, part in zip(tiles, split, strict=True):
        parts[tile].add(part)
    divided = sum(len(own) > 1 for own in parts.values())
    if splits == "published" and divided:  # a tile's part within one split is a group
        named = zip(tiles, split, strict=True)
        groups = [f"{tile} in {part}" if len(parts[tile]) > 1 else tile for tile, part in named]
        notes.append(
            f"the published splits divide {divided:,} of {counted(len(parts), 'tile')}, so that "
            "test patches lie beside training ones: a group is the part of a tile within its split "
            "(`--set splits=none` leaves them out; `labelwise data split` then keeps tiles whole)"
        )
    found = from_rows(
        (path, images),
        rows,
        names=names,
        split=split if splits == "published" else None,
        group=groups,
        name="bigearthnet",
    )
    return replace(found, notes=(*found.notes, *notes))


def _splits(stated: Sequence[str], meant: Mapping[str, str], file: Path) -> list[str]:
    for row, name in enumerate(stated):
        if name not in meant:
            raise DataError(
                f"{file}, row {row + 1}: split must be one of {', '.join(meant)}, got {name!r}"
            )
    return [meant[name] for name in stated]


def _texts(column: Any, name: str, file: Path, *, lists: bool = False) -> list[Any]:
    """Return the texts of a column, or its lists of texts; every row must have one."""
    listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if listed else column.type
    if listed != lists or kind not in (pa.string(), pa.large_string()):
        what = "lists of texts" if lists else "texts"
        raise DataError(f"{file}: the column {name!r} must hold {what}, got {column.type}")
    values: list[Any] = column.to_pylist()
    for row, value in enumerate(values):
        if value is None or (lists and None in value):
            raise DataError(f"{file}, row {row + 1}: there is no {name!r}")
    return values


def _mapped(path: Path, tile: str, patch: str) -> list[str]:
    file = path / "Reference_Maps" / tile / patch / f"{patch}_reference_map.tif"
    values = open_cube(read_image_file(file, str(file)), str(file)).values
    codes = [int(code) for code in np.unique(values) if int(code) not in UNCLASSIFIED]
    strange = [code for code in codes if code not in CLASSES_43]
    if strange:
        raise DataError(f"{file}: {strange[0]} is not a code of CORINE Land Cover")
    return [CLASSES_43[code] for code in codes]


def read_ucmerced(path: Path) -> LabelTable:
    """Return UC Merced with 17 labels: Images/, and LandUse_Multilabeled.txt."""
    file = path / "LandUse_Multilabeled.txt"
    (_, header), *lines = [*read_fields(file, 1, "labels between tabs", "\t")] or [("", [])]
    names = [name.strip() for name in header[1:]]
    if not names:
        raise DataError(f"{file}: must begin with a line of labels between tabs")
    images, labels = [], []
    for where, (image, *states) in lines:
        states = [state.strip() for state in states]
        if len(states) != len(names) or not set(states) <= {"0", "1"}:
            raise DataError(f"{where}: must be an image and {len(names)} numbers 0 or 1")
        images.append(f"Images/{image.strip().rstrip('0123456789')}/{image.strip()}.tif")
        labels.append([name for name, state in zip(names, states, strict=True) if state == "1"])
    return from_rows((path, images), labels, names=names, name="ucmerced")
