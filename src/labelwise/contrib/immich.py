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
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from labelwise.base.text import one_line
from labelwise.decide import Rule
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.photos import Index
from labelwise.photos.tagging import tags_of


class ServiceError(LabelwiseError):
    """A service did not do what it was asked for."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *given: Any) -> None:
        return None


PARENT = "labelwise"
AT_ONCE = 1000  # photos per page and per request: as many as Immich allows
MOST_PAGES = 10_000
PAGE = re.compile(r"[0-9]{1,9}", re.ASCII)
ID = re.compile(r"[0-9A-Za-z_-]{1,100}", re.ASCII)  # a UUID today
PERMISSIONS = "asset.read, tag.read, tag.create, tag.asset and tag.delete"


class Immich:
    """The API of one server, asked with the key of one person.

    The server may be slow, broken or hostile: a request has a limit of total time, not only between
    two bytes, and of the answer's size. No redirect is followed: the key would go with it.
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
        return {
            _text(tag, "value"): _id(tag)
            for tag in _objects(self._ask("GET", "tags"), "GET /tags")
            if _text(tag, "value").partition("/")[0] == PARENT
        }

    def make_tags(self, names: Sequence[str]) -> dict[str, str]:
        tags = _objects(self._ask("PUT", "tags", body={"tags": list(names)}), "PUT /tags")
        ids = {_text(tag, "value"): _id(tag) for tag in tags}
        for name in names:
            if name not in ids:
                raise ServiceError(f"{self.address} did not make the tag {name!r}")
        return ids

    def photos(self, tag: str | None = None) -> Iterator[tuple[str, str]]:
        """Yield the id and the checksum of every photo, or of those with a tag."""
        page = 1
        tagged = {} if tag is None else {"tagIds": [tag]}
        for _ in range(MOST_PAGES):
            wanted = {"page": page, "size": AT_ONCE, "type": "IMAGE"} | tagged
            answer = self._ask("POST", "search", "metadata", body=wanted)
            assets = answer.get("assets") if isinstance(answer, dict) else None
            if not isinstance(assets, dict):
                raise ServiceError(f"{self.address} answered a search without 'assets'")
            for asset in _objects(assets.get("items"), "POST /search/metadata"):
                yield _id(asset), _text(asset, "checksum")
            following = assets.get("nextPage")
            if following is None:
                return
            if not PAGE.fullmatch(str(following)) or int(following) <= page:
                raise ServiceError(f"{self.address} answered with the next page {following!r:.40}")
            page = int(following)
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

    def _ask(self, method: str, *segments: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that a request is answered with, None for an empty answer."""
        if any(segment.strip(".") == "" for segment in segments):
            raise ServiceError(f"{self.address}: a path cannot hold the segment {segments!r:.80}")
        path = "".join("/" + quote(segment, safe="") for segment in segments)
        kind = {} if body is None else {"content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}/api{path}", data, self._headers | kind, method=method)
        answers: Queue[bytes | Exception] = Queue()

        def fetch() -> None:
            try:
                with build_opener(_NoRedirects).open(request, timeout=2 * self.seconds) as answer:
                    answers.put(answer.read(self.largest + 1))
            except Exception as error:
                with error if isinstance(error, HTTPError) else nullcontext():
                    answers.put(error)

        # A server that sends a byte a minute never times out by itself.
        Thread(target=fetch, daemon=True).start()
        try:
            answer = answers.get(timeout=self.seconds)
        except Empty:
            answer = TimeoutError(f"it took more than {self.seconds:g} seconds")
        if isinstance(answer, HTTPError) and answer.code in (401, 403):
            raise ServiceError(
                f"{self.address} refuses the key for {method} {path} ({answer.code}); it needs the "
                f"permissions {PERMISSIONS}"
            )
        if isinstance(answer, HTTPError):
            said = f"{answer.code} {one_line(str(answer.reason))}"
            raise ServiceError(f"{self.address} answers {method} {path} with {said}")
        if isinstance(answer, Exception):
            reason = one_line(str(getattr(answer, "reason", answer)))
            raise ServiceError(f"{self.address} does not answer: {reason}")
        if len(answer) > self.largest:
            raise ServiceError(f"{self.address} answers with more than {self.largest:,} bytes")
        try:
            return json.loads(answer) if answer else None
        except (ValueError, RecursionError):
            raise ServiceError(f"{self.address} answers {method} {path} with no JSON") from None


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


def _objects(value: Any, asked: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ServiceError(f"Immich must answer {asked} with a list of objects, got {value!r:.60}")
    return value


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str):
        raise ServiceError(f"Immich must give the text {name!r}, got {value!r:.60}")
    return value


def _id(facts: Mapping[str, Any]) -> str:
    value = _text(facts, "id")
    if not ID.fullmatch(value):
        raise ServiceError(f"Immich must give an id of letters and digits, got {value!r:.60}")
    return value
