"""An index of chosen logits: no picture is read or scored."""

import hashlib
from pathlib import Path

import numpy as np

from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index
from labelwise.photos.index import IndexFacts
from labelwise.photos.store import Content, PhotoFile


def made_index(folder: Path, model: Path, logits, folders=None) -> Path:
    """Make an index of photos with these logits (n, K), in one folder or in one named for each."""
    run = RunFolder(model)
    held_out = run.predictions("test") if "test" in run.splits else None
    facts = IndexFacts(model=str(model), held_out=None if held_out is None else "test")
    index = Index.create(folder, run.spec, facts)
    index.use(run.spec, held_out)
    root = index.store.root(str(folder.parent / "photos"))
    contents = [
        Content(hashlib.sha256(f"{folder} {row}".encode()).digest(), 1)
        for row in range(len(logits))
    ]
    files = [
        (PhotoFile(root, "" if folders is None else folders[row], f"{row}.jpg", 1, 1), row)
        for row in range(len(logits))
    ]
    index.store.append(contents, np.asarray(logits, np.float32), None, files)
    index.close()
    return folder
