"""Predictor: a model with the link and the rule of its answers, saved to a folder and read back."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from labelwise.base.files import replacing, sha256_of
from labelwise.base.tensors import load_tensors, save_tensors
from labelwise.base.text import one_line_of
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.eyes import BUILT_IN
from labelwise.learn.backbones import Backbone, create_backbone
from labelwise.learn.backbones.weights import EYE, EYE_WIDTH, load_eye
from labelwise.learn.heads import Head, LinearHead
from labelwise.learn.inference import Inferred, Network, infer
from labelwise.learn.methods import link_to_spec, make_head, rule_to_spec
from labelwise.links import Link
from labelwise.models.run_folder import RunFolder
from labelwise.models.scoring import Scored, predict, scored
from labelwise.models.solved import weights_of
from labelwise.models.spec import (
    MODEL_FILE,
    WEIGHTS_FILE,
    BackboneSpec,
    HeadSpec,
    ModelSpec,
    WeightNames,
    caution_after,
)
from labelwise.pictures import ImageSource, Transform
from labelwise.pictures.memory import Picture
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace, Outputs


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
        return self.outputs_and_features(images)[0]

    def outputs_and_features(self, images: Tensor) -> tuple[Outputs, Tensor]:
        """Return the outputs of the head and the feature map (B, D, h, w) they come from."""
        several = not self.training and images.ndim >= 4
        windows = _five_crops(images) if several and self.crops == 5 else [images]
        views: list[tuple[Outputs, Tensor]] = []
        for window in windows:
            features = self.backbone(window)
            views.append((self.head(features), features))
            if several and self.mirrored:
                features = self.backbone(window.flip(-1))
                views.append((self.head(features), features.flip(-1)))
        if len(views) == 1:
            return views[0]
        (first, features), *others = views
        logits = sum((outputs.logits for outputs, _ in others), first.logits)
        features = sum((more for _, more in others), features)
        return Outputs(logits / len(views), first.aux), features / len(views)

    def timm_names(self) -> dict[str, str]:
        """Return timm's name for each tensor, if timm has such a model; raise if it has none."""
        if self.backbone.name == EYE:
            raise SettingsError(
                "its head reads more features than timm computes; train with `--set "
                "means_only=true` for a folder that timm and transformers load"
            )
        if self.backbone.classifier is None:
            raise SettingsError(f"the network {self.backbone.name!r} is not one of timm's")
        if not isinstance(self.head, LinearHead):
            raise SettingsError(f"timm has linear heads only, got {type(self.head).__name__}")
        network, head = "backbone.network.", "head.classifier."
        return {
            name: name.removeprefix(network)
            if name.startswith(network)
            else f"{self.backbone.classifier}.{name.removeprefix(head)}"
            for name in self.state_dict()
        }


