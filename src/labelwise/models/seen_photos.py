"""Which photos of some data a run was fitted on: the same bytes, or copies that look the same.

The hashes and fingerprints of a run's photos are kept in ``seen-photos.parquet`` in its folder,
from the first time they are asked for. Seen are the photos of every split but the held-out ones:
they trained the weights, or chose the link, the rule or the epoch.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.base.array_api import A, like
from labelwise.base.files import MOST_FACTS, read_regular, replacing, require_regular, sha256_of
from labelwise.base.progress import Silent, Watch
from labelwise.base.text import counted, one_line_of
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.models.run_folder import SEEN_FILE, RunFolder
from labelwise.pictures import ImageSource
from labelwise.pictures.copies import ROWS_AT_ONCE, alike_by_looks, copied_pairs, reader
from labelwise.pictures.duplicates import WIDTH, fingerprint
from labelwise.pictures.sources import JoinedImages
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable, load

# Which held-out photos of a run are copies of one that it was trained on.
#
#     predictions/near-copies.json   in the folder of a run: of each held-out split how many photos
#                                    are copies of a training photo, of how many, and which pairs
#
# Photos that look alike, by features or from afar, are laid on each other
# (:mod:`labelwise.pictures.copies`). Stored features without photos are copies if, less the mean of
# the training photos, their cosine is at least NEAR_FEATURES. A sketch (sums with signs) has the
# cosine of the features but for about (1 - cosine^2) / sqrt(SKETCH).

NEAR_FEATURES = 0.95
SKETCH = 128
FEWEST_FEATURES = 64  # with few, different photos have almost the same ones by chance
SHOWN = 3  # pairs in a sentence
Propose = Callable[[NDArray[np.float32], int | None], NDArray[np.int64]]


def sketch_of(features: A) -> A:
    """Return sketches (n, SKETCH) of features (n, D), the same of the same features."""
    signs = np.random.default_rng(0).integers(0, 2, (features.shape[1], SKETCH)) * 2.0 - 1
    sketch: A = features @ like(signs, features)
    return sketch


class Copy(NamedTuple):
    """A held-out photo, the training photo that it is a copy of, and the evidence of that."""

    photo: str
    of: str
    evidence: float


class SplitCopies(NamedTuple):
    """How many photos of a split copy a training photo, of how many; pairs, surest first."""

    copies: int
    photos: int
    pairs: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class HeldOutCopies:
    """The copies in each held-out split."""

    splits: Mapping[str, SplitCopies]

    @classmethod
    def among(
        cls,
        tables: Mapping[str, LabelTable],
        vectors: Mapping[str, NDArray[np.float32]],
        propose: Propose = alike_by_looks,
    ) -> "HeldOutCopies":
        """Compare the photos of every other split with those of train that ``propose`` pairs."""
        train, splits = tables["train"], {}
        begins = len(train)
        for name in tables.keys() - {"train"}:
            table = tables[name]
            both = JoinedImages([train.images, table.images])
            alike = propose(np.concatenate([vectors["train"], vectors[name]]), begins)
            rows, evidence = copied_pairs(alike, reader(both))
            pairs = [
                Copy(table.ids[row - begins], train.ids[of], round(float(told), 2))
                for (of, row), told in zip(rows.tolist(), evidence, strict=True)
            ]
            surest = tuple(sorted(pairs, key=lambda pair: -pair.evidence))
            splits[name] = SplitCopies(len(np.unique(rows[:, 1])), len(table), surest)
        return cls({name: splits[name] for name in tables if name in splits})

    @classmethod
    def among_features(cls, sketches: Mapping[str, NDArray[np.float32]]) -> "HeldOutCopies":
        """Compare sketches (n, SKETCH) of the features of every other split with those of train."""
        middle = sketches["train"].mean(0, dtype=np.float64)
        units = {}
        for name, own in sketches.items():
            moved = own - middle
            lengths = np.linalg.norm(moved, axis=1, keepdims=True)
            units[name] = (moved / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        train = units.pop("train")
        splits = {}
        for name, own in units.items():
            blocks = (
                own[at : at + ROWS_AT_ONCE] @ train.T for at in range(0, len(own), ROWS_AT_ONCE)
            )
            near = sum(int((block.max(1) >= NEAR_FEATURES).sum()) for block in blocks)
            splits[name] = SplitCopies(near, len(own))
        return cls(splits)

    @classmethod
    def of_run(cls, folder: Path) -> "HeldOutCopies":
        path = _file(folder)
        try:
            stated = json.loads(read_regular(path, MOST_FACTS)[0])
            splits = {
                str(name): SplitCopies(
                    int(some),
                    int(all_),
                    tuple(Copy(str(a), str(b), float(c)) for a, b, c in chain(*pairs)),
                )
                for name, (some, all_, *pairs) in stated.items()
            }
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: {one_line_of(error)}") from None
        return cls(splits)

    def save(self, folder: Path) -> None:
        if self.splits:
            with replacing(_file(folder)) as temporary:
                temporary.write_text(json.dumps(self.splits) + "\n", encoding="utf-8")

    def rows_of(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Return which photos (N,) of some predictions are copies of a training photo."""
        split = self.splits.get(predictions.split or "", SplitCopies(0, 0))
        photos = {pair.photo for pair in split.pairs}
        return np.array([name in photos for name in predictions.ids], np.bool_)

    def sentence(self) -> str:
        """Return that in words, and the way out; empty where there are none."""
        seen = {name: split for name, split in self.splits.items() if split.copies}
        if not (copies := sum(split.copies for split in seen.values())):
            return ""
        parts = ", ".join(f"{s.copies:,} of {s.photos:,} in {name}" for name, s in seen.items())
        pairs = [pair for split in seen.values() for pair in split.pairs][:SHOWN]
        which = "; ".join(f"{pair.photo} is a copy of {pair.of}" for pair in pairs)
        look = "is a copy" if copies == 1 else "are copies"
        return (
            f"{counted(copies, 'held-out photo')} {look} of a training photo ({parts}): figures "
            "and promises are too good. `labelwise data split` keeps copies in one split."
            + (f" First: {which}." if which else "")
        )


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
    known = _kept(folder / SEEN_FILE)
    try:
        if known is None:
            known = _marks_of(_fitted_photos(folder), watch, "reading the photos of the run")
            _keep(folder / SEEN_FILE, known)
        compared = photos()
    except (LabelwiseError, LookupError) as error:
        none = np.zeros(count, np.bool_)
        return SeenPhotos(none, none, one_line_of(error))
    new, seen = _marks_of(compared, watch, "comparing photos"), set(known.hashes)
    rows = np.array([digest is not None and digest in seen for digest in new.hashes], np.bool_)
    begins, near = len(known.hashes), np.zeros(count, np.bool_)
    pairs = alike_by_looks(np.concatenate([known.looks, new.looks]), begins)
    pairs = pairs[~rows[pairs[:, 1] - begins]]
    if len(pairs):
        with suppress(LabelwiseError, LookupError):  # where they are gone, the look has to do
            fitted = _fitted_photos(folder)
            if len(fitted) == begins:
                pairs = copied_pairs(pairs, reader(JoinedImages([fitted, compared])))[0]
    near[pairs[:, 1] - begins] = True
    return SeenPhotos(rows, near)


