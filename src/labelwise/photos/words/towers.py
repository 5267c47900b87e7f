"""TwoTowers: CLIP, SigLIP, SigLIP 2 or an open_clip model as what scores photos for words.

    score_k = scale cos(photo, text_k) + bias      text_k: unit mean of the vectors of its texts

SigLIP's scores are log-odds of independent labels, and are taken for that until people have
answered. CLIP's only rank: as with classes, a guessed curve makes probabilities of them.
"""

import os
from collections.abc import Sequence
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from urllib.request import urlopen

import torch
from torch import Tensor
from torch.nn.functional import normalize

from labelwise.errors import SettingsError
from labelwise.links import Link, Sigmoid
from labelwise.models.run_folder import HUB, fetched_from_hub
from labelwise.photos.words.classes import ClassesAndWords
from labelwise.photos.words.text_image import TextDirections, TextHead, TextImageModel
from labelwise.photos.words.tower_files import (
    FILES_OF_HUB,
    OPTIONAL_OF_HUB,
    Towers,
    is_tower_folder,
    read_towers,
)
from labelwise.photos.words.word_list import usual_texts
from labelwise.system.files import replacing, sha256_of
from labelwise.system.text import one_line_of

ALIKE = 0.99  # cosine of two words; unlike those of sentence encoders, cosines of towers are high
SIGLIP_TEXT = "this is a photo of {}."
LATIN = 0x250  # letters from here on are no longer those of English and its neighbours


# The sentence encoder that is taken unless another model is named (Apache-2.0, 23 MB).
ENCODER, REVISION = "Xenova/all-MiniLM-L6-v2", "751bff37182d3f1213fa05d7196b954e230abad9"
ENCODER_FILES = {  # hash, and bytes that no such file exceeds
    "onnx/model_quantized.onnx": (
        "afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1",
        25_000_000,
    ),
    "tokenizer.json": (
        "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0",
        1_000_000,
    ),
}
CHUNK, SILENT, LONGEST = 1 << 18, 20.0, 900.0  # bytes; seconds without any, and in all
BY_HAND = (
    f"copy {' and '.join(ENCODER_FILES)} from https://huggingface.co/{ENCODER} into a folder and "
    "name it with --model"
)


def usual_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, from a cache or fetched, checked by hashes.

    A mirror is not trusted: what it sends is cut off where it is too much or too slow, and becomes
    a file once its hash is right.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    kept = [try_to_load_from_cache(ENCODER, name, revision=REVISION) for name in ENCODER_FILES]
    if all(isinstance(path, str) for path in kept):
        folder = Path(str(kept[-1])).parent
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "labelwise" / "encoders" / REVISION
    for name, (expected, most) in ENCODER_FILES.items():
        path = folder / name
        if not path.is_file():
            address = f"{constants.ENDPOINT}/{ENCODER}/resolve/{REVISION}/{name}"
            try:
                if constants.HF_HUB_OFFLINE:
                    raise OSError("HF_HUB_OFFLINE is set")
                content = _fetched(address, expected, most)
            except (OSError, HTTPException, ValueError) as error:
                raise SettingsError(
                    "without --model a sentence encoder is fetched once (23 MB), and "
                    f"{address} cannot be used: {one_line_of(error)}. Set HF_ENDPOINT to another "
                    f"mirror, or {BY_HAND}"
                ) from None
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_bytes(content)
        elif (digest := sha256_of(path)) != expected:
            raise SettingsError(
                f"{path} must have the SHA-256 {expected}, got {digest}; delete it and try again, "
                f"or {BY_HAND}"
            )
    return folder


def _fetched(address: str, expected: str, most: int) -> bytes:
    """Return what an address sends, if it has the expected hash."""
    if not address.startswith(("https://", "http://")):
        raise ValueError("the address must start with https:// or http://")
    begun, content = monotonic(), bytearray()
    with urlopen(address, timeout=SILENT) as answer:
        while chunk := answer.read1(CHUNK):
            content += chunk
            if len(content) > most:
                raise ValueError(f"it sends more than {most:,} bytes")
            if monotonic() - begun > LONGEST:
                raise ValueError(f"it sent {len(content):,} bytes in {LONGEST:,.0f} seconds")
    if (digest := sha256(content).hexdigest()) != expected:
        sent = f"the {len(content):,} bytes that it sent"
        raise ValueError(f"{sent} must have the SHA-256 {expected}, got {digest}")
    return bytes(content)


def open_scorer(
    place: str | None = None, *, image_size: int | None = None, cache: Path | None = None
) -> TextImageModel:
    """Return the scorer of a folder, or of ``hf://OWNER/NAME``: two towers, or classes and words.

    Without a place it is all-MiniLM-L6-v2 with EfficientNet-Lite0. ``image_size`` and ``cache``
    are of classes and words.
    """
    if place is None:
        return ClassesAndWords(usual_encoder(), image_size=image_size, cache=cache)
    if place.startswith(HUB):
        meaning = "so it is not a text-image model of transformers that can be read here"
        folder = fetched_from_hub(place, FILES_OF_HUB, OPTIONAL_OF_HUB, meaning)
    else:
        folder = Path(place)
    if not is_tower_folder(folder):
        return ClassesAndWords(folder, image_size=image_size, cache=cache)
    if image_size is not None:
        raise SettingsError(
            f"{place} has an input of its own size: leave --image-size out, which is for "
            "classifiers"
        )
    return TwoTowers(folder)


class TowerTexts(TextDirections):
    """The text half of two towers."""

    def __init__(self, towers: Towers) -> None:
        self.towers = towers

    def directions(self, texts: Sequence[Sequence[str]]) -> Tensor:
        """Return the unit means (D, K) of the vectors of texts."""
        towers, columns = self.towers, []
        for own in texts:
            if towers.bias is not None and tuple(own) == usual_texts(own[-1]):
                own = [SIGLIP_TEXT.format(own[-1])]
            mean = towers.text.encode(own, towers.tokens).mean(dim=0)
            columns.append(normalize(mean, dim=0).clone())
        return torch.stack(columns, dim=1).double()

    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        strange = [text for text in texts if any(ord(letter) >= LATIN for letter in text)]
        if strange and self.towers.tokens.knows_english_only:
            return (
                f"CLIP was trained on English, and {strange[0]!r} is written in other letters: "
                f"describe {name!r} in English, as in: name: a text in English"
            )
        return None

    def alike(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        vectors = self.directions(texts)
        near = (vectors.T @ vectors).triu(1) > ALIKE
        return [(int(first), int(other)) for first, other in near.nonzero().tolist()]


class TwoTowers(TextImageModel):
    """A text-image model of a folder."""

    kind = "towers"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise SettingsError(f"{folder} is not a folder; it must hold a text-image model")
        self.towers = read_towers(self.folder)
        self.backbone, self.digest = self.towers.image, self.towers.digest

    @property
    def texts(self) -> TowerTexts:
        return TowerTexts(self.towers)

    def head(
        self,
        texts: Sequence[Sequence[str]],
        mean_features: Tensor,
        features: Tensor | None = None,
    ) -> TextHead:
        weight = self.towers.scale * self.texts.directions(texts)
        bias = torch.full((len(texts),), self.towers.bias or 0.0, dtype=weight.dtype)
        return TextHead(weight, bias)

    def guessed(self, scores: Tensor) -> Link:
        return super().guessed(scores) if self.towers.bias is None else Sigmoid()
