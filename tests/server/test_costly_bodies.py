"""Bodies that cost much more to answer than to send, or are not what they say, and who reads them.

Oracles: status, size, processor time, the files of the form, the thread's name, Python's base64.
"""

import asyncio
import base64
import json
import threading
import time

import numpy as np
import pytest
from labelling_setup import labelling
from search_setup import picture
from starlette.requests import Request
from web_setup import encoded, form, running

from labelwise.server import api as requests
from labelwise.server import bodies as json_bodies
from labelwise.server import bridges
from labelwise.server.bodies import PIECE, from_base64, read_form, read_json
from labelwise.server.security import RefusedError

PICTURE = base64.b64encode(encoded()).decode()


def test_a_400_digit_number_is_refused_wherever_it_stands(server):
    for body in ({"pictures": [10**399]}, {"pictures": [PICTURE], "x": 10**399}):
        assert server.problem(server.post("/api/v1/predict", body), 422)
    for name in ("top", "cursor"):
        assert server.send("GET", f"/api/v1/search?q=dog&{name}={10**399}")[0] == 422


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1," * 1_100_000 + b"1]",
        b"[" + b"[]," * 250_000 + b"1]",
        b"[" + b'{"a":1},' * 120_000 + b"1]",
        b'["' + b"\\u0041" * 1_100_000 + b'"]',
        b"[" + b",".join([b"7" * 40] * 60_000) + b"]",
        b"[" + b",".join(b'"%d"' % n for n in range(95_000)) + b"]",
        b"{" + b",".join(b'"%d":1' % n for n in range(95_000)) + b"}",
        b"[" * 90_000,
        b'{"a":' * 90_000,
    ],
)
def test_json_that_is_costly_to_read_is_not_read(body):
    """Counting takes some milliseconds; reading these took up to two seconds of processor time."""
    began = time.thread_time()
    with pytest.raises(RefusedError) as refused:
        read_json(body)
    assert refused.value.status in (413, 422)
    assert time.thread_time() - began < 1


def test_json_within_the_limits_is_what_the_standard_library_reads():
    numbers = np.random.default_rng(0).normal(0, 10**6, 99).tolist()
    value = ['\u00e9\\"\n' * 50, numbers, {"nested": [[int(one)] * 3 for one in numbers]}]
    assert read_json(json.dumps(value).encode()) == json.loads(json.dumps(value))
    whole = base64.b64encode(bytes(4 << 20)).decode()
    assert read_json(json.dumps([whole]).encode()) == [whole]


def test_the_event_loop_reads_no_json_that_is_costly_to_check(server):
    """28,000 unknown names took it 87 ms, 80,000 lists 167 ms, also without a token."""
    names = b"{" + b",".join(b'"%x":0' % n for n in range(28_000)) + b"}"
    lists = b'{"model":[' + b"[]," * 20_000 + b"1]}"
    kind = {"Content-Type": "application/json"}
    for body in (names, lists):
        answer = server.send("POST", "/api/v1/check/list", body, kind)
        assert "50,000 numbers" in server.problem(answer, 413)
    answer = server.send("POST", "/api/v1/session", names[:5000], kind)
    assert "4,096 bytes" in server.problem(answer, 413)
    large = b'{"model": "' + b"x" * 300_000 + b'"}'  # only pictures may be
    answer = server.send("POST", "/api/v1/check/list", large, kind)
    assert "262,144 bytes" in server.problem(answer, 413)
    many = {"labels": {f"label {n}": "withdrawn" for n in range(5000)}}
    answer = server.put(f"/api/v1/photos/{'0' * 64}/labels", many)
    assert server.problem(answer, 404)


def test_the_labelling_page_reads_no_json_that_is_costly_to_check(tmp_path):
    """20,000 wrong answers took its event loop 220 ms."""
    picture(tmp_path / "photos" / "0.png", 0)
    wrong = {"label": "dog", "who": "ada", "states": {str(n): 0 for n in range(20_000)}}
    with labelling(tmp_path) as server:
        assert "50,000 numbers" in server.problem(server.put("/api/v1/answers", wrong), 413)
        assert server.problem(server.put("/api/v1/answers", {"label": 10**400}), 422)
        (photo,) = server.get("/api/v1/questions?label=dog&who=ada")["photos"]
        right = {"label": "dog", "who": "ada", "states": {photo["id"]: "present"}}
        assert server.put("/api/v1/answers", right)[0] == 200


