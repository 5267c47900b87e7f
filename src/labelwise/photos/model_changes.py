"""Whether the model of an index is still the one that its run holds.

An index answers by its own copy of ``model.json``, and by logits that earlier weights may have
given. Nothing is said where the run cannot be asked: it lies in a bucket, was exported, or is gone.
"""

import shlex
from pathlib import Path

from labelwise.errors import CheckpointError
from labelwise.models.spec import MODEL_FILE, ModelSpec
from labelwise.photos.index import Index
from labelwise.system.storage import is_uri


def model_changed(index: Index) -> str | None:
    """Return in one sentence how the model changed since an index took it, with the way out."""
    place = index.facts.model
    if is_uri(place) or not (Path(place) / MODEL_FILE).is_file():
        return None
    try:
        now = ModelSpec.load(Path(place) / MODEL_FILE, tried=True)  # compared, never used
    except CheckpointError:
        return None
    if now.model_copy(update={"versions": index.spec.versions}) == index.spec:
        return None
    update = f"labelwise index -o {shlex.quote(str(index.folder))}"
    if now.weights_sha256 != index.spec.weights_sha256:
        return (
            f"{place} has other weights than those that scored the photos of {index.folder}; "
            f"answers are those of the earlier ones until `{update} --rebuild`"
        )
    return (
        f"{place} has another calibration, rule or promise than {index.folder} answers by; "
        f"`{update}` takes it over, without reading photos again"
    )
