"""Photos to labels by an exported file, without torch: Pillow, numpy and onnxruntime.

HEIC photos, as phones write them, are read where pillow-heif is installed.

    from labelwise_runtime import Tagger

    tagger = Tagger("model.onnx")
    print(tagger("photo.jpg"))

The one definition of how a photo becomes pixels: at full scale, turned as its EXIF data says, the
first frame, alpha laid on white, of 16-bit grey the high byte, in 8-bit RGB with colours as they
are stored. labelwise itself decodes by :func:`upright_rgb`; `labelwise export --with-runtime`
writes this very file beside the model, and it imports nothing of labelwise.
"""

import io
import json
import os
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

ROWS_AT_ONCE = 512


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return an open image as people see it: turned as its camera was held, in 8-bit RGB."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep_grey(image)
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        width, height = image.size
        page = Image.new("RGB", image.size)
        for top in range(0, height, ROWS_AT_ONCE):  # strips: the layers take 12 bytes a pixel
            box = (0, top, width, min(top + ROWS_AT_ONCE, height))
            layer = image.crop(box).convert("RGBA")
            white = Image.new("RGBA", layer.size, "white")
            page.paste(Image.alpha_composite(white, layer).convert("RGB"), box)
        return page
    return image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"mode {image.mode} has no agreed white; save it as 8 or 16 bit")
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")


@cache
def _read_heif() -> None:
    """Let Pillow read the HEIC photos of phones, where pillow-heif is installed."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()


def read_picture(photo: bytes | str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Return the pixels (height, width, 3) of a photo: the bytes of its file, or its path."""
    _read_heif()
    with Image.open(io.BytesIO(photo) if isinstance(photo, bytes) else photo) as image:
        return np.asarray(upright_rgb(image))


def onnx_runtime() -> Any:
    """Return the package ``onnxruntime``, told before its import to report nothing home.

    Without that its first session writes an id of the device and a queue of events into the
    user's cache folder, and tries to send them.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime


class TaggedPhoto(NamedTuple):
    """What a model says of a photo: its labels, surest first, and the probability of each label.

    ``none`` is the probability that no label applies.
    """

    labels: list[str]
    probability: dict[str, float]
    none: float


class Tagger:
    """An exported model, by its file ``model.onnx``; several threads may call it."""

    def __init__(self, model: str | os.PathLike[str] | bytes) -> None:
        given = model if isinstance(model, bytes) else os.fspath(model)
        providers = ["CPUExecutionProvider"]
        self.session: Any = onnx_runtime().InferenceSession(given, providers=providers)
        facts = self.session.get_modelmeta().custom_metadata_map
        if facts.get("input") != "image" or facts.get("answers") != "probabilities":
            raise ValueError(
                "the model must be exported by labelwise with --input image and have "
                f"probabilities, got input {facts.get('input')!r}, answers {facts.get('answers')!r}"
            )
        self.labels: list[str] = json.loads(facts["labels"])

    def __call__(self, photo: bytes | str | os.PathLike[str]) -> TaggedPhoto:
        """Return what the model says of a photo: the bytes of its file, or its path."""
        outputs = ["probability", "label", "none"]
        probs, chosen, none = self.session.run(outputs, {"image": read_picture(photo)})
        order = np.argsort(-probs[0], kind="stable")
        return TaggedPhoto(
            [self.labels[k] for k in order if chosen[0, k]],
            {self.labels[k]: float(probs[0, k]) for k in order},
            float(none[0]),
        )
