"""``export_onnx``: a model to one ``.onnx`` file, written only if it gives the model's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from labelwise import __version__
from labelwise.data import load
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.graph import Graph, require_exportable, require_pictures
from labelwise.exports.links import default_thresholds, write_link, write_rule
from labelwise.exports.network import LOGITS, export_network
from labelwise.exports.parity import Parity, assert_parity
from labelwise.exports.pictures import write_normalise, write_resize
from labelwise.links import Link
from labelwise.models import ModelSpec, Predictor
from labelwise.models.graph_file import INPUT, OPSET, PIXELS, Facts, Input, read_model, sealed
from labelwise.models.graph_model import OnnxModel
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows, ImageSource, PictureImages
from labelwise.pictures.decode import find_images
from labelwise.system.files import replacing
from labelwise.system.progress import Watch

# One ONNX file from pixels to decided labels, with all that describes it in its metadata.
#
#     image uint8 (H, W, 3)   -> resize -+
#     pixels uint8 (N, 3, S, S) ---------+-> normalise -> network -> logits -> link -> rule
#     bands float32 (N, n, S, S), named ``pixels`` too, in their own units -> normalise -> ...
#
#     inputs    ``image`` or ``pixels``; with ``open_thresholds`` also ``thresholds`` (K,) float64,
#               optional, if the rule has any
#     outputs   ``logits`` (N, K), ``probability`` (N, K), ``label`` (N, K) bool, ``none`` (N,)
#               ``logits`` and ``ranking`` (N, K) of columns, best first, if the model only ranks
#
# It is read back by ``models.graph_file``.


IR_VERSION = 10


def assemble(network: ModelProto, facts: Facts) -> ModelProto:
    """Return the whole model around the graph of a network."""
    g, labels = Graph(), len(facts.space)
    if facts.input == "image":
        inputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, ["height", "width", 3])]
        resized = write_resize(g, facts.transform, "image", exact=facts.exact_resize)
        g.named(g.op("Unsqueeze", resized, [0]), PIXELS)
    else:
        inputs = [facts.pixels_info("batch")]
    normalised = write_normalise(g, facts.transform, PIXELS)
    g.nodes.append(helper.make_node("Identity", [normalised], [INPUT], name="network/input"))
    g.nodes.extend(network.graph.node)
    g.constants.extend(network.graph.initializer)
    g.nodes.append(helper.make_node("Identity", [LOGITS], ["logits"], name="network/output"))
    batch = 1 if facts.input == "image" else "batch"
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, labels])]
    if facts.link is None:
        _, order = g.op("TopK", "logits", [labels], axis=-1, outputs=2)
        g.named(order, "ranking")
        outputs.append(helper.make_tensor_value_info("ranking", TensorProto.INT64, [batch, labels]))
    else:
        inputs += _write_decision(g, facts, facts.link, labels)
        outputs += [
            helper.make_tensor_value_info("probability", TensorProto.FLOAT, [batch, labels]),
            helper.make_tensor_value_info("label", TensorProto.BOOL, [batch, labels]),
            helper.make_tensor_value_info("none", TensorProto.FLOAT, [batch]),
        ]
    model = helper.make_model(
        g.body("labelwise", inputs, outputs),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="labelwise",
        producer_version=__version__,
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, facts.metadata())
    onnx.checker.check_model(model)
    return model


def _write_decision(g: Graph, facts: Facts, link: Link, labels: int) -> list[ValueInfoProto]:
    """Write what follows the logits; return the inputs it takes: the thresholds, if open."""
    inputs, rule = [], facts.rule
    with g.part("link"):
        probs, none = write_link(g, link, g.cast("logits", "float64"))
    thresholds = default_thresholds(rule, labels)
    if thresholds is not None:
        g.constants.append(numpy_helper.from_array(thresholds, "thresholds"))
    if thresholds is not None and facts.open_thresholds:
        inputs.append(helper.make_tensor_value_info("thresholds", TensorProto.DOUBLE, [labels]))
    with g.part("rule"):
        given = None if thresholds is None else "thresholds"
        g.named(write_rule(g, rule, probs, given), "label")
    g.named(g.cast(probs, "float32"), "probability")
    g.named(g.cast(none, "float32"), "none")
    return inputs


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
