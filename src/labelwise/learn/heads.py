"""Heads: from a feature map to one logit per label."""

from abc import ABC, abstractmethod
from math import pi
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from labelwise.types import Outputs


class Head(nn.Module, ABC):
    """A map from features (B, D, H, W), never pooled, to Outputs; ``aux`` names extra outputs.

    ``pools`` says that it is linear in the mean over places, and so needs nothing else of them;
    ``absorbs`` that it begins with a linear map, which can absorb how features were standardised.
    """

    aux: tuple[str, ...] = ()
    pools: bool = False
    absorbs: bool = False

    @abstractmethod
    def forward(self, features: Tensor) -> Outputs:
        """Return logits (B, K), and whatever ``aux`` names."""

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        """Set the label biases to ``logits`` (K,); a head without such biases stays as it is."""
        classifier = getattr(self, "classifier", None)
        if classifier is not None:
            classifier.bias.copy_(logits)

    @torch.no_grad()
    def absorb_scaling(self, mean: Tensor, scale: Tensor) -> None:
        """Take features where ``(features - mean) / scale`` (D,) were given before.

        W (x - m) / s + b  =  (W / s) x + b - (W / s) m, in each linear layer that they go into
        """
        if not self.absorbs:
            raise TypeError(f"{type(self).__name__} does not begin with a linear map")
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                layer.weight.div_(scale.to(layer.weight))
                layer.bias.sub_(layer.weight @ mean.to(layer.weight))


class LinearHead(Head):
    """``logits = W mean_places(features) + b``."""

    pools = True
    absorbs = True

    def __init__(self, channels: int, num_labels: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(features.mean(dim=(2, 3))))


# BoostLU (Kim et al., CVPR 2023): evidence for a label counts more than evidence against it.
#
#     a_k(place) = w_k . features(place) + b_k          the class activation map of label k
#     logit_k    = mean over places of f(a_k(place))
#     f(a)       = alpha a where a > 0, else a          alpha = 5
#
# ``boosts="answers"`` trains without f and applies it to the trained network only. With alpha = 1
# this is the linear head.

Boosts = Literal["always", "answers"]


class BoostHead(Head):
    """One weight vector per label at every place, boosted where positive, then the mean."""

    absorbs = True

    def __init__(
        self, channels: int, num_labels: int, *, alpha: float = 5.0, boosts: Boosts = "always"
    ) -> None:
        super().__init__()
        if not alpha >= 1:
            raise ValueError(f"alpha must be at least 1, got {alpha}")
        if boosts not in get_args(Boosts):
            raise ValueError(f"boosts must be one of {get_args(Boosts)}, got {boosts!r}")
        self.alpha, self.boosts = alpha, boosts
        self.classifier = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        places = self.classifier(features.flatten(2).transpose(1, 2))  # (B, H W, K)
        if self.boosts == "always" or not self.training:
            places = torch.where(places > 0, self.alpha * places, places)
        return Outputs(places.mean(dim=1))

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        boosted = logits.clamp(min=0) / (self.alpha if self.boosts == "always" else 1)
        self.classifier.bias.copy_(logits.clamp(max=0) + boosted)


# Two heads on shared features: Garcin et al., section 5 and Figure 3.
#
#     logits   = W  mean_places(features) + b       what is decided and deployed
#     proposal = W' mean_places(features) + b'      proposes further labels in training (average-K)
#
# With ``answers="proposal"`` the second head answers once the model is trained (appendix C).


class TwoHead(Head):
    """Two linear heads; the second one's logits are the output ``proposal``."""

    aux = ("proposal",)
    pools = True
    absorbs = True

    def __init__(
        self, channels: int, num_labels: int, *, answers: Literal["logits", "proposal"] = "logits"
    ) -> None:
        super().__init__()
        if answers not in ("logits", "proposal"):
            raise ValueError(f"answers must be 'logits' or 'proposal', got {answers!r}")
        self.answers = answers
        self.classifier = nn.Linear(channels, num_labels)
        self.proposer = nn.Linear(channels, num_labels)

    def forward(self, features: Tensor) -> Outputs:
        pooled = features.mean(dim=(2, 3))
        logits, proposal = self.classifier(pooled), self.proposer(pooled)
        if self.answers == "proposal" and not self.training:
            logits = proposal
        return Outputs(logits, {"proposal": proposal})


