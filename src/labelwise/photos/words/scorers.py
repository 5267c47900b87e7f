"""Which text-image model a place holds: classes and words, or two towers, which need torch."""

import json
from pathlib import Path
from typing import Any

from labelwise.base.files import sha256_of
from labelwise.base.text import first_line, one_line_of, shortened
from labelwise.errors import SettingsError
from labelwise.models.run_folder import HUB, fetched_from_hub
from labelwise.photos.words.classes import ClassesAndWords
from labelwise.photos.words.text_image import TextImageModel

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
OPEN_CLIP = "open_clip_config.json"  # of a folder that open_clip wrote, which is not read
PREPROCESSOR, TOKENIZER_CONFIG = "preprocessor_config.json", "tokenizer_config.json"


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read: {first_line(error)}") from None
    if not isinstance(read, dict):
        raise SettingsError(f"{path} must be a JSON object")
    return read


def is_tower_folder(folder: Path) -> bool:
    """Return whether a folder holds a text-image model, by its configuration."""
    return (folder / CONFIG).is_file() and "model_type" in read_json(folder / CONFIG)


# The sentence encoder that is taken unless another model is named (Apache-2.0, 23 MB).
ENCODER, REVISION = "Xenova/all-MiniLM-L6-v2", "751bff37182d3f1213fa05d7196b954e230abad9"
GRAPH_SHA256 = "afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1"
TOKENIZER_SHA256 = "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0"
ENCODER_FILES = {"onnx/model_quantized.onnx": GRAPH_SHA256, "tokenizer.json": TOKENIZER_SHA256}
BY_HAND = (
    f"copy {' and '.join(ENCODER_FILES)} from https://huggingface.co/{ENCODER} into a folder and "
    "name it with --model"
)


def usual_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2: in this user's cache of the hub, or fetched there."""
    from huggingface_hub import hf_hub_download

    for name, expected in ENCODER_FILES.items():
        try:
            path = Path(hf_hub_download(ENCODER, name, revision=REVISION))
        except Exception as error:  # of the hub's many kinds, and of the network's
            raise SettingsError(
                "without --model a sentence encoder is fetched once (23 MB), and "
                f"{shortened(one_line_of(error), 300)} Set HF_ENDPOINT to another mirror, or "
                f"{BY_HAND}"
            ) from None
        if (digest := sha256_of(path)) != expected:
            reason = f"{path} must have the SHA-256 {expected}, got {digest}"
            raise SettingsError(f"{reason}; delete it and try again, or {BY_HAND}")
    return path.parent


def open_scorer(
    place: str | None = None, *, image_size: int | None = None, cache: Path | None = None
) -> TextImageModel:
    """Return the scorer of a folder, or of ``hf://OWNER/NAME``: two towers, or classes and words.

    Without a place it is all-MiniLM-L6-v2 with EfficientNet-Lite0.
    """
    if place is None:
        return ClassesAndWords(usual_encoder(), image_size=image_size, cache=cache)
    if place.startswith(HUB):
        meaning = "so it is not a text-image model of transformers that can be read here"
        needed = (CONFIG, WEIGHTS, TOKENIZER, PREPROCESSOR)
        folder = fetched_from_hub(place, needed, (TOKENIZER_CONFIG,), meaning)
    else:
        folder = Path(place)
    if (folder / OPEN_CLIP).is_file():
        what = f"{place} is a folder of open_clip, which is not read"
        raise SettingsError(f"{what}; take the transformers folder of this model")
    if not is_tower_folder(folder):
        return ClassesAndWords(folder, image_size=image_size, cache=cache)
    if image_size is not None:
        raise SettingsError(f"{place} has an input of its own size: leave --image-size out")
    from labelwise.photos.words.tower_files import TwoTowers

    return TwoTowers(folder)
