"""Photos of an index that look like any picture file, whether it is indexed or not."""

import hashlib

import numpy as np

from labelwise.errors import DataError
from labelwise.models.loading import load_model
from labelwise.models.scoring import score
from labelwise.photos.answering import Hit, hits_of, nearest_photos
from labelwise.photos.index import Index
from labelwise.pictures.memory import BytesImages
from labelwise.system.files import read_regular

MOST_BYTES = 256 << 20


def photos_like(index: Index, photo: str, count: int) -> tuple[list[Hit], list[Hit]]:
    """Return the photos most like a file: equal copies of it, and similar ones.

    Of a file that is not indexed, the model of the index says how it looks.
    """
    row = index.store.row_of(photo)
    if row is not None:
        return nearest_photos(index, row, count)
    try:
        content, _ = read_regular(photo, MOST_BYTES)
    except OSError as error:
        raise DataError(
            f"{photo} is neither in {index.folder} nor a picture that can be read: "
            f"{error.strerror or error}"
        ) from None
    digest = hashlib.sha256(content).digest()
    known = index.store.rows_by_hash([digest]).get(digest)
    if known is not None and index.store.paths_of([known])[known]:
        copies, similar = nearest_photos(index, known, count)
        own = hits_of(index, (), np.array([known]), np.ones(1))
        return [*own, *copies], similar
    projection = index.look_alikes.projection
    if projection is None:
        raise DataError(f"{index.folder} keeps no looks of photos; index them again")
    model = load_model(index.facts.model)
    (part,) = score(model, BytesImages([content], [photo]), batch_size=1, embed=True)
    if part.failures or part.embeddings is None:
        raise DataError(part.failures[0].reason if part.failures else f"{photo} has no looks")
    (looks,) = projection(part.embeddings.numpy())
    return [], hits_of(index, (), *index.look_alikes.nearest(looks, count))
