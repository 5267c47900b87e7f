"""Image halves of text-image models, which timm lacks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast, get_args

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
