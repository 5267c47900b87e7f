"""Exported files as they are read: what one says of itself, if it is whole, and its parts.

The metadata holds ``sha256``, the hash of the file with that hash as zeros: a flipped bit, also in
a weight, is found when the file is opened.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    StrictBool,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from labelwise import __version__
from labelwise.base.arrays import Values, require_as_stated
from labelwise.base.files import read_regular
from labelwise.base.pydantic_errors import first_fault
from labelwise.base.text import one_line_of
from labelwise.calibration.auto import link_from_spec, link_to_spec
from labelwise.decide import Rule
from labelwise.decide.rules import rule_from_spec, rule_to_spec
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.eyes.eye import OPSET
from labelwise.links import Link
from labelwise.models.spec import NOT_USABLE, require_fit
from labelwise.pictures import Transform
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

FORMAT = 1  # of the files that labelwise exports
MOST_GRAPH = 2 << 30  # bytes, as protobuf has it
UNSEALED = "0" * 64  # stands for the hash of a file while it is computed


def content_of(path: str | Path) -> bytes:
    """Return the bytes of a model's file."""
    try:
        return read_regular(path, MOST_GRAPH)[0]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


INPUT = "normalised"  # what the network reads
EMBEDDING = "embedding"  # the value by which photos are compared, where a network names one
PIXELS: Literal["pixels"] = "pixels"

PASSING = ("Identity", "DequantizeLinear", "QuantizeLinear")

Input = Literal["image", "pixels"]
JSON_KEYS = (
    *("labels", "link", "rule", "transform", "exact_resize"),
    *("open_thresholds", "promises", "taxonomy"),
)


@dataclass(frozen=True)
class Facts:
    """What an exported file says of itself, beside its graph."""

    space: LabelSpace
    link: Link | None
    rule: Rule
    transform: Transform
    method: str
    weights_sha256: str
    input: Input = "image"
    precision: str = "float32"
    promises: tuple[Mapping[str, object], ...] = ()
    taxonomy: Taxonomy | None = None
    open_thresholds: bool = False
    judgement: str = ""
    caution: str | None = None

    def __post_init__(self) -> None:
        if self.input not in get_args(Input):
            raise ValueError(f"the input of a file must be image or pixels, got {self.input!r}")

    def pixels_info(self, batch: str | int) -> "ValueInfoProto":
        from onnx import TensorProto, helper

        size, channels = self.transform.size, self.transform.channels
        kind = TensorProto.UINT8 if self.transform.bands is None else TensorProto.FLOAT
        return helper.make_tensor_value_info(PIXELS, kind, [batch, channels, size, size])

    def blank(self) -> Values:
        kind = np.uint8 if self.transform.bands is None else np.float32
        size = self.transform.size
        return np.zeros((1, self.transform.channels, size, size), kind)

    def metadata(self) -> dict[str, str]:
        names = self.space.names
        parents = None if self.taxonomy is None else dict(self.taxonomy.parents)
        return {
            "labelwise_format": str(FORMAT),
            "labelwise_version": __version__,
            "labels": json.dumps(names, ensure_ascii=False),
            "link": json.dumps(None if self.link is None else link_to_spec(self.link)),
            "rule": json.dumps(rule_to_spec(self.rule)),
            "transform": json.dumps(self.transform.spec()),
            "method": self.method,
            "weights_sha256": self.weights_sha256,
            "input": self.input,
            "exact_resize": "true",
            "open_thresholds": json.dumps(self.open_thresholds),
            "precision": self.precision,
            "promises": json.dumps([dict(promise) for promise in self.promises]),
            **({"judgement": self.judgement} if self.judgement else {}),
            **({} if self.caution is None else {"caution": self.caution}),
            **({} if parents is None else {"taxonomy": json.dumps(parents, ensure_ascii=False)}),
            "answers": "ranking" if self.link is None else "probabilities",
            "names": str(dict(enumerate(names))),
            "task": "classify",
            "imgsz": json.dumps([self.transform.size, self.transform.size]),
            "sha256": UNSEALED,
        }

    @staticmethod
    def read(metadata: Mapping[str, str]) -> "Facts":
        """Return what the metadata of a file says, a ValueError if it cannot be used."""
        try:
            plain = {key: json.loads(metadata[key]) for key in JSON_KEYS if key in metadata}
            if not plain.get("exact_resize", True):
                raise ValueError("its --fast-resize gives other pixels; export it again without")
            stated = StatedFacts.model_validate({**metadata, **plain})
            "".join(stated.labels).encode()  # half a character cannot be written
            space = LabelSpace(stated.labels)
            link = None if stated.link is None else link_from_spec(stated.link)
            rule = rule_from_spec(stated.rule)
            taxonomy = None if stated.taxonomy is None else Taxonomy(stated.taxonomy)
            require_fit(space, lambda: link, lambda: rule, stated.promises, taxonomy)
        except ValidationError as error:
            raise ValueError(first_fault(error)) from None
        except (LabelwiseError, RecursionError, *NOT_USABLE) as error:
            raise ValueError(one_line_of(error)) from None
        names = (field.name for field in fields(Facts))
        same: dict[str, Any] = {name: getattr(stated, name, None) for name in names}
        return Facts(**same | {"space": space, "link": link, "rule": rule, "taxonomy": taxonomy})


