"""Query decoder: Query2Label (Liu et al. 2021), with the group decoding of ML-Decoder.

One learned query per label looks at the feature map and gathers what speaks for its label:

    memory   = features, one token per place; encoder layers: query = key = memory + position
    target_0 = 0
    target_i = decoder layer: query = target + label embedding, key = memory + position,
               value = memory; no self-attention among the labels, unless it is asked for
    logit_k  = w_k . LayerNorm(target)_k + b_k

A layer is attention, then a feed-forward net, each added to its input and normalised after
(post-norm). With fewer queries than labels, query g decodes the labels g f .. (g+1) f - 1,
f = ceil(labels / queries) (queries left without a label are not made): the cost of attention no
longer grows with the number of labels.

With self-attention the labels look at each other first: query = key = target + label embedding,
value = target. The published code can have it in all decoder layers, in the first alone, or in all
but the first, whose targets are all zero.
"""

from math import pi
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from labelwise.networks.heads.base import Head
from labelwise.types import Outputs

SelfAttention = Literal["none", "first", "later", "all"]

TEMPERATURE = 10_000.0
EPS = 1e-6


class AttentionLayer(nn.Module):
    """Attention and feed-forward net, post-norm; encoder and decoder layers are both this.

    With ``self_attention`` the states can look at each other before they look at the memory.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        feedforward: int,
        dropout: float,
        *,
        self_attention: bool = False,
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.expand = nn.Linear(width, feedforward)
        self.contract = nn.Linear(feedforward, width)
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.self_attention: nn.MultiheadAttention | None = None
        if self_attention:
            self.self_attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
            self.norm_self = nn.LayerNorm(width)

    def forward(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the next state (B, n, D) from queries (B, n, D), keys and values (B, m, D)."""
        seen, _ = self.attention(query, key, value, need_weights=False)
        return self.after(state, seen)

    def look_around(self, state: Tensor, queries: Tensor) -> Tensor:
        """Return the state (B, n, D) after self-attention, or as it is."""
        if self.self_attention is None:
            return state
        query = state + queries
        seen, _ = self.self_attention(query, query, state, need_weights=False)
        result: Tensor = self.norm_self(state + self.dropout(seen))
        return result

    def after(self, state: Tensor, seen: Tensor) -> Tensor:
        """Return the next state, given what the attention saw."""
        state = self.norm_attention(state + self.dropout(seen))
        hidden = self.dropout(torch.relu(self.expand(state)))
        result: Tensor = self.norm_feedforward(state + self.dropout(self.contract(hidden)))
        return result