def _fitted_photos(folder: Path) -> ImageSource:
    """Return the photos that a run was fitted on."""
    run = RunFolder(folder)
    table = own_table(run)
    apart = [name for name in NEVER_SEEN if name in {*run.splits} - run.fitted_splits]
    held_out = {photo for name in apart for photo in run.predictions(name).ids}
    fitted = np.array([name not in held_out for name in table.ids], np.bool_)
    if table.split is not None:
        fitted &= table.split != "test"
    photos = table.images.subset(np.flatnonzero(fitted))
    if photos.blocks is not None:
        raise DataError(f"its photos, in {run.data}, are streamed and would have to be fetched")
    return photos


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


def trained_on(folder: Path, photos: Sequence[Path]) -> int:
    """Return how many of these files have the bytes of a photo that a run was fitted on.

    A file of another size is not read. Photos of the run that are gone, or are inside a table, are
    not compared.
    """
    sizes, digests = defaultdict[int, list[Path]](list), dict[int, set[str]]()
    with suppress(LabelwiseError, LookupError, OSError):
        fitted = _fitted_photos(folder)
        for location in fitted.locations(range(len(fitted))):
            if location is not None and location.size is None:
                with suppress(OSError):
                    sizes[os.stat(location.path).st_size].append(Path(location.path))
    count = 0
    for photo in photos:
        with suppress(OSError):
            size = photo.stat().st_size
            if size in sizes:
                if size not in digests:
                    digests[size] = {*map(sha256_of, sizes[size])}
                count += sha256_of(photo) in digests[size]
    return count


def trained_note(trained: int, photos: int) -> str:
    """Return that some of the photos trained the model in words; empty where none did."""
    if not trained:
        return ""
    are = "is one" if trained == 1 else "are ones"
    return (
        f"{trained:,} of {counted(photos, 'photo')} {are} that the model was trained on: it is "
        "surer of them than of new photos."
    )


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
