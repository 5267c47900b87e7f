"""Answers: what people said of photos, kept by content so that nothing loses them.

A Parquet file with one row per photo: ``digest`` (SHA-256 of its content), ``id`` (its name when it
was answered), ``present`` and ``absent`` (lists of labels; all others are unknown), ``aside``.
Labels are kept by name, whether or not they are among today's words.

Photos that are set aside fit nothing: promises and counts are made on them. Which ones follows
from their content alone (the first 8 bytes of the digest, as a share of what they can be), so that
it is a random choice which neither a score nor a person made, and stays the same as answers come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.data import LabelTable
from labelwise.errors import DataError
from labelwise.system.files import replacing
from labelwise.system.text import first_line

KEY_BYTES = 8
SCHEMA = pa.schema(
    {
        "digest": pa.binary(),
        "id": pa.string(),
        "present": pa.list_(pa.string()),
        "absent": pa.list_(pa.string()),
        "aside": pa.bool_(),
    }
)


@dataclass(frozen=True)
class PhotoAnswer:
    """What was said of one photo: whether each of some labels is there."""

    id: str
    labels: Mapping[str, bool]
    aside: bool


@dataclass(frozen=True)
class KeptAnswers:
    """Answers by the digest of the photo."""

    photos: Mapping[bytes, PhotoAnswer]

    def __len__(self) -> int:
        return len(self.photos)

    @staticmethod
    def of(table: LabelTable, digests: Mapping[int, bytes], set_aside: float) -> "KeptAnswers":
        """Return what a label table says of the photos whose digests are known.

        Rows of the split ``test`` are set aside, those of ``train`` are not: someone may have
        chosen them. Of all others a share is drawn.
        """
        table.require_hard("answers")
        labels, observed = table.targets()
        known = np.ones(labels.shape, bool) if observed is None else observed
        found: dict[bytes, PhotoAnswer] = {}
        for row, digest in digests.items():
            said = {
                name: bool(labels[row, column])
                for column, name in enumerate(table.space.names)
                if known[row, column]
            }
            if not said:
                continue
            split = None if table.split is None else str(table.split[row])
            aside = split == "test" or (split != "train" and is_set_aside(digest, set_aside))
            one = PhotoAnswer(str(table.ids[row]), said, aside)
            found[digest] = _joined(found.get(digest), one)
        return KeptAnswers(found)

    def merged(self, newer: "KeptAnswers") -> "KeptAnswers":
        """Return both; of one photo and label the newer answer counts."""
        photos = dict(self.photos)
        for digest, one in newer.photos.items():
            photos[digest] = _joined(photos.get(digest), one)
        return KeptAnswers(photos)

    def targets(self, names: Sequence[str], *, aside: bool) -> tuple[list[bytes], Tensor, Tensor]:
        """Return digests, labels (n, K) and which are known, of photos with any of some labels."""
        rows = [
            (digest, [one.labels.get(name) for name in names])
            for digest, one in sorted(self.photos.items())
            if one.aside == aside and any(name in one.labels for name in names)
        ]
        shape = (len(rows), len(names))
        labels = np.array([[bool(said) for said in row] for _, row in rows], bool).reshape(shape)
        known: NDArray[np.bool_] = np.array(
            [[said is not None for said in row] for _, row in rows], bool
        ).reshape(shape)
        digests = [digest for digest, _ in rows]
        return digests, torch.from_numpy(labels).double(), torch.from_numpy(known)

    def save(self, path: Path) -> None:
        """Write the file; an interrupted write leaves the old one whole."""
        photos = sorted(self.photos.items())

        def lists(wanted: bool) -> list[list[str]]:
            return [[n for n, said in one.labels.items() if said is wanted] for _, one in photos]

        columns = {
            "digest": [digest for digest, _ in photos],
            "id": [one.id for _, one in photos],
            "present": lists(True),
            "absent": lists(False),
            "aside": [one.aside for _, one in photos],
        }
        table = pa.table(columns, SCHEMA)
        with replacing(path) as temporary:
            pq.write_table(table, temporary)

    @staticmethod
    def load(path: Path) -> "KeptAnswers":
        """Return the answers of a file, none if there is no file."""
        if not path.is_file():
            return KeptAnswers({})
        try:
            table = pq.read_table(path)
            if not table.schema.equals(SCHEMA):
                raise ValueError("its columns are others than are written here")
            rows = table.to_pylist()
            photos = {
                row["digest"]: PhotoAnswer(
                    row["id"],
                    dict.fromkeys(row["absent"], False) | dict.fromkeys(row["present"], True),
                    row["aside"],
                )
                for row in rows
            }
            if len(photos) < len(rows):
                raise ValueError("a photo is there twice")
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            raise DataError(
                f"{path} holds no answers that can be read ({first_line(error)}); move it away to "
                "start without them, or bring back a copy"
            ) from None
        return KeptAnswers(photos)


def _joined(older: PhotoAnswer | None, newer: PhotoAnswer) -> PhotoAnswer:
    """Return both; what was set aside once stays aside."""
    if older is None:
        return newer
    return PhotoAnswer(newer.id, {**older.labels, **newer.labels}, older.aside or newer.aside)


def is_set_aside(digest: bytes, share: float) -> bool:
    """Return whether a photo of this content is among the share that is set aside."""
    return int.from_bytes(digest[:KEY_BYTES]) < share * float(1 << 8 * KEY_BYTES)
