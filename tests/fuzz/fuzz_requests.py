"""REQUESTS: every route of a real server on the loopback address, with requests damaged as bytes.

Whatever is sent, the answer is one of HTTP's, never 500, and a refusal is one sentence as JSON. A
request that is accepted is read a second time: a form with ``email``, JSON with ``json``, an
address with ``urllib``; the answer must be of as many pictures, its probabilities in [0, 1], its
hits no more than were asked for.
"""

import atexit
import base64
import contextlib
import email.parser
import email.policy
import functools
import json
import shutil
import socket
import tempfile
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
from fuzz_inputs import NASTY_TEXT, Files, as_json, damage, strange_json, strange_value
from fuzz_readers import drawn
from search_setup import LABELS, picture, save_model
from web_setup import encoded, form, running

from labelwise.photos import update_index
from labelwise.system.progress import Silent

SECONDS = 60


@functools.cache
def server() -> Any:
    """Start the server of this process, with a small model and an index of four photos."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-server-"))
    model = save_model(root / "model")
    for number in range(4):
        picture(root / "photos" / f"{number}.png", number)
    update_index(root / "i.index", [root / "photos"], model=model, watch=Silent())
    stack = contextlib.ExitStack()
    options = {"idle_seconds": 0.5, "photoprism": True, "label_studio": root / "photos"}
    client = stack.enter_context(running(model, root / "i.index", **options))
    client.photos = [hit["id"] for hit in client.get("/api/v1/search?q=" + LABELS[0])["hits"]]
    atexit.register(shutil.rmtree, root, True)
    atexit.register(stack.close)
    return client


def request(method: str, path: str, body: bytes = b"", kind: str = "", host: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{server().port}'}"]
    if kind:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body


def strange_query(rng: Random, path: str, names: tuple[str, ...]) -> str:
    """Return a path whose query holds odd values for known names."""
    pairs = []
    for name in rng.sample(names, rng.randint(1, len(names))):
        value = rng.choice((*NASTY_TEXT, *LABELS, "1", "5", "0.5", "date", "value", "-9", "1e9"))
        pairs.append(f"{name}={quote(value.encode('utf-8', 'surrogatepass'))}")
    return f"{path}?{'&'.join(pairs)}"


def tensor(rng: Random) -> dict[str, Any]:
    pixels = np.random.default_rng(rng.randrange(9)).integers(0, 256, (1, 3, 8, 8)).tolist()
    return {
        "id": "a",
        "inputs": [{"name": "image", "shape": [1, 8, 8, 3], "datatype": "UINT8", "data": pixels}],
        "outputs": [{"name": "probability"}],
    }


def drawn_request(rng: Random) -> bytes:
    photo = rng.choice([*server().photos, "0" * 64, "x", "..%2f..%2fetc"])
    picture_bytes = encoded(rng.choice(("PNG", "JPEG")), seed=rng.randrange(5))
    kind = rng.randrange(15)
    if kind == 0:
        files = [(f"{n}.png", encoded(seed=n)) for n in range(rng.randint(1, 3))]
        return request("POST", "/api/v1/predict", *form(*files))
    if kind == 1:
        changed = damage(rng, picture_bytes) if rng.random() < 0.7 else picture_bytes
        return request("POST", "/api/v1/predict", changed, "image/png")
    if kind == 2:
        facts = strange_json(rng, tensor(rng))
        return request("POST", "/v2/models/tiny/infer", as_json(facts), "application/json")
    if kind == 3:
        facts = strange_json(rng, {"labels": {LABELS[0]: "present", LABELS[1]: "unknown"}})
        path = f"/api/v1/photos/{photo}/labels"
        return request("PUT", path, as_json(facts), "application/json")
    if kind == 4:
        names = ("q", "top", "at_least", "wrong_at_most", "sort", "cursor")
        return request("GET", strange_query(rng, "/api/v1/search", names))
    if kind == 5:
        return request("GET", strange_query(rng, "/api/v1/review", ("by", "count", "label")))
    if kind == 6:
        names = ("side", "count", "label", "q")
        places = ("thumbnail", "similar", "labels", "")
        path = f"/api/v1/photos/{photo}/{rng.choice(places)}"
        return request("GET", strange_query(rng, path.rstrip("/"), names))
    if kind == 7:
        paths = ("/api/v1/complete", "/api/v1/labels/reliability.svg", "/v2/models/x", "/metrics")
        return request("GET", strange_query(rng, rng.choice(paths), ("q", "label")))
    if kind == 8:
        photo_url = "data:image/png;base64," + base64.b64encode(picture_bytes).decode()
        facts = strange_json(rng, {"id": "a", "images": [photo_url]})
        return request("POST", "/photoprism/labels", as_json(facts), "application/json")
    if kind == 9:
        config = '<View><Image name="i" value="$image"/><Choices name="c" toName="i">'
        config += "".join(f'<Choice value="{label}"/>' for label in LABELS) + "</Choices></View>"
        task = {"id": 1, "data": {"image": "/data/local-files/?d=0.png"}}
        facts = strange_json(rng, {"tasks": [task], "label_config": config})
        return request("POST", "/label-studio/predict", as_json(facts), "application/json")
    if kind == 10:
        path = rng.choice(("/api/v1/models/model/reload", "/v2/repository/index", "/v2/repository"))
        return request("POST", path, as_json(strange_value(rng)), "application/json")
    if kind == 11:
        step = rng.choice(("list", "answer", "undo"))
        asked = {"q": LABELS[0], "wrong_at_most": 0.2, "top": 2, "who": "a"}
        answer = {"checked": asked, "photo": photo, "answer": "yes"}
        body = as_json(strange_json(rng, answer if step == "answer" else asked))
        return request("POST", f"/api/v1/check/{step}", body, "application/json")
    if kind == 12:
        places = ("receipts", "promises", "trust", "text-search", f"photos/{photo}/facts", "models")
        path = f"/api/v1/{rng.choice(places)}"
        return request("GET", strange_query(rng, path, ("q", "top", "query", "model", "label")))
    if kind == 13:
        path = rng.choice(("label-studio/setup", "label-studio/webhook", "api/v1/session"))
        facts = {"project": "1", "schema": "<View/>", "action": "START_TRAINING", "token": "x"}
        return request("POST", f"/{path}", as_json(strange_json(rng, facts)), "application/json")
    paths = ("/", "/static/style.css", "/api/v1/model", "/api/v1/labels", "/api/v1/trust", "/v2")
    method = rng.choice(("GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "POST", "\x00"))
    return request(method, rng.choice(paths))


def request_files(rng: Random) -> Files:
    content = drawn_request(rng)
    return {"request": damage(rng, content) if rng.random() < 0.5 else content}


def answered(folder: Path) -> "Answer":
    """Send the bytes; return the first answer, or that the server ended the connection."""
    content = (folder / "request").read_bytes()
    with socket.create_connection(("127.0.0.1", server().port), SECONDS) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(content)
        answer = HTTPResponse(connection, method=content.split(b" ", 1)[0].decode("latin-1"))
        try:
            answer.begin()
            return Answer(answer.status, answer.headers.get_content_type(), answer.read())
        except (HTTPException, OSError):
            return Answer(0, "", b"")  # a request that never came to its end has no answer


class Answer(NamedTuple):
    """What the server said first: nothing (0), or a status, the type and the body."""

    status: int
    kind: str
    body: bytes


def is_an_answer(answer: Answer, folder: Path) -> bool:
    status, kind, body = answer
    if not status:
        return False
    assert status < 500, f"{status}: {body!r:.200}"
    if status >= 400 or not body:
        if kind == "application/problem+json" and body:
            facts = json.loads(body)
            assert facts["status"] == status
            assert len(facts["detail"]) <= 2200, "the message is long"
            assert "Traceback" not in facts["detail"]
        return True
    return is_right((folder / "request").read_bytes(), kind, body)


def is_right(sent: bytes, kind: str, body: bytes) -> bool:
    """Read an accepted request a second time, and compare the answer with what it asks."""
    lines, _, content = sent.partition(b"\r\n\r\n")
    method, target = (word.decode("latin-1") for word in lines.split(b" ")[:2])
    path = urlsplit(target).path
    if method == "POST" and path == "/api/v1/predict":
        stated = email.parser.BytesHeaderParser().parsebytes(
            lines.partition(b"\r\n")[2] + b"\r\n\r\n"
        )
        length = int(stated["content-length"])
        content, sort = content[:length], stated["content-type"] or ""
        pictures = [content]
        if sort.startswith("multipart/"):
            whole = f"Content-Type: {sort}\r\n\r\n".encode() + content
            parsed = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(whole)
            named = [part for part in parsed.iter_parts() if part.get_filename() is not None]
            pictures = [part.get_payload(decode=True) for part in named]  # others are fields
        elif "json" in sort:
            return False
        answers = json.loads(body)
        if isinstance(answers, list):
            return False  # in Hugging Face's form
        answers = answers["results"]
        assert len(answers) == len(pictures), f"{len(answers)} answers to {len(pictures)} pictures"
        for one in answers:
            for label in one.get("labels") or ():
                assert 0 <= label["probability"] <= 1
        return True
    if method == "GET" and path == "/api/v1/search":
        asked = parse_qs(urlsplit(target).query)
        facts = json.loads(body)
        most = int(asked.get("top", ["50"])[-1])
        assert len(facts["hits"]) <= most, "more hits than asked for"
        assert all(0 <= hit["probability"] <= 1 for hit in facts["hits"])
        return True
    if kind == "application/json":
        json.loads(body, parse_constant=no_constant)
        return True
    return False


def no_constant(word: str) -> None:
    raise AssertionError(f"the answer holds {word}, which is not JSON")


REQUESTS = (drawn("requests", request_files, answered, is_an_answer),)
