"""Label Studio's own forms: the addresses of its images, its labelling configs, its predictions.

    /data/local-files/?d=a/b.jpg       the photo a/b.jpg below the document root
    /data/upload/3/0a1b2c3d-b_c.jpg    the photo ``b c.jpg``, uploaded to project 3

A labelling config says under which names choices are stored, and in which field of a task its
image stands: ``<Image name="image" value="$image"/>``.
"""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlparse
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from labelwise.data.rows import parse_xml
from labelwise.errors import DataError
from labelwise.pictures.folders import find_images

DOCUMENT = "/data/local-files/"
UPLOADED = re.compile(r"/?data/(?P<stored>upload/\d+/[0-9a-f]{8}-(?P<name>[^/]+))")
CHANGED = re.compile(r"[^-\w.]")  # what Label Studio leaves out of the name of an upload


def address_of_image(inside: str) -> str:
    """Return the address of a photo given by its path below the document root."""
    return f"{DOCUMENT}?d={quote(inside.replace(os.sep, '/'))}"


@dataclass
class ImageFolder:
    """The folder that holds the images of tasks: the document root, or where uploads came from."""

    root: Path
    _by_upload: dict[str, list[str]] | None = field(default=None, repr=False)

    def path_of(self, image: str) -> str:
        """Return the path of an image, below the folder where its address says no more."""
        parts = urlparse(image)
        given = parse_qs(parts.query).get("d")
        if parts.path.endswith("local-files/") and given:
            return given[0]
        uploaded = UPLOADED.fullmatch(unquote(parts.path))
        if uploaded is not None:
            return self._of_upload(image, uploaded["stored"], uploaded["name"])
        return unquote(parts.path) if parts.scheme == "file" else image

    def _of_upload(self, image: str, stored: str, name: str) -> str:
        """Return where an upload is kept below a media folder, or else the photo it was made of."""
        if (self.root / stored).is_file():
            return stored
        if self._by_upload is None:
            self._by_upload = {}
            for path in find_images(self.root)[0] if self.root.is_dir() else ():
                plain = CHANGED.sub("", os.path.basename(path).strip().replace(" ", "_"))
                self._by_upload.setdefault(plain, []).append(path)
        found = self._by_upload.get(name, [])
        if len(found) != 1:
            what = f"{len(found)} photos of that name" if found else "no photo of that name"
            raise DataError(
                f"{image} was uploaded, and {self.root} holds {what}; give the folder of the "
                "photos with --set root=FOLDER, or Label Studio's media folder"
            )
        return found[0]


@dataclass(frozen=True)
class LabellingConfig:
    """Where a project stores choices of labels, and the field of a task that holds its image."""

    from_name: str
    to_name: str
    field: str
    labels: tuple[str, ...]


def labelling_config(names: Sequence[str]) -> bytes:
    """Return the config for a table: its labels, and which of them cannot be told."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    for choices, words in (("labels", "Labels"), ("unknown", "Labels that cannot be told")):
        ElementTree.SubElement(view, "Header", value=words)
        listed = {"name": choices, "toName": "image", "choice": "multiple", "showInline": "true"}
        group = ElementTree.SubElement(view, "Choices", listed)
        for name in names:
            ElementTree.SubElement(group, "Choice", value=name)
    ElementTree.indent(view)
    content: bytes = ElementTree.tostring(view, "utf-8")
    return content + b"\n"


def read_config(text: str, known: Collection[str]) -> LabellingConfig:
    """Return the choices of a config that name labels of ``known``; other labels are left out.

    Choices named ``unknown`` hold what cannot be told, and are never predicted.
    """
    view = parse_xml(text.encode(), "the labelling config")
    images = {
        tag.get("name", ""): (tag.get("value") or "").lstrip("$") for tag in view.iter("Image")
    }
    best: LabellingConfig | None = None
    for tag in view.iter("Choices"):
        name, target = tag.get("name", ""), tag.get("toName", "")
        if name == "unknown" or not name or target not in images:
            continue
        values = [one.get("value", "") for one in tag.iter("Choice")]
        labels = tuple(value for value in values if value in known)
        if best is None or len(labels) > len(best.labels):
            best = LabellingConfig(name, target, images[target], labels)
    if best is None:
        raise DataError("the labelling config must have <Image> and <Choices> of that image")
    if not best.labels:
        raise DataError(
            f"none of the choices {best.from_name!r} of the labelling config is a label of the "
            f"model, whose labels are {', '.join(sorted(known)[:5])} ..."
        )
    return best


def chance_of_set(probs: NDArray[np.float64], chosen: NDArray[np.bool_]) -> float:
    """Return the chance that every label (K,) is decided right, if labels are independent."""
    return float(np.where(chosen, probs, 1 - probs).prod())


def prediction(
    names: Sequence[str], score: float, model: str, config: LabellingConfig | None = None
) -> dict[str, Any]:
    """Return a prediction of choices; without a config under the names of ours."""
    from_name, to_name = (
        ("labels", "image") if config is None else (config.from_name, config.to_name)
    )
    choices = {"from_name": from_name, "to_name": to_name, "type": "choices"}
    return {
        "model_version": model,
        "score": score,
        "result": [choices | {"value": {"choices": list(names)}}] if names else [],
    }
