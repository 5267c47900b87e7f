"""The MCP server. Oracles: the official SDK's client; the functions that the verbs call."""

import asyncio
import base64
import io
import os
import re
import signal
import sys
from dataclasses import asdict

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from PIL import Image
from search_setup import picture
from typed import must_run
from web_setup import TOKEN
from web_setup import Client as WebClient

from labelwise.errors import SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.photos import answer, likeness_of
from labelwise.queries import Query
from labelwise.server.mcp import PhotoTools, make_mcp_server

pytest.importorskip("mcp.server.mcpserver", reason="mcp 2 is not installed")

READING = {"describe_library", "search_photos", "count_photos", "explain_photo"}
READING |= {"similar_photos", "show_photo"}
WRITING = {"correct_photo", "draw_photos_to_answer", "estimate_from_answers"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def index(library):
    return open_index(library / "index")


@pytest.fixture
def made(tmp_path, library):
    """An index of 600 photos whose logits are known, without files."""
    logits = np.random.default_rng(0).normal(-1, 2, (600, 4))
    return made_index(tmp_path / "index", library / "tiny", logits)


def asking(tools, *questions, write=False):
    """Return the SDK's results of calls (name, arguments), by a client in this process."""
    from mcp import Client

    async def ask():
        async with Client(make_mcp_server(tools, write=write)) as client:
            return [await client.call_tool(name, given) for name, given in questions]

    return asyncio.run(ask())


def told(result):
    assert not result.is_error, result.content
    return result.structured_content


def refused(result):
    assert result.is_error
    return result.content[0].text


def test_a_client_starts_it_and_asks_over_its_input_and_output(library, index, warm_python):
    from mcp import Client, StdioServerParameters

    command = ["-m", "labelwise", "serve", "--mcp", str(library / "index"), str(library / "tiny")]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    server = StdioServerParameters(command=str(warm_python), args=command, env=settings)
    photo = str(library / "photos" / "3.png")

    async def ask():
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            found = await client.call_tool("search_photos", {"query": "dog, -beach", "top": 3})
            tagged = await client.call_tool("tag_photo", {"photo": photo})
            return client.instructions, tools, told(found), told(tagged)

    instructions, tools, found, tagged = asyncio.run(ask())
    assert "pass both on" in instructions
    assert {tool.name for tool in tools} == {*READING, "tag_photo"}
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    expected = answer(index, Query.parse("dog, -beach"), top=3)
    probs = {hit.paths[0]: hit.probability for hit in expected.hits}
    assert [one["path"] for one in found["photos"]] == list(probs)
    assert {one["path"]: one["probability"] for one in found["photos"]} == pytest.approx(probs)
    assert found["in_words"].startswith(expected.counted)
    assert likeness_of(index).sentence() in found["holds_if"]
    own = RunFolder(library / "tiny").model().predict(photo)
    by_name = {one["label"]: one["probability"] for one in tagged["labels"]}
    names = index.space.names
    assert by_name == pytest.approx(dict(zip(names, own.probs[0].tolist(), strict=True)))
    assert {one["label"] for one in tagged["labels"] if one["given"]} == set(own.labels[0])


def test_a_client_asks_over_http_with_the_token(library, index, tmp_path, warm_commands):
    from mcp import Client
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    token = tmp_path / "token"
    token.write_text(TOKEN)
    words = [
        "serve",
        "--mcp",
        str(library / "index"),
        "--http",
        "--port",
        "0",
        "--token-file",
        str(token),
    ]
    with warm_commands.running(words, tmp_path) as process:
        address = re.search(r"http://127\.0\.0\.1:(\d+)/mcp", process.line())
        plain = WebClient(int(address[1]))

        async def ask():
            bearer = {"authorization": f"Bearer {TOKEN}"}
            async with (
                create_mcp_http_client(headers=bearer) as http,
                Client(streamable_http_client(address[0], http_client=http)) as client,
            ):
                asked = [("count_photos", {"query": name}) for name in ("dog", "cat")]
                found = [await client.call_tool(*one) for one in asked]
                return (await client.list_tools()).tools, list(map(told, found))

        tools, found = asyncio.run(ask())
        health = [plain.get(f"/health/{word}")["status"] for word in ("live", "ready")]
        assert health == ["live", "ready"]
        refusals = [
            plain.send("POST", "/mcp", b"{}"),
            plain.send("POST", "/mcp", b"{}", BEARER, host="elsewhere.example"),
            plain.send("POST", "/mcp", b"{}", {**BEARER, "Origin": "http://elsewhere.example"}),
            plain.send("POST", "/mcp", b" " * (1 << 19), BEARER),
            plain.send("POST", "/mcp", b"[" + b"{}," * 10_000 + b"{}]", BEARER),  # costs 110,001
            plain.send("GET", "/mcp", None, {**BEARER, "Accept": "text/event-stream"}),
        ]
        os.kill(process.pid, signal.SIGINT)
        process.wait()
    assert {tool.name for tool in tools} == READING
    expected = [answer(index, Query.parse(name), top=1).counted for name in ("dog", "cat")]
    assert [one["in_words"] for one in found] == expected
    assert [status for status, _, _ in refusals] == [401, 400, 403, 413, 413, 405]


def test_what_is_said_of_thousands_of_wrong_arguments_is_short(library, index):
    """The SDK named each of them: 200 KB of arguments made an answer of 2.4 MB."""
    tools = PhotoTools(index)
    photo = str(library / "photos" / "0.png")
    wrong = {count: {str(n): n for n in range(count)} for count in (101, 1000, 1001, 12_000)}
    asked = [("correct_photo", {"photo": photo, "who": "ada", "labels": wrong[n]}) for n in wrong]
    asked += [("estimate_from_answers", {"query": "dog", "answers": wrong[12_000]})]
    asked += [("no tool " * 10_000, {})]
    said = list(map(refused, asking(tools, *asked, write=True)))
    assert max(map(len, said)) <= 2100
    assert all("validation error" in one for one in said[:-1])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"top": True}, "top\n  Input should be a valid integer"),
        ({"wrong_about": False}, "wrong_about\n  Input should be a valid number"),
        ({"top": 10**9}, "less than or equal to 200"),
        ({"query": "unicorn"}, "unicorn"),
        ({"limit": 5}, "limit\n  Extra inputs are not permitted"),
        ({"x" * 5000: 5}, "xxx"),
    ],
)
def test_an_argument_of_another_kind_or_name_is_refused(library, index, given, sentence):
    """True counted as 1, and an argument that no tool has was left out without a word."""
    tools = PhotoTools(index)
    said, right = asking(
        tools,
        ("search_photos", {"query": "dog"} | given),
        ("search_photos", {"query": "dog", "newest_first": True, "top": 1}),
    )
    assert sentence in refused(said)
    assert len(refused(said)) <= 2100
    assert len(told(right)["photos"]) == 1


