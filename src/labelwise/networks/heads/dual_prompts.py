"""DualCoOp (Sun et al., NeurIPS 2022): learned words around a label's name, for and against it.

    t+_k    = encoder(start, v+_1 .. v+_N, name of k, end), t-_k the same with v-; unit vectors
    s+_ik   = cos(f_i, t+_k), s-_ik = cos(f_i, t-_k)          f_i are the features of place i
    w_ik    = softmax over places i of 20 s+_ik
    logit_k = 100 sum_i w_ik (s+_ik - s-_ik)

sigma(logit_k) is the published softmax of two scores. v+ and v- are all that is learned, 2 N
vectors for all labels together, so a label that was never trained on can be asked for by its name
(``with_names``): of these the logits rank. The features must be those of the image tower that
belongs to the encoder; of one place (stored and pooled) w is 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from labelwise.networks.heads.base import Head
from labelwise.types import Outputs

SHARPNESS = 20.0  # of the softmax over places
SCALE = 100.0
START = 0.02  # deviation of the words at the start


class DualPrompts(Head):
    """Two learned prompts for all labels, read by a text encoder that stays as it is.

    ``names`` are the embedded tokens (n_k, W) of each label's name, the first of which starts a
    text; ``encoder`` takes embedded texts (n, length, W) to unit vectors (n, D).
    """

    def __init__(self, encoder: nn.Module, names: Sequence[Tensor], *, context: int = 16) -> None:
        super().__init__()
        if context < 1:
            raise ValueError(f"context must be at least 1, got {context}")
        self.names = _checked(names)
        self.encoder = encoder.requires_grad_(False)
        width = self.names[0].shape[1]
        self.present = nn.Parameter(START * torch.randn(context, width))
        self.absent = nn.Parameter(START * torch.randn(context, width))

    def forward(self, features: Tensor) -> Outputs:
        places = normalize(features.flatten(2), dim=1)  # (B, D, H W)
        present, absent = (self.text(words) @ places for words in (self.present, self.absent))
        weights = torch.softmax(SHARPNESS * present, dim=2)
        return Outputs(SCALE * (weights * (present - absent)).sum(dim=2))

    def text(self, words: Tensor) -> Tensor:
        """Return the vectors (K, D) of all labels with these learned words (N, W) before them."""
        vectors: dict[int, Tensor] = {}
        for length in {len(name) for name in self.names}:
            alike = [number for number, name in enumerate(self.names) if len(name) == length]
            given = torch.stack([self.names[number] for number in alike]).to(words)
            between = words.expand(len(alike), -1, -1)
            texts = torch.cat([given[:, :1], between, given[:, 1:]], dim=1)
            vectors |= zip(alike, self.encoder(texts), strict=True)
        return torch.stack([vectors[number] for number in range(len(self.names))])

    def with_names(self, names: Sequence[Tensor]) -> "DualPrompts":
        """Return a head with the same words for other labels, of these names (n_k, W)."""
        other = DualPrompts(self.encoder, names, context=len(self.present))
        if other.present.shape != self.present.shape:
            raise ValueError(
                f"names must have the width {self.present.shape[1]} of those it was trained with, "
                f"got {other.present.shape[1]}"
            )
        other.load_state_dict(self.state_dict())
        return other.to(self.present)


def _checked(names: Sequence[Tensor]) -> list[Tensor]:
    if not names or any(name.ndim != 2 or len(name) < 2 for name in names):
        raise ValueError(
            "names must be embedded texts (tokens, width) of two tokens or more, one per label, "
            f"got {[tuple(name.shape) for name in names]}"
        )
    if len({name.shape[1] for name in names}) > 1:
        raise ValueError(
            f"names must have one width, got {sorted({name.shape[1] for name in names})}"
        )
    return [name.detach() for name in names]
