"""CvT, the convolutional vision transformer (Wu et al. 2021), under the names of its weights.

A stage makes tokens of a map by a convolution and is a transformer, normalised before each part,
whose projections begin with a depthwise convolution over the map of its tokens:

    x       = LayerNorm(conv(map))                      7 x 7 of stride 4, then 3 x 3 of stride 2
    q, k, v = linear(BatchNorm(depthwise 3 x 3 (y)))    y = LayerNorm(x); stride 1 for q, 2 for k, v
    x      <- x + proj(A v), A = softmax of q k' / sqrt(D)   by heads; D is the width of all of them
    x      <- x + fc2(quick_gelu(fc1(LayerNorm(x))))    quick_gelu(u) = u sigma(1.702 u)

The last of three stages has a class token beside the places, which no convolution sees. The feature
map is that of its places, after the norm that ends the network; the token is left out of it. The
published training drops whole branches at random; that is left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from labelwise.networks.backbones.base import Backbone
from labelwise.networks.backbones.towers import Perceptron
from labelwise.pictures.transform import Transform


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
        sizes = CVT[name]
        side = SIDES[name] if image_size is None else image_size
        transform = Transform(side, interpolation="bicubic", crop=0.875)
        super().__init__(name, sizes[-1].width, transform)
        first, second, third = sizes
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
    """Tokens of a map: a convolution and a LayerNorm, still a map."""

    def __init__(self, width_in: int, width: int, side: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(width_in, width, side, stride, 2 if side == 7 else 1)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> Tensor:
        return _over_channels(self.norm, self.proj(features))


class _Stage(nn.Module):
    """Tokens of a map, blocks of a transformer, and the map again."""

    cls_token: nn.Parameter | None

    def __init__(
        self,
        width_in: int,
        size: Stage,
        *,
        side: int = 3,
        stride: int = 2,
        class_token: bool = False,
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
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, size: Stage) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attn = _ConvolutionalAttention(size.width, size.heads)
        self.mlp = Perceptron(size.width, 4 * size.width, "quick_gelu")

    def forward(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        x = x + self.attn(self.norm1(x), shape)
        return torch.as_tensor(x + self.mlp(self.norm2(x)))


class _Projection(nn.Module):
    """A depthwise convolution and its batch norm."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, features: Tensor) -> Tensor:
        return torch.as_tensor(self.bn(self.conv(features)))


class _ConvolutionalAttention(nn.Module):
    """Attention among tokens whose queries, keys and values come from a convolution."""

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
    """Return a map whose channels were normalised at each place."""
    return torch.as_tensor(norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
