"""One test per line of what a stranger may try. The oracle is what the stranger must not get."""

import asyncio
import hashlib
import io
import json
import re
import socket
import struct
import zlib
from contextlib import suppress

import pytest
from patience import PATIENCE
from PIL import Image
from search_setup import save_model
from web_setup import TOKEN, encoded, form, running

from labelwise.base.progress import Silent
from labelwise.errors import SettingsError
from labelwise.photos import update_index
from labelwise.server import ServeSettings
from labelwise.server.app import Front, taken
from labelwise.server.security import COOKIE, RefusedError, cookie_value
from labelwise.server.service import Service

JSON = {"Content-Type": "application/json"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def first_photo(server):
    return server.get("/api/v1/search?q=dog&top=1")["hits"][0]["id"]


def test_a_forwarded_host_counts_for_nothing_and_a_form_of_another_site_is_no_write(server):
    for host in ("localhost", "LocalHost:8000", "127.0.0.1", "[::1]", "[::1]:99"):
        assert server.send("GET", "/api/v1/model", host=host)[0] == 200
    headers = {"X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"}
    assert server.send("GET", "/", headers=headers, host="evil.example")[0] == 400
    photo = first_photo(server)
    body = b'{"labels": {"dog": "present"}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"Content-Type": kind} if kind else {}
        answer = server.send("PUT", f"/api/v1/photos/{photo}/labels", body, headers)
        assert answer[0] in (415, 422)
    assert not any(one["corrected"] for one in server.get(f"/api/v1/photos/{photo}")["labels"])


def test_without_the_token_nothing_is_told_and_the_cookie_is_strict(bare):
    wrong = [{}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"}]
    wrong += [{"Cookie": f"{COOKIE}={TOKEN}"}, {"Cookie": f"{COOKIE}=x"}, {"Cookie": '\\"='}]
    for headers in wrong:
        for path in ("/api/v1/model", "/api/v1/labels", "/metrics", "/openapi.json"):
            answer = bare.send("GET", path, headers=headers)
            bare.problem(answer, 401)
            assert answer[1]["www-authenticate"] == "Bearer"
    assert bare.send("GET", "/api/v1/model", headers=BEARER)[0] == 200
    assert bare.send("GET", f"/api/v1/model?token={TOKEN}")[0] == 401
    assert bare.send("POST", f"/api/v1/session?token={TOKEN}", b"{}", JSON)[0] == 422
    assert bare.post("/api/v1/session", {"token": "wrong"})[0] == 401
    status, headers, _ = bare.post("/api/v1/session", {"token": TOKEN})
    assert status == 204
    pair, *rest = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict"} <= {*rest}
    assert pair == f"{COOKIE}={cookie_value(TOKEN)}"
    assert TOKEN not in pair
    assert bare.send("GET", "/api/v1/model", headers={"Cookie": pair})[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "photos.example"])
def test_a_public_address_needs_a_token(host):
    assert ServeSettings(host=host, token=TOKEN)
    for token, words in ((None, "a token is needed"), ("short", "at least 16")):
        with pytest.raises(SettingsError, match=words):
            ServeSettings(host=host, token=token)


PATHS = f"""
/api/v1/photos/..%2f..%2fetc%2fpasswd /api/v1/photos/%2fetc%2fpasswd/thumbnail
/api/v1/photos/0/thumbnail /api/v1/photos/{"0" * 64}/thumbnail /static/../settings.py
/static/..%2fsettings.py /static/index.html%00.css //etc/passwd
""".split()


@pytest.mark.parametrize("path", PATHS)
def test_ids_are_never_paths(server, path):
    status, _, body = server.send("GET", path)
    assert status in (404, 422)
    assert b"root:" not in body
    assert b"SettingsError" not in body


def test_a_photo_that_became_a_link_out_of_the_root_is_not_shown(run, own_library, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(seed=7))
    with running(run, own_library, decoders=0) as server:
        hits = server.get("/api/v1/search?q=dog&top=12")["hits"]
        for put in ("symlink_to", "hardlink_to"):
            victim = tmp_path / "photos" / hits.pop()["name"]
            photo = hashlib.sha256(victim.read_bytes()).hexdigest()
            assert server.send("GET", f"/api/v1/photos/{photo}/thumbnail?side=160")[0] == 200
            victim.unlink()
            getattr(victim, put)(secret)
            answer = server.send("GET", f"/api/v1/photos/{photo}/thumbnail?side=640")
            assert "gone or has changed" in server.problem(answer, 404)


def test_a_body_that_says_it_is_too_large_is_not_read_and_one_of_unknown_length_cut_off(bare):
    headers = {"Content-Type": "image/png", "Content-Length": str(10**9), **BEARER}
    answer = bare.send("POST", "/api/v1/predict", b"x", headers)
    assert "100,000 bytes" in bare.problem(answer, 413)
    headers["Content-Length"] = "-1"
    assert bare.send("POST", "/api/v1/predict", b"x", headers)[0] == 400
    with socket.create_connection(("127.0.0.1", bare.port), timeout=PATIENCE) as line:
        head = f"POST /api/v1/predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}"
        head += "\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
        line.sendall(head.encode())
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        answer = b""
        with suppress(ConnectionError):  # the server closes before it was read whole
            for _ in range(1000):
                line.sendall(chunk)
            pytest.fail("64 MB of a body of at most 100 kB were taken")
        with suppress(ConnectionError):
            answer = line.recv(100)
        assert answer[:12] in (b"HTTP/1.1 413", b"")


def test_a_field_that_is_no_file_may_not_fill_the_memory(server):
    field = b'--B\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + bytes(2 << 20) + b"\r\n"
    kind = {"Content-Type": form()[1]}
    body = field + form(("a.png", encoded()))[0]
    assert "size" in server.problem(server.send("POST", "/api/v1/predict", body, kind), 400)


def test_who_has_sent_everything_may_be_silent_while_the_answer_is_made():
    """The limits on a body end with it; the oracle is what the application then hears."""
    heard, gone = [], asyncio.Event()
    sent = iter([{"type": "http.request", "body": b"x"}])

    async def receive():
        for message in sent:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def answering(scope, receive, send):
        heard.append((await receive())["type"])
        asyncio.get_running_loop().call_later(0.1, gone.set)  # a hundred times the limit
        heard.append((await receive())["type"])

    scope = {"type": "http", "method": "POST", "path": "/api/v1/predict"}
    scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}
    front = Front(answering, ServeSettings(idle_seconds=0.001))
    asyncio.run(front(scope, receive, None))
    assert heard == ["http.request", "http.disconnect"]


