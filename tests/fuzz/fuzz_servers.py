"""Every route of real servers on the loopback address, with requests damaged as bytes.

Whatever is sent, the answer is one of HTTP's, never 500, and a refusal is one sentence as JSON.
What is accepted is answered in JSON without NaN, with no more hits than were asked for. The log of
the labelling server holds what it took, and nothing that it refused.
"""

import atexit
import base64
import contextlib
import functools
import hashlib
import json
import re
import shutil
import socket
import tempfile
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from fuzz_inputs import NASTY_TEXT, UnreadError, as_json, damage, drawn, strange_json, strange_value
from labelling_setup import labelling
from search_setup import LABELS, picture, save_model
from web_setup import encoded, form, running, served

from labelwise.base.progress import Silent
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, update_index
from labelwise.server import ServeSettings
from labelwise.server.mcp import PhotoTools, make_mcp_app, make_mcp_server

SECONDS, FEW = 60, 4
WORDS = ("dog", "cat")
LOGGED = {"present": "yes", "absent": "no", "unsure": "unsure", "withdrawn": "undo"}
MISTAKE = re.compile(r"Error executing tool \w+")  # what the SDK says of an exception of ours
KIND = {"Content-Type": "application/json"}
HEADERS = KIND | {"Accept": "application/json", "MCP-Protocol-Version": "2025-06-18"}
ENDING = contextlib.ExitStack()
atexit.register(ENDING.close)


