"""Which photos of some data a run was fitted on: the same bytes, or copies that look the same.

The hashes and fingerprints of a run's photos are kept in ``seen-photos.parquet`` in its folder,
from the first time they are asked for. Seen are the photos of every split but the held-out ones:
they trained the weights, or chose the link, the rule or the epoch.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.base.array_api import A, like
from labelwise.base.files import MOST_FACTS, read_regular, replacing, require_regular
from labelwise.base.progress import Silent, Watch
from labelwise.base.text import counted, one_line_of
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.models.run_folder import SEEN_FILE, RunFolder
from labelwise.pictures import ImageSource
from labelwise.pictures.duplicates import NEAR, WIDTH, fingerprint, near_any
from labelwise.tables import LabelTable, load

# How many held-out photos of a run look like one that it was trained on.
#
#     predictions/near-copies.json   in the folder of a run: of each held-out split, how many
#                                    photos look like a training photo, and how many it has
#
# Near-duplicates are found by :mod:`labelwise.pictures.duplicates`, from the pixels that the model
# saw. On stored features two photos are near-duplicates if their features, less the mean of the
# training photos, have a cosine of at least NEAR_FEATURES. A sketch (sums with signs) has the
# cosine of the features but for about (1 - cosine^2) / sqrt(SKETCH).

NEAR_FEATURES = 0.95
SKETCH = 128
FEWEST_FEATURES = 64  # with few, different photos have almost the same ones by chance


def sketch_of(features: A) -> A:
    """Return sketches (n, SKETCH) of features (n, D), the same of the same features."""
    signs = np.random.default_rng(0).integers(0, 2, (features.shape[1], SKETCH)) * 2.0 - 1
    sketch: A = features @ like(signs, features)
    return sketch


@dataclass(frozen=True)
class HeldOutCopies:
    """Of each held-out split, how many photos look like a training photo, and how many it has."""

    splits: Mapping[str, tuple[int, int]]

    @classmethod
    def among(cls, looks: Mapping[str, NDArray[np.float32]]) -> "HeldOutCopies":
        return cls(_near(looks, NEAR))

    @classmethod
    def among_features(cls, sketches: Mapping[str, NDArray[np.float32]]) -> "HeldOutCopies":
        """Compare sketches (n, SKETCH) of the features of every other split with those of train."""
        middle = sketches["train"].mean(0, dtype=np.float64)
        units = {}
        for name, own in sketches.items():
            moved = own - middle
            lengths = np.linalg.norm(moved, axis=1, keepdims=True)
            units[name] = (moved / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return cls(_near(units, NEAR_FEATURES))

    @classmethod
    def of_run(cls, folder: Path) -> "HeldOutCopies":
        path = _file(folder)
        try:
            stated = json.loads(read_regular(path, MOST_FACTS)[0])
            splits = {str(name): (int(some), int(all_)) for name, (some, all_) in stated.items()}
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: {one_line_of(error)}") from None
        return cls(splits)

    def save(self, folder: Path) -> None:
        if self.splits:
            with replacing(_file(folder)) as temporary:
                temporary.write_text(json.dumps(self.splits) + "\n", encoding="utf-8")

    def sentence(self) -> str:
        """Return that in words, and the way out; empty where there are none."""
        seen = {name: counts for name, counts in self.splits.items() if counts[0]}
        if not (copies := sum(some for some, _ in seen.values())):
            return ""
        parts = ", ".join(f"{some:,} of {all_:,} in {name}" for name, (some, all_) in seen.items())
        look = "looks" if copies == 1 else "look"
        return (
            f"{counted(copies, 'held-out photo')} {look} like a training photo ({parts}): near "
            "copies make figures and promises too good. `labelwise data group` writes them "
            "as groups, which `labelwise data split` keeps in one split."
        )


def _near(vectors: Mapping[str, NDArray[np.float32]], least: float) -> dict[str, tuple[int, int]]:
    return {
        name: (int(near_any(own, vectors["train"], least).sum()), len(own))
        for name, own in vectors.items()
        if name != "train"
    }


def _file(folder: Path) -> Path:
    return folder / "predictions" / "near-copies.json"


HASH, LOOK = pa.binary(32), pa.list_(pa.float32(), WIDTH)
NEVER_SEEN = ("test", "promise")
NAMED = 5  # near copies in a sentence


@dataclass(frozen=True, eq=False)
class SeenPhotos:
    """Which rows of a table the run was fitted on, or why that cannot be told."""

    rows: NDArray[np.bool_]
    near: NDArray[np.bool_]
    why_not: str = ""

    @property
    def count(self) -> int:
        return int(self.rows.sum())

    def others(self, name: str) -> NDArray[np.bool_]:
        """Return which rows the run was not fitted on, nor on one that looks so."""
        if self.why_not:
            raise SettingsError(
                f"--without-training-photos cannot compare them: {self.why_not}; leave it out, or "
                "make the run's data reachable where its settings.yaml names it"
            )
        fitted = self.rows | self.near
        if fitted.all():
            what = "every photo" if self.rows.all() else "every photo or a near copy of it"
            raise DataError(f"{name}: the model was fitted on {what}; give others")
        return ~fitted

    def named(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Return a sentence that names the first near copies among rows of these ids, if any."""
        copies = [ids[row] for row in np.flatnonzero(self.near).tolist()]
        if not copies:
            return ()
        more = f" and {len(copies) - NAMED:,} more" if len(copies) > NAMED else ""
        return (f"near copies: {', '.join(copies[:NAMED])}{more}",)

    def note(self, *, left_out: bool) -> tuple[str, ...]:
        if self.why_not:
            return (f"whether the model was fitted on these photos is not known: {self.why_not}",)
        notes, copies = [], int(self.near.sum())
        all_, way_out = (
            counted(len(self.rows), "photo"),
            "--without-training-photos leaves them out",
        )
        if self.count and left_out:
            notes.append(f"{counted(self.count, 'photo')} that the model was fitted on left out")
        elif self.count:
            notes.append(
                f"{self.count:,} of {all_} are ones that the model was fitted on: the figures are "
                f"too good; {way_out}"
            )
        if copies and left_out:
            notes.append(f"{copies:,} that look like such photos left out (near copies)")
        elif copies:
            notes.append(
                f"{copies:,} of {all_} look like ones that the model was fitted on (near copies): "
                f"the figures may be too good; {way_out}"
            )
        return tuple(notes)


