"""The text half of a text-image model: tokens to a vector of length one.

    clip      causal attention; the last token, which ends the text; norm, projection
    siglip    every text is filled up to full length and all tokens see each other; the last place,
              norm, a linear layer with bias

A text is lower-cased for SigLIP and SigLIP 2, and the first SigLIP also loses its punctuation, as
their training did it; CLIP's tokenizer does what CLIP needs by itself. Each text is encoded alone.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from labelwise.errors import DataError, SettingsError
from labelwise.networks.backbones.towers import TransformerBlock
from labelwise.system.text import first_line


@dataclass(frozen=True)
class TextTowerShape:
    """What builds a text tower; a causal one is CLIP's."""

    causal: bool
    vocabulary: int
    places: int
    width: int
    depth: int
    heads: int
    mlp: int
    to: int
    activation: str
    eps: float

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % self.heads:
            raise SettingsError(
                f"the width of a text tower must be a multiple of its heads, got {self.width} and "
                f"{self.heads}"
            )


@dataclass(frozen=True, eq=False)
class Tokens:
    """A tokenizer as a model's training used it; ``fill`` fills texts up to full length."""

    tokenizer: Any
    places: int
    fill: int | None = None
    fill_left: bool = False
    lower: bool = False
    drop_punctuation: bool = False

    def __post_init__(self) -> None:
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.places)

    def of(self, text: str) -> list[int]:
        """Return the numbers of a text's tokens."""
        if self.lower:
            text = text.lower()
        if self.drop_punctuation:
            text = text.translate(str.maketrans("", "", string.punctuation))
            text = re.sub(r"\s+", " ", text).strip()
        try:
            ids: list[int] = self.tokenizer.encode(text).ids
        except Exception as error:  # tokenizers raises no class of its own
            reason = first_line(error)
            raise DataError(f"the model's tokenizer cannot read {text!r:.200}: {reason}") from None
        if self.fill is None:
            if not ids:
                raise DataError(f"the model knows no part of the text {text!r}; describe it anew")
            return ids
        filling = [self.fill] * (self.places - len(ids))
        return [*filling, *ids] if self.fill_left else [*ids, *filling]

    @property
    def knows_english_only(self) -> bool:
        """Whether these are the tokens of CLIP, whose texts were English."""
        return self.fill is None


class TextTower(nn.Module):
    """A transformer from the tokens of one text to its vector."""

    def __init__(self, shape: TextTowerShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(shape.places, width))
        settings = (width, shape.heads, shape.mlp, shape.activation, shape.eps)
        self.blocks = nn.ModuleList(TransformerBlock(*settings) for _ in range(shape.depth))
        self.after = nn.LayerNorm(width, shape.eps)
        self.projection = nn.Linear(width, shape.to, bias=not shape.causal)

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(self.tokens(ids))

    def read(self, embedded: Tensor) -> Tensor:
        """Return one unit vector (D,) per text of embedded tokens (n, length, width)."""
        x = embedded + self.positions[: embedded.shape[1]]
        for block in self.blocks:
            x = block(x, self.shape.causal)
        return normalize(self.projection(self.after(x[:, -1])), dim=1)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], tokens: Tokens) -> Tensor:
        """Return one unit vector (D,) per text."""
        return torch.cat([self(torch.tensor([tokens.of(text)])) for text in texts])
