"""IIIF: pictures of image services, from a manifest or a list, fetched into a folder with a table.

    source     a Presentation manifest (2 or 3) as a file or an address, or a text file with the
               address of one image service per line
    request    {service}/full/W,/0/default.jpg       levels 1 and 2 of Image API 2 and 3
               {service}/full/W,H/0/default.jpg      level 0: the largest of its ``sizes`` that fits
    table      path, uri (the service), label (of the canvas), in ``photos.csv``

``info.json`` of each service is asked first: what is not a IIIF image service, or larger than it
allows, is said and left out by name. Files that are there already are not fetched again, so an
interrupted run goes on. Only http and https are opened, at most 64 MiB per picture: the addresses
of the source, and where their servers redirect to.

The width W is that of a picture of at most S pixels each way. ``!S,S`` would ask for the same, but
only services of level 2 need to know it (IIIF Image API, compliance levels).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    UnknownHandler,
)

from labelwise.data.rows import read_json, read_lines
from labelwise.errors import DataError
from labelwise.system.csv_files import write_csv
from labelwise.system.files import replacing

LARGEST = 64 << 20
PATIENCE = 120.0
TABLE = "photos.csv"
ANY_WIDTH = re.compile(r"\bsizeByW\b")


@dataclass(frozen=True)
class FetchedPictures:
    """How many pictures are there now, how many were fetched, and which could not be, and why."""

    there: int
    fetched: int
    failed: tuple[str, ...]


def services_of(source: str) -> list[tuple[str, str]]:
    """Return the address of each image service of a manifest or list, and its label."""
    if "://" in source:
        content: Any = _parsed(_fetched(source), source)
    elif Path(source).suffix.lower() == ".json":
        content = read_json(Path(source))
    else:
        return [(_address(line.strip(), source), "") for line in read_lines(Path(source))]
    try:
        found = list(_walk(content))
    except RecursionError:
        raise DataError(f"{source}: the manifest is nested too deeply") from None
    if not found:
        raise DataError(f"{source}: the manifest names no image service")
    return list(dict.fromkeys((_address(service, source), label) for service, label in found))


def _walk(node: Any, label: str = "") -> Iterator[tuple[str, str]]:
    """Yield the image services below a node, with the label of the canvas around them."""
    if isinstance(node, list):
        for one in node:
            yield from _walk(one, label)
    elif isinstance(node, dict):
        kind = str(node.get("type", node.get("@type", "")))
        if kind.endswith("Canvas"):
            label = _words(node.get("label"))
        for key in ("service", "services"):
            listed = node.get(key)
            for one in listed if isinstance(listed, list) else [listed]:
                if isinstance(one, dict) and _is_image_service(one):
                    yield str(one.get("id", one.get("@id"))), label
        for key, value in node.items():
            if key not in ("service", "services", "thumbnail", "logo", "seeAlso"):
                yield from _walk(value, label)


def _is_image_service(node: dict[str, Any]) -> bool:
    told = f"{node.get('type', '')} {node.get('@type', '')} {node.get('profile', '')} "
    told += str(node.get("@context", ""))
    return "ImageService" in told or "/image/" in told or "image-api" in told


def _words(label: Any) -> str:
    """Return a label of version 2 (text) or 3 ({"en": ["text"]}) as text."""
    while isinstance(label, dict | list):
        if not label:
            return ""
        label = next(iter(label.values())) if isinstance(label, dict) else label[0]
    return str(label) if label is not None else ""


def _address(text: str, source: str) -> str:
    if not _is_http(text):
        raise DataError(f"{source}: an image service must be an http address, got {text!r:.200}")
    return text.removesuffix("/info.json").rstrip("/")


def _is_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
        has_host = bool(parts.hostname)
    except ValueError:  # such as a bracket that does not close
        return False
    plain = address.isprintable() and " " not in address
    return parts.scheme in ("http", "https") and has_host and plain


def fetch_pictures(
    source: str, out: Path, size: int, watch: Callable[[int, int], None] | None = None
) -> FetchedPictures:
    """Fetch the pictures of a source, at most ``size`` pixels each way, and write the table."""
    if size < 1:
        raise DataError(f"the size must be at least 1 pixel, got {size}")
    listed = services_of(source)
    out.mkdir(parents=True, exist_ok=True)
    rows, failed, fetched = [], [], 0
    for number, (service, label) in enumerate(listed, 1):
        path = out / f"{blake2b(f'{service} {size}'.encode(), digest_size=10).hexdigest()}.jpg"
        if not path.exists():
            try:
                content = _picture(service, size)
            except DataError as error:
                failed.append(str(error))
                continue
            with replacing(path) as temporary:
                temporary.write_bytes(content)
            fetched += 1
        rows.append((path.name, service, label))
        if watch is not None:
            watch(number, len(listed))
    if not rows:
        raise DataError(f"{source}: no picture could be fetched; {failed[0]}")
    write_csv(out / TABLE, ("path", "uri", "label"), rows)
    return FetchedPictures(len(rows), fetched, tuple(failed))


def _picture(service: str, size: int) -> bytes:
    info = _parsed(_fetched(f"{service}/info.json"), f"{service}/info.json")
    wide, high = (
        info.get(side) if isinstance(info, dict) else None for side in ("width", "height")
    )
    if not isinstance(wide, int) or not isinstance(high, int) or min(wide, high) < 1:
        raise DataError(f"{service}: it is not a IIIF image service (no width and height)")
    content = _fetched(f"{service}/full/{_size(info, service, wide, high, size)}/0/default.jpg")
    if not content.startswith(b"\xff\xd8"):
        raise DataError(f"{service}: what it sent is not a JPEG picture")
    return content


def _size(info: dict[str, Any], service: str, wide: int, high: int, most: int) -> str:
    """Return how to ask for a picture of at most ``most`` pixels each way; none is enlarged."""
    told = f"{info.get('profile', '')} {info.get('extraFeatures', '')}"
    if "level0" not in told or ANY_WIDTH.search(told):
        return f"{max(1, wide * min(most, max(wide, high)) // max(wide, high))},"
    offered = info.get("sizes")
    listed = [
        (one["width"], one["height"])
        for one in (offered if isinstance(offered, list) else ())
        if isinstance(one, dict) and all(isinstance(one.get(s), int) for s in ("width", "height"))
    ]
    fitting = [(width, height) for width, height in listed if max(width, height) <= most]
    if not fitting:
        sizes = ", ".join(f"{width} x {height}" for width, height in listed) or "none listed"
        raise DataError(
            f"{service}: it has pictures of fixed sizes ({sizes}), none of at most {most} pixels; "
            "ask for a larger --size"
        )
    width, height = max(fitting)
    return f"{width}," if "/image/2/" in str(info.get("@context", "")) else f"{width},{height}"


def _opener() -> OpenerDirector:
    """Return what opens http and https alone: urllib's own follows a redirect to ftp as well."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        UnknownHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        HTTPRedirectHandler,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _fetched(address: str) -> bytes:
    if not _is_http(address):
        raise DataError(f"{address!r:.200}: only http and https are opened")
    try:
        with _opener().open(address, timeout=PATIENCE) as answer:
            content: bytes = answer.read(LARGEST + 1)
    except (URLError, HTTPException, OSError, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{address}: it cannot be fetched ({reason})") from None
    if len(content) > LARGEST:
        raise DataError(f"{address}: it is larger than 64 MiB")
    return content


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: it is not JSON") from None