class StatedFacts(BaseModel):
    """The metadata of a file, its JSON read; other tools' keys stand beside ours."""

    model_config = ConfigDict(allow_inf_nan=False)

    labels: tuple[str, ...]
    link: dict[str, object] | None
    rule: dict[str, object]
    transform: Transform
    method: str
    weights_sha256: str
    input: Input
    exact_resize: StrictBool
    precision: str
    promises: tuple[dict[str, object], ...]
    taxonomy: dict[str, str] | None = None
    open_thresholds: StrictBool = True  # files of 0.1 are open
    judgement: str = ""
    caution: str | None = None

    @field_validator("transform", mode="wrap")
    @classmethod
    def _is_known(cls, value: object, made: ValidatorFunctionWrapHandler) -> Transform:
        """Refuse an entry of a later version: without it the pixels would be other ones."""
        known = {field.name for field in fields(Transform)}
        odd = sorted(set(value) - known) if isinstance(value, dict) else []
        if odd:
            raise ValueError(f"the transform must not have the entry {odd[0]!r:.60}")
        transform: Transform = made(value)
        require_as_stated(transform.spec(), value, "transform")
        return transform


def sealed(model: "ModelProto") -> bytes:
    """Return the bytes of a model with their hash in its metadata."""
    from onnx import helper

    helper.set_model_props(model, {**_properties(model), "sha256": UNSEALED})
    content: bytes = model.SerializeToString()
    if content.count(UNSEALED.encode()) != 1:
        raise ValueError("a model must hold exactly one place for its hash")
    return content.replace(UNSEALED.encode(), hashlib.sha256(content).hexdigest().encode())


def _properties(model: "ModelProto") -> dict[str, str]:
    return {prop.key: prop.value for prop in model.metadata_props}


def read_model(content: bytes, name: str) -> tuple["ModelProto", Facts]:
    """Return the model in a file's bytes and what it says of itself, if it is whole and ours."""
    import onnx

    try:
        model = onnx.load_model_from_string(content)
        metadata = _properties(model)
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("text that is not Unicode")  # protobuf hands it over as bytes
    except Exception:  # onnx and protobuf have no common base but this
        raise CheckpointError(f"{name} is not a readable ONNX file; export it again") from None
    if not model.ByteSize() or metadata.get("labelwise_format") is None:
        raise CheckpointError(
            f"{name} was not written by `labelwise export`: its metadata names no labels"
        )
    if metadata["labelwise_format"] != str(FORMAT):
        raise CheckpointError(
            f"{name} must have format {FORMAT}, got {metadata['labelwise_format']!r:.40}; "
            "export it again with this version"
        )
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    if opset != OPSET:
        raise CheckpointError(
            f"{name} must use ONNX operator set {OPSET}, got {opset}; export it again"
        )
    digest = metadata.get("sha256", "")
    whole = content.replace(digest.encode(), UNSEALED.encode(), 1) if len(digest) == 64 else b""
    if hashlib.sha256(whole).hexdigest() != digest:
        raise CheckpointError(
            f"{name} is damaged or was changed after it was written: its hash is not the one it "
            "holds; copy or export it again"
        )
    try:
        return model, Facts.read(metadata)
    except ValueError as error:
        raise CheckpointError(f"{name} holds no usable description: {error}") from None


def cut(
    model: "ModelProto", inputs: list["ValueInfoProto"], outputs: list["ValueInfoProto"]
) -> "ModelProto":
    """Return the part of a model between values inside it, which become inputs and outputs."""
    from onnx import helper

    wanted = {output.name for output in outputs}
    begin = {value.name for value in inputs}
    kept: list[NodeProto] = []
    for node in reversed(model.graph.node):
        if wanted & set(node.output) - begin:
            kept.append(node)
            wanted |= _reads(node)
    weights = [tensor for tensor in model.graph.initializer if tensor.name in wanted - begin]
    names = {tensor.name for tensor in weights}
    optional = [value for value in model.graph.input if value.name in names]  # has a default
    graph = helper.make_graph(kept[::-1], "part", [*inputs, *optional], outputs, weights)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


@dataclass(frozen=True)
class GraphFeatures:
    """The value (n, width) of a graph of which its logits are weighted sums."""

    name: str
    width: int


def features_of(model: "ModelProto") -> GraphFeatures | None:
    """Return the ``embedding``, or what goes into the last layer; None where it is not linear."""
    makers = {name: node for node in model.graph.node for name in node.output}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in model.graph.value_info:
        if value.name == EMBEDDING and EMBEDDING in makers:
            return GraphFeatures(EMBEDDING, value.type.tensor_type.shape.dim[1].dim_value)
    node = makers.get(_before(makers, "logits", PASSING))
    if node is not None and node.op_type == "Add":  # of a bias
        sums = [name for name in node.input if name not in shapes]
        node = makers.get(_before(makers, sums[0], PASSING)) if len(sums) == 1 else None
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        return None
    shape = shapes.get(_before(makers, node.input[1], ("DequantizeLinear",)))
    if shape is None or len(shape) != 2:
        return None
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return GraphFeatures(node.input[0], shape[1 if turned else 0])


def _before(makers: Mapping[str, "NodeProto"], name: str, passing: Sequence[str]) -> str:
    """Return the name of a value before operators that only pass it on, or round it."""
    while name in makers and makers[name].op_type in passing:
        name = makers[name].input[0]
    return name


def _reads(node: "NodeProto") -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                names |= _reads(inner)
    return names