def seen_photos(folder: Path, table: LabelTable, watch: Watch | None = None) -> SeenPhotos:
    """Return which photos of a table a run was fitted on; its own are read if they were not."""
    return _compared(folder, lambda: table.images, len(table), watch or Silent())


def seen_held_out(folder: Path, ids: Sequence[str], watch: Watch | None = None) -> SeenPhotos:
    """Return which of a run's own held-out photos, by id, it was fitted on in another guise."""

    def held_out() -> ImageSource:
        table = own_table(RunFolder(folder))
        rows = {name: row for row, name in enumerate(table.ids)}
        missing = [name for name in ids if name not in rows]
        if missing:
            raise DataError(f"{table.name} no longer holds {missing[0]}")
        return table.images.subset(np.array([rows[name] for name in ids], np.int64))

    return _compared(folder, held_out, len(ids), watch or Silent())


def _compared(
    folder: Path, photos: Callable[[], ImageSource], count: int, watch: Watch
) -> SeenPhotos:
    run = RunFolder(folder)
    known = _kept(folder / SEEN_FILE)
    try:
        if known is None:
            table = own_table(run)
            apart = [name for name in NEVER_SEEN if name in {*run.splits} - run.fitted_splits]
            held_out = {photo for name in apart for photo in run.predictions(name).ids}
            fitted = np.array([name not in held_out for name in table.ids], np.bool_)
            if table.split is not None:
                fitted &= table.split != "test"
            own = table.images.subset(np.flatnonzero(fitted))
            if own.blocks is not None:
                raise DataError(
                    f"its photos, in {run.data}, are streamed and would have to be fetched"
                )
            known = _marks_of(own, watch, "reading the photos of the run")
            _keep(folder / SEEN_FILE, known)
        compared = photos()
    except (LabelwiseError, LookupError) as error:
        none = np.zeros(count, np.bool_)
        return SeenPhotos(none, none, one_line_of(error))
    new, seen = _marks_of(compared, watch, "comparing photos"), set(known.hashes)
    rows = np.array([digest is not None and digest in seen for digest in new.hashes], np.bool_)
    return SeenPhotos(rows, near_any(new.looks, known.looks, NEAR) & ~rows)


class _Marks(NamedTuple):
    """The hash of each photo, None where it cannot be read, and its fingerprint (n, WIDTH)."""

    hashes: list[bytes | None]
    looks: NDArray[np.float32]


def _marks_of(images: ImageSource, watch: Watch, task: str) -> _Marks:
    hashes: list[bytes | None] = [None] * len(images)
    looks = np.zeros((len(images), WIDTH), np.float32)
    watch.start(task, len(images))
    for row in range(len(images)):
        with suppress(LabelwiseError, OSError):
            content = images.content(row)
            hashes[row] = sha256(content).digest()
            looks[row] = fingerprint(content, "")
        watch.advance(1)
    watch.finish()
    return _Marks(hashes, looks)


def own_table(run: RunFolder) -> LabelTable:
    """Return the data of a run, read as its settings say."""
    settings = run.settings
    missing = {"skip_missing": True} if settings.get("skip_missing") else {}
    return load(run.data, **(settings.get("data_options") or {}) | missing)


def _kept(path: Path) -> _Marks | None:
    try:
        require_regular(path)
        table = pq.read_table(path)
        hashes, looks = table["sha256"], table["fingerprint"].combine_chunks()
    except (OSError, KeyError, pa.ArrowException):
        return None
    if (hashes.type, looks.type) != (HASH, LOOK):
        return None
    values = looks.flatten().to_numpy().reshape(-1, WIDTH)
    return _Marks(hashes.to_pylist(), np.asarray(values, np.float32))


def _keep(path: Path, marks: _Marks) -> None:
    """Write them; a folder that cannot be written to does without."""
    looks = pa.FixedSizeListArray.from_arrays(pa.array(marks.looks.ravel()), WIDTH)
    table = pa.table({"sha256": pa.array(marks.hashes, HASH), "fingerprint": looks})
    with suppress(OSError), replacing(path) as temporary:
        pq.write_table(table, temporary)