class GroupLinear(nn.Module):
    """``logit_k = w_k . h_{query of k} + b_k``: every query decodes its own run of labels."""

    def __init__(self, width: int, num_labels: int, share: int) -> None:
        super().__init__()
        self.num_labels = num_labels
        queries, bound = -(-num_labels // share), width**-0.5
        self.weight = nn.Parameter(torch.empty(queries, share, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_labels).uniform_(-bound, bound))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (B, K) of states (B, queries, D)."""
        logits = torch.einsum("bqd,qsd->bqs", hidden, self.weight).flatten(1)
        return logits[:, : self.num_labels] + self.bias


class QueryDecoder(Head):
    """Transformer head with one query per label, or per group of labels.

    ``width=None`` takes the feature map as it is, as the published model does; a number projects
    it to that many channels first (1 x 1 convolution). ``feedforward=None`` is 4 times the width.
    ``self_attention`` among the labels is in no decoder layer, as published, in the "first", in the
    "later" ones, or in "all".
    """

    def __init__(
        self,
        channels: int,
        num_labels: int,
        *,
        width: int | None = None,
        queries: int | None = None,
        attention_heads: int = 4,
        feedforward: int | None = None,
        encoder_layers: int = 1,
        decoder_layers: int = 2,
        dropout: float = 0.1,
        self_attention: SelfAttention = "none",
    ) -> None:
        super().__init__()
        self.width = width = channels if width is None else width
        if width % 4 or width % attention_heads:
            raise ValueError(
                f"the width of a query decoder must be a multiple of 4 and of its "
                f"{attention_heads} attention heads, got {width}; set width=..."
            )
        queries = num_labels if queries is None else queries
        if not 1 <= queries <= num_labels:
            raise ValueError(f"queries must lie between 1 and {num_labels} labels, got {queries}")
        if encoder_layers < 0 or decoder_layers < 1:
            raise ValueError(
                "a query decoder must have no negative number of encoder layers and at least one "
                f"decoder layer, got {encoder_layers} and {decoder_layers}"
            )
        if self_attention not in get_args(SelfAttention):
            raise ValueError(
                f"self_attention must be one of {get_args(SelfAttention)}, got {self_attention!r}"
            )
        feedforward = 4 * width if feedforward is None else feedforward
        self.project = nn.Identity() if width == channels else nn.Conv2d(channels, width, 1)
        layer = (width, attention_heads, feedforward, dropout)
        self.encoder = nn.ModuleList(AttentionLayer(*layer) for _ in range(encoder_layers))
        there = {
            "none": range(0),
            "first": range(1),
            "later": range(1, decoder_layers),
            "all": range(decoder_layers),
        }[self_attention]
        self.decoder = nn.ModuleList(
            AttentionLayer(*layer, self_attention=number in there)
            for number in range(decoder_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = GroupLinear(width, num_labels, share=-(-num_labels // queries))
        self.queries = nn.Parameter(torch.randn(len(self.classifier.weight), width))
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, features: Tensor) -> Outputs:
        memory, key = self._memory(self.project(features))
        target = torch.zeros_like(self.queries).expand(memory.shape[0], -1, -1)
        for layer in self._decoder():
            target = layer.look_around(target, self.queries)
            target = layer(target, target + self.queries, key, memory)
        return Outputs(self.classifier(self.norm(target)))

    @torch.no_grad()
    def attention(self, features: Tensor) -> Tensor:
        """Return where each label's query looks in its last layer: (B, K, H, W), each sums to 1.

        The mean over the attention heads; labels of one query share its map.
        """
        memory, key = self._memory(self.project(features))
        target = torch.zeros_like(self.queries).expand(memory.shape[0], -1, -1)
        weights = memory.new_zeros(())
        for layer in self._decoder():
            target = layer.look_around(target, self.queries)
            seen, weights = layer.attention(target + self.queries, key, memory)
            target = layer.after(target, seen)
        share = self.classifier.weight.shape[1]
        maps = weights.repeat_interleave(share, dim=1)[:, : self.classifier.num_labels]
        return maps.reshape(*maps.shape[:2], *features.shape[2:])

    def _decoder(self) -> list[AttentionLayer]:
        return [layer for layer in self.decoder if isinstance(layer, AttentionLayer)]

    def _memory(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the queries look at, (B, H W, D), without and with its position code."""
        height, width = features.shape[2:]
        place = sine_position(self.width, height, width, features).flatten(1).T  # (H W, D)
        memory = features.flatten(2).transpose(1, 2)
        for layer in self.encoder:
            query = memory + place
            memory = layer(memory, query, query, memory)
        return memory, memory + place

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        self.classifier.bias.copy_(logits)


def sine_position(channels: int, height: int, width: int, like: Tensor) -> Tensor:
    """Return the sine position code (D, H, W) of a feature map, as in DETR and Query2Label.

        angle(position, i) = 2 pi position / (size + 1e-6) / 10000^(2 floor(i/2) / (D/2))

    with positions 1 to size; sine on even channels i, cosine on odd ones; the first D/2 channels
    code the row, the last D/2 the column. Its dtype and device are those of ``like``.
    """
    if channels % 4:
        raise ValueError(f"channels must be a multiple of 4, got {channels}")
    rows, columns = (_axis(channels // 2, size, like) for size in (height, width))
    grid = (channels // 2, height, width)
    code = torch.cat([rows.unsqueeze(2).expand(grid), columns.unsqueeze(1).expand(grid)])
    return code.to(like.dtype)


def _axis(channels: int, size: int, like: Tensor) -> Tensor:
    """Return the code (channels, size) of one axis, in float32."""
    positions = torch.arange(1, size + 1, device=like.device, dtype=torch.float32)
    pairs = torch.arange(channels // 2, device=like.device, dtype=torch.float32)
    frequency = TEMPERATURE ** (2 * pairs / channels)
    angles = 2 * pi * positions / (size + EPS) / frequency.unsqueeze(1)  # (channels / 2, size)
    return torch.stack([angles.sin(), angles.cos()], dim=1).flatten(0, 1)
