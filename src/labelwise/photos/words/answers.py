"""Answers of a run of words, by the content of the photo, and the order in which people are asked.

Photos that are set aside fit nothing: promises and counts are made on them. Which ones follows from
their content alone (the first 8 bytes of the digest), so that it is a random choice which neither a
score nor a person made, and stays the same as answers come.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.answers.agreement import ASIDE
from labelwise.answers.log import AnswerLog, LoggedAnswer, answered
from labelwise.answers.version_0_2 import lines_of_run
from labelwise.data import LabelTable

KEY_BYTES = 8


def asking_order(label: str, photos: Iterable[str]) -> list[str]:
    """Return photos in the order in which they are asked about for a word.

    It is random, each word's own, and the same every time: by the hash of word and photo.
    """
    return sorted(photos, key=lambda photo: sha256(os.fsencode(f"{label}\0{photo}")).digest())


@dataclass(frozen=True)
class PhotoAnswer:
    """What was said of one photo: whether each of some labels is there."""

    id: str
    labels: dict[str, bool]
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
        answers: dict[bytes, PhotoAnswer] = {}
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
            photo_answer = PhotoAnswer(str(table.ids[row]), said, aside)
            answers[digest] = _joined(answers.get(digest), photo_answer)
        return KeptAnswers(answers)

    def merged(self, newer: "KeptAnswers") -> "KeptAnswers":
        """Return both; of one photo and label the newer answer counts."""
        photos = dict(self.photos)
        for digest, photo in newer.photos.items():
            photos[digest] = _joined(photos.get(digest), photo)
        return KeptAnswers(photos)

    def targets(self, names: Sequence[str], *, aside: bool) -> tuple[list[bytes], Tensor, Tensor]:
        """Return digests, labels (n, K) and which are known, of photos with any of some labels."""
        rows = {
            digest: [answer.labels.get(name) for name in names]
            for digest, answer in sorted(self.photos.items())
            if answer.aside == aside and not answer.labels.keys().isdisjoint(names)
        }
        number = {None: np.nan, False: 0.0, True: 1.0}
        said = np.array([[number[word] for word in row] for row in rows.values()])
        labels = torch.from_numpy(said.reshape(len(rows), len(names)))
        return [*rows], labels.nan_to_num(), ~labels.isnan()

    def extended(self, path: Path, newer: "KeptAnswers") -> "KeptAnswers":
        """Return both, and append what is new to the log in a file."""
        both = self.merged(newer)
        lines = [
            answered(digest.hex(), label, "yes" if said else "no", None, "label", path=photo.id,
                     draw=ASIDE if photo.aside else None)
            for digest, photo in both.photos.items()
            for label, said in photo.labels.items()
            if (old := self.photos.get(digest)) is None
            or (old.labels.get(label), old.aside) != (said, photo.aside)
        ]  # fmt: skip
        _log(path).append(lines)
        return both

    @staticmethod
    def load(path: Path) -> "KeptAnswers":
        """Return the answers of a log, none if there is no file."""
        photos: dict[bytes, PhotoAnswer] = {}
        for line in _log(path).lines():
            if isinstance(line, LoggedAnswer):
                digest, known = bytes.fromhex(line.photo), {line.label: line.answer == "yes"}
                new = PhotoAnswer(line.path or line.photo, known, line.draw == ASIDE)
                photos[digest] = both = _joined(photos.get(digest), new)
                if line.answer not in ("yes", "no"):
                    both.labels.pop(line.label)
        return KeptAnswers({digest: photo for digest, photo in photos.items() if photo.labels})


def _log(path: Path) -> AnswerLog:
    return AnswerLog(path, lambda: lines_of_run(path.with_suffix(".parquet")))


def _joined(older: PhotoAnswer | None, newer: PhotoAnswer) -> PhotoAnswer:
    """Return both; what was set aside once stays aside."""
    if older is None:
        return newer
    return PhotoAnswer(newer.id, {**older.labels, **newer.labels}, older.aside or newer.aside)


def is_set_aside(digest: bytes, share: float) -> bool:
    """Return whether a photo of this content is among the share that is set aside."""
    return int.from_bytes(digest[:KEY_BYTES]) < share * float(1 << 8 * KEY_BYTES)
