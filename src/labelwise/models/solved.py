"""SolvedModel: a linear classifier on an eye's features, which is its own export.

    model.onnx    picture -> pixels -> eye -> features -> Gemm -> logits -> link -> rule
    model.json    the same in words, for those who do not open the graph

Both are written with onnx and NumPy. Who opens a run takes link and rule from ``model.json``.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, compose, helper, numpy_helper

from labelwise.base.arrays import Values
from labelwise.base.files import replacing
from labelwise.calibration.auto import link_to_spec
from labelwise.decide import Rule
from labelwise.decide.rules import rule_to_spec
from labelwise.errors import CheckpointError, SettingsError
from labelwise.eyes import Eye
from labelwise.links import Link
from labelwise.models.graph_file import (
    EMBEDDING,
    INPUT,
    Facts,
    Input,
    content_of,
    cut,
    read_model,
    sealed,
)
from labelwise.models.graph_model import OnnxModel
from labelwise.models.graph_writer import LOGITS, assemble
from labelwise.models.spec import (
    MODEL_FILE,
    SOLVED_FILE,
    BackboneSpec,
    HeadSpec,
    ModelSpec,
    caution_after,
)
from labelwise.pictures import Transform
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

EYE = "eye/"  # before every name of the eye's graph
WEIGHT, BIAS = "head/weight", "head/bias"


@dataclass(frozen=True, eq=False)
class SolvedModel:
    """What a solved run deploys; ``network`` maps normalised pixels to logits."""

    network: ModelProto
    backbone: BackboneSpec
    transform: Transform
    space: LabelSpace
    link: Link | None
    rule: Rule
    weights_sha256: str
    method: str = ""
    promises: tuple[Mapping[str, object], ...] = ()
    taxonomy: Taxonomy | None = None
    answers: int | None = None
    unanswered: tuple[str, ...] = ()

    @staticmethod
    def of(
        eye: Eye,
        outputs: Sequence[str],
        weight: Values,
        bias: Values,
        space: LabelSpace,
        link: Link | None,
        rule: Rule,
        method: str = "",
    ) -> "SolvedModel":
        """Return the model with ``logits = features @ weight.T + bias`` of an eye's outputs."""
        head = weight.astype(np.float32), bias.astype(np.float32)
        digest = hashlib.sha256(f"{eye.sha256} {tuple(outputs)}".encode())
        for part in head:
            digest.update(part.tobytes())
        return SolvedModel(
            _network(eye, outputs, *head),
            BackboneSpec(eye.name, eye.outputs["means"]),
            eye.transform,
            space,
            link,
            rule,
            digest.hexdigest(),
            method,
        )

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(
            method=self.method,
            labels=self.space.names,
            backbone=self.backbone,
            transform=self.transform,
            head=HeadSpec("linear"),
            link=None if self.link is None else link_to_spec(self.link),
            rule=rule_to_spec(self.rule),
            promises=tuple(dict(promise) for promise in self.promises),
            taxonomy=None if self.taxonomy is None else dict(self.taxonomy.parents),
            answers=self.answers,
            unanswered=self.unanswered,
            weights_sha256=self.weights_sha256,
        )

    def content(
        self,
        input: Input | None = None,
        open_thresholds: bool = False,
    ) -> bytes:
        """Return the bytes of ``model.onnx``; whoever runs it decodes pictures at full scale."""
        if input == "image" and self.transform.reduced_jpeg:
            raise SettingsError(
                "this model decodes large JPEGs at a reduced scale (reduced_jpeg), which the "
                "program that runs an exported file does not; give --input pixels"
            )
        facts = Facts(
            self.space,
            self.link,
            self.rule,
            self.transform,
            self.method,
            self.weights_sha256,
            input or ("pixels" if self.transform.reduced_jpeg else "image"),
            promises=self.promises,
            taxonomy=self.taxonomy,
            open_thresholds=open_thresholds,
            caution=caution_after(self.answers, self.unanswered),
        )
        return sealed(assemble(self.network, facts))

    def save(self, folder: Path) -> None:
        """Write both files; ``model.json``, which says that the model is complete, comes last."""
        with replacing(Path(folder) / SOLVED_FILE) as temporary:
            temporary.write_bytes(self.content())
        self.spec.save(Path(folder) / MODEL_FILE)

    @staticmethod
    def load(folder: Path) -> "SolvedModel":
        """Return the model of a run, to be written again with another link or rule."""
        model, spec = opened(folder), ModelSpec.load(folder / MODEL_FILE)
        start = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", 3, None, None])
        ends = [(LOGITS, len(spec.space)), (EMBEDDING, spec.backbone.channels)]
        outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in ends]
        network = cut(model.proto, [start], outputs)
        network.graph.value_info.append(outputs[1])
        return SolvedModel(
            network,
            spec.backbone,
            spec.transform,
            spec.space,
            spec.made_link,
            spec.made_rule,
            spec.weights_sha256,
            spec.method,
            spec.promises,
            spec.made_taxonomy,
            spec.answers,
            spec.unanswered,
        )


def opened(folder: Path) -> OnnxModel:
    """Return the model of a solved run's folder, ready to answer, under its link and rule."""
    path, spec = folder / SOLVED_FILE, ModelSpec.load(folder / MODEL_FILE)
    proto, facts = read_model(content_of(path), str(path))
    if (facts.weights_sha256, facts.space) != (spec.weights_sha256, spec.space):
        raise CheckpointError(
            f"{path} and {MODEL_FILE} are of different models; copy both from one run"
        )
    facts = replace(facts, promises=spec.promises, caution=spec.caution)
    return OnnxModel(proto, facts, str(folder))


def weights_of(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a solved run's eye and head by name, as float32."""
    return {
        tensor.name.removesuffix("/stored"): numpy_helper.to_array(tensor).astype(np.float32)
        for tensor in opened(folder).proto.graph.initializer
        if tensor.name.startswith((EYE, "head/"))
    }


def _network(
    eye: Eye, outputs: Sequence[str], weight: NDArray[np.float32], bias: NDArray[np.float32]
) -> ModelProto:
    """Return the graph of an eye with a head behind it, from normalised pixels to logits."""
    seen = compose.add_prefix(eye.model, EYE)
    pixels, features = seen.graph.input[0], list(dict.fromkeys(["means", *outputs]))
    chosen = [value for value in seen.graph.output if value.name.removeprefix(EYE) in features]
    part = cut(seen, [pixels], chosen).graph
    nodes = [helper.make_node("Identity", [INPUT], [pixels.name], name="eye/input"), *part.node]
    nodes.append(helper.make_node("Identity", ["eye/means"], [EMBEDDING], name=EMBEDDING))
    joined = [f"{EYE}{name}" for name in outputs]
    nodes.append(helper.make_node("Concat", joined, ["features"], axis=1, name="features"))
    ends = ["features", WEIGHT, BIAS]
    nodes.append(helper.make_node("Gemm", ends, [LOGITS], name="head", transB=1))
    weights = [*part.initializer]
    weights += [numpy_helper.from_array(weight, WEIGHT), numpy_helper.from_array(bias, BIAS)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "network",
        [value(INPUT, TensorProto.FLOAT, ["n", 3, None, None])],
        [value(LOGITS, TensorProto.FLOAT, ["n", len(weight)])],
        weights,
    )
    width = eye.outputs["means"]
    graph.value_info.append(value(EMBEDDING, TensorProto.FLOAT, ["n", width]))
    return helper.make_model(graph, opset_imports=eye.model.opset_import)