def test_a_list_says_its_interval_its_estimate_and_its_condition(made):
    index = open_index(made)
    asked = {"query": "dog", "wrong_about": 0.3, "top": 5}
    few = {"query": "dog, cat, beach, row", "wrong_about": 0.001}
    questions = ("search_photos", asked), ("search_photos", few), ("count_photos", {"query": "dog"})
    listed, refusing, counted = map(told, asking(PhotoTools(index), *questions))
    expected = answer(index, Query.parse("dog"), top=1)
    assert counted["in_words"] == expected.counted
    assert (counted["low"], counted["high"]) == (expected.count.lower, expected.count.upper)
    expected = answer(index, Query.parse("dog"), top=5, wrong_about=0.3)
    assert listed["statement"] == asdict(expected.statement)
    assert expected.statement.kind == "estimate"
    for words in (expected.counted, expected.statement.sentence, "5 photos of them", "interval: "):
        assert words in listed["in_words"]
    assert "It holds if these photos are like the held-out ones." in listed["holds_if"]
    assert "No estimate: " in refusing["in_words"]


def test_photos_are_explained_by_what_became_of_held_out_ones(library, index):
    photo = str(library / "photos" / "0.png")
    identity = index.store.contents_of([index.row_of(photo)])[index.row_of(photo)].hash.hex()
    tools = PhotoTools(index)
    asked = [("explain_photo", {"photo": one}) for one in (photo, identity)]
    asked += [("describe_library", {"labels_with": "O"})]
    by_path, by_id, facts = map(told, asking(tools, *asked))
    assert by_path == by_id
    assert by_path["path"] == photo
    held_out = index.held_out
    for one in by_path["labels"]:
        column = index.space.column(one["label"])
        probability = index.probability(index.row_of(photo), one["label"])
        assert one["probability"] == pytest.approx(probability)
        edge = np.ceil(10 * one["probability"])
        same = np.ceil(10 * held_out.link(held_out.logits.astype(np.float64))[:, column]) == edge
        carried = held_out.labels[:, column][same].sum()
        assert f"Of {same.sum()} held-out photos" in one["because"]
        assert f"{carried:.0f} carried it" in one["because"]
    counts = {one["label"]: one["held_out_photos_with_it"] for one in facts["labels"]}
    columns = {name: index.space.column(name) for name in ("dog", "row")}
    assert counts == {name: held_out.labels[:, k].sum() for name, k in columns.items()}


