"""Backbone: a map from images to a feature map; the one without a network; how others begin."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Literal, Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.errors import SettingsError
from labelwise.pictures.transform import Transform
from labelwise.types import nearest

Pooling = Literal["mean", "own"]


class Backbone(nn.Module, ABC):
    """A map from images (B, 3 or bands, H, W) to features (B, channels, h, w), never pooled.

    ``name`` builds it again and ``transform`` says how its input is made. A batch norm whose
    weight is frozen keeps its stored statistics in training mode too. ``classifier`` is what timm
    calls the linear layer behind its own networks, None for those that are not timm's.

    The mean over places is the feature of a photo. ``pooling`` is "own" where a transformer pools
    otherwise, such as by a class token: the map is then shifted so that its mean is that vector.
    """

    classifier: str | None = None
    pooling: Pooling = "mean"
    embedding: int | None = None  # channels by which photos are compared; None: all

    def __init__(self, name: str, channels: int, transform: Transform) -> None:
        super().__init__()
        self.name, self.channels, self.transform = name, channels, transform

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map (B, channels, h, w)."""

    def stages(self) -> list[list[str]]:
        """Return the parameter names of each stage, from the input to the output."""
        return names_by_child(self)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
                module.eval()
        return self


class Identity(Backbone):
    """Stored features in the place of images: no network."""

    def __init__(self, channels: int) -> None:
        # Features are not pictures; this transform is never applied.
        super().__init__("identity", channels, Transform(1, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim not in (2, 4) or images.shape[1] != self.channels:
            forms = f"(B, {self.channels}) or (B, {self.channels}, h, w)"
            raise ValueError(f"features must be {forms}, got shape {tuple(images.shape)}")
        return images[:, :, None, None] if images.ndim == 2 else images


def names_by_child(network: nn.Module, prefix: str = "") -> list[list[str]]:
    """Return the parameter names of each child module, in the order of the children."""
    stages: dict[str, list[str]] = {}
    for name, _ in network.named_parameters():
        stages.setdefault(name.partition(".")[0], []).append(prefix + name)
    return list(stages.values())


def he_init(network: nn.Module) -> None:
    """Initialise the convolutions of a ReLU network, which have no bias, as He et al. did."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


# Freezing: parts of a backbone that training leaves as they are.


def freeze(backbone: Backbone, stages: int = 0, prefixes: Sequence[str] = ()) -> None:
    """Freeze the first ``stages`` stages (-1: all) and parameters whose name starts with a prefix.

    Their batch norms keep the stored statistics. A prefix may leave out a leading ``network.``.
    """
    groups = backbone.stages()
    if not -1 <= stages <= len(groups):
        raise SettingsError(
            f"backbone {backbone.name!r} has {len(groups)} stages to freeze, got {stages}"
        )
    frozen = {name for group in (groups if stages == -1 else groups[:stages]) for name in group}
    names = [name for name, _ in backbone.named_parameters()]
    for prefix in prefixes:
        start = f"{prefix.rstrip('.')}."
        matches = [n for n in names if f"{n.removeprefix('network.')}.".startswith(start)]
        if not matches:
            tops = sorted({name.removeprefix("network.").partition(".")[0] for name in names})
            raise SettingsError(f"no layer starts with {prefix!r}{nearest(prefix, tops)}")
        frozen.update(matches)
    for name in frozen:
        backbone.get_parameter(name).requires_grad_(False)
    backbone.train(backbone.training)


def freeze_batch_norm(backbone: Backbone) -> None:
    """Freeze weight, bias and statistics of every batch norm."""
    for module in backbone.modules():
        if isinstance(module, _BatchNorm):
            module.requires_grad_(False)
    backbone.train(backbone.training)


# What a network calls its features becomes a map (B, D, h, w).
#
# Maps with channels last are turned, tokens (B, prefix + h w, D) lose the class and register tokens
# in front and are folded into a square, a pooled vector becomes a 1 x 1 map. What the network
# itself makes of all its tokens, a class token or attention, is kept as the mean of the map.


@dataclass(frozen=True)
class Layout:
    """How features lie: ``maps``, ``maps-last``, ``tokens`` (after ``prefix`` others), ``rows``."""

    kind: str
    prefix: int = 0


def find_layout(features: object, channels: int, prefix: int | None = None) -> Layout:
    """Return the layout of the features of one batch; ``prefix`` None is found from the count."""
    shape = tuple(features.shape) if isinstance(features, Tensor) else ()
    if len(shape) == 4 and channels in (shape[1], shape[3]):
        return Layout("maps" if shape[1] == channels else "maps-last")
    if len(shape) == 3 and shape[2] == channels:
        prefix = shape[1] - isqrt(shape[1]) ** 2 if prefix is None else prefix
        if isqrt(shape[1] - prefix) ** 2 == shape[1] - prefix:
            return Layout("tokens", prefix)
    if len(shape) == 2 and shape[1] == channels:
        return Layout("rows")
    described = f"shape {shape}" if shape else type(features).__name__
    raise ValueError(f"features must form one map of {channels} channels, got {described}")


def fold(features: Tensor, layout: Layout, pooled: Tensor | None = None) -> Tensor:
    """Return the features as a map (B, D, h, w), whose mean is ``pooled`` (B, D) if given."""
    if pooled is not None:
        places = fold(features, layout)
        return places + (pooled - places.mean(dim=(2, 3)))[:, :, None, None]
    if layout.kind == "maps":
        return features
    if layout.kind == "maps-last":
        return features.permute(0, 3, 1, 2)
    if layout.kind == "rows":
        return features[:, :, None, None]
    tokens = features[:, layout.prefix :]
    side = isqrt(tokens.shape[1])
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)
