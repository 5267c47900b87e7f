"""ASKED: the MCP server and the labelling server on the loopback address, asked strange things.

An MCP answer that is no refusal has its words and its condition, its photos are of the library and
no more than were asked for. Answers that the labelling server took stand, with the people, words
and states that were sent, in its log, read line by line with ``json``; what it refused does not.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from fuzz_inputs import NASTY_TEXT, Files, as_json, damage, strange_json, strange_value
from fuzz_readers import drawn
from fuzz_requests import no_constant
from labelling_setup import labelling
from search_setup import LABELS, picture, save_model
from web_setup import served

from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, update_index
from labelwise.server import ServeSettings
from labelwise.server.mcp import PhotoTools, make_mcp_app, make_mcp_server
from labelwise.system.progress import Silent

PHOTOS = 4
WORDS = ("dog", "cat")
LOGGED = {"present": "yes", "absent": "no", "unsure": "unsure", "withdrawn": "undo"}
MISTAKE = re.compile(r"Error executing tool \w+")  # what the SDK says of an exception of ours
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "MCP-Protocol-Version": "2025-06-18",
}


def kept() -> tuple[contextlib.ExitStack, Path]:
    """Return what is closed when this process ends, and a folder of photos that goes then."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-asked-"))
    stack = contextlib.ExitStack()
    stack.callback(shutil.rmtree, root, True)
    atexit.register(stack.close)
    for number in range(PHOTOS):
        picture(root / "photos" / f"{number}.png", number)
    return stack, root


# The Model Context Protocol


@functools.cache
def mcp() -> Any:
    stack, root = kept()
    model = save_model(root / "model")
    update_index(root / "i.index", [root / "photos"], model=model, watch=Silent())
    index = stack.enter_context(Index(root / "i.index"))
    tools = PhotoTools(index, RunFolder(model), [root / "photos"])
    settings = ServeSettings(port=0, rate=0)
    app = make_mcp_app(make_mcp_server(tools, write=True), settings)
    client = stack.enter_context(served(app, settings))
    client.paths = sorted(map(str, (root / "photos").iterdir()))
    client.ids = [hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in client.paths]
    return client


def question(rng: Random) -> dict[str, Any]:
    photo = rng.choice([*mcp().paths, "/etc/passwd", "0" * 64, "../photos/0.png"])
    query = rng.choice([LABELS[0], f"{LABELS[0]}, -{LABELS[1]}", "none", "(" * 50, *NASTY_TEXT])
    tools = {
        "describe_library": {"labels_with": "o"},
        "search_photos": {"query": query, "top": 3, "at_least": 0.1, "wrong_at_most": 0.4},
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
    asked: dict[str, Any] = {"name": name, "arguments": tools[name]}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}


def question_files(rng: Random) -> Files:
    asked = question(rng)
    if rng.random() < 0.7:
        arguments = asked["params"]["arguments"]
        asked["params"]["arguments"] = strange_json(rng, arguments)
    content = as_json(asked if rng.random() < 0.7 else strange_json(rng, asked))
    return {"question": damage(rng, content) if rng.random() < 0.2 else content}


def asked_of_mcp(folder: Path) -> tuple[int, bytes]:
    status, _, body = mcp().send("POST", "/mcp", (folder / "question").read_bytes(), HEADERS)
    return status, body


def is_told_in_words(read: tuple[int, bytes], folder: Path) -> bool:
    status, body = read
    assert status < 500, f"{status}: {body!r:.200}"
    if not body:
        return False
    answer = json.loads(body, parse_constant=no_constant)
    assert len(body) < 200_000
    assert b"Traceback" not in body
    if "result" not in answer:
        if "error" in answer and isinstance(answer["error"], dict):
            assert answer["error"]["code"] != -32603, f"an internal error: {body!r:.300}"
        return True
    result = answer["result"]
    facts = result.get("structuredContent")
    if result.get("isError") or facts is None:
        for part in result.get("content", ()):
            said = part.get("text", "")
            assert len(said) <= 2200 + len((folder / "question").read_bytes())
            assert not MISTAKE.fullmatch(said), f"{said}, and not why"
        return True
    assert facts["in_words"]
    assert facts["holds_if"]
    asked = json.loads((folder / "question").read_bytes())["params"].get("arguments") or {}
    listed = facts.get("photos") or ()
    assert len(listed) <= PHOTOS
    if isinstance(asked.get("top"), int):
        assert len(listed) <= asked["top"]
    for one in listed:
        assert one in mcp().ids if isinstance(one, str) else one["path"] in mcp().paths
    return True


# The labelling page


@functools.cache
def labels() -> Any:
    stack, root = kept()
    client = stack.enter_context(labelling(root, WORDS))
    client.log = root / "answers.jsonl"
    client.photos = {
        one["id"]: one["name"] for one in client.get("/api/v1/questions?label=dog&who=a")["photos"]
    }
    return client


def answer_files(rng: Random) -> Files:
    photos = [*labels().photos, "0" * 64, "x"]
    states = {rng.choice(photos): rng.choice([*LOGGED])}
    facts = {"label": rng.choice((*WORDS, "zebra")), "who": rng.choice(("a", "b", *NASTY_TEXT))}
    body: Any = {**facts, "states": states}
    if rng.random() < 0.5:
        body = strange_json(rng, body)
    content = as_json(body if rng.random() < 0.95 else strange_value(rng))
    return {"answer": damage(rng, content) if rng.random() < 0.2 else content}


def answered_page(folder: Path) -> tuple[int, bytes, list[Any]]:
    """Send an answer; return what was said, and the answers that the log has more."""
    before = labels().log.stat().st_size
    content = (folder / "answer").read_bytes()
    status, _, body = labels().send(
        "PUT", "/api/v1/answers", content, {"Content-Type": "application/json"}
    )
    with labels().log.open("rb") as log:
        log.seek(before)
        lines = [json.loads(line) for line in log.read().split(b"\n")[:-1]]
    return status, body, [line for line in lines if "photo" in line]  # exports leave notes


def is_kept(read: tuple[int, bytes, list[Any]], folder: Path) -> bool:
    status, body, lines = read
    assert status < 500, f"{status}: {body!r:.200}"
    if status != 200:
        assert not lines, "refused, and kept"
        assert len(json.loads(body)["detail"]) <= 2200
        return True
    sent = json.loads((folder / "answer").read_bytes())
    found = {Path(one["photo"]).name: (one["label"], one["who"], one["answer"]) for one in lines}
    assert found == {
        labels().photos[photo]: (sent["label"], sent["who"], LOGGED[state])
        for photo, state in sent["states"].items()
    }
    assert len(lines) == len(sent["states"])
    return True


ASKED = (
    drawn("mcp", question_files, asked_of_mcp, is_told_in_words),
    drawn("labelling page", answer_files, answered_page, is_kept),
)
