"""Immich: labels of an index as tags of an Immich server's photos, through its API.

    GET    /api/tags                     the tags there are
    PUT    /api/tags                     {tags: ["labelwise/dog"]}: make them where they are missing
    POST   /api/search/metadata          {page, size, type, tagIds}: photos, by pages
    PUT    /api/tags/assets              {assetIds, tagIds}: give tags to photos
    DELETE /api/tags/{id}/assets         {ids}: take one away
    DELETE /api/tags/{id}                the tag itself

Our tags lie below the tag ``labelwise``, so that they are never taken for those of a person, and
undoing removes these and nothing else. Photos are matched by the SHA-1 of their bytes, which Immich
keeps of what was uploaded to it; of external libraries it keeps none, so those are not matched.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Annotated, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import Field

from labelwise.base.text import one_line
from labelwise.decide import Rule
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.photos import Index
from labelwise.photos.tagging import tags_of
from labelwise.tables.rows import parse_as

PARENT = "labelwise"
AT_ONCE = 1000  # photos per page and per request: as many as Immich allows
MOST_PAGES = 10_000
PERMISSIONS = "asset.read, tag.read, tag.create, tag.asset and tag.delete"
Id = Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,100}$")]  # a UUID today; part of a path
Shape = TypeVar("Shape")


class ServiceError(LabelwiseError):
    """A service did not do what it was asked for."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *given: object) -> None:
        return None


@dataclass
class Tag:
    """A tag of Immich; ``value`` is its path, such as labelwise/dog."""

    id: Id
    value: str


@dataclass
class Asset:
    """A photo of Immich and the SHA-1 of its bytes."""

    id: Id
    checksum: str


@dataclass
class Assets:
    """Some photos, and the number of the next page."""

    items: list[Asset]
    nextPage: str | None = None  # noqa: N815 (Immich's)


@dataclass
class AssetPage:
    """The answer to a search."""

    assets: Assets


class Immich:
    """The API of one server, asked with the key of one person.

    No redirect is followed: the key would go with it. A silent server ends a request after
    ``seconds``, and an answer has at most ``largest`` bytes.
    """

    def __init__(self, address: str, key: str, *, seconds: float = 60.0) -> None:
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise SettingsError("the key of Immich must be one line of ASCII letters and digits")
        try:
            parts = urlsplit(address)
        except ValueError:  # such as http://[
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise SettingsError(f"an address must look like http://host:2283, got {address!r}")
        path = parts.path.rstrip("/").removesuffix("/api")
        self.address = f"{parts.scheme}://{parts.netloc}{path}"
        self._headers = {"x-api-key": key.strip(), "accept": "application/json"}
        self.seconds, self.largest = seconds, 64 << 20

    def tags(self) -> dict[str, str]:
        tags = self._answer(list[Tag], "GET", "tags")
        return {tag.value: tag.id for tag in tags if tag.value.partition("/")[0] == PARENT}

    def make_tags(self, names: Sequence[str]) -> dict[str, str]:
        made = self._answer(list[Tag], "PUT", "tags", body={"tags": list(names)})
        ids = {tag.value: tag.id for tag in made}
        for name in names:
            if name not in ids:
                raise ServiceError(f"{self.address} did not make the tag {name!r}")
        return ids

    def photos(self, tag: str | None = None) -> Iterator[tuple[str, str]]:
        """Yield the id and the checksum of every photo, or of those with a tag."""
        tagged = {} if tag is None else {"tagIds": [tag]}
        for page in range(1, MOST_PAGES + 1):
            wanted = {"page": page, "size": AT_ONCE, "type": "IMAGE"} | tagged
            found = self._answer(AssetPage, "POST", "search", "metadata", body=wanted).assets
            yield from ((asset.id, asset.checksum) for asset in found.items)
            if found.nextPage is None:
                return
            if found.nextPage != str(page + 1):
                following = f"the next page {found.nextPage!r:.40} after {page}"
                raise ServiceError(f"{self.address} answered with {following}")
        raise ServiceError(f"{self.address} answered a search with more than {MOST_PAGES:,} pages")

    def give(self, tag: str, photos: Sequence[str]) -> None:
        for start in range(0, len(photos), AT_ONCE):
            body = {"assetIds": photos[start : start + AT_ONCE], "tagIds": [tag]}
            self._ask("PUT", "tags", "assets", body=body)

    def take(self, tag: str, photos: Sequence[str]) -> None:
        for start in range(0, len(photos), AT_ONCE):
            ids = photos[start : start + AT_ONCE]
            self._ask("DELETE", "tags", tag, "assets", body={"ids": ids})

    def remove(self, tag: str) -> None:
        self._ask("DELETE", "tags", tag)

    def _answer(
        self, shape: type[Shape], method: str, *segments: str, body: object = None
    ) -> Shape:
        asked = f"{self.address}'s answer to {method} {'/'.join(segments)}"
        return parse_as(self._ask(method, *segments, body=body), asked, shape)

    def _ask(self, method: str, *segments: str, body: object = None) -> bytes:
        """Return what a request is answered with."""
        path = "".join("/" + quote(segment, safe="") for segment in segments)
        kind = {} if body is None else {"content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}/api{path}", data, self._headers | kind, method=method)
        try:
            with build_opener(_NoRedirects).open(request, timeout=self.seconds) as answer:
                content: bytes = answer.read(self.largest + 1)
        except HTTPError as error:
            error.close()
            said = f"{error.code} {one_line(str(error.reason))}"
            refused = error.code in (401, 403)
            needs = f"; the key needs the permissions {PERMISSIONS}" if refused else ""
            raise ServiceError(
                f"{self.address} answers {method} {path} with {said}{needs}"
            ) from None
        except (OSError, HTTPException) as error:
            reason = one_line(str(getattr(error, "reason", error)))
            raise ServiceError(f"{self.address} does not answer: {reason}") from None
        if len(content) > self.largest:
            raise ServiceError(f"{self.address} answers with more than {self.largest:,} bytes")
        return content


