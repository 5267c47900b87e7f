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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from labelwise.decide import Rule
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.photos.index import Index
from labelwise.photos.tagging import tags_of
from labelwise.system.text import one_line

PARENT = "labelwise"
AT_ONCE = 1000  # photos per page and per request: as many as Immich allows
SECONDS = 60.0
LARGEST_ANSWER = 64 << 20
PERMISSIONS = "asset.read, tag.read, tag.create, tag.asset and tag.delete"


class ImmichError(LabelwiseError):
    """The server did not do what it was asked for; the message says what and why."""


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: the key would go with it."""

    def redirect_request(self, *given: Any) -> None:
        return None


class Immich:
    """The API of one server, asked with the key of one person."""

    def __init__(self, address: str, key: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise SettingsError(
                f"Immich's address must look like http://immich.local:2283, got {address!r}"
            )
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise SettingsError("the key of Immich must be one line of ASCII letters and digits")
        path = parts.path.rstrip("/").removesuffix("/api")
        self.address = f"{parts.scheme}://{parts.netloc}{path}"
        self._headers = {"x-api-key": key.strip(), "accept": "application/json"}
        self._opener = build_opener(_NoRedirects)

    def tags(self) -> dict[str, str]:
        """Return the ids of our tags, by their names: what stands below ``labelwise``."""
        return {
            _text(one, "value"): _text(one, "id")
            for one in _objects(self._ask("GET", "/tags"), "GET /tags")
            if _text(one, "value").partition("/")[0] == PARENT
        }

    def make_tags(self, names: Sequence[str]) -> dict[str, str]:
        """Return the ids of tags by their names; those that are missing are made."""
        found = _objects(self._ask("PUT", "/tags", {"tags": list(names)}), "PUT /tags")
        ids = {_text(one, "value"): _text(one, "id") for one in found}
        for name in names:
            if name not in ids:
                raise ImmichError(f"{self.address} did not make the tag {name!r}")
        return ids

    def photos(self, tag: str | None = None) -> Iterator[tuple[str, str]]:
        """Yield the id and the checksum of every photo, or of those with a tag."""
        page: int | None = 1
        while page is not None:
            wanted: dict[str, Any] = {"page": page, "size": AT_ONCE, "type": "IMAGE"}
            wanted |= {} if tag is None else {"tagIds": [tag]}
            answer = self._ask("POST", "/search/metadata", wanted)
            part = answer.get("assets") if isinstance(answer, dict) else None
            if not isinstance(part, dict):
                raise ImmichError(f"{self.address} answered a search without 'assets'")
            for one in _objects(part.get("items"), "POST /search/metadata"):
                yield _text(one, "id"), _text(one, "checksum")
            following = part.get("nextPage")
            if following is not None and not (str(following).isdigit() and int(following) > page):
                raise ImmichError(f"{self.address} answered with the next page {following!r:.40}")
            page = None if following is None else int(following)

    def give(self, tag: str, photos: Sequence[str]) -> None:
        """Give a tag to photos."""
        for part in _parts(photos):
            self._ask("PUT", "/tags/assets", {"assetIds": part, "tagIds": [tag]})

    def take(self, tag: str, photos: Sequence[str]) -> None:
        """Take a tag away from photos."""
        for part in _parts(photos):
            self._ask("DELETE", f"/tags/{tag}/assets", {"ids": part})

    def remove(self, tag: str) -> None:
        """Remove a tag, and so from all photos that have it."""
        self._ask("DELETE", f"/tags/{tag}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a request, or raise ImmichError."""
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"content-type": "application/json"}
        headers = {**self._headers, **kind}
        request = Request(f"{self.address}/api{path}", data, headers, method=method)
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                content = answer.read(LARGEST_ANSWER + 1)
        except HTTPError as error:
            with error:
                pass
            if error.code in (401, 403):
                raise ImmichError(
                    f"{self.address} refuses the key for {method} {path} ({error.code}); it needs "
                    f"the permissions {PERMISSIONS}"
                ) from None
            raise ImmichError(
                f"{self.address} answers {method} {path} with {error.code} {error.reason}"
            ) from None
        except (URLError, HTTPException, OSError) as error:
            reason = one_line(str(getattr(error, "reason", error)))
            raise ImmichError(f"{self.address} does not answer: {reason}") from None
        if len(content) > LARGEST_ANSWER:
            raise ImmichError(f"{self.address} answers with more than {LARGEST_ANSWER:,} bytes")
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise ImmichError(f"{self.address} answers {method} {path} with no JSON") from None


@dataclass(frozen=True)
class ImmichTags:
    """What was written: tags given and taken, by label; photos that Immich does not have."""

    given: dict[str, int]
    taken: dict[str, int]
    missing: int


def write_tags(
    index: Index, immich: Immich, rule: Rule | None, *, dry_run: bool = False
) -> ImmichTags:
    """Make our tags of a server those of an index: what a rule gives, and nothing else."""
    there = {checksum: photo for photo, checksum in immich.photos()}
    wanted: dict[str, set[str]] = {}
    missing = 0
    for row, keywords in tags_of(index, rule):
        paths = index.store.paths_of([row])[row] if keywords else []
        found = [there[sum_] for sum_ in map(_checksum, paths) if sum_ in there]
        missing += bool(keywords) and not found
        for keyword in keywords:
            wanted.setdefault(f"{PARENT}/{keyword.label}", set()).update(found)
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
    return ImmichTags(given, taken, missing)


def remove_tags(immich: Immich, *, dry_run: bool = False) -> int:
    """Remove all tags that we made, the lowest first; return how many."""
    ours = immich.tags()
    if not dry_run:
        for name in sorted(ours, key=lambda one: -one.count("/")):
            immich.remove(ours[name])
    return len(ours)


def _checksum(path: str) -> str:
    """Return the SHA-1 of a file as Immich writes it; of one that is gone, none that it has."""
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.sha1(usedforsecurity=False))
    except OSError:
        return ""
    return base64.b64encode(digest.digest()).decode()


def _parts(photos: Sequence[str]) -> Iterable[list[str]]:
    return (list(photos[start : start + AT_ONCE]) for start in range(0, len(photos), AT_ONCE))


def _objects(value: Any, asked: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ImmichError(f"Immich must answer {asked} with a list of objects, got {value!r:.60}")
    return value


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str):
        raise ImmichError(f"Immich must give the text {name!r}, got {value!r:.60}")
    return value
