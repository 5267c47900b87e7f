"""Predictor: a model with the link and the rule of its answers, saved to a folder and read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelwise.decide import Rule
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Link
from labelwise.methods import link_to_spec, rule_to_spec
from labelwise.models.model import Model
from labelwise.models.scoring import Scored, raise_failure, score, scored
from labelwise.models.spec import (
    MODEL_FILE,
    BackboneSpec,
    HeadSpec,
    ModelSpec,
    WeightNames,
    caution_after,
)
from labelwise.networks.backbones import create_backbone
from labelwise.networks.backbones.fuse import fused
from labelwise.pictures import ImageSource, Transform, as_images
from labelwise.pictures.memory import Picture
from labelwise.system.files import replacing, sha256_of
from labelwise.system.tensors import load_tensors, save_tensors
from labelwise.system.text import one_line_of
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace, Outputs

WEIGHTS_FILE = "model.safetensors"

FUSED_FROM = 64  # images; to fuse an EfficientNet-Lite0 takes as long as it saves on 28


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with the link that makes its logits probabilities and the rule of its sets.

    ``link is None`` means that the logits only rank labels; asking for probabilities then raises.
    Link and rule obey the ``taxonomy`` the model was trained with, if any. ``answers`` says how
    many photos people answered, of a model that began with words, and ``unanswered`` of which
    labels they said nothing.
    It is a :class:`~labelwise.models.scoring.Scorer`: link and rule stay on the CPU, where they
    are used.
    """

    model: Model
    head: HeadSpec
    space: LabelSpace
    link: Link | None
    rule: Rule
    method: str = ""
    promises: tuple[Mapping[str, Any], ...] = ()
    taxonomy: Taxonomy | None = None
    answers: int | None = None
    unanswered: tuple[str, ...] = ()

    @property
    def caution(self) -> str | None:
        """What must stand beside every probability of this model, None if nothing must."""
        return caution_after(self.answers, self.unanswered)

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

    def fused(self, images: int = FUSED_FROM) -> "Predictor":
        """Return a faster predictor: convolutions do the work of the batch norms behind them.

        It is for answering alone; its logits are the same up to rounding. It is the same predictor
        on a GPU, where this was not faster, and for few images, before which it takes too long.
        """
        if self.device.type != "cpu" or images < FUSED_FROM:
            return self
        self.model.eval()
        side = self.transform.size
        shape = (1, self.transform.channels, side, side)
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        backbone = fused(self.model.backbone, example.to(self.device))
        mirrored, crops = self.model.mirrored, self.model.crops
        model = Model(backbone, self.model.head, mirrored=mirrored, crops=crops)
        return replace(self, model=model.eval())

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of inputs on any device.

        uint8 pixels (N, 3, H, W) are normalised; float inputs are taken as they are: normalised
        images, or feature rows (N, D). A model of bands takes their values (N, bands, H, W), and
        normalises them.
        """
        with torch.inference_mode():
            outputs: Outputs = self.model(self._inputs(inputs))
            return outputs.logits.float()

    def _inputs(self, inputs: Tensor) -> Tensor:
        """Return what the network takes, which is set to answer and not to learn."""
        if self.model.training:  # walking through a network's modules takes milliseconds
            self.model.eval()
        backbone = self.model.backbone
        if inputs.dtype == torch.uint8 and backbone.name == "identity":
            raise LabelwiseError(
                "this model was trained on stored features and cannot see pictures; train one that "
                "can with `labelwise train DATA --features BACKBONE`"
            )
        return backbone.transform.inputs(inputs.to(self.device))

    def embed(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (N, K) and the features of the backbone, the mean over places."""
        with torch.inference_mode():
            outputs, features = self.model.outputs_and_features(self._inputs(inputs))
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
        :func:`labelwise.models.scoring.score` goes on with the others.
        """
        parts = []
        source = as_images(images, any_depth=self.transform.bands is not None)
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
            digest = sha256_of(temporary)
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
            answers=self.answers,
            unanswered=self.unanswered,
            weights_sha256=weights_sha256,
            weight_names=weight_names,
        )

    @staticmethod
    def untrained(spec: ModelSpec) -> "Predictor":
        """Return the predictor that a ``model.json`` describes, with new weights."""
        backbone = create_backbone(
            spec.backbone.name,
            image_size=spec.transform.size,
            channels=spec.backbone.channels,
            bands=spec.transform.band_scale,
        )
        backbone.transform = spec.transform
        head = spec.head.make(backbone.channels, len(spec.space))
        return Predictor(
            Model(backbone, head, mirrored=spec.mirrored, crops=spec.crops).eval(),
            spec.head,
            spec.space,
            spec.made_link,
            spec.made_rule,
            spec.method,
            spec.promises,
            spec.made_taxonomy,
            spec.answers,
            spec.unanswered,
        )

    @staticmethod
    def load(folder: str | Path, device: torch.device | str = "cpu") -> "Predictor":
        """Return the predictor saved in ``folder``."""
        folder = Path(folder)
        spec = ModelSpec.load(folder / MODEL_FILE)
        weights = folder / WEIGHTS_FILE
        try:
            digest = sha256_of(weights)
        except OSError as error:
            raise CheckpointError(f"{weights} cannot be read: {error.strerror}") from None
        try:
            if digest != spec.weights_sha256:
                raise ValueError(
                    "model.safetensors is damaged or belongs to another model.json; "
                    "delete it and run the training command again, or copy both files together"
                )
            predictor = Predictor.untrained(spec)
            state = _numbers(load_tensors(weights))
            if spec.weight_names == "timm":
                own = {name: own for own, name in predictor.model.timm_names().items()}
                state = {own.get(name, name): tensor for name, tensor in state.items()}
            predictor.model.load_state_dict(state)
        except (LabelwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{folder} holds no usable model: {one_line_of(error)}"
            ) from error
        return predictor.to(device)


def _numbers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights if all of them are numbers; a model with a NaN would answer "none"."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ValueError(f"the weights {name!r} hold NaN, which is not a number")
    return weights