@functools.cache
def library():
    """Return a folder of four photos, a small model and their index, which goes at the end."""
    root = Path(ENDING.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
    model = save_model(root / "model")
    for number in range(FEW):
        picture(root / "photos" / f"{number}.png", number)
    update_index(root / "i.index", [root / "photos"], model=model, watch=Silent())
    shutil.copytree(root / "i.index", root / "mcp.index")
    return root


@functools.cache
def server():
    root = library()
    options = {"idle_seconds": 0.5, "photoprism": True, "label_studio": root / "photos"}
    client = ENDING.enter_context(running(root / "model", root / "i.index", **options))
    client.photos = [hit["id"] for hit in client.get("/api/v1/search?q=" + LABELS[0])["hits"]]
    return client


def request(method, path, body=b"", kind="", host=""):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{server().port}'}"]
    if kind:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body


def strange_query(rng, path, names):
    """Return a path whose query holds odd values for known names."""
    pairs = []
    for name in rng.sample(names, rng.randint(1, len(names))):
        value = rng.choice((*NASTY_TEXT, *LABELS, "1", "5", "0.5", "date", "value", "-9", "1e9"))
        pairs.append(f"{name}={quote(value.encode('utf-8', 'surrogatepass'))}")
    return f"{path}?{'&'.join(pairs)}"


def drawn_request(rng):
    photo = rng.choice([*server().photos, "0" * 64, "x", "..%2f..%2fetc"])
    picture_bytes = encoded(rng.choice(("PNG", "JPEG")), seed=rng.randrange(5))
    photo_url = "data:image/png;base64," + base64.b64encode(picture_bytes).decode()
    config = '<View><Image name="i" value="$image"/><Choices name="c" toName="i">'
    config += "".join(f'<Choice value="{label}"/>' for label in LABELS) + "</Choices></View>"
    states = {LABELS[0]: "present", LABELS[1]: "unknown"}
    task = {"id": 1, "data": {"image": "/data/local-files/?d=0.png"}}
    asked = {"q": LABELS[0], "wrong_at_most": 0.2, "top": 2, "who": "a"}
    plain = {"project": "1", "schema": "<View/>", "action": "START_TRAINING", "token": "x"}

    def ask(path, *names):
        return request("GET", strange_query(rng, path, names))

    def send(path, facts, method="POST"):
        return request(method, path, as_json(strange_json(rng, facts)), KIND["Content-Type"])

    def upload():
        if rng.random() < 0.5:
            files = [(f"{n}.png", encoded(seed=n)) for n in range(rng.randint(1, 3))]
            return request("POST", "/api/v1/predict", *form(*files))
        content = damage(rng, picture_bytes) if rng.random() < 0.7 else picture_bytes
        return request("POST", "/api/v1/predict", content, "image/png")

    def other():
        paths = ("/", "/static/style.css", "/api/v1/model", "/api/v1/labels", "/api/v1/trust")
        method = rng.choice(("GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "POST", "\x00"))
        return request(method, rng.choice(paths))

    seen = rng.choice(("/thumbnail", "/similar", "/labels", ""))
    facts = ("receipts", "promises", "trust", "text-search", f"photos/{photo}/facts", "models")
    few = ("/api/v1/complete", "/api/v1/labels/reliability.svg", "/metrics")
    again = ("/api/v1/models/model/reload",)
    studio = ("/label-studio/setup", "/label-studio/webhook", "/api/v1/session")
    kinds = (
        *(upload, upload, other),
        lambda: send(f"/api/v1/photos/{photo}/labels", {"labels": states}, "PUT"),
        lambda: ask("/api/v1/search", "q", "top", "at_least", "wrong_about", "sort", "cursor"),
        lambda: ask("/api/v1/review", "by", "count", "label"),
        lambda: ask(f"/api/v1/photos/{photo}{seen}", "side", "count", "label", "q"),
        lambda: ask(rng.choice(few), "q", "label"),
        lambda: send("/photoprism/labels", {"id": "a", "images": [photo_url]}),
        lambda: send("/label-studio/predict", {"tasks": [task], "label_config": config}),
        lambda: send(rng.choice(again), strange_value(rng)),
        lambda: send(f"/api/v1/check/{rng.choice(('list', 'undo'))}", asked),
        lambda: send("/api/v1/check/answer", {"checked": asked, "photo": photo, "answer": "yes"}),
        lambda: ask(f"/api/v1/{rng.choice(facts)}", "q", "top", "query", "model", "label"),
        lambda: send(rng.choice(studio), plain),
    )
    return rng.choice(kinds)()


def request_files(rng):
    content = drawn_request(rng)
    return {"request": damage(rng, content) if rng.random() < 0.5 else content}


def answered(folder):
    """Send the bytes; return the first answer: (0, "", b"") if the server ended the connection."""
    content = (folder / "request").read_bytes()
    with socket.create_connection(("127.0.0.1", server().port), SECONDS) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(content)
        answer = HTTPResponse(connection, method=content.split(b" ", 1)[0].decode("latin-1"))
        try:
            answer.begin()
            return answer.status, answer.headers.get_content_type(), answer.read()
        except (HTTPException, OSError):
            return 0, "", b""  # a request that never came to its end has no answer


def is_an_answer(answer, folder):
    status, kind, body = answer
    if not status:
        raise UnreadError
    assert status < 500, f"{status}: {body!r:.200}"
    if kind == "application/problem+json" and body:
        facts = json.loads(body)
        assert facts["status"] == status
        assert len(facts["detail"]) <= 2200, "the message is long"
        assert "Traceback" not in facts["detail"]
    elif status < 400 and body:
        is_right((folder / "request").read_bytes(), kind, body)


def is_right(sent, kind, body):
    """Read an accepted request a second time, and compare the answer with what it asks."""
    if kind != "application/json":
        raise UnreadError
    answers = json.loads(body, parse_constant=no_constant)
    target = urlsplit(sent.split(b" ", 2)[1].decode("latin-1"))
    if target.path == "/api/v1/predict":
        labels = [label for one in answers["results"] for label in one.get("labels") or ()]
        assert all(0 <= label["probability"] <= 1 for label in labels)
    if target.path == "/api/v1/search":
        most = int(parse_qs(target.query).get("top", ["50"])[-1])
        assert len(answers["hits"]) <= most, "more hits than asked for"
        assert all(0 <= hit["probability"] <= 1 for hit in answers["hits"])


def no_constant(word):
    raise AssertionError(f"the answer holds {word}, which is not JSON")


@functools.cache
def mcp():
    root = library()
    index = ENDING.enter_context(Index(root / "mcp.index"))
    tools = PhotoTools(index, RunFolder(root / "model"), [root / "photos"])
    settings = ServeSettings(port=0)
    app = make_mcp_app(make_mcp_server(tools, write=True), settings)
    client = ENDING.enter_context(served(app, settings))
    client.paths = sorted(map(str, (root / "photos").iterdir()))
    client.ids = [hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in client.paths]
    return client


def question(rng):
    photo = rng.choice([*mcp().paths, "/etc/passwd", "0" * 64, "../photos/0.png"])
    query = rng.choice([LABELS[0], f"{LABELS[0]}, -{LABELS[1]}", "none", "(" * 50, *NASTY_TEXT])
    tools = {
        "describe_library": {"labels_with": "o"},
        "search_photos": {"query": query, "top": 3, "at_least": 0.1, "wrong_about": 0.4},
        "count_photos": {"query": query},
        "explain_photo": {"photo": photo},
        "similar_photos": {"photo": photo, "top": 2},
        "show_photo": {"photo": photo},
        "tag_photo": {"photo": photo},
        "correct_photo": {"photo": photo, "labels": {LABELS[0]: "present"}, "who": "a"},
        "draw_photos_to_answer": {"query": query, "answers": 3},
        "estimate_from_answers": {"query": query, "answers": {photo: "yes"}},
    }
    name = rng.choice(sorted(tools))
    asked = {"name": name, "arguments": tools[name]}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}


def question_files(rng):
    asked = question(rng)
    if rng.random() < 0.7:
        arguments = asked["params"]["arguments"]
        asked["params"]["arguments"] = strange_json(rng, arguments)
    content = as_json(asked if rng.random() < 0.7 else strange_json(rng, asked))
    return {"question": damage(rng, content) if rng.random() < 0.2 else content}


def asked_of_mcp(folder):
    status, _, body = mcp().send("POST", "/mcp", (folder / "question").read_bytes(), HEADERS)
    return status, body


def is_told_in_words(read, folder):
    status, body = read
    assert status < 500, f"{status}: {body!r:.200}"
    if not body:
        raise UnreadError
    answer = json.loads(body, parse_constant=no_constant)
    assert len(body) < 200_000
    assert b"Traceback" not in body
    if "result" not in answer:
        error = answer.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        assert code != -32603, f"an internal error: {body!r:.300}"
        return
    result = answer["result"]
    facts = result.get("structuredContent")
    if result.get("isError") or facts is None:
        for part in result.get("content", ()):
            said = part.get("text", "")
            assert len(said) <= 2200 + len((folder / "question").read_bytes())
            assert not MISTAKE.fullmatch(said), f"{said}, and not why"
        return
    assert facts["in_words"]
    assert facts["holds_if"]
    asked = json.loads((folder / "question").read_bytes())["params"].get("arguments") or {}
    listed, most = facts.get("photos") or (), asked.get("top")
    assert len(listed) <= (min(most, FEW) if isinstance(most, int) else FEW)
    for one in listed:
        assert one in mcp().ids if isinstance(one, str) else one["path"] in mcp().paths


@functools.cache
def labels():
    root = library()
    client = ENDING.enter_context(labelling(root, WORDS))
    client.log = root / "answers.jsonl"
    client.photos = {
        one["id"]: one["name"] for one in client.get("/api/v1/questions?label=dog&who=a")["photos"]
    }
    return client


def answer_files(rng):
    photos = [*labels().photos, "0" * 64, "x"]
    states = {rng.choice(photos): rng.choice([*LOGGED])}
    facts = {"label": rng.choice((*WORDS, "zebra")), "who": rng.choice(("a", "b", *NASTY_TEXT))}
    body = {**facts, "states": states}
    if rng.random() < 0.5:
        body = strange_json(rng, body)
    content = as_json(body if rng.random() < 0.95 else strange_value(rng))
    return {"answer": damage(rng, content) if rng.random() < 0.2 else content}


def answered_page(folder):
    """Send an answer; return what was said, and the answers that the log has more."""
    before = labels().log.stat().st_size
    content = (folder / "answer").read_bytes()
    status, _, body = labels().send("PUT", "/api/v1/answers", content, KIND)
    with labels().log.open("rb") as log:
        log.seek(before)
        lines = [json.loads(line) for line in log.read().split(b"\n")[:-1]]
    return status, body, [line for line in lines if "photo" in line]  # exports leave notes


def is_kept(read, folder):
    status, body, lines = read
    assert status < 500, f"{status}: {body!r:.200}"
    if status != 200:
        assert not lines, "refused, and kept"
        assert len(json.loads(body)["detail"]) <= 2200
        return
    sent = json.loads((folder / "answer").read_bytes())
    found = {Path(one["photo"]).name: (one["label"], one["who"], one["answer"]) for one in lines}
    assert found == {
        labels().photos[photo]: (sent["label"], sent["who"], LOGGED[state])
        for photo, state in sent["states"].items()
    }
    assert len(lines) == len(sent["states"])


SERVERS = (
    drawn("requests", request_files, answered, is_an_answer),
    drawn("mcp", question_files, asked_of_mcp, is_told_in_words),
    drawn("labelling page", answer_files, answered_page, is_kept),
)