# Query decoder: Query2Label (Liu et al. 2021), with the group decoding of ML-Decoder.
#
# One learned query per label looks at the feature map and gathers what speaks for its label:
#
#     memory   = features, one token per place; encoder layers: query = key = memory + position
#     target_0 = 0
#     target_i = decoder layer: query = target + label embedding, key = memory + position,
#                value = memory; no self-attention among the labels, unless it is asked for
#     logit_k  = w_k . LayerNorm(target)_k + b_k
#
# A layer is attention, then a feed-forward net, each added to its input and normalised after
# (post-norm). With fewer queries than labels, query g decodes the labels g f .. (g+1) f - 1, f =
# ceil(labels / queries). With self-attention the labels look at each other first: query = key =
# target + label embedding, value = target.

SelfAttention = Literal["none", "first", "later", "all"]

TEMPERATURE = 10_000.0
EPS = 1e-6


class AttentionLayer(nn.Module):
    """Attention and feed-forward net, post-norm; encoder and decoder layers are both this."""

    def __init__(
        self, width: int, heads: int, feedforward: int, dropout: float, self_attention: bool = False
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
        return cast(Tensor, self.norm_self(state + self.dropout(seen)))

    def after(self, state: Tensor, seen: Tensor) -> Tensor:
        state = self.norm_attention(state + self.dropout(seen))
        hidden = self.dropout(torch.relu(self.expand(state)))
        return cast(Tensor, self.norm_feedforward(state + self.dropout(self.contract(hidden))))


class GroupLinear(nn.Module):
    """``logit_k = w_k . h_{query of k} + b_k``: every query decodes its own run of labels."""

    def __init__(self, width: int, num_labels: int, queries: int) -> None:
        super().__init__()
        if not 1 <= queries <= num_labels:
            raise ValueError(f"queries must lie between 1 and {num_labels} labels, got {queries}")
        self.num_labels = num_labels
        share, bound = -(-num_labels // queries), width**-0.5
        shape = (-(-num_labels // share), share, width)  # no query is idle
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_labels).uniform_(-bound, bound))

    def forward(self, hidden: Tensor) -> Tensor:
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
        numbers = range(decoder_layers)
        kinds = {"none": range(0), "first": range(1), "later": numbers[1:], "all": numbers}
        self.decoder = nn.ModuleList(
            AttentionLayer(*layer, number in kinds[self_attention]) for number in numbers
        )
        self.norm = nn.LayerNorm(width)
        queries = num_labels if queries is None else queries
        self.classifier = GroupLinear(width, num_labels, queries)
        self.queries = nn.Parameter(torch.randn(len(self.classifier.weight), width))
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(self.norm(self._decoded(features, maps=False)[0])))

    @torch.no_grad()
    def attention(self, features: Tensor) -> Tensor:
        """Return where each label's query looks in its last layer: (B, K, H, W), each sums to 1."""
        _, weights = self._decoded(features, maps=True)
        share = self.classifier.weight.shape[1]
        maps: Tensor = weights.repeat_interleave(share, dim=1)[:, : self.classifier.num_labels]
        return maps.reshape(*maps.shape[:2], *features.shape[2:])

    def _decoded(self, features: Tensor, *, maps: bool) -> tuple[Tensor, Any]:
        features = self.project(features)
        height, width = features.shape[2:]
        positions = sine_position(self.width, height, width, features).flatten(1).T
        memory = features.flatten(2).transpose(1, 2)  # what the queries look at, (B, H W, D)
        for layer in self.encoder:
            query = memory + positions
            memory = layer(memory, query, query, memory)
        key = memory + positions
        target = torch.zeros_like(self.queries).expand(memory.shape[0], -1, -1)
        weights, decoder = None, cast(Any, self.decoder)
        for layer in decoder:
            target = layer.look_around(target, self.queries)
            query = target + self.queries
            seen, weights = layer.attention(query, key, memory, need_weights=maps)
            target = layer.after(target, seen)
        return target, weights


def sine_position(channels: int, height: int, width: int, like: Tensor) -> Tensor:
    """Return the sine position code (D, H, W) of a feature map, as in DETR and Query2Label.

        angle(position, i) = 2 pi position / (size + 1e-6) / 10000^(2 floor(i/2) / (D/2))

    with positions 1 to size; sine on even channels i, cosine on odd ones; the first D/2 channels
    code the row, the last D/2 the column. Its dtype and device are those of ``like``.
    """
    if channels % 4:
        raise ValueError(f"channels must be a multiple of 4, got {channels}")
    half = channels // 2
    pairs = torch.arange(half // 2, device=like.device, dtype=torch.float32)
    frequency = (TEMPERATURE ** (2 * pairs / half)).unsqueeze(1)

    def axis(size: int) -> Tensor:
        positions = torch.arange(1, size + 1, device=like.device, dtype=torch.float32)
        angles = 2 * pi * positions / (size + EPS) / frequency  # (half / 2, size)
        return torch.stack([angles.sin(), angles.cos()], dim=1).flatten(0, 1)

    rows, columns = axis(height).unsqueeze(2), axis(width).unsqueeze(1)
    grid = (half, height, width)
    return torch.cat([rows.expand(grid), columns.expand(grid)]).to(like.dtype)


# ML-Decoder (Ridnik et al., WACV 2023): queries that are not learned look at the feature map.
#
#     memory  = relu(W_m features + b_m), one token per place, no position code
#     state   = LayerNorm(q + dropout(q))
#     hidden  = attention to memory, then a feed-forward net, each added and normalised after
#     q_g is drawn once and stays; query g decodes labels g f .. (g + 1) f - 1 by weights of their
#     own, f = ceil(labels / queries)

MOST_QUERIES = 100


class DecoderTrunk(nn.Module):
    """What queries see of a feature map: one layer of attention, as published."""

    def __init__(
        self, channels: int, width: int, attention_heads: int, feedforward: int, dropout: float
    ) -> None:
        super().__init__()
        if width % attention_heads:
            of = f"its {attention_heads} attention heads, got {width}"
            raise ValueError(f"the width of an ML-Decoder must be a multiple of {of}")
        self.project = nn.Linear(channels, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layer = AttentionLayer(width, attention_heads, feedforward, dropout)

    def forward(self, features: Tensor, queries: Tensor) -> Tensor:
        """Return the states (B, n, width) of queries (n, width) before features (B, D, H, W)."""
        memory = torch.relu(self.project(features.flatten(2).transpose(1, 2)))
        given = queries.expand(memory.shape[0], -1, -1)  # not len: it must stay open in exports
        state = self.norm(given + self.dropout(given))
        return cast(Tensor, self.layer(state, state, memory, memory))


class MLDecoder(Head):
    """Transformer head with fixed queries, each of which decodes a group of labels."""

    queries: Tensor

    def __init__(
        self,
        channels: int,
        num_labels: int,
        *,
        width: int = 768,
        queries: int | None = None,
        attention_heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        queries = min(num_labels, MOST_QUERIES) if queries is None else queries
        self.trunk = DecoderTrunk(channels, width, attention_heads, feedforward, dropout)
        self.classifier = GroupLinear(width, num_labels, queries)
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.register_buffer("queries", torch.randn(len(self.classifier.weight), width))

    def forward(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(self.trunk(features, self.queries)))
