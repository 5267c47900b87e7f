"""``export_onnx``: a model to one ``.onnx`` file, written only if it gives the model's answers."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto
from torch import Tensor, nn

from labelwise.base.files import replacing
from labelwise.base.progress import Watch
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.parity import Parity, assert_parity
from labelwise.exports.requirements import require_exportable, require_pictures
from labelwise.learn.graphs import written_graph
from labelwise.learn.heads import LinearHead
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.models import ModelSpec
from labelwise.models.graph_file import INPUT, Facts, Input, read_model, sealed
from labelwise.models.graph_model import OnnxModel
from labelwise.models.graph_writer import LOGITS, assemble
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows, ImageSource, PictureImages
from labelwise.pictures.decode import find_images
from labelwise.tables import load

PICTURES = 64


def export_onnx(
    predictor: Predictor,
    spec: ModelSpec,
    path: Path,
    images: ImageSource,
    rows: Sequence[int] | None = None,
    *,
    input: Input = "image",
    open_thresholds: bool = False,
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write a file once it agrees with the model; return its size and how it compares."""
    chosen = range(len(images)) if rows is None else rows
    facts = facts_of(predictor, spec, input, open_thresholds)
    content, parity = onnx_content(predictor, facts, images, chosen, watch)
    with replacing(Path(path)) as temporary:
        return temporary.write_bytes(content), parity


def onnx_content(
    predictor: Predictor,
    facts: Facts,
    images: ImageSource,
    rows: Sequence[int],
    watch: Watch | None = None,
) -> tuple[bytes, Parity]:
    """Return the bytes of the file and how it compares with the model on pictures."""
    require_pictures(rows)
    content = sealed(assemble(export_network(predictor.model, predictor.transform.size), facts))
    model = OnnxModel(*read_model(content, "the new file"))
    return content, assert_parity(model, predictor, images, rows, watch=watch)


def facts_of(
    predictor: Predictor,
    spec: ModelSpec,
    input: Input = "image",
    open_thresholds: bool = False,
) -> Facts:
    """Return what the file of a model will say of itself."""
    rgb_for = "--input image" if input == "image" else None
    require_exportable(predictor, rgb_for=rgb_for, full_scale=input == "image")
    return Facts(
        predictor.space,
        predictor.link,
        predictor.rule,
        predictor.transform,
        predictor.method,
        spec.weights_sha256,
        input,
        promises=predictor.promises,
        taxonomy=predictor.taxonomy,
        open_thresholds=open_thresholds,
        caution=predictor.caution,
    )


def pictures_of(
    folder: RunFolder, data: str | None, limit: int | None = None
) -> tuple[ImageSource, list[int]]:
    """Return pictures to compare on, and their rows: given ones, or the run's validation."""
    if data is not None:
        path = Path(data)
        plain = find_images(path)[0] if path.is_dir() else []
        images = PictureImages([path / name for name in plain]) if plain else load(data).images
        rows = np.arange(len(images))
    elif folder.spec.answers is not None:
        raise SettingsError(
            f"{folder.path} began with words: name photos to compare on, as in --data PHOTOS"
        )
    else:
        try:
            table = load(folder.data, **folder.settings.get("data_options", {}))
            kept = next(split for split in ("val", "test", "train") if split in folder.splits)
            wanted = set(folder.predictions(kept).ids)
        except (LabelwiseError, LookupError, StopIteration, ValueError) as error:
            raise SettingsError(
                f"the pictures that {folder.path} was trained with cannot be read ({error}); "
                "give some with --data"
            ) from None
        images = table.images
        rows = np.array([row for row, name in enumerate(table.ids) if name in wanted], np.int64)
    if isinstance(images, FeatureRows):
        raise SettingsError("an export is compared on pictures, got stored features")
    some = np.linspace(0, len(rows) - 1, min(limit or PICTURES, len(rows))).round().astype(int)
    return images, [int(row) for row in rows[some]]


# A model whose classifier does the work of its link, for programs that know no links.
#
#     sigma(slope (W x + b) + offset)  =  sigma((slope W) x + (slope b + offset))
#     softmax of (W x + b) / T         =  softmax of (W / T) x + b / T
#
# Other programs take a sigmoid or a softmax of the logits, whichever ``problem_type`` names. Curves
# (SPA, isotonic, beta) and links that couple labels cannot be folded.


def folded(predictor: Predictor) -> tuple[Predictor, str]:
    """Return the predictor with its link folded into its linear head; raise if that cannot be."""
    head = predictor.model.head
    if not isinstance(head, LinearHead):
        raise SettingsError(f"only a linear head can take in a link, got {type(head).__name__}")
    slope, offset, link, problem_type = _line(predictor.link, len(predictor.space))
    classifier = deepcopy(head.classifier)
    weight, bias = classifier.weight, classifier.bias
    slope, offset = slope.to(weight.device), offset.to(weight.device)
    with torch.no_grad():
        weight.copy_(slope[:, None] * weight.double())
        bias.copy_(slope * bias.double() + offset)
    new = LinearHead(classifier.in_features, classifier.out_features)
    new.classifier = classifier
    old = predictor.model
    model = Model(old.backbone, new, mirrored=old.mirrored, crops=old.crops)
    return replace(predictor, model=model.eval(), link=link), problem_type


def _line(link: Link | None, labels: int) -> tuple[Tensor, Tensor, Link, str]:
    """Return the slope and offset (K,) to fold, what remains of the link, and how it is asked."""
    if link is None:
        raise SettingsError("the model ranks labels and has no probabilities; calibrate it first")
    if isinstance(link, Softmax) and labels > 1:
        slope = torch.full((labels,), 1 / link.temperature, dtype=torch.float64)
        return slope, torch.zeros_like(slope), Softmax(), "single_label_classification"
    line = link.slope_and_offset(labels)
    if line is None:
        raise SettingsError(
            f"the link {link.kind!r} is not a sigmoid or softmax of scaled and shifted logits; "
            "`labelwise train --method bce --set calibrate=platt` gives one that is"
        )
    slope, offset = (torch.from_numpy(np.ascontiguousarray(coefficients)) for coefficients in line)
    return slope, offset, Sigmoid(), "multi_label_classification"


class _Logits(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (self.model(images).logits,)


def export_network(model: Model, size: int) -> ModelProto:
    """Return the graph from normalised pixels (N, C, size, size) to logits (N, K)."""
    shape = model.backbone.transform.channels, size, size
    network = _Logits(model).eval().cpu()
    return written_graph(network, shape, INPUT, (LOGITS,), model.backbone.name)
