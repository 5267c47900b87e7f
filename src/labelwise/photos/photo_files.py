"""The files of one photo of an index, to be read beside it."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.photos.looking import is_below
from labelwise.pictures.sources import read_image_file
from labelwise.system.storage import ObjectStorage, StorageError, storage_at


@dataclass(frozen=True)
class PhotoFiles:
    """The files (root, name) that held a photo when they were indexed, and its hash."""

    digest: bytes
    places: tuple[tuple[str, str], ...]

    def read(self) -> tuple[bytes, str] | None:
        """Return the bytes of the photo and its name, from a file that still holds that photo.

        None where no file does. Where a storage did not answer and no other file holds the photo,
        its StorageError is raised. A link that leads out of its root is not followed.
        """
        unasked: StorageError | None = None
        for root, name in self.places:
            try:
                storage = storage_at(root)
                if isinstance(storage, ObjectStorage):
                    blob = storage.read(name)
                else:
                    path = os.path.realpath(os.path.join(root, name))
                    if not is_below(path, os.path.realpath(root)):
                        continue
                    blob = read_image_file(Path(path), name)
            except StorageError as error:
                unasked = error
                continue
            except (OSError, LabelwiseError):
                continue
            if hashlib.sha256(blob).digest() == self.digest:
                return blob, os.path.basename(name)
        if unasked is not None:
            raise unasked
        return None
