"""Networks of torch as eyes, made once and kept beside the features that they give."""

import hashlib
from pathlib import Path

from labelwise.base.files import locked, sha256_of, write_error
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.eyes import Eye, find_eye
from labelwise.eyes.eye import PRETRAINED


def eye_named(
    name: str, weights: str | None, image_size: int | None, cache: str | Path, accelerator: str
) -> Eye | None:
    """Return the eye of a name: a file, that of the package, or that of a network of torch.

    To make the last one takes torch, once. None for networks that cannot be written as ONNX, where
    torch computes on a GPU, and for ``identity``.
    """
    is_file = name.lower().endswith(".onnx")
    eye = find_eye(name) if is_file or weights == PRETRAINED else None
    if eye is not None or name == "identity" or _on_gpu(accelerator):
        return eye
    file = Path(weights or "")
    file = file / "model.safetensors" if file.is_dir() else file
    digest = sha256_of(file) if weights and file.is_file() else weights
    key = hashlib.sha256(repr((name, digest, image_size)).encode()).hexdigest()[:16]
    path = Path(cache) / "eyes" / f"{name.replace('/', '-')}-{key}.onnx"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from None
    with locked(path.parent):  # of two that want the same eye one waits, and finds it
        if path.with_suffix(".json").is_file():  # which is written last
            return Eye.open(path)
        from labelwise.learn.graphs import write_eye

        try:
            return write_eye(name, path, weights=weights, image_size=image_size)
        except SettingsError:
            raise
        except LabelwiseError:
            return None


def _on_gpu(accelerator: str) -> bool:
    if accelerator != "auto":
        return accelerator != "cpu"
    try:
        from torch import cuda
    except ImportError:
        return False
    return cuda.is_available()
