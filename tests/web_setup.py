"""Real servers on the loopback address, and a client that can misbehave."""

import faulthandler
import http.client
import io
import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from patience import PATIENCE, wait_until
from PIL import Image

from labelwise.server import ServeSettings, create_app
from labelwise.server.serving import Server, listen, server_config

TOKEN = "0123456789abcdef-token"


class Client:
    """Sends what it is told to, also what a well-behaved client would not."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def send(self, method, path, body=None, headers=None, host=None):
        """Return status, headers and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_host=True)
            for value in [host] if isinstance(host, str) else host or [f"127.0.0.1:{self.port}"]:
                connection.putheader("Host", value)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in (headers or {}):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            with connection.getresponse() as answer:
                return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()

    def get(self, path, **headers):
        status, _, body = self.send("GET", path, headers=headers)
        assert status == 200, body
        return json.loads(body)

    def put(self, path, value, **headers):
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json", **headers}
        return self.send("PUT", path, body, headers)

    def post(self, path, value, **headers):
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json", **headers}
        return self.send("POST", path, body, headers)

    def upload(self, *files, path="/api/v1/predict", **headers):
        """Send (name, bytes) pairs as a form."""
        body, kind = form(*files)
        return self.send("POST", path, body, {"Content-Type": kind, **headers})

    def told(self, answer):
        """Return what an answer that must be a good one says."""
        status, _, body = answer
        assert status == 200, body
        return json.loads(body)

    def problem(self, answer, status):
        """Return the sentence of an answer that must be a problem of this status."""
        found, headers, body = answer
        assert found == status, body
        assert headers["content-type"] == "application/problem+json"
        facts = json.loads(body)
        assert facts["status"] == status
        assert "Traceback" not in facts["detail"]
        return facts["detail"]


def upload_head(length, *more, kind="image/png"):
    """Return the head of a request with a picture, whose body need not come."""
    lines = ["POST /api/v1/predict HTTP/1.1", "Host: localhost", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", *more, "", ""]).encode()


def status_of(line):
    """Read a complete answer on a connection; return its status."""
    answer = http.client.HTTPResponse(line)
    answer.begin()
    answer.read()
    return answer.status


def form(*files):
    parts = []
    for name, content in files:
        head = f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")
    return b"".join(parts) + b"--B--\r\n", "multipart/form-data; boundary=B"


@contextmanager
def running(run: Path, index: Path | None = None, **options):
    """Serve in a thread, as ``labelwise serve`` does in its process."""
    settings = ServeSettings(**{"decoders": 1, "port": 0, **options})
    app = create_app(run, index, settings)
    with served(app, settings) as client:
        client.app = app
        yield client


@contextmanager
def served(app, settings: ServeSettings):
    """Serve any application of ours in a thread."""
    config = server_config(app, settings)
    config.timeout_graceful_shutdown = 2
    with listen(settings) as listener:
        server = Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        client = Client(listener.getsockname()[1])
        client.connections = server.server_state.connections
        try:
            yield client
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            if thread.is_alive():
                faulthandler.dump_traceback(sys.__stderr__)
                raise AssertionError("the server does not stop; where its threads are stands above")


def encoded(kind="PNG", size=(40, 30), seed=0, **options):
    """Return the bytes of a picture."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
