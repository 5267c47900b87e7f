"""Words that no photo shows, such as justice: they lie nearer to ideas than to things.

    doubted, if   max_i cos(text, idea i) > max(max_c cos(text, class c), max_t cos(text, thing t))

A classifier gives every word some class: justice leans on a judge's robe. Ideas and things that
people look for in photos are named here, and a text is held to both. Of 26 other words for ideas,
all-MiniLM-L6-v2 lays 17 far from every class of ImageNet, and 8 of the others nearer to an idea.
It lays 4 of 72 other words there that photos do show (nurse, kiss, baptism, plain), so it is said
as a doubt.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelwise.photos.words.encoder import SentenceEncoder
from labelwise.photos.words.word_list import usual_texts

IDEAS = (
    *("freedom", "truth", "idea", "law", "thought", "belief", "theory", "knowledge", "wisdom"),
    *("reason", "memory", "dream", "hope", "faith", "trust", "love", "hate", "fear", "anger"),
    *("joy", "sadness", "courage", "honour", "pride", "luck", "fate", "danger", "peace", "power"),
    *("money", "time", "history", "future", "culture", "religion", "politics", "economy"),
    *("science", "education", "health", "success", "problem", "question", "meaning", "quality"),
    *("beauty", "silence", "energy", "progress", "change", "choice", "duty"),
)
THINGS = (
    *("person", "woman", "man", "child", "crowd", "party", "wedding", "birthday", "night"),
    *("portrait", "selfie", "school", "museum", "festival", "city", "landscape", "building"),
    *("clothes", "food", "drink", "sport", "game", "music", "concert", "dance", "weather", "sky"),
    *("water", "plant", "animal", "vehicle", "room", "furniture", "tool", "toy", "drawing"),
    *("text", "sign", "face", "hand", "holiday"),
)


class Ideas:
    """Ideas and things as an encoder knows them; those that it does not know are left out."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self._encoder = encoder

    @cached_property
    def _ideas(self) -> dict[str, NDArray[np.float32]]:
        return self._known(IDEAS)

    @cached_property
    def _things(self) -> dict[str, NDArray[np.float32]]:
        return self._known(THINGS)

    def _known(self, names: tuple[str, ...]) -> dict[str, NDArray[np.float32]]:
        known = [name for name in names if self._encoder.knows(name)]
        return {name: self._encoder.describe(usual_texts(name)) for name in known}

    def nearest(self, vector: NDArray[np.float32], cosine: float) -> str | None:
        """Return the idea that a text is nearest to; None if a thing is nearer.

        ``cosine`` is that of the text and the nearest class.
        """
        near = {name: float(own @ vector) for name, own in self._ideas.items()}
        things = [float(own @ vector) for own in self._things.values()]
        best = max(near, key=near.__getitem__, default=None)
        return None if best is None or near[best] <= max([cosine, *things]) else best
