"""Exported models as scorers: an ``.onnx`` file, which onnxruntime runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from PIL import Image

from labelwise.base.arrays import Array, Values, to_numpy
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, ImageError, LabelwiseError
from labelwise.eyes.session import not_run, open_session
from labelwise.links import Link
from labelwise.models.graph_file import (
    INPUT,
    PIXELS,
    Facts,
    GraphFeatures,
    content_of,
    cut,
    features_of,
    read_model,
)
from labelwise.pictures import Transform
from labelwise.pictures.memory import Pictures
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from labelwise.models.scoring import Scored

Part = Literal["resize", "network", "decision", "features"]
AGREES = 1e-5  # the median over labels and pictures
ALL_AGREE = 1e-4  # every label: a steep line, computed in float32, rounds to some 1e-5
NodeValue = tuple[str, str, NDArray[np.float32]]  # name, operator, output


@dataclass(frozen=True, eq=False)
class GraphAnswers:
    """The outputs of a file for n pictures; a model that only ranks has ``ranking`` alone."""

    logits: NDArray[np.float32]
    probability: Any = None
    label: Any = None
    none: Any = None
    ranking: Any = None


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An exported ``.onnx`` file; a :class:`~labelwise.models.scoring.Scorer`."""

    proto: ModelProto
    facts: Facts
    name: str = "the exported model"
    threads: int | None = None
    _sessions: "dict[Part, InferenceSession]" = field(default_factory=dict, init=False, repr=False)
    _opening: Any = field(default_factory=Lock, init=False, repr=False)

    @staticmethod
    def load(path: str | Path, *, threads: int | None = None) -> "OnnxModel":
        model = OnnxModel(*read_model(content_of(path), str(path)), str(path), threads)
        try:
            shape = model.answers(model.facts.blank()).logits.shape
        except LabelwiseError:
            raise
        except Exception as error:  # onnxruntime's own classes have no common base but this
            raise not_run(str(path), error) from None
        if shape != (1, len(model.space)):
            raise CheckpointError(
                f"{path} must answer for its {len(model.space):,} labels, got the shape {shape}"
            )
        return model

    @property
    def size(self) -> int:
        return self.facts.transform.size

    @property
    def transform(self) -> Transform:
        return self.facts.transform

    @property
    def space(self) -> LabelSpace:
        return self.facts.space

    @property
    def link(self) -> Link | None:
        return self.facts.link

    @property
    def rule(self) -> Rule:
        return self.facts.rule

    @property
    def taxonomy(self) -> Taxonomy | None:
        return self.facts.taxonomy

    @property
    def caution(self) -> str | None:
        return self.facts.caution

    @property
    def promises(self) -> tuple[Mapping[str, object], ...]:
        return self.facts.promises

    def for_many(self, images: int = 0, /) -> "OnnxModel":
        """Return the model for so many images, which threads then answer, one each."""
        return replace(self, threads=1) if images > 1 else self

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the uint8 pixels (3, size, size) of a picture (H, W, 3), by the graph's resize."""
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise ImageError(
                f"a picture must be uint8 (height, width, 3), got {image.dtype} {image.shape}; "
                "lay alpha on white and scale 16 bits to 8 before"
            )
        if self.facts.input == PIXELS:
            resized = self.facts.transform.resize(Image.fromarray(image))
            return np.asarray(resized).transpose(2, 0, 1)
        return np.asarray(self.run("resize", {"image": np.ascontiguousarray(image)})[PIXELS][0])

    def answers(
        self, pixels: Values, thresholds: NDArray[np.float64] | None = None
    ) -> GraphAnswers:
        inputs: dict[str, Values] = {PIXELS: np.ascontiguousarray(pixels)}
        if thresholds is not None:
            inputs["thresholds"] = np.asarray(thresholds, dtype=np.float64)
        return GraphAnswers(**self.run("network", inputs))

    def logits(self, inputs: Array) -> NDArray[np.float32]:
        """Return the logits (N, K) of uint8 pixels, if the graph's link is what it says it is."""
        return self.checked(self.answers(to_numpy(inputs)))

    def checked(self, answers: GraphAnswers) -> NDArray[np.float32]:
        """Return the logits of answers, if their probabilities are those of the link."""
        logits = answers.logits
        if self.link is not None and len(logits):
            if answers.probability is None:
                raise CheckpointError(f"{self.name} names a link, and its graph has no probability")
            expected = self.link(logits.astype(np.float64))
            apart = np.abs(answers.probability - expected)
            apart = apart[np.isfinite(logits).all(axis=1)]  # others are failures of their own
            self.require_agreement(float(np.median(apart)) if apart.size else 0.0, AGREES)
            self.require_agreement(float(apart.max(initial=0.0)), ALL_AGREE)
        return logits

    def require_agreement(self, apart: float, at_most: float) -> None:
        """Raise unless the graph's probabilities are so near to those of the stated link."""
        if not apart <= at_most:
            raise CheckpointError(
                f"{self.name} must give the probabilities of the link in its metadata, got a "
                f"difference of {apart:.2g}; export it again"
            )

    def predict(
        self,
        pictures: Pictures,
        *,
        batch_size: int = 64,
        workers: int | None = None,
    ) -> "Scored":
        """Return the probabilities and label sets of pictures of any kind."""
        from labelwise.models.scoring import predict

        return predict(self, pictures, batch_size=batch_size, workers=workers)

    def decided(self, logits: NDArray[np.float32]) -> GraphAnswers:
        return GraphAnswers(logits, **self.run("decision", {"logits": logits}))

    def embed(self, inputs: Array) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the logits (N, K) of uint8 pixels, and the features of the pictures."""
        if self.features is None:
            raise LabelwiseError(f"{self.name} has no features whose weighted sums are its logits")
        outputs = self.run("features", {PIXELS: to_numpy(inputs)})
        features = outputs.pop(self.features.name)
        return self.checked(GraphAnswers(**outputs)), features

    @cached_property
    def features(self) -> GraphFeatures | None:
        return features_of(self.proto)

    def run(self, part: Part, inputs: Mapping[str, Values]) -> dict[str, np.ndarray]:
        with self._opening:
            if part not in self._sessions:
                self._sessions[part] = self._opened(part)
            session = self._sessions[part]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))

    def values(self, images: NDArray[np.float32]) -> Iterator[NodeValue]:
        nodes = list(self.proto.graph.node)
        begin = next(at for at, node in enumerate(nodes) if INPUT in node.output)
        end = next(at for at, node in enumerate(nodes) if "logits" in node.output)
        inside = nodes[begin + 1 : end]
        names = [name for node in inside for name in node.output if name]
        start = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, images.shape)
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]
        session = open_session(cut(self.proto, [start], outputs))
        values = dict(zip(names, session.run(names, {INPUT: images}), strict=True))
        for node in inside:
            for name in node.output:
                if getattr(values.get(name), "dtype", None) == np.float32:
                    yield node.name, node.op_type, values[name]

    def _opened(self, part: Part) -> "InferenceSession":
        graph, pixels = self.proto.graph, [self.facts.pixels_info("n")]
        inputs, outputs, threads = pixels, [], self.threads
        for output in graph.output:
            kind = output.type.tensor_type
            shape = ["n", *(size.dim_value for size in kind.shape.dim[1:])]
            outputs.append(helper.make_tensor_value_info(output.name, kind.elem_type, shape))
        if part == "features" and self.features is not None:
            shape = ["n", self.features.width]
            name = self.features.name
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        elif part == "resize":
            inputs, outputs, threads = [graph.input[0]], [self.facts.pixels_info(1)], 1
        elif part == "decision":
            shape = ["n", len(self.space)]
            inputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
            outputs, threads = outputs[1:], 1
        return open_session(cut(self.proto, inputs, outputs), threads=threads, name=self.name)
