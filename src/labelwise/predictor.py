"""Predictor: what is deployed. Backbone, head, link, rule, label names; no training state.

A model folder holds ``model.safetensors`` (the weights) and ``model.json``, a :class:`ModelSpec`:
everything else, the versions it was written with, and the hash of the weights it belongs to. Link
and rule can be read from it without the weights. Tensors have the names of :class:`Model`, or
those of timm, so that timm can load the file too.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn.functional import interpolate

from labelwise import __version__
from labelwise.backbones import Backbone, Transform, create_backbone
from labelwise.backbones.fuse import fused
from labelwise.data import ImageSource, as_images
from labelwise.data.images import Picture
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.files import load_tensors, replacing, save_tensors
from labelwise.heads import Head, LinearHead
from labelwise.links import Link
from labelwise.methods import HEADS, link_from_spec, link_to_spec, rule_from_spec, rule_to_spec
from labelwise.plain import one_line
from labelwise.scoring import Scored, raise_failure, score, scored
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace, Outputs, nearest

__all__ = ["MODEL_FILE", "WEIGHTS_FILE", "HeadSpec", "Model", "ModelSpec", "Predictor", "find_head"]

MODEL_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT = 1

WeightNames = Literal["labelwise", "timm"]


class Model(nn.Module):
    """Images (B, 3, H, W) to Outputs: the backbone, then the head.

    In evaluation the logits are the mean over views of an image. A ``mirrored`` model looks at its
    mirror image too; one of five ``crops`` at the middle and the corners, each as large as the
    input, of the image enlarged by 8/7 (ImageNet's 256 to 224). Both together are ten views.
    """

    def __init__(
        self, backbone: Backbone, head: Head, *, mirrored: bool = False, crops: Literal[1, 5] = 1
    ) -> None:
        super().__init__()
        if crops not in (1, 5):
            raise SettingsError(f"crops must be 1 or 5, got {crops}")
        self.backbone, self.head, self.mirrored, self.crops = backbone, head, mirrored, crops

    def forward(self, images: Tensor) -> Outputs:
        """Return the outputs of the head."""
        return self.outputs_and_features(images)[0]

    def outputs_and_features(self, images: Tensor) -> tuple[Outputs, Tensor]:
        """Return the outputs of the head and the feature map (B, D, h, w) they come from.

        Of several views both are means, but for ``aux``, which is the first one's.
        """
        if self.training or images.ndim < 4:
            return self._seen(images)
        seen = []
        for window in _five_crops(images) if self.crops == 5 else (images,):
            seen.append(self._seen(window))
            if self.mirrored:
                outputs, features = self._seen(window.flip(-1))
                seen.append((outputs, features.flip(-1)))
        if len(seen) == 1:
            return seen[0]
        logits = sum((outputs.logits for outputs, _ in seen[1:]), seen[0][0].logits)
        features = sum((features for _, features in seen[1:]), seen[0][1])
        return Outputs(logits / len(seen), seen[0][0].aux), features / len(seen)

    def timm_names(self) -> dict[str, str]:
        """Return timm's name for each tensor, if timm has such a model; raise if it has none."""
        if self.backbone.classifier is None:
            raise SettingsError(f"the network {self.backbone.name!r} is not one of timm's")
        if not isinstance(self.head, LinearHead):
            raise SettingsError(f"timm has linear heads only, got {type(self.head).__name__}")
        own = "backbone.network.", "head.classifier."
        return {
            name: name.removeprefix(own[0])
            if name.startswith(own[0])
            else f"{self.backbone.classifier}.{name.removeprefix(own[1])}"
            for name in self.state_dict()
        }

    def _seen(self, images: Tensor) -> tuple[Outputs, Tensor]:
        features: Tensor = self.backbone(images)
        outputs: Outputs = self.head(features)
        return outputs, features


def _five_crops(images: Tensor) -> list[Tensor]:
    """Return the middle and the four corners, of their own size, of images enlarged by 8/7."""
    height, width = (int(side) for side in images.shape[-2:])
    size = (round(height * 8 / 7), round(width * 8 / 7))
    large = interpolate(images, size, mode="bilinear", align_corners=False)
    down, right = size[0] - height, size[1] - width
    places = ((down // 2, right // 2), (0, 0), (0, right), (down, 0), (down, right))
    return [large[..., y : y + height, x : x + width] for y, x in places]


def find_head(name: str) -> Callable[..., Head]:
    """Return what makes the heads of a name; an unknown name says which are nearest."""
    if name not in HEADS:
        raise SettingsError(f"unknown head {name!r}{nearest(name, HEADS)}")
    return HEADS[name]


@dataclass(frozen=True)
class HeadSpec:
    """The name and options a head was made from, so that it can be made again."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, channels: int, num_labels: int) -> Head:
        """Return a new head for feature maps of ``channels``."""
        try:
            return find_head(self.name)(channels, num_labels, **self.options)
        except TypeError as error:
            raise SettingsError(f"head {self.name!r}: {error}") from None


@dataclass(frozen=True)
class BackboneSpec:
    """The name of a backbone and how many channels its feature map has."""

    name: str
    channels: Annotated[int, Field(ge=1, le=1 << 20)]


class ModelSpec(BaseModel):
    """What ``model.json`` says: all of a model but its weights. Written and read by this class.

    ``link`` and ``rule`` are specs (plain data); :attr:`made_link` and :attr:`made_rule` are the
    objects. A spec that exists is whole: its link and rule can be made and fit the labels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    format: Literal[1] = 1
    versions: dict[str, str] = Field(default_factory=lambda: _versions())
    method: str = ""
    labels: tuple[str, ...]
    backbone: BackboneSpec
    transform: Transform
    head: HeadSpec
    mirrored: bool = False  # models of 0.1 do not say
    crops: Literal[1, 5] = 1
    link: dict[str, Any] | None
    rule: dict[str, Any]
    promises: tuple[dict[str, Any], ...] = ()
    taxonomy: dict[str, str] | None = None  # each child's parent
    weights_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    weight_names: WeightNames = "labelwise"

    @model_validator(mode="after")
    def _fits(self) -> "ModelSpec":
        """Try the link and the rule on one row, so that a wrong width is found here."""
        columns = len(self.space)
        try:
            if self.made_taxonomy is not None:
                self.made_taxonomy.within(self.space)
        except LabelwiseError as error:
            raise ValueError(f"the taxonomy cannot be used: {_one_line(error)}") from None
        row = torch.zeros(1, columns, dtype=torch.float64)
        for name, use in (("link", self._use_link), ("rule", self._use_rule)):
            try:
                shape = tuple(use(row).shape)
            except (LabelwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"the {name} cannot be used: {_one_line(error)}") from None
            if shape != (1, columns):
                raise ValueError(f"the {name} must fit {columns} labels, got {shape[-1]} columns")
        return self

    def _use_link(self, row: Tensor) -> Tensor:
        return row if self.made_link is None else self.made_link.log_probs(row)[0]

    def _use_rule(self, row: Tensor) -> Tensor:
        return self.made_rule(row)

    @cached_property
    def space(self) -> LabelSpace:
        """The labels."""
        try:
            return LabelSpace(self.labels)
        except LabelwiseError as error:
            raise ValueError(str(error)) from None

    @cached_property
    def made_link(self) -> Link | None:
        """The link, None if the logits only rank labels."""
        return None if self.link is None else link_from_spec(self.link)

    @cached_property
    def made_rule(self) -> Rule:
        """The rule."""
        return rule_from_spec(self.rule)

    @cached_property
    def made_taxonomy(self) -> Taxonomy | None:
        """Which label is a kind of which, if the model was trained with a taxonomy."""
        return None if self.taxonomy is None else Taxonomy(self.taxonomy)

    def save(self, path: Path) -> None:
        """Write the JSON file; an interrupted write leaves the old file whole."""
        # Versions that do not know these entries refuse them: they stand only where they matter.
        given = {"weight_names": self.weight_names != "labelwise", "taxonomy": self.taxonomy}
        usual = {name for name, value in given.items() if not value}
        facts = self.model_dump(mode="json", exclude=usual)
        text = json.dumps(facts, indent=2, ensure_ascii=False)
        with replacing(Path(path)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> "ModelSpec":
        """Return what a ``model.json`` says, or raise with the one thing that is wrong."""
        try:
            facts = json.loads(Path(path).read_bytes())
        except FileNotFoundError:
            raise CheckpointError(
                f"{path} does not exist; give the folder of a finished run"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not JSON: {_one_line(error)}") from None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            got = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
            raise CheckpointError(f"{path} must have format {FORMAT}, got {one_line(str(got)):.40}")
        try:
            return ModelSpec.model_validate(facts)
        except ValidationError as error:
            raise CheckpointError(f"{path} is not usable: {_first(error)}") from None
        except UnicodeError:
            raise CheckpointError(f"{path} holds text that is not Unicode") from None

    def build(self) -> "Predictor":
        """Return the predictor this describes, with new weights."""
        backbone = create_backbone(
            self.backbone.name, image_size=self.transform.size, channels=self.backbone.channels
        )
        backbone.transform = self.transform
        head = self.head.make(backbone.channels, len(self.space))
        model = Model(backbone, head, mirrored=self.mirrored, crops=self.crops).eval()
        parts = (self.head, self.space, self.made_link, self.made_rule, self.method)
        return Predictor(model, *parts, self.promises, self.made_taxonomy)


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with the link that makes its logits probabilities and the rule of its sets.

    ``link is None`` means that the logits only rank labels; asking for probabilities then raises.
    Link and rule obey the ``taxonomy`` the model was trained with, if any.
    It is a :class:`~labelwise.scoring.Scorer`: link and rule stay on the CPU, where they are used.
    """

    model: Model
    head: HeadSpec
    space: LabelSpace
    link: Link | None
    rule: Rule
    method: str = ""
    promises: tuple[Mapping[str, Any], ...] = ()
    taxonomy: Taxonomy | None = None

    @property
    def transform(self) -> Transform:
        """How a picture becomes the input of the backbone."""
        return self.model.backbone.transform

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> "Predictor":
        """Return this predictor with its weights on another device."""
        return replace(self, model=self.model.to(device))

    def fused(self) -> "Predictor":
        """Return a faster predictor: convolutions do the work of the batch norms behind them.

        It is for answering alone; its logits are the same up to rounding.
        """
        self._look_only()
        side = self.transform.size
        example = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        backbone = fused(self.model.backbone, example.to(self.device))
        mirrored, crops = self.model.mirrored, self.model.crops
        model = Model(backbone, self.model.head, mirrored=mirrored, crops=crops)
        return replace(self, model=model.eval())

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of inputs on any device.

        uint8 pixels (N, 3, H, W) are normalised; float inputs are taken as they are: normalised
        images, or feature rows (N, D).
        """
        with torch.inference_mode():
            self._look_only()
            outputs: Outputs = self.model(self._inputs(inputs))
            return outputs.logits.float()

    def _look_only(self) -> None:
        if self.model.training:  # walking through a network's modules takes milliseconds
            self.model.eval()

    def _inputs(self, inputs: Tensor) -> Tensor:
        if inputs.dtype == torch.uint8 and self.model.backbone.name == "identity":
            raise LabelwiseError(
                "this model was trained on stored features and cannot see pictures; train one that "
                "can with `labelwise train DATA --features BACKBONE`"
            )
        return self.transform.inputs(inputs.to(self.device))

    def embed(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (N, K) and the features of the backbone, the mean over places."""
        with torch.inference_mode():
            self._look_only()
            values = self._inputs(inputs)
            outputs, features = self.model.outputs_and_features(values)
            pooled = features.mean(dim=(2, 3)) if features.ndim == 4 else features
            return outputs.logits.float(), pooled.float()

    def predict(
        self,
        images: ImageSource | Picture | Sequence[Picture],
        *,
        batch_size: int = 64,
        workers: int | None = None,
    ) -> Scored:
        """Return the probabilities and label sets of pictures: paths, arrays, Pillow images.

        One picture, or many. One that cannot be read raises its ImageError;
        :func:`labelwise.scoring.score` goes on with the others.
        """
        parts = []
        source = as_images(images)
        for part in score(self, source, batch_size=batch_size, workers=workers):
            raise_failure(part)
            parts.append(part)
        nothing = torch.empty(0, len(self.space))
        return Scored.join(parts or [scored(self, nothing)])

    def save(self, folder: Path, *, weight_names: WeightNames = "labelwise") -> None:
        """Write ``model.safetensors`` and ``model.json`` to ``folder``."""
        folder, state = Path(folder), self.model.state_dict()
        if weight_names == "timm":
            names = self.model.timm_names()
            state = {names[name]: tensor for name, tensor in state.items()}
        with replacing(folder / WEIGHTS_FILE) as temporary:
            save_tensors(temporary, state)
            digest = _digest(temporary)
        self.spec(digest, weight_names).save(folder / MODEL_FILE)

    def spec(self, weights_sha256: str, weight_names: WeightNames = "labelwise") -> ModelSpec:
        """Return the description of this predictor with weights of that hash."""
        backbone = self.model.backbone
        return ModelSpec(
            method=self.method,
            labels=self.space.names,
            backbone=BackboneSpec(backbone.name, backbone.channels),
            transform=backbone.transform,
            head=self.head,
            mirrored=self.model.mirrored,
            crops=self.model.crops,
            link=None if self.link is None else link_to_spec(self.link),
            rule=rule_to_spec(self.rule),
            promises=tuple(dict(promise) for promise in self.promises),
            taxonomy=None if self.taxonomy is None else dict(self.taxonomy.parents),
            weights_sha256=weights_sha256,
            weight_names=weight_names,
        )

    @staticmethod
    def load(folder: str | Path, device: torch.device | str = "cpu") -> "Predictor":
        """Return the predictor saved in ``folder``."""
        folder = Path(folder)
        spec = ModelSpec.load(folder / MODEL_FILE)
        weights = folder / WEIGHTS_FILE
        try:
            digest = _digest(weights)
        except OSError as error:
            raise CheckpointError(f"{weights} cannot be read: {error.strerror}") from None
        try:
            if digest != spec.weights_sha256:
                raise ValueError(
                    "model.safetensors is damaged or belongs to another model.json; "
                    "delete it and run the training command again, or copy both files together"
                )
            predictor = spec.build()
            state = _numbers(load_tensors(weights))
            if spec.weight_names == "timm":
                own = {name: own for own, name in predictor.model.timm_names().items()}
                state = {own.get(name, name): tensor for name, tensor in state.items()}
            predictor.model.load_state_dict(state)
        except (LabelwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{folder} holds no usable model: {_one_line(error)}") from error
        return predictor.to(device)


def _numbers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights if all of them are numbers; a model with a NaN would answer "none"."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ValueError(f"the weights {name!r} hold NaN, which is not a number")
    return weights


def _versions() -> dict[str, str]:
    return {
        "labelwise": __version__,
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def _first(error: ValidationError) -> str:
    """Return what is wrong first, where, and what is there."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    reason = first["msg"].removeprefix("Value error, ")
    if not where:
        return reason
    if first["type"] == "missing":
        return f"{where!r} is missing"
    if first["type"] == "extra_forbidden":
        return f"unknown entry {where!r}"
    return f"{where!r}: {reason[0].lower()}{reason[1:]}, got {first['input']!r:.60}"


def _one_line(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