def files_of(body, kind, most, at_a_time=1 << 16):
    parts = [body[at : at + at_a_time] for at in range(0, len(body), at_a_time)] or [b""]

    async def receive():
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
    return asyncio.run(read_form(Request(scope, receive), most))


def test_files_of_a_form_have_their_names_and_bytes_and_are_counted():
    files = [("0 \u00e9.png", b"\r\n--\0"), ("C:\\photos\\1.png", b"x" * 3 * PIECE)]
    found = files_of(*form(*files), 2, 7)
    assert [one.name for one in found] == ["0 \u00e9.png", "1.png"]
    assert [one.content for one in found] == [content for _, content in files]
    body, kind = form(*[(str(n), b"x") for n in range(3)])
    fields, _ = form(*[("a", b"x")] * 3)
    for content in (body, fields.replace(b'; filename="a"', b"")):
        files_of(content, kind, 3)
        with pytest.raises(RefusedError, match="Too many"):
            files_of(content, kind, 2)


NO_FORMS = (
    *(b"", b"--B", b"--B\r\n", b"--B\r\n\r\n", b"--B\r\n\r\nx\r\n--B--", b"--Bx\r\n\r\n\r\n--B--"),
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx',
    b"--B\r\n" + b"a" * 10_000,
)


def test_what_is_not_a_form_or_has_no_boundary_is_refused():
    kinds = ("", "; boundary=", '; boundary="', "; boundary=" + "x" * 71)
    given = [*((body, "; boundary=B") for body in NO_FORMS), *((b"--x--", kind) for kind in kinds)]
    for body, kind in given:
        with pytest.raises(RefusedError) as refused:
            files_of(body, f"multipart/form-data{kind}", 4)
        assert refused.value.status == 400


CONFIG = (
    '<View><Image name="image" value="$image"/><Choices name="c" toName="image" choice="multiple">'
    '<Choice value="dog"/></Choices></View>'
)


@pytest.fixture(scope="module")
def bridged(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio")
    with running(run, decoders=0, photoprism=True, label_studio=folder) as client:
        yield client


@pytest.mark.parametrize(
    ("read", "path", "body"),
    [
        (requests.from_base64, "/api/v1/predict", {"pictures": [PICTURE]}),
        (bridges.from_base64, "/photoprism/labels", {"images": [PICTURE]}),
        (bridges.read_config, "/label-studio/setup", {"schema": CONFIG}),
        (bridges.read_config, "/label-studio/predict", {"tasks": [], "label_config": CONFIG}),
    ],
)
def test_nothing_long_is_read_on_the_event_loop(bridged, monkeypatch, read, path, body):
    threads = {}

    def noting(name, work):
        def noted(*given):
            threads[name] = threading.current_thread().name
            return work(*given)

        return noted

    wanted = ("read_json", read.__name__)
    for module in (requests, json_bodies, bridges):
        for name in wanted:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    assert bridged.post(path, body)[0] in (200, 422)  # the labels of the config are others
    assert set(threads) == set(wanted)
    assert all(name.startswith("aside") for name in threads.values()), threads


@pytest.mark.parametrize("text", ["", "QUJD", "QUI=", "QQ==", "QQ==QUJD", "QUJ", "QU!D", "é"])
@pytest.mark.parametrize("start", ["", "data:image/png;base64,", "data:image/png,"])
def test_base64_is_what_the_standard_library_takes_for_it(text, start):
    """Two texts in a row, each with its padding, are not one."""
    try:
        expected = base64.b64decode(
            (start + text).removeprefix("data:image/png;base64,"), None, True
        )
    except ValueError:
        with pytest.raises(RefusedError):
            from_base64(start + text)
    else:
        assert from_base64(start + text) == expected
