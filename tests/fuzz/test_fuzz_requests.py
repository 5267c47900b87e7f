"""Whatever is sent to a server, it answers as HTTP says, never 500, and refuses by a sentence.

What is accepted is answered in JSON without NaN; the log of the labelling page holds what it took,
and nothing that it refused. `make schema` sends what schemathesis makes up from the API's own
description.
"""

import json
import socket
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import pytest
from damaging import EXAMPLES, STRANGE, changed, cut
from hypothesis import given
from hypothesis import strategies as st
from labelling_setup import labelling
from patience import PATIENCE
from search_setup import LABELS, picture, save_model
from web_setup import encoded, running, served

from labelwise.base.progress import Silent
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, update_index
from labelwise.server import ServeSettings
from labelwise.server.mcp import PhotoTools, make_mcp_app, make_mcp_server

KIND = {"Content-Type": "application/json"}
MCP = KIND | {"Accept": "application/json", "MCP-Protocol-Version": "2025-06-18"}
LOGGED = {"present": "yes", "absent": "no", "unsure": "unsure", "withdrawn": "undo"}
GETS = (
    *("/", "/metrics", "/api/v1/model", "/api/v1/labels", "/api/v1/review?by=value&count=2"),
    *("/api/v1/search?q=dog&top=2&sort=date", "/api/v1/photos/{}/similar?count=2&side=40"),
    *("/api/v1/photos/{}/facts?label=dog", "/api/v1/photos/{}/thumbnail", "/api/v1/complete?q=d"),
)
SENT = (
    ("PUT", "/api/v1/photos/{}/labels", {"labels": {"dog": "present", "cat": "unknown"}}),
    ("POST", "/api/v1/check/list", {"q": "dog", "wrong_at_most": 0.2, "top": 2, "who": "a"}),
    ("POST", "/photoprism/labels", {"id": "a", "images": ["data:image/png;base64,AAAA"]}),
    ("POST", "/label-studio/predict", {"tasks": [{"id": 1, "data": {"image": "0.png"}}]}),
    ("POST", "/api/v1/models/model/reload", {}),
)
TOOLS = {
    "describe_library": {"labels_with": "o"},
    "search_photos": {"query": "dog, -cat", "top": 3, "at_least": 0.1, "wrong_about": 0.4},
    "count_photos": {"query": "dog"},
    "similar_photos": {"photo": "{}", "top": 2},
    "show_photo": {"photo": "{}"},
    "correct_photo": {"photo": "{}", "labels": {"dog": "present"}, "who": "a"},
    "draw_photos_to_answer": {"query": "dog", "answers": 3},
    "estimate_from_answers": {"query": "dog", "answers": {"{}": "yes"}},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder of four photos, a small model and their index."""
    root = tmp_path_factory.mktemp("library")
    model = save_model(root / "model")
    for number in range(4):
        picture(root / "photos" / f"{number}.png", number)
    update_index(root / "i.index", [root / "photos"], model=model, watch=Silent())
    return root


@pytest.fixture(scope="module")
def server(library):
    options = {"idle_seconds": 0.5, "photoprism": True, "label_studio": library / "photos"}
    with running(library / "model", library / "i.index", **options) as client:
        yield client, client.get(f"/api/v1/search?q={LABELS[0]}")["hits"][0]["id"]


def request(draw, photo):
    """Return the bytes of a request, sound or damaged."""
    method, path, body = draw(st.sampled_from((*SENT, *(("GET", path, None) for path in GETS))))
    content = b"" if body is None else json.dumps(changed(draw, body)).encode()
    if draw(st.integers(0, 5)) == 0:
        method, path, content = "POST", "/api/v1/predict", cut(draw, encoded())
    kind = "image/png" if path == "/api/v1/predict" else KIND["Content-Type"]
    lines = [f"{method} {path.format(photo)} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}"]
    lines += [f"Content-Length: {len(content)}", "Connection: close", "", ""]
    whole = "\r\n".join(lines).encode() + content
    return draw(st.sampled_from((whole, cut(draw, whole))))


@EXAMPLES
@given(data=st.data())
def test_any_request_has_an_answer_that_is_no_mistake_of_the_server(server, data):
    client, photo = server
    content = request(data.draw, photo)
    with socket.create_connection(("127.0.0.1", client.port), PATIENCE) as connection:
        with suppress(OSError):
            connection.sendall(content)
        answer = HTTPResponse(connection, method=content.split(b" ", 1)[0].decode("latin-1"))
        try:
            answer.begin()
            body = answer.read()
        except (HTTPException, OSError):
            return  # a request that never came to its end has no answer
    assert answer.status < 500, body
    kind = answer.headers.get_content_type()
    if body and kind == "application/problem+json":
        assert json.loads(body)["status"] == answer.status
        assert len(body) < 3000
        assert b"Traceback" not in body
    if body and kind == "application/json":
        json.loads(body, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def tools(library):
    with Index(library / "i.index") as index:
        photos = PhotoTools(index, RunFolder(library / "model"), [library / "photos"])
        settings = ServeSettings(port=0)
        with served(
            make_mcp_app(make_mcp_server(photos, write=True), settings), settings
        ) as client:
            yield client, str(library / "photos" / "0.png")


@EXAMPLES
@given(data=st.data())
def test_any_question_to_a_tool_is_told_in_words(tools, data):
    client, photo = tools
    name = data.draw(st.sampled_from(sorted(TOOLS)))
    arguments = json.loads(json.dumps(TOOLS[name]).replace("{}", photo))
    asked = {"name": name, "arguments": changed(data.draw, arguments)}
    question = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
    content = json.dumps(question).encode()
    status, _, body = client.send(
        "POST", "/mcp", data.draw(st.sampled_from((content, cut(data.draw, content)))), MCP
    )
    assert status < 500, body
    assert b"Traceback" not in body
    if body:
        answer = json.loads(body, parse_constant=pytest.fail)
        error, result = answer.get("error"), answer.get("result", {})
        assert not isinstance(error, dict) or error["code"] != -32603, body
        facts = result.get("structuredContent") or {}
        assert result.get("isError") or not facts or (facts["in_words"] and facts["holds_if"])
        assert f"Error executing tool {name}" not in [
            x.get("text") for x in result.get("content", ())
        ]


@pytest.fixture(scope="module")
def page(library):
    with labelling(library) as client:
        photos = client.get("/api/v1/questions?label=dog&who=a")["photos"]
        yield client, {photo["id"]: photo["name"] for photo in photos}, library / "answers.jsonl"


@EXAMPLES
@given(data=st.data())
def test_the_log_of_answers_holds_what_was_taken_and_nothing_refused(page, data):
    client, photos, log = page
    states = {data.draw(st.sampled_from([*photos, "x"])): data.draw(st.sampled_from([*LOGGED]))}
    asked = {"label": data.draw(st.sampled_from(("dog", "zebra"))), "who": "a", "states": states}
    sent = data.draw(st.sampled_from((asked, changed(data.draw, asked), data.draw(STRANGE))))
    before = log.stat().st_size
    status, _, body = client.send("PUT", "/api/v1/answers", json.dumps(sent).encode(), KIND)
    lines = [json.loads(line) for line in log.read_bytes()[before:].splitlines()]
    kept = {
        Path(x["photo"]).name: (x["label"], x["who"], x["answer"]) for x in lines if "photo" in x
    }
    assert status < 500, body
    taken = sent["states"] if status == 200 else {}
    assert kept == {
        photos[photo]: (sent["label"], sent["who"], LOGGED[state]) for photo, state in taken.items()
    }
