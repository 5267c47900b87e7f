"""Eye: a network that sees photos. An ONNX file, and a JSON of the same name beside it.

    {"format": 1, "name": ..., "sha256": of the ONNX file, "input": its name,
     "outputs": {"means": width, "maxima": ..., "middle": ..., "classes": ...},
     "transform": size, mean, std, interpolation, crop, "licence": ..., "source": ...}

``means`` are the features of a photo, pooled as the network does it. The other outputs may be
missing: maxima over places, means of maps in the middle of the network, and logits of ImageNet's
1,000 classes. The input is float32 (N, 3, height, width), scaled and normalised by the transform.

A file may come from a stranger. Before onnxruntime sees it the hash, the input and the outputs are
compared with the JSON, and the graph must be one that only computes with numbers of known size:
no loops, no branches, no functions, no operators of others, no data in other files.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelwise.base.files import read_regular, replacing
from labelwise.base.pydantic_errors import first_fault
from labelwise.base.text import one_line_of
from labelwise.errors import CheckpointError, SettingsError
from labelwise.eyes.session import not_run, open_session
from labelwise.pictures.transform import Transform

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto
    from onnxruntime import InferenceSession

BUILT_IN = "tf_efficientnet_lite0"
PRETRAINED = "pretrained"  # weights as a network was published with
BUILT_IN_FILE = Path(__file__).with_name("lite0.onnx")
FORMAT = 1
FEATURES = ("means", "maxima", "middle")  # outputs that are features, in this order
MIDDLE = 2.0  # the weight of the middle of the network, whose maps say more of colour and texture
MOST_BYTES, MOST_FACTS = 1 << 31, 1 << 16  # of an ONNX file, protobuf's own limit; of its JSON
MOST_VALUES = 1 << 28  # of all arrays together while the network sees one photo
OPSET = 18  # of ONNX's operators, in which runs are written too
RESTRICTED = frozenset(("If", "Loop", "Scan", "SequenceMap", "Optional", "StringConcat"))

Width = Annotated[int, Field(ge=1, le=1 << 20)]


class StatedEye(BaseModel):
    """The JSON of an eye."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    input: str
    outputs: dict[Literal["means", "maxima", "middle", "classes"], Width]
    transform: Transform
    licence: str = ""
    source: str = ""

    def save(self, path: Path) -> None:
        """Write the JSON."""
        stated = {**self.model_dump(mode="json"), "transform": self.transform.spec()}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Eye:
    """A network that was opened and checked; :meth:`see` may be called by several threads."""

    name: str
    sha256: str
    transform: Transform
    outputs: Mapping[str, int]
    input: str
    model: "ModelProto" = field(repr=False)
    licence: str = ""
    source: str = ""
    path: Path = BUILT_IN_FILE

    @staticmethod
    def open(place: str | Path = BUILT_IN_FILE) -> "Eye":
        """Return the eye in an ONNX file, with its JSON beside it, or raise a CheckpointError."""
        path = Path(place)
        stated = _stated(path.with_suffix(".json"), path)
        content = _content(path, MOST_BYTES)
        if hashlib.sha256(content).hexdigest() != stated.sha256:
            raise CheckpointError(
                f"{path} has another SHA-256 than {path.with_suffix('.json').name} says: one of "
                "them was changed or is damaged; copy both again"
            )
        return Eye.of(content, stated, path)

    @staticmethod
    def of(content: bytes, stated: StatedEye, path: Path) -> "Eye":
        """Return the eye of an ONNX file's bytes, if nothing but what is stated can happen."""
        model = _checked(content, stated, str(path))
        order = [name for name in (*FEATURES, "classes") if name in stated.outputs]
        return Eye(
            stated.name,
            stated.sha256,
            stated.transform,
            {name: stated.outputs[name] for name in order},
            stated.input,
            model,
            stated.licence,
            stated.source,
            path,
        )

    def with_transform(self, transform: Transform) -> "Eye":
        """Return the same eye for photos that are scaled in another way."""
        dims = self.model.graph.input[0].type.tensor_type.shape.dim[2:]
        sides = [size.dim_value for size in dims if size.HasField("dim_value")]
        if transform.channels != 3 or any(side != transform.size for side in sides):
            raise SettingsError(
                f"{self.name} takes RGB pictures of {self.transform.size} pixels alone, got "
                f"{transform.channels} channels of {transform.size} pixels"
            )
        return replace(self, transform=transform)

    def of_means(self) -> "Eye":
        """Return the same eye, of whose features only the means are read."""
        kept = {name: width for name, width in self.outputs.items() if name in ("means", "classes")}
        return replace(self, outputs=kept)

    @property
    def head_features(self) -> tuple[str, ...]:
        """The outputs that a head is solved on: with the middle of the network all features."""
        return self.features if "middle" in self.outputs else ("means",)

    @property
    def head_parts(self) -> tuple[tuple[int, float], ...]:
        """The width of each output that a head is solved on, and its weight beside the others."""
        return tuple(
            (self.outputs[name], MIDDLE if name == "middle" else 1.0) for name in self.head_features
        )

    @property
    def features(self) -> tuple[str, ...]:
        """The outputs that are features: ``means``, and maybe ``maxima`` and ``middle``."""
        return tuple(name for name in FEATURES if name in self.outputs)

    def see(self, pixels: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """Return every output for uint8 pixels (n, 3, size, size), by its name."""
        names = list(self.outputs)
        try:
            values = self._session.run(names, {self.input: self.transform.normalised(pixels)})
        except Exception as error:  # onnxruntime's own classes have no common base but this
            raise not_run(str(self.path), error) from None
        return dict(zip(names, values, strict=True))

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the constants of the network as float32, by name, in the order of the network."""
        from onnx import numpy_helper

        return {
            tensor.name.removesuffix("/stored"): numpy_helper.to_array(tensor).astype(np.float32)
            for tensor in self.model.graph.initializer
        }

    def classifier(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the weights (C, D) and biases (C,) by which ``means`` become ``classes``."""
        weights = self.weights()
        if "classes" not in self.outputs or "classes/weight" not in weights:
            raise SettingsError(f"{self.path} has no linear classifier, which words need")
        return weights["classes/weight"], weights["classes/bias"]

    @cached_property
    def _session(self) -> "InferenceSession":
        return open_session(self.model, threads=1, name=str(self.path))


def find_eye(name: str) -> Eye | None:
    """Return the eye of a name: an ``.onnx`` file, or the one of the package; None for others."""
    if name.lower().endswith(".onnx"):
        return Eye.open(name)
    return Eye.open() if name == BUILT_IN else None


def _content(path: Path, most: int) -> bytes:
    try:
        return read_regular(path, most)[0]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def _stated(facts: Path, path: Path) -> StatedEye:
    if path.is_file() and not facts.is_file():
        raise CheckpointError(
            f"{path} is not a network that labelwise can use: {facts.name} must lie beside it, "
            "with its input, its outputs and its SHA-256, as in labelwise/eyes/lite0.json"
        )
    try:
        stated = json.loads(_content(facts, MOST_FACTS))
        return StatedEye.model_validate(stated)
    except ValidationError as error:
        reason = first_fault(error)
    except (ValueError, RecursionError) as error:
        reason = one_line_of(error)
    raise CheckpointError(f"{facts} does not describe an eye: {reason}")


def _checked(content: bytes, stated: StatedEye, name: str) -> "ModelProto":
    """Return the model in a file, if nothing but what its JSON says can happen when it is run."""
    import onnx

    def fault(what: str) -> CheckpointError:
        return CheckpointError(f"{name} is not run: {what}")

    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # onnx and protobuf have no common base but this
        raise fault("it is not a readable ONNX file") from None
    graph = model.graph
    if model.functions or graph.sparse_initializer or len(graph.input) != 1:
        raise fault("it must be one graph with one input, without functions")
    opsets = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if opsets != [OPSET]:
        raise fault(f"it must use ONNX operator set {OPSET}, got {opsets}; export it again")
    for node in graph.node:
        nested = any(
            attribute.HasField("g") or attribute.graphs or attribute.HasField("sparse_tensor")
            for attribute in node.attribute
        )
        if node.domain not in ("", "ai.onnx") or node.op_type in RESTRICTED or nested:
            raise fault(f"it has the operator {node.op_type!r:.40}, which an eye may not have")
    if any(tensor.data_location or tensor.external_data for tensor in _tensors(model)):
        raise fault("its weights lie in other files")
    known = _shapes(model, stated.transform.size)
    size = stated.transform.size
    of_float = {
        value.name
        for value in (*graph.input, *graph.output)
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    photo = graph.input[0].name
    if known.get(photo) != [1, 3, size, size] or photo != stated.input or photo not in of_float:
        raise fault(
            f"its input is not {stated.input!r} of {size} x {size} pixels in float32, as its JSON "
            "says"
        )
    for output, width in stated.outputs.items():
        if known.get(output) != [1, width] or output not in of_float:
            raise fault(f"it has no output {output!r} of width {width:,}, as its JSON says")
    if "means" not in stated.outputs:
        raise fault("it has no output 'means', the features of a photo")
    values = 0
    for made in (output for node in graph.node for output in node.output if output):
        values += prod(known.get(made, [MOST_VALUES + 1]))
        if values > MOST_VALUES:
            raise fault(f"the size of {made!r:.60} is not known before it is run, or is too large")
    return model


def _tensors(model: "ModelProto") -> Iterator["TensorProto"]:
    yield from model.graph.initializer
    for attribute in (attribute for node in model.graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)


def _shapes(model: "ModelProto", size: int) -> dict[str, list[int]]:
    """Return the shapes of all values that are known before a network sees one photo."""
    import onnx

    single = onnx.ModelProto()
    single.CopyFrom(model)
    for value, sides in ((single.graph.input[0], 4), *((own, 1) for own in single.graph.output)):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim[:sides]):
            if not dim.HasField("dim_value"):
                dim.dim_value = 1 if axis == 0 else size
    try:
        graph = onnx.shape_inference.infer_shapes(single, data_prop=True).graph
    except Exception:  # it has no class of its own
        return {}
    return {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.HasField("tensor_type")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