def _five_crops(images: Tensor) -> list[Tensor]:
    """Return the middle and the four corners, of their own size, of images enlarged by 8/7."""
    height, width = (int(side) for side in images.shape[-2:])
    size = (round(height * 8 / 7), round(width * 8 / 7))
    large = interpolate(images, size, mode="bilinear", align_corners=False)
    down, right = size[0] - height, size[1] - width
    places = ((down // 2, right // 2), (0, 0), (0, right), (down, 0), (down, right))
    return [large[..., y : y + height, x : x + width] for y, x in places]


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
    promises: tuple[Mapping[str, object], ...] = ()
    taxonomy: Taxonomy | None = None
    answers: int | None = None
    unanswered: tuple[str, ...] = ()

    @property
    def caution(self) -> str | None:
        return caution_after(self.answers, self.unanswered)

    @property
    def transform(self) -> Transform:
        return self.model.backbone.transform

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> "Predictor":
        return replace(self, model=self.model.to(device))

    def for_many(self, _images: int = 0, /) -> "Predictor":
        return self  # torch has its threads already

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of inputs on any device.

        uint8 pixels (N, 3, H, W) are normalised; float inputs are taken as they are: normalised
        images, or feature rows (N, D). A model of bands takes their values (N, bands, H, W), and
        normalises them.
        """
        with torch.inference_mode():
            return torch.as_tensor(self.model(self._inputs(inputs)).logits.float())

    def inferred(self, network: Network, images: ImageSource, /, **how: Any) -> Generator[Inferred]:
        """Yield what a network makes of images, batch by batch, on the device of the model."""
        return infer(network, images, self.transform, device=self.device, **how)

    def _inputs(self, inputs: Tensor) -> Tensor:
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
        with torch.inference_mode():
            outputs, features = self.model.outputs_and_features(self._inputs(inputs))
            pooled = features.mean(dim=(2, 3)) if features.ndim == 4 else features
            pooled = pooled[:, : self.model.backbone.embedding]
            return outputs.logits.float(), pooled.float()

    def predict(
        self,
        images: ImageSource | Picture | Sequence[Picture] | Tensor,
        *,
        batch_size: int = 64,
        workers: int | None = None,
    ) -> Scored:
        """Return the probabilities and label sets of pictures: paths, arrays, Pillow images.

        One picture, many, or a batch of tensors as :meth:`logits` takes it. A picture that cannot
        be read raises its ImageError.
        """
        if isinstance(images, Tensor | np.ndarray) and images.ndim == 4 and images.shape[1] != 3:
            is_pixels = isinstance(images, np.ndarray) and images.dtype == np.uint8
            if images.shape[3] == 3 and self.transform.bands is None and not is_pixels:
                raise DataError(
                    f"pictures of shape {tuple(images.shape)} must be a NumPy array of uint8: "
                    "(255 * x).astype('uint8') where 1 is white. Floats and tensors are taken as "
                    "normalised, (N, 3, H, W)"
                )
        if isinstance(images, Tensor):
            return scored(self, self.logits(images).cpu())
        return predict(self, images, batch_size=batch_size, workers=workers)

    def save(self, folder: Path, *, weight_names: WeightNames = "labelwise") -> None:
        folder, state = Path(folder), self.model.state_dict()
        if weight_names == "timm":
            state = {name: state[own] for own, name in self.model.timm_names().items()}
        with replacing(folder / WEIGHTS_FILE) as temporary:
            save_tensors(temporary, state)
            digest = sha256_of(temporary)
        self.spec(digest, weight_names).save(folder / MODEL_FILE)

    def spec(self, weights_sha256: str, weight_names: WeightNames = "labelwise") -> ModelSpec:
        backbone = self.model.backbone
        return ModelSpec(
            method=self.method,
            labels=self.space.names,
            backbone=BackboneSpec(backbone.name, backbone.channels, backbone.pooling),
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
        backbone = create_backbone(
            spec.backbone.name,
            image_size=spec.transform.size,
            channels=spec.backbone.channels,
            bands=spec.transform.band_scale,
        )
        backbone.transform, backbone.pooling = spec.transform, spec.backbone.pooling
        head = make_head(spec.head, backbone.channels, len(spec.space))
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
        folder = Path(folder)
        spec = ModelSpec.load(folder / MODEL_FILE)
        if RunFolder(folder).is_solved:
            return Predictor._of_solved(folder, spec).to(device)
        weights = folder / WEIGHTS_FILE
        try:
            if sha256_of(weights) != spec.weights_sha256:
                raise ValueError(
                    "model.safetensors is damaged or belongs to another model.json; "
                    "delete it and run the training command again, or copy both files together"
                )
            predictor = Predictor.untrained(spec)
            state = load_tensors(weights)
            for name, tensor in state.items():
                if tensor.is_floating_point() and tensor.isnan().any():
                    raise ValueError(f"the weights {name!r} hold NaN, which is not a number")
            if spec.weight_names == "timm":
                own = {timm: name for name, timm in predictor.model.timm_names().items()}
                state = {own.get(name, name): tensor for name, tensor in state.items()}
            predictor.model.load_state_dict(state)
        except OSError as error:
            raise CheckpointError(f"{weights} cannot be read: {error.strerror}") from None
        except (LabelwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = one_line_of(error)
            raise CheckpointError(f"{folder} holds no usable model: {reason}") from error
        return predictor.to(device)

    @staticmethod
    def _of_solved(folder: Path, spec: ModelSpec) -> "Predictor":
        """Return a solved run as a network of torch, with the rounded weights of its eye."""
        stored = {
            name.removeprefix("eye/"): torch.from_numpy(values)
            for name, values in weights_of(folder).items()
        }
        width = stored["head/weight"].shape[1]
        backbones = {spec.backbone.channels: BUILT_IN, EYE_WIDTH: EYE}
        if spec.backbone.name != BUILT_IN or width not in backbones:
            raise SettingsError(
                f"torch cannot compute with {folder}: its network is known as an .onnx file alone, "
                "which labelwise runs on a cpu"
            )
        deployed = replace(spec.backbone, name=backbones[width], channels=width)
        predictor = Predictor.untrained(spec.model_copy(update={"backbone": deployed}))
        load_eye(predictor.model.backbone, stored)
        head = {"weight": stored["head/weight"], "bias": stored["head/bias"]}
        predictor.model.head.get_submodule("classifier").load_state_dict(head)
        return predictor
