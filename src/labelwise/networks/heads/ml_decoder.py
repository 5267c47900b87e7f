"""ML-Decoder (Ridnik et al., WACV 2023): queries that are not learned look at the feature map.

    memory  = relu(W_m features + b_m), one token per place, no position code
    state   = LayerNorm(q + dropout(q))
    hidden  = attention to memory, then a feed-forward net, each added and normalised after
    fixed   q_g is drawn once and stays; query g decodes the labels g f .. (g + 1) f - 1 by weights
            of their own, f = ceil(labels / queries)
    words   q_k = W_q word_k + b_q, and logit_k = w . hidden_k + b, with w and b for all labels

There is no attention among queries. Fixed queries need not be learned: the layers after them are,
and a learned map of something fixed can be anything. With words nothing belongs to one label, so
that labels which were never trained on can be asked for by their words (``with_words``): of these
the logits rank; a calibrator of the trained labels says nothing about them.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from labelwise.networks.heads.base import Head
from labelwise.networks.heads.query import AttentionLayer, GroupLinear
from labelwise.types import Outputs

MOST_QUERIES = 100


class DecoderTrunk(nn.Module):
    """What queries see of a feature map: one layer of attention, as published."""

    def __init__(
        self, channels: int, width: int, attention_heads: int, feedforward: int, dropout: float
    ) -> None:
        super().__init__()
        if width % attention_heads:
            raise ValueError(
                f"the width of an ML-Decoder must be a multiple of its {attention_heads} attention "
                f"heads, got {width}"
            )
        self.project = nn.Linear(channels, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layer = AttentionLayer(width, attention_heads, feedforward, dropout)

    def forward(self, features: Tensor, queries: Tensor) -> Tensor:
        """Return the states (B, n, width) of queries (n, width) before features (B, D, H, W)."""
        memory = torch.relu(self.project(features.flatten(2).transpose(1, 2)))
        given = queries.expand(memory.shape[0], -1, -1)  # not len: it must stay open in exports
        state = self.norm(given + self.dropout(given))
        hidden: Tensor = self.layer(state, state, memory, memory)
        return hidden


class MLDecoder(Head):
    """Transformer head with fixed queries, each of which decodes a group of labels.

    ``queries=None`` is one per label, at most 100, as published.
    """

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
        if not 1 <= queries <= num_labels:
            raise ValueError(f"queries must lie between 1 and {num_labels} labels, got {queries}")
        self.trunk = DecoderTrunk(channels, width, attention_heads, feedforward, dropout)
        self.classifier = GroupLinear(width, num_labels, share=-(-num_labels // queries))
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.register_buffer("queries", torch.randn(len(self.classifier.weight), width))

    def forward(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(self.trunk(features, self.queries)))

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        self.classifier.bias.copy_(logits)


class WordDecoder(Head):
    """ML-Decoder whose queries are made of words, so that it can be asked for unseen labels.

    ``words`` are vectors (K, E), one per label, such as those of a sentence encoder.
    """

    words: Tensor

    def __init__(
        self,
        channels: int,
        words: Tensor | Sequence[Sequence[float]],
        *,
        width: int = 768,
        attention_heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.register_buffer("words", _checked(words))
        self.trunk = DecoderTrunk(channels, width, attention_heads, feedforward, dropout)
        self.ask = nn.Linear(self.words.shape[1], width)
        self.classifier = nn.Linear(width, 1)
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, features: Tensor) -> Outputs:
        states = self.trunk(features, self.ask(self.words))
        return Outputs(self.classifier(states).squeeze(2))

    def with_words(self, words: Tensor | Sequence[Sequence[float]]) -> "WordDecoder":
        """Return the same head for other labels, of these words (K, E)."""
        given = _checked(words)
        if given.shape[1] != self.words.shape[1]:
            raise ValueError(
                f"words must have the {self.words.shape[1]} numbers of those it was trained with, "
                f"got {given.shape[1]}"
            )
        other = deepcopy(self)
        other.words = given.to(self.words)
        return other

    @torch.no_grad()
    def start_at(self, logits: Tensor) -> None:
        """Start all labels at one bias, since there is one: the mean of theirs."""
        self.classifier.bias.fill_(logits.mean().item())


def _checked(words: Tensor | Sequence[Sequence[float]]) -> Tensor:
    given = torch.as_tensor(words, dtype=torch.float32)
    if given.ndim != 2 or not given.numel():
        raise ValueError(f"words must be vectors (K, E), one per label, got {tuple(given.shape)}")
    return given
