"""Bodies that cost much more to answer than to send, or are not what they say, and who reads them.

Oracles: status, size, processor time, the files of the form, the thread's name, Python's base64.
"""

import asyncio
import base64
import json
import shutil
import threading
import time

import numpy as np
import pytest
from labelling_setup import labelling
from search_setup import picture
from starlette.requests import Request
from web_setup import encoded, form, running

from labelwise.decide import Promise
from labelwise.errors import SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.server import api as requests
from labelwise.server import bodies as json_bodies
from labelwise.server import bridges
from labelwise.server.bodies import PIECE, from_base64, read_form, read_json
from labelwise.server.monitoring import AccessLog
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


# The access log and what is said of alarms, shares and promises, held to what was sent.


def test_only_drawn_photos_count_as_audited(run, own_library):
    with running(run, own_library, decoders=0) as server:
        first = server.get("/api/v1/review?by=audit&count=8")["questions"]
        assert len({(one["id"], one["label"]) for one in first}) == 8
        assert {one["label"] for one in first} == {"beach", "cat", "dog", "row"}
        one = first[0]
        path = f"/api/v1/photos/{one['id']}/labels"
        assert server.put(path, {"labels": {one["label"]: "present"}})[0] == 200

        def audited():
            return {a["label"]: a for a in server.get("/api/v1/trust")["alarms"]}

        assert audited()[one["label"]]["audited"] == 0  # a correction is no audit
        again = server.get("/api/v1/review?by=audit&count=8")["questions"]
        assert one["id"] in {q["id"] for q in again if q["label"] == one["label"]}
        given = {"labels": {one["label"]: "absent"}, "source": "audit"}
        assert server.put(path, given)[0] == 200
        alarm = audited()[one["label"]]
        assert (alarm["audited"], alarm["present"]) == (1, 0)
        assert alarm["expected"] == pytest.approx(one["probability"])
        three = server.get("/api/v1/review?by=audit&count=3")["questions"]  # the others come first
        assert one["label"] not in {q["label"] for q in three}
        # Changing one's mind keeps the photo in the sample.
        assert server.put(path, {"labels": {one["label"]: "present"}})[0] == 200
        assert audited()[one["label"]]["present"] == 1
        text = server.send("GET", "/metrics")[2].decode()
        assert f'labelwise_calibration_evalue{{label="{one["label"]}"}}' in text


def test_recent_pictures_tell_the_share_of_a_label(run):
    with running(run, decoders=0, max_files=64) as server:
        files = [(f"{n}.png", encoded(seed=n)) for n in range(60)]
        assert server.upload(*files)[0] == 200
        shares = server.get("/api/v1/trust")["shares"]
        assert {one["label"] for one in shares} == {"beach", "cat", "dog", "row"}
        assert {one["photos"] for one in shares} == {60}
        text = server.send("GET", "/metrics")[2].decode()
        assert 'labelwise_label_share{label="dog",model="tiny"}' in text


def test_promises_are_checked_on_audited_photos_and_not_on_what_people_happened_to_see(
    run, own_library, tmp_path
):
    promise = Promise("recall", 0.5, 0.9, 100, 90, 0.6, "promise photos", "2026-01-01", "exact")
    folder = tmp_path / "promised"
    shutil.copytree(run, folder)
    spec = RunFolder(folder).spec.model_copy(update={"promises": (promise.spec(),)})
    spec.save(folder / "model.json")
    with running(folder, own_library, decoders=0) as server:
        (one,) = server.get("/api/v1/promises")
        assert one["verdict"] == "cannot tell"
        assert one["text"] == str(promise)
        hits = server.get("/api/v1/search?q=dog")["hits"]
        # Read before the first correction, which changes what the model says of the others.
        photos = [server.get(f"/api/v1/photos/{hit['id']}") for hit in hits]
        for source, verdict in (("correction", "cannot tell"), ("audit", "broken")):
            for photo in photos:
                sets = {label["label"]: label["decided"] for label in photo["labels"]}
                wrong = {name: "absent" if given else "present" for name, given in sets.items()}
                told = {"labels": wrong, "source": source}
                assert server.put(f"/api/v1/photos/{photo['id']}/labels", told)[0] == 200
            (one,) = server.get("/api/v1/promises")
            assert one["verdict"] == verdict
        assert "on 12 new photos" in one["checked"]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_request_is_one_line_without_what_is_private(run, tmp_path):
    path = tmp_path / "access.jsonl"
    with running(run, decoders=0, access_log=path) as server:
        answers = [
            server.send("GET", "/api/v1/model?secret=1", headers={"Authorization": "secret"}),
            server.upload(("secret.png", encoded())),
            server.send("HEAD", "/health/live"),
            server.send("GET", '/a"%0a%25s'),
        ]
    found = lines_of(path)
    sent = [(status, len(body)) for status, _, body in answers]
    assert [(one["status"], one["bytes"]) for one in found] == sent
    assert [one["route"] for one in found][:2] == ["/api/v1/model", "/api/v1/predict"]
    assert [one["method"] for one in found] == ["GET", "POST", "HEAD", "GET"]
    assert found[3]["path"] == '/a"\n%s'
    assert {one["client"] for one in found} == {"127.0.0.1"}
    assert "secret" not in path.read_text()


def test_a_log_that_grows_is_turned_over_and_one_that_cannot_is_refused(tmp_path):
    path = tmp_path / "access.jsonl"
    log = AccessLog(path, file_bytes=2000)
    log.start()
    for number in range(200):
        log.note(path="x" * 1000, status=number)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name[12:] for file in files] == ["", ".1", ".2", ".3", ".4", ".5"]
    assert all(file.stat().st_size <= 2000 for file in files)
    kept = [one["status"] for file in [*files[:0:-1], path] for one in lines_of(file)]
    assert kept == list(range(200 - len(kept), 200))
    with pytest.raises(SettingsError, match="cannot be written"):
        AccessLog(tmp_path / "nowhere" / "access.jsonl")