def test_photos_are_shown_small_and_found_by_likeness(library, index):
    photo = str(library / "photos" / "0.png")
    shown, alike = asking(
        PhotoTools(index), ("show_photo", {"photo": photo}), ("similar_photos", {"photo": photo})
    )
    (content,) = shown.content
    assert content.mime_type == "image/jpeg"
    with Image.open(io.BytesIO(base64.b64decode(content.data))) as drawn:
        assert drawn.size == (32, 24)
    assert len(told(alike)["photos"]) == 7
    assert "not a probability" in told(alike)["holds_if"]


def test_only_files_below_the_folders_are_opened(library, index, tmp_path):
    outside = picture(tmp_path / "outside.png", 1)
    link = tmp_path / "inside" / "link.png"
    link.parent.mkdir()
    link.symlink_to(outside)
    run = RunFolder(library / "tiny")
    tools = PhotoTools(index, run, [tmp_path / "inside"])
    for photo in (outside, link, library / "photos" / ".." / "model" / "model.json"):
        (result,) = asking(tools, ("tag_photo", {"photo": str(photo)}))
        assert "lies below no folder of the index" in refused(result)
    for said in asking(tools, *((name, {"photo": "\0a"}) for name in ("tag_photo", "show_photo"))):
        assert ": " in refused(
            said
        )  # the SDK tells no reason of an exception that it does not know
    (result,) = asking(PhotoTools(index, run, [tmp_path]), ("tag_photo", {"photo": str(outside)}))
    assert told(result)["path"] == str(outside)


def test_nothing_is_noted_unless_asked_for(made):
    for result in asking(PhotoTools(open_index(made)), *((name, {}) for name in WRITING)):
        assert "Unknown tool" in refused(result)
    assert not (made / "answers.jsonl").exists()


def test_a_person_corrects_and_answers_for_an_estimate(made):
    index = open_index(made)
    tools = PhotoTools(index)
    photo = index.store.paths_of([7])[7][0]
    said = {"photo": photo, "labels": {"dog": "absent"}, "who": "Ada"}
    drawn = ("draw_photos_to_answer", {"query": "dog", "answers": 60})
    corrected, asked = map(told, asking(tools, ("correct_photo", said), drawn, write=True))
    (dog,) = [one for one in corrected["labels"] if one["label"] == "dog"]
    assert (dog["probability"], dog["given"]) == (0.0, False)
    assert dog["because"] == "Ada said that it is absent."
    assert len(set(asked["photos"])) == 60
    answers = {photo: "yes" if n < 20 else "no" for n, photo in enumerate(asked["photos"])}
    few = dict(list(answers.items())[1:])
    asked = [("estimate_from_answers", {"query": "dog", "answers": one}) for one in (answers, few)]
    counted, missing = asking(tools, *asked, write=True)
    found = told(counted)
    assert "20 of 60 photos drawn at random match" in found["in_words"]
    assert "a person answered each" in found["holds_if"]
    assert 0 < found["low"] < found["expected"] < found["high"] < 600
    assert "1 of the 60 photos drawn for dog have no answer" in refused(missing)


def test_the_verb_refuses_what_does_not_apply(library, tmp_path):
    index = str(library / "index")
    for words, rule in (
        ([index, "--tag-folder", str(tmp_path)], "which needs a RUN"),
        ([index, str(library / "tiny"), "--tag-folder", str(tmp_path / "no")], "must be a folder"),
        ([index, "--port", "8001"], "--port does not apply: it is for HTTP"),
        ([index, "--http", "--host", "0.0.0.0"], "so a token is needed"),
    ):
        with pytest.raises(SettingsError, match=rule):
            must_run("serve", "--mcp", *words, catch_exceptions=False)
