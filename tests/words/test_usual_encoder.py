"""The sentence encoder that is fetched where none is named, from mirrors good and bad."""

import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from labelwise.errors import SettingsError
from labelwise.photos.words import tower_files as towers

FILES = {"onnx/model_quantized.onnx": b"a model", "tokenizer.json": b"its tokens"}


class Mirror(BaseHTTPRequestHandler):
    """Sends the files as ``server.way`` says; HTTP/1.0, so that an end is an end."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        name = self.path.partition(f"/resolve/{towers.REVISION}/")[2]
        content, way = FILES[name], self.server.way
        if way == "absent":
            self.send_error(404)
            return
        self.send_response(200)
        if way == "truncated":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            if way == "huge":
                while True:
                    self.wfile.write(bytes(1 << 16))
            if way == "slow":
                for byte in content * 1000:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.02)
            self.wfile.write({"wrong": b"another", "truncated": content[:3]}.get(way, content))
        except OSError:  # the client has had enough
            pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.way, server.asked = "good", []
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    facts = {name: (sha256(content).hexdigest(), 1000) for name, content in FILES.items()}
    monkeypatch.setattr(towers, "ENCODER_FILES", facts)
    monkeypatch.setattr(towers, "SILENT", 2.0)
    monkeypatch.setattr(towers, "LONGEST", 0.3)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_good_mirror_is_asked_once(mirror):
    folder = towers.usual_encoder()
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert towers.usual_encoder() == folder
    assert len(mirror.asked) == 2
    (folder / "tokenizer.json").write_bytes(b"changed")
    with pytest.raises(SettingsError, match=r"must have the SHA-256 .* delete it and try again"):
        towers.usual_encoder()


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("wrong", "must have the SHA-256"),
        ("truncated", "must have the SHA-256"),
        ("huge", "more than 1,000 bytes"),
        ("slow", "bytes in 0 seconds"),
        ("absent", "404"),
    ],
)
def test_a_bad_mirror_leaves_nothing_behind(way, reason, mirror, tmp_path):
    mirror.way = way
    with pytest.raises(SettingsError, match=f"{reason}.* Set HF_ENDPOINT .* name it with --model"):
        towers.usual_encoder()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_offline_one_sentence_says_what_to_copy(mirror, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    why = r"HF_HUB_OFFLINE is set\. .* copy onnx/model_quantized"
    with pytest.raises(SettingsError, match=why):
        towers.usual_encoder()
    assert mirror.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for end, why in (("http://127.0.0.1:9", "refused"), ("file:///etc/passwd?", "must start with")):
        monkeypatch.setattr(constants, "ENDPOINT", end)
        with pytest.raises(SettingsError, match=rf"{why}.* name it with --model"):
            towers.usual_encoder()
