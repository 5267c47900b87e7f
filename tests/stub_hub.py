"""A server that speaks as much of the Hugging Face Hub's API as its client asks for.

It keeps models in memory: ``files`` by repository and path, ``requests`` as they came.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Models in memory; ``token`` must come with what writes."""

    daemon_threads = True

    def __init__(self, token="hf_stub") -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.files, self.private, self.requests, self.token = {}, {}, [], token

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Requests(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value=b"", **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code):
        self.answer(404, {"error": code}, X_Error_Code=code, X_Error_Message=code)

    def do_GET(self):
        self.server.requests.append((self.command, self.path))
        facts = re.fullmatch(r"/api/models/([^/]+/[^/?]+)(/revision/[^?]+)?(\?.*)?", self.path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)", self.path)
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/?]+(\?.*)?", self.path)
        name = (facts or file or tree or [None, None])[1]
        if name not in self.server.files:
            self.missing("RepoNotFound")
        elif tree:
            facts = {"type": "file", "oid": "0"}
            own = self.server.files[name].items()
            self.answer(200, [facts | {"size": len(file), "path": path} for path, file in own])
        elif facts:
            if facts[2] not in (None, "/revision/main", f"/revision/{SHA}"):
                self.missing("RevisionNotFound")
                return
            siblings = [{"rfilename": path} for path in self.server.files[name]]
            facts = {"id": name, "sha": SHA, "siblings": siblings, "private": True, "tags": []}
            self.answer(200, facts | {"downloads": 0, "likes": 0})
        elif file[3] not in self.server.files[name]:
            self.missing("EntryNotFound")
        else:
            content = self.server.files[name][file[3]]
            tag = hashlib.sha1(content).hexdigest()
            self.answer(200, content, ETag=f'"{tag}"', X_Repo_Commit=SHA)

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.server.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = json.loads(body)["organization"] if self.path == "/api/repos/create" else ""
        if self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif name == "denied" or self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.files.setdefault(name, {})
            self.server.private[name] = asked.get("private", asked.get("visibility") == "private")
            self.answer(200, {"url": f"{self.server.address}/{name}", "id": name})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self.answer(200, {"files": [{"path": one["path"], **regular} for one in asked]})
        elif "/commit/" in self.path:
            name = re.match(r"/api/models/([^/]+/[^/]+)/commit/", self.path)[1]
            for line in body.splitlines():
                one = json.loads(line)
                if one["key"] == "file":
                    value = one["value"]
                    self.server.files[name][value["path"]] = base64.b64decode(value["content"])
            place = f"{self.server.address}/{name}/commit/{SHA}"
            self.answer(200, {"success": True, "commitUrl": place, "commitOid": SHA})
        else:
            self.missing("NotFound")


@contextmanager
def running_hub():
    """Serve models in a thread until the block ends."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
