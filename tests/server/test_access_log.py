"""The access log, held to the requests that were sent and the answers that came back."""

import json

import pytest
from web_setup import encoded, running

from labelwise.errors import SettingsError
from labelwise.server.monitoring import AccessLog


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_request_is_one_line_without_what_is_private(run, tmp_path):
    path = tmp_path / "access.jsonl"
    with running(run, decoders=0, access_log=path) as server:
        answers = [
            server.send("GET", "/api/v1/model?secret=1", headers={"Authorization": "secret"}),
            server.upload(("secret.png", encoded())),
            server.send("HEAD", "/health/live"),
            server.send("GET", '/a"\u0000%0a%25s'.replace("\u0000", "")),
        ]
    found = lines_of(path)
    assert [one["status"] for one in found] == [status for status, _, _ in answers]
    assert [one["bytes"] for one in found] == [len(body) for _, _, body in answers]
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
    assert [file.name for file in files] == ["access.jsonl"] + [
        f"access.jsonl.{n}" for n in range(1, 6)
    ]
    assert all(file.stat().st_size <= 2000 for file in files)
    kept = [one["status"] for file in [*files[:0:-1], path] for one in lines_of(file)]
    assert kept == list(range(200 - len(kept), 200))
    with pytest.raises(SettingsError, match="cannot be written"):
        AccessLog(tmp_path / "nowhere" / "access.jsonl")
