"""Vision transformers that timm lacks: image halves of text-image models, and CvT."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, normalize, scaled_dot_product_attention, silu

from labelwise.errors import SettingsError
from labelwise.learn.backbones.base import Backbone
from labelwise.pictures.transform import Transform

# The image half of a text-image model: a vision transformer with the pooling it was trained with.
#
#     clip      [class, patches] + positions, norm, blocks; the class token, norm, projection
#     siglip    patches + positions, blocks, norm; a learned probe attends to all patches,
#               x = probe's answer, x + mlp(norm(x))
#
# The feature of a photo is that vector at length one, as a map of 1 x 1. The name holds all that
# builds the network: ``tower/clip-768x12x12-mlp3072-patch32-side224-to512-quick_gelu-eps1e-05``.

TOWER = "tower/"
TowerKind = Literal["clip", "siglip"]
NAME = re.compile(
    r"tower/(clip|siglip)-(\d+)x(\d+)x(\d+)-mlp(\d+)-patch(\d+)-side(\d+)-to(\d+)"
    r"-(gelu|gelu_tanh|quick_gelu)-eps([0-9.e-]+)"
)
LARGEST = 1 << 16  # of the numbers in a name


def _quick_gelu(x: Tensor) -> Tensor:  # x sigma(1.702 x)
    return silu(1.702 * x) / 1.702


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
}


@dataclass(frozen=True)
class TowerShape:
    """What builds an image tower; ``to`` is the length of the vectors it ends in."""

    kind: TowerKind
    width: int
    depth: int
    heads: int
    mlp: int
    patch: int
    side: int
    to: int
    activation: str
    eps: float

    def __post_init__(self) -> None:
        numbers = (self.width, self.depth, self.heads, self.mlp, self.patch, self.side, self.to)
        if not all(1 <= number <= LARGEST for number in numbers) or self.width % self.heads:
            raise SettingsError(
                f"sizes must be 1 to {LARGEST:,}, the width a multiple of its heads, got {self}"
            )
        if self.activation not in ACTIVATIONS or self.kind not in get_args(TowerKind):
            raise SettingsError(
                f"a tower must be of a kind of {', '.join(get_args(TowerKind))}, with an "
                f"activation of {', '.join(ACTIVATIONS)}, got {self}"
            )

    @property
    def name(self) -> str:
        return (
            f"{TOWER}{self.kind}-{self.width}x{self.depth}x{self.heads}-mlp{self.mlp}"
            f"-patch{self.patch}-side{self.side}-to{self.to}-{self.activation}-eps{self.eps:g}"
        )

    @staticmethod
    def parse(name: str) -> "TowerShape":
        match = NAME.fullmatch(name)
        if match is None:
            raise SettingsError(f"{name!r} is not the name of an image tower")
        kind, *numbers, activation, eps = match.groups()
        width, depth, heads, mlp, patch, side, to = map(int, numbers)
        return TowerShape(
            cast(TowerKind, kind), width, depth, heads, mlp, patch, side, to, activation, float(eps)
        )


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v = (self._by_head(heads) for heads in self.qkv(x).chunk(3, dim=-1))
        return self._joined(scaled_dot_product_attention(q, k, v, is_causal=causal))

    def asked(self, probe: Tensor, x: Tensor) -> Tensor:
        """Return what a probe (B, 1, D) finds in tokens (B, n, D)."""
        width = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = self._by_head(linear(probe, weight[:width], bias[:width]))
        both = linear(x, weight[width:], bias[width:])
        k, v = (self._by_head(heads) for heads in both.chunk(2, dim=-1))
        return self._joined(scaled_dot_product_attention(q, k, v))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _joined(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out(x.transpose(1, 2).flatten(2)))


class Perceptron(nn.Module):
    """``fc2(activation(fc1(x)))``."""

    def __init__(self, width: int, mlp: int, activation: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, mlp), nn.Linear(mlp, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.activation(self.fc1(x))))


class TransformerBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, width: int, heads: int, mlp: int, activation: str, eps: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attention = _Attention(width, heads)
        self.mlp = Perceptron(width, mlp, activation)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        x = x + self.attention(self.norm1(x), causal)
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class _ProbePool(nn.Module):
    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.attention = _Attention(shape.width, shape.heads)
        self.norm = nn.LayerNorm(shape.width, shape.eps)
        self.mlp = Perceptron(shape.width, shape.mlp, shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        asked = self.attention.asked(self.probe.expand(len(x), -1, -1), x)
        return cast(Tensor, asked + self.mlp(self.norm(asked)))[:, 0]


class ImageTower(Backbone):
    """A vision transformer whose features are the unit vectors that texts are compared with."""

    def __init__(self, shape: TowerShape, transform: Transform | None = None) -> None:
        super().__init__(shape.name, shape.to, transform or Transform(shape.side))
        width, clip = shape.width, shape.kind == "clip"
        places = (shape.side // shape.patch) ** 2 + clip
        self.patches = nn.Conv2d(3, width, shape.patch, shape.patch, bias=not clip)
        self.positions = nn.Parameter(torch.zeros(places, width))
        self.token = nn.Parameter(torch.zeros(width)) if clip else None
        self.before = nn.LayerNorm(width, shape.eps) if clip else None
        settings = (width, shape.heads, shape.mlp, shape.activation, shape.eps)
        self.blocks = nn.ModuleList(TransformerBlock(*settings) for _ in range(shape.depth))
        self.after = nn.LayerNorm(width, shape.eps)
        self.pool = None if clip else _ProbePool(shape)
        self.projection = nn.Linear(width, shape.to, bias=False) if clip else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), 1, -1), x], dim=1)
        x = x + self.positions
        if self.before is not None:
            x = self.before(x)
        for block in self.blocks:
            x = block(x)
        pooled = self.after(x[:, 0]) if self.pool is None else self.pool(self.after(x))
        if self.projection is not None:
            pooled = self.projection(pooled)
        return normalize(pooled, dim=1)[:, :, None, None]


# CvT, the convolutional vision transformer (Wu et al. 2021), under the names of its weights.
#
# A stage makes tokens of a map by a convolution and is a transformer, normalised before each part,
# whose projections begin with a depthwise convolution over the map of its tokens:
#
#     x       = LayerNorm(conv(map))                      7 x 7 of stride 4, then 3 x 3 of stride 2
#     q, k, v = linear(BatchNorm(depthwise 3 x 3 (y)))  y = LayerNorm(x); stride 1 for q, 2 for k, v
#     x      <- x + proj(A v), A = softmax of q k' / sqrt(D)   by heads; D is their joint width
#     x      <- x + fc2(quick_gelu(fc1(LayerNorm(x))))    quick_gelu(u) = u sigma(1.702 u)
#
# The last of three stages has a class token beside the places, which no convolution sees. The
# feature map is that of its places, after the last norm.


class Stage(NamedTuple):
    """The size of a stage: channels, blocks, attention heads."""

    width: int
    depth: int
    heads: int


CVT: dict[str, tuple[Stage, Stage, Stage]] = {
    "cvt-13": (Stage(64, 1, 1), Stage(192, 2, 3), Stage(384, 10, 6)),
    "cvt-21": (Stage(64, 1, 1), Stage(192, 4, 3), Stage(384, 16, 6)),
    "cvt-w24": (Stage(192, 2, 3), Stage(768, 2, 12), Stage(1024, 20, 16)),
}
SIDES = {"cvt-13": 224, "cvt-21": 224, "cvt-w24": 384}


class CvT(Backbone):
    """A CvT without its classifier."""

    def __init__(self, name: str, image_size: int | None = None, in_chans: int = 3) -> None:
        first, second, third = CVT[name]
        side = SIDES[name] if image_size is None else image_size
        super().__init__(name, third.width, Transform(side, interpolation="bicubic", crop=0.875))
        self.stage0 = _Stage(in_chans, first, side=7, stride=4)
        self.stage1 = _Stage(first.width, second)
        self.stage2 = _Stage(second.width, third, class_token=True)
        self.norm = nn.LayerNorm(third.width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stage2(self.stage1(self.stage0(images)))
        return torch.as_tensor(_over_channels(self.norm, features))


class _Embedding(nn.Module):
    def __init__(self, width_in: int, width: int, side: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(width_in, width, side, stride, 2 if side == 7 else 1)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> Tensor:
        return _over_channels(self.norm, self.proj(features))


class _Stage(nn.Module):
    cls_token: nn.Parameter | None

    def __init__(
        self, width_in: int, size: Stage, side: int = 3, stride: int = 2, class_token: bool = False
    ) -> None:
        super().__init__()
        self.patch_embed = _Embedding(width_in, size.width, side, stride)
        self.register_parameter("cls_token", None)
        if class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, size.width))
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.depth))

    def forward(self, features: Tensor) -> Tensor:
        features = self.patch_embed(features)
        shape = features.shape[2:]
        tokens = features.flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens, shape)
        return _as_map(_parted(tokens, shape)[1], shape)


class _Block(nn.Module):
    def __init__(self, size: Stage) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attn = _ConvolutionalAttention(size.width, size.heads)
        self.mlp = Perceptron(size.width, 4 * size.width, "quick_gelu")

    def forward(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        x = x + self.attn(self.norm1(x), shape)
        return torch.as_tensor(x + self.mlp(self.norm2(x)))


class _Projection(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, features: Tensor) -> Tensor:
        return torch.as_tensor(self.bn(self.conv(features)))


class _ConvolutionalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, width**-0.5
        self.conv_proj_q = _Projection(width, 1)
        self.conv_proj_k, self.conv_proj_v = _Projection(width, 2), _Projection(width, 2)
        self.proj_q, self.proj_k = nn.Linear(width, width), nn.Linear(width, width)
        self.proj_v, self.proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, tokens: Tensor, shape: Sequence[int]) -> Tensor:
        first, places = _parted(tokens, shape)
        features = _as_map(places, shape)

        def by_head(convolve: nn.Module, project: nn.Module) -> Tensor:
            seen = convolve(features).flatten(2).transpose(1, 2)
            answer: Tensor = project(torch.cat([first, seen], dim=1))
            return answer.reshape(*answer.shape[:2], self.heads, -1).transpose(1, 2)

        seen = scaled_dot_product_attention(
            by_head(self.conv_proj_q, self.proj_q),
            by_head(self.conv_proj_k, self.proj_k),
            by_head(self.conv_proj_v, self.proj_v),
            scale=self.scale,
        )
        return torch.as_tensor(self.proj(seen.transpose(1, 2).flatten(2)))


def _parted(tokens: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the class token (B, 1 or 0, D) and the places (B, h w, D)."""
    places = shape[0] * shape[1]
    return tokens[:, : tokens.shape[1] - places], tokens[:, tokens.shape[1] - places :]


def _as_map(places: Tensor, shape: Sequence[int]) -> Tensor:
    return places.transpose(1, 2).reshape(places.shape[0], -1, *shape)


def _over_channels(norm: nn.LayerNorm, features: Tensor) -> Tensor:
    return torch.as_tensor(norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
