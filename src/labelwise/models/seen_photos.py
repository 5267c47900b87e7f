"""Which photos of some data a run was fitted on: the same bytes, whatever their names are.

The hashes of a run's own photos are kept in ``seen-photos.parquet`` in its folder. They are made
when they are first asked for, which reads each of those photos once. Seen are the photos of every
split but the held-out ones: they trained the weights, or chose the link, the rule or the epoch.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelwise.data import LabelTable, load
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import ImageSource
from labelwise.system.files import replacing
from labelwise.system.progress import Silent, Watch
from labelwise.system.text import counted, one_line_of

__all__ = ["SEEN_FILE", "SeenPhotos", "seen_photos"]

SEEN_FILE = "seen-photos.parquet"
HASH = pa.binary(32)
NEVER_SEEN = ("test", "promise")


@dataclass(frozen=True, eq=False)
class SeenPhotos:
    """Which rows of a table the run was fitted on, or why that cannot be told."""

    rows: NDArray[np.bool_]
    why_not: str = ""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.rows.sum())

    def others(self, table: LabelTable) -> LabelTable:
        """Return the rows of the table that the run was not fitted on."""
        if self.why_not:
            raise SettingsError(
                f"--without-training-photos cannot compare them: {self.why_not}; leave it out, or "
                "make the run's data reachable where its settings.yaml names it"
            )
        if self.count == len(table):
            raise DataError(f"{table.name}: the model was fitted on every photo; give others")
        return table.subset(~self.rows)

    def note(self, *, left_out: bool) -> tuple[str, ...]:
        """Return a sentence for those who read the figures; none where nothing was seen."""
        if self.why_not:
            return (f"whether the model was fitted on these photos is not known: {self.why_not}",)
        if not self.count:
            return ()
        if left_out:
            return (f"{counted(self.count, 'photo')} that the model was fitted on left out",)
        return (
            f"{self.count:,} of {counted(len(self.rows), 'photo')} are ones that the model was "
            "fitted on: the figures are too good; --without-training-photos leaves them out",
        )


def seen_photos(folder: Path, table: LabelTable, watch: Watch | None = None) -> SeenPhotos:
    """Return which photos of a table a run was fitted on; its own are hashed if they were not."""
    watch, run = watch or Silent(), RunFolder(folder)
    known = _kept(folder / SEEN_FILE)
    if known is None:
        try:
            own = _own_photos(run)
        except (LabelwiseError, LookupError) as error:
            return SeenPhotos(np.zeros(len(table), np.bool_), one_line_of(error))
        if own.blocks is not None:
            why = f"its photos, in {run.data}, are streamed and would have to be fetched"
            return SeenPhotos(np.zeros(len(table), np.bool_), why)
        known = _hashes(own, watch, "hashing the photos of the run")
        _keep(folder / SEEN_FILE, known)
    hashes = _hashes(table.images, watch, "comparing photos")
    seen = set(known)
    return SeenPhotos(np.array([one is not None and one in seen for one in hashes], np.bool_))


def _own_photos(run: RunFolder) -> ImageSource:
    """Return the photos that a run was fitted on, read as its settings say."""
    settings = run.settings
    options: dict[str, Any] = dict(settings.get("data_options") or {})
    if settings.get("skip_missing"):
        options["skip_missing"] = True
    table = load(run.data, **options)
    held_out = [name for name in NEVER_SEEN if name in run.splits and name not in run.fitted_splits]
    apart = {photo for name in held_out for photo in run.predictions(name).ids}
    fitted = np.array([name not in apart for name in table.ids], np.bool_)
    if table.split is not None:
        fitted &= table.split != "test"
    return table.images.subset(np.flatnonzero(fitted))


def _hashes(images: ImageSource, watch: Watch, task: str) -> list[bytes | None]:
    """Return the hash of each image, None where it cannot be read."""
    found: list[bytes | None] = []
    watch.start(task, len(images))
    for row in range(len(images)):
        try:
            found.append(sha256(images.content(row)).digest())
        except (LabelwiseError, OSError):
            found.append(None)
        watch.advance(1)
    watch.finish()
    return found


def _kept(path: Path) -> list[bytes | None] | None:
    """Return the hashes in a file, None where it is not there or not whole."""
    try:
        column = pq.read_table(path)["sha256"]
    except (OSError, KeyError, pa.ArrowException):
        return None
    return column.to_pylist() if column.type == HASH else None


def _keep(path: Path, hashes: list[bytes | None]) -> None:
    """Write the hashes; a folder that cannot be written to does without."""
    try:
        with replacing(path) as temporary:
            pq.write_table(pa.table({"sha256": pa.array(hashes, HASH)}), temporary)
    except OSError:
        return
