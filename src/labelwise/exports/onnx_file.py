"""``export_onnx``: a model to one ``.onnx`` file, written only if it gives the model's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.data import load
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.assemble import assemble
from labelwise.exports.checks import require_exportable, require_pictures
from labelwise.exports.network import export_network
from labelwise.exports.parity import Parity, assert_parity
from labelwise.models import ModelSpec, Predictor
from labelwise.models.graph_file import Facts, Input, read_model, sealed
from labelwise.models.graph_model import OnnxModel
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows, ImageSource, PictureImages
from labelwise.pictures.folders import find_images
from labelwise.system.files import replacing
from labelwise.system.progress import Watch

PICTURES = 64


@dataclass(frozen=True)
class Exported:
    """A written file, its size in bytes and how it compares with the model."""

    path: Path
    size: int
    parity: Parity
    ranks_only: bool


def export_onnx(
    predictor: Predictor,
    spec: ModelSpec,
    path: Path,
    images: ImageSource,
    rows: Sequence[int] | None = None,
    *,
    input: Input = "image",
    exact_resize: bool = True,
    open_thresholds: bool = False,
    watch: Watch | None = None,
) -> Exported:
    """Write a model to ``path`` once its file agrees with it on pictures."""
    chosen = range(len(images)) if rows is None else rows
    content, parity = onnx_content(
        predictor,
        spec,
        images,
        chosen,
        input=input,
        exact_resize=exact_resize,
        open_thresholds=open_thresholds,
        watch=watch,
    )
    path = Path(path)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return Exported(path, len(content), parity, predictor.link is None)


def onnx_content(
    predictor: Predictor,
    spec: ModelSpec,
    images: ImageSource,
    rows: Sequence[int],
    *,
    input: Input,
    exact_resize: bool,
    open_thresholds: bool = False,
    watch: Watch | None = None,
) -> tuple[bytes, Parity]:
    """Return the bytes of the file and how it compares with the model on pictures."""
    require_pictures(rows)
    facts = facts_of(
        predictor, spec, input=input, exact_resize=exact_resize, open_thresholds=open_thresholds
    )
    network = export_network(predictor.model, predictor.transform.size)
    content = sealed(assemble(network, facts))
    model = OnnxModel(*read_model(content, "the new file"))
    return content, assert_parity(model, predictor, images, rows, watch=watch)


def facts_of(
    predictor: Predictor,
    spec: ModelSpec,
    *,
    input: Input = "image",
    exact_resize: bool = True,
    open_thresholds: bool = False,
) -> Facts:
    """Return what the file of a model will say of itself."""
    from_picture = input == "image"
    require_exportable(
        predictor, rgb_for="--input image" if from_picture else None, full_scale=from_picture
    )
    return Facts(
        predictor.space,
        predictor.link,
        predictor.rule,
        predictor.transform,
        predictor.method,
        spec.weights_sha256,
        input,
        exact_resize,
        promises=predictor.promises,
        taxonomy=predictor.taxonomy,
        open_thresholds=open_thresholds,
        caution=predictor.caution,
    )


def pictures_of(
    folder: RunFolder, data: str | None, limit: int | None = None
) -> tuple[ImageSource, list[int]]:
    """Return pictures to compare on, and which rows of them: given ones, or the run's validation.

    Rows are spread over the whole split.
    """
    if data is not None:
        place = Path(data)
        plain = find_images(place)[0] if place.is_dir() else []
        images = PictureImages([place / name for name in plain]) if plain else load(data).images
        rows = np.arange(len(images))
    else:
        images, rows = _validation(folder)
    if isinstance(images, FeatureRows):
        raise SettingsError("an export is compared on pictures, got stored features")
    some = np.linspace(0, len(rows) - 1, min(limit or PICTURES, len(rows))).round().astype(int)
    return images, [int(row) for row in rows[some]]


def _validation(folder: RunFolder) -> tuple[ImageSource, np.ndarray]:
    if folder.spec.answers is not None:
        raise SettingsError(
            f"{folder.path} began with words, not with labelled pictures: name photos to compare "
            "on, as in --data PHOTOS"
        )
    try:
        settings = folder.settings
        table = load(folder.data, **settings.get("data_options", {}))
        kept = next(split for split in ("val", "test", "train") if split in folder.splits)
        wanted = set(folder.predictions(kept).ids)
    except (LabelwiseError, LookupError, StopIteration, ValueError) as error:
        raise SettingsError(
            f"the pictures that {folder.path} was trained with cannot be read ({error}); "
            "give some with --data"
        ) from None
    rows = np.array([row for row, name in enumerate(table.ids) if name in wanted], dtype=np.int64)
    return table.images, rows
