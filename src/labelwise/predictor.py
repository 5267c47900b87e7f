"""Predictor: what is deployed. Backbone, head, link, rule, label names; no training state.

A model folder holds ``model.safetensors`` (the weights) and ``model.json`` (everything else, the
versions it was written with, and the hash of the weights it belongs to).
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from labelwise import __version__
from labelwise.backbones import Backbone, Transform, create_backbone
from labelwise.decide import Rule
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.files import load_tensors, replacing, save_tensors
from labelwise.heads import Head
from labelwise.links import Link
from labelwise.methods import HEADS, link_from_spec, link_to_spec, rule_from_spec, rule_to_spec
from labelwise.types import LabelSpace, Outputs, nearest

__all__ = ["Answers", "HeadSpec", "Model", "Predictor", "find_head"]

FORMAT = 1


class Model(nn.Module):
    """Images (B, 3, H, W) to Outputs: the backbone, then the head.

    A ``mirrored`` model in evaluation gives the mean logits of an image and its mirror image.
    """

    def __init__(self, backbone: Backbone, head: Head, *, mirrored: bool = False) -> None:
        super().__init__()
        self.backbone, self.head, self.mirrored = backbone, head, mirrored

    def forward(self, images: Tensor) -> Outputs:
        """Return the outputs of the head."""
        outputs: Outputs = self.head(self.backbone(images))
        if not self.mirrored or self.training or images.ndim < 4:
            return outputs
        other: Outputs = self.head(self.backbone(images.flip(-1)))
        return Outputs((outputs.logits + other.logits) / 2, outputs.aux)


def find_head(name: str) -> Callable[..., Head]:
    """Return what makes the heads of a name; an unknown name says which are nearest."""
    if name not in HEADS:
        raise SettingsError(f"unknown head {name!r}{nearest(name, HEADS)}")
    return HEADS[name]


@dataclass(frozen=True)
class HeadSpec:
    """The name and options a head was made from, so that it can be made again."""

    name: str
    options: Mapping[str, Any]

    def make(self, channels: int, num_labels: int) -> Head:
        """Return a new head for feature maps of ``channels``."""
        try:
            return find_head(self.name)(channels, num_labels, **self.options)
        except TypeError as error:
            raise SettingsError(f"head {self.name!r}: {error}") from None


@dataclass(frozen=True)
class Answers:
    """What a predictor says of N images: probabilities (N, K) and label sets (N, K)."""

    logits: Tensor
    probs: Tensor
    sets: Tensor


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with the link that makes its logits probabilities and the rule of its sets.

    ``link is None`` means that the logits only rank labels; asking for probabilities then raises.
    """

    model: Model
    head: HeadSpec
    space: LabelSpace
    link: Link | None
    rule: Rule
    method: str = ""

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
        link = None if self.link is None else self.link.to(device)
        return replace(self, model=self.model.to(device), link=link)

    @torch.inference_mode()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of transformed images (N, 3, H, W) or feature rows (N, D)."""
        self.model.eval()
        outputs: Outputs = self.model(inputs.to(self.device))
        return outputs.logits.float()

    def answers(self, logits: Tensor) -> Answers:
        """Return the probabilities and label sets of logits."""
        if self.link is None:
            raise LabelwiseError(
                f"this {self.method or 'model'} ranks labels and has no probabilities; "
                "calibrate it first with `labelwise calibrate`"
            )
        probs = self.link(logits)
        return Answers(logits, probs, self.rule(probs))

    def predict(self, images: Sequence[Image.Image], *, batch_size: int = 64) -> Answers:
        """Return the probabilities and label sets of RGB pictures of any size."""
        parts = []
        for at in range(0, len(images), batch_size):
            inputs = [self.transform(image) for image in images[at : at + batch_size]]
            parts.append(self.logits(torch.stack(inputs)))
        empty = torch.empty(0, len(self.space), device=self.device)
        return self.answers(torch.cat([empty, *parts]))

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors`` and ``model.json`` to ``folder``."""
        folder = Path(folder)
        with replacing(folder / "model.safetensors") as temporary:
            save_tensors(temporary, self.model.state_dict())
            digest = _digest(temporary)
        backbone = self.model.backbone
        facts = {
            "format": FORMAT,
            "versions": {
                "labelwise": __version__,
                "torch": str(torch.__version__),
                "python": ".".join(map(str, sys.version_info[:3])),
            },
            "method": self.method,
            "labels": self.space.names,
            "backbone": {"name": backbone.name, "channels": backbone.channels},
            "transform": backbone.transform.spec(),
            "head": asdict(self.head),
            "mirrored": self.model.mirrored,
            "link": None if self.link is None else link_to_spec(self.link),
            "rule": rule_to_spec(self.rule),
            "weights_sha256": digest,
        }
        with replacing(folder / "model.json") as temporary:
            temporary.write_text(json.dumps(facts, indent=2, ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def load(folder: Path, device: torch.device | str = "cpu") -> "Predictor":
        """Return the predictor saved in ``folder``."""
        folder = Path(folder)
        facts = _read_facts(folder / "model.json")
        weights = folder / "model.safetensors"
        try:
            digest = _digest(weights)
        except OSError as error:
            raise CheckpointError(f"{weights} cannot be read: {error.strerror}") from None
        try:
            if digest != facts["weights_sha256"]:
                raise ValueError(
                    "model.safetensors is damaged or belongs to another model.json; "
                    "delete it and run the training command again, or copy both files together"
                )
            predictor = _rebuilt(facts)
            predictor.model.load_state_dict(load_tensors(weights))
        except (LabelwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{folder} holds no usable model: {error}") from error
        return predictor.to(device)


def _rebuilt(facts: dict[str, Any]) -> Predictor:
    """Return the predictor that a ``model.json`` describes, with new weights."""
    space, transform = LabelSpace(tuple(facts["labels"])), Transform(**facts["transform"])
    backbone = create_backbone(
        facts["backbone"]["name"],
        image_size=transform.size,
        channels=facts["backbone"]["channels"],
    )
    backbone.transform = transform
    head = HeadSpec(facts["head"]["name"], facts["head"]["options"])
    mirrored = facts.get("mirrored", False)  # models of 0.1 do not say
    model = Model(backbone, head.make(backbone.channels, len(space)), mirrored=mirrored).eval()
    link = None if facts["link"] is None else link_from_spec(facts["link"])
    return Predictor(model, head, space, link, rule_from_spec(facts["rule"]), facts["method"])


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; give the folder of a finished run") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        got = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise CheckpointError(f"{path} must have format {FORMAT}, got {got}")
    return facts


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