def write_tags(
    index: Index, immich: Immich, rule: Rule | None, *, dry_run: bool = False
) -> tuple[dict[str, int], dict[str, int], int]:
    """Make our tags of a server those of an index: what a rule gives, and nothing else.

    Return the tags given and taken, by label, and how many photos Immich does not have.
    """
    there = {checksum: photo for photo, checksum in immich.photos()}
    wanted: dict[str, set[str]] = {}
    missing = 0
    for row, keywords in tags_of(index, rule):
        paths = index.store.paths_of([row])[row] if keywords else []
        photo_ids = [there[sum_] for sum_ in map(_checksum, paths) if sum_ in there]
        missing += bool(keywords) and not photo_ids
        for keyword in keywords:
            wanted.setdefault(f"{PARENT}/{keyword.label}", set()).update(photo_ids)
    wanted = {name: photos for name, photos in wanted.items() if photos}
    ids = immich.tags()
    if not dry_run and wanted.keys() - ids.keys():
        ids |= immich.make_tags(sorted(wanted.keys() - ids.keys()))
    given: dict[str, int] = {}
    taken: dict[str, int] = {}
    for name in sorted({*wanted, *ids} - {PARENT}):
        have = {photo for photo, _ in immich.photos(ids[name])} if name in ids else set()
        new, old = wanted.get(name, set()) - have, have - wanted.get(name, set())
        if not dry_run:
            immich.give(ids[name], sorted(new)) if new else None
            immich.take(ids[name], sorted(old)) if old else None
        label = name.removeprefix(f"{PARENT}/")
        given |= {label: len(new)} if new else {}
        taken |= {label: len(old)} if old else {}
    return given, taken, missing


def remove_tags(immich: Immich, *, dry_run: bool = False) -> int:
    """Remove all tags that we made, the lowest first; return how many."""
    ours = immich.tags()
    if not dry_run:
        for name in sorted(ours, key=lambda one: -one.count("/")):
            immich.remove(ours[name])
    return len(ours)


def _checksum(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.sha1(usedforsecurity=False))
    except OSError:
        return ""
    return base64.b64encode(digest.digest()).decode()
