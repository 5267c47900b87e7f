"""A server that answers as Immich does where labelwise asks it, and refuses anything else.

Paths, methods and the keys of bodies are those of Immich's published client, ``@immich/sdk`` 3.2.2,
generated from its OpenAPI description; ``test_immich.py`` asks it with that client too.
"""

import json
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SEARCH = {
    *("albumIds", "checksum", "createdAfter", "createdBefore", "cursor", "filter", "id"),
    *("originalFileName", "originalPath", "order", "page", "size", "tagIds", "type", "withExif"),
}


class StubImmich:
    """Photos by id, tags by name, and which photos have which tags; ``asked`` is what came."""

    def __init__(self, checksums, key="an-immich-key", page=1000):
        self.key, self.page = key, page
        self.photos = {str(uuid.uuid4()): checksum for checksum in checksums}
        self.tags, self.tagged, self.asked = {}, {}, []

    def tag(self, value):
        """Return the tag of a name, made with its parents where it is missing."""
        names = value.split("/")
        for end in range(1, len(names) + 1):
            name = "/".join(names[:end])
            if name not in self.tags:
                self.tags[name] = str(uuid.uuid4())
                self.tagged[self.tags[name]] = set()
        return self.tags[value]

    def view(self, value):
        stamp = "2026-01-01T00:00:00.000Z"
        own = {"id": self.tags[value], "name": value.rpartition("/")[2], "value": value}
        return own | {"createdAt": stamp, "updatedAt": stamp}

    def names_of(self, checksum):
        """Return the names of the tags of a photo."""
        (photo,) = [one for one, known in self.photos.items() if known == checksum]
        return {name for name, tag in self.tags.items() if photo in self.tagged[tag]}

    def answer(self, method, path, body):
        """Return status and content; KeyError and AssertionError are answered with 400."""
        parts = path.strip("/").split("/")
        match method, parts:
            case "GET", ["tags"]:
                assert body is None
                return 200, [self.view(name) for name in self.tags]
            case "PUT", ["tags"]:
                assert body.keys() == {"tags"}
                for name in body["tags"]:
                    assert isinstance(name, str)
                    self.tag(name)
                return 200, [self.view(name) for name in body["tags"]]
            case "PUT", ["tags", "assets"]:
                assert body.keys() == {"assetIds", "tagIds"}
                assert 0 < len(body["assetIds"]) <= 1000
                for tag in map(self._id, body["tagIds"]):
                    self.tagged[tag].update(map(self._photo, body["assetIds"]))
                return 200, {"count": len(body["assetIds"])}
            case "DELETE", ["tags", tag, "assets"]:
                assert body.keys() == {"ids"}
                self.tagged[self._id(tag)] -= set(map(self._photo, body["ids"]))
                return 200, [{"id": one, "success": True} for one in body["ids"]]
            case "DELETE", ["tags", tag]:
                assert body is None
                name = {tag: name for name, tag in self.tags.items()}[self._id(tag)]
                below = [one for one in self.tags if one == name or one.startswith(f"{name}/")]
                for one in below:
                    del self.tagged[self.tags.pop(one)]
                return 204, None
            case "POST", ["search", "metadata"]:
                assert body.keys() <= SEARCH
                return 200, self._search(**body)
        return 404, {"message": "Not Found"}

    def _search(self, page=1, size=250, type="IMAGE", tagIds=(), **_):
        assert type == "IMAGE"
        assert 1 <= size <= 1000
        found = [
            one for one in self.photos if all(one in self.tagged[self._id(tag)] for tag in tagIds)
        ]
        size = min(size, self.page)
        items = [{"id": one, "checksum": self.photos[one]} for one in found]
        part = items[(page - 1) * size : page * size]
        following = str(page + 1) if page * size < len(found) else None
        assets = {"items": part, "count": len(part), "total": len(found), "facets": []}
        return {"assets": assets | {"nextPage": following, "nextCursor": None}, "albums": {}}

    def _id(self, tag):
        assert tag in self.tagged
        return str(uuid.UUID(tag))

    def _photo(self, photo):
        assert photo in self.photos
        return str(uuid.UUID(photo))


@contextmanager
def running_immich(stub):
    """Serve a stub; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def respond(self):
            length = int(self.headers.get("content-length") or 0)
            content = self.rfile.read(length)
            body = json.loads(content) if content else None
            path = self.path.removeprefix("/api")
            if self.path == path or self.headers.get("x-api-key") != stub.key:
                status, answer = (404 if self.path == path else 401), {"message": "no"}
            else:
                stub.asked.append((self.command, path, body))
                try:
                    status, answer = stub.answer(self.command, path, body)
                except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
                    status, answer = 400, {"message": repr(error)}
            written = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

    for method in ("GET", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.respond)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
