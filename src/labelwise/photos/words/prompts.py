"""Learned prompts on a text-image model of the CLIP sort: its text tower for ``DualPrompts``."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labelwise.errors import SettingsError
from labelwise.networks.heads import DualPrompts
from labelwise.photos.words.text_tower import TextTower
from labelwise.photos.words.tower_files import Towers


class EmbeddedText(nn.Module):
    """A text tower that takes tokens which are embedded already."""

    def __init__(self, tower: TextTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, texts: Tensor) -> Tensor:
        return self.tower.read(texts)


def dual_prompts(towers: Towers, names: Sequence[str], *, context: int = 16) -> DualPrompts:
    """Return the head that learns ``context`` words before these label names, twice.

    It takes the vectors that ``towers`` has for photos, as stored features or as a map.
    """
    shape = towers.text.shape
    if not shape.causal:
        raise SettingsError(
            "learned prompts need a model of the CLIP sort: SigLIP fills every text up to full "
            "length, which leaves no place for them"
        )
    ids = [towers.tokens.of(name) for name in names]
    longest = max((len(one) for one in ids), default=0)
    if longest + context > shape.places:
        raise SettingsError(
            f"names of up to {longest} tokens and {context} learned words must fit into the "
            f"{shape.places} places of the text tower; set context to at most "
            f"{shape.places - longest}"
        )
    with torch.no_grad():
        embedded = [towers.text.tokens(torch.tensor(one)) for one in ids]
    return DualPrompts(EmbeddedText(towers.text), embedded, context=context)