def test_who_does_not_send_a_body_is_let_go():
    async def receive():
        await asyncio.Event().wait()

    with pytest.raises(RefusedError, match="too slowly") as refused:
        asyncio.run(taken({"path": "/api/v1/predict"}, receive, io.BytesIO(), 0.01))
    assert refused.value.status == 408


def chunk(kind, content):
    check = zlib.crc32(kind + content)
    return struct.pack("!I", len(content)) + kind + content + struct.pack("!I", check)


def bomb(width, height):
    """Return a small PNG that says it is very large, and would be."""
    header = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 << 20), 9)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def hidden_bomb(kind, head):
    """Return a PNG with a compressed text or profile that would fill the memory."""
    hidden = chunk(kind, head + zlib.compress(bytes(64 << 20), 9))
    whole = encoded()
    return whole[:33] + hidden + whole[33:]


def test_only_listed_formats_are_opened_and_odd_pictures_cost_no_more_than_others(server):
    for sides in ((60_000, 60_000), (10**6, 1000)):
        answer = server.upload(("a.png", bomb(*sides)))
        assert "pixels" in server.problem(answer, 422)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"
    for content in (script, b"P7\nWIDTH 1\n", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"MZ"):
        assert "not an image" in server.problem(server.upload(("a.eps", content)), 422)
    # Broken colour profiles are not obeyed, and of an animation one frame is opened.
    profile, buffer = b"no profile" * 500, io.BytesIO()
    odd = [encoded(kind, icc_profile=profile) for kind in ("PNG", "JPEG", "WEBP")]
    odd += [encoded(size=size) for size in ((20_000, 1), (1, 20_000))]
    frames = [Image.new("P", (500, 500), colour) for colour in range(200)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    for content in (*odd, buffer.getvalue()):
        assert server.upload(("a", content))[0] == 200


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_hidden_parts_of_a_picture_fill_no_memory(server, kind):
    status, _, body = server.upload(("a.png", hidden_bomb(kind, b"k\0\0")))
    assert status in (200, 422)
    assert b"seconds to open" not in body  # of processor time


def test_many_ranges_cost_nothing_and_every_answer_forbids_foreign_script_and_frames(server):
    ranges = "bytes=" + ",".join(f"{n}-{n}" for n in range(1000))
    photo = first_photo(server)
    for path in ("/", "/static/style.css", f"/api/v1/photos/{photo}/thumbnail"):
        status, headers, _ = server.send("GET", path, headers={"Range": ranges})
        assert status == 200
        assert "content-range" not in headers
    for path in ("/", "/static/style.css", "/api/v1/model", "/nowhere", "/health/live"):
        _, headers, _ = server.send("GET", path)
        policy = headers["content-security-policy"]
        assert {"default-src 'none'", "frame-ancestors 'none'"} <= {*policy.split("; ")}
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
    page = server.send("GET", "/")[2].decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|javascript:|style=", page)
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


def test_no_address_is_ever_fetched(server):
    with socket.create_server(("127.0.0.1", 0)) as trap:
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/a.png"
        assert server.post("/api/v1/predict", {"url": url})[0] == 422
        assert server.post("/api/v1/predict", {"pictures": [url]})[0] == 422
        assert server.send("POST", f"/api/v1/predict?url={url}", b"", JSON)[0] == 422
        assert server.upload(("a.png", url.encode()))[0] == 422
        trap.settimeout(0.2)
        with pytest.raises(TimeoutError):
            trap.accept()


def test_thumbnails_tell_nothing_but_the_picture(run, tmp_path):
    image = Image.new("RGB", (64, 48), "red")
    exif = image.getexif()
    exif[0x010F] = "SECRET camera"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    (tmp_path / "photos").mkdir()
    path = tmp_path / "photos" / "a.jpg"
    image.save(path, exif=exif, comment=b"SECRET comment", icc_profile=b"SECRET profile" * 20)
    assert b"SECRET" in path.read_bytes()
    update_index(tmp_path / "index", [tmp_path / "photos"], model=run, watch=Silent())
    photo = hashlib.sha256(path.read_bytes()).hexdigest()
    for decoders in (0, 1):
        with running(run, tmp_path / "index", decoders=decoders) as server:
            status, headers, body = server.send("GET", f"/api/v1/photos/{photo}/thumbnail")
            assert (status, headers["content-type"]) == (200, "image/jpeg")
            assert b"SECRET" not in body
            assert b"Exif" not in body
            assert Image.open(io.BytesIO(body)).size == (64, 48)
            view = json.dumps(server.get(f"/api/v1/photos/{photo}"))
            assert str(tmp_path) not in view


def test_names_of_labels_and_files_are_text_everywhere(tmp_path):
    label = "<img src=x onerror=alert(1)>"
    with running(save_model(tmp_path / "m", labels=("dog", label)), decoders=0) as server:
        _, headers, body = server.send(
            "GET", "/api/v1/labels/reliability.svg?label=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
        )
        assert headers["content-type"].startswith("image/svg+xml")
        assert b"<img" not in body
        _, headers, body = server.upload(("<b>\x1b[2J.png", encoded()))
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["results"][0]["name"] == "<b>\\x1b[2J.png"
        names = {one["label"] for one in json.loads(body)["results"][0]["labels"]}
        assert names == {"dog", label}
        assert label.replace('"', '\\"') in server.send("GET", "/metrics")[2].decode()


def test_no_answer_shows_the_inside(run, monkeypatch):
    def broken(self, model):
        raise KeyError("SECRET inside")

    monkeypatch.setattr(Service, "model_view", broken)
    with running(run, decoders=0) as server:
        answer = server.send("GET", "/api/v1/model")
        assert "SECRET" not in server.problem(answer, 500)
        assert server.send("GET", "/health/live")[0] == 200
