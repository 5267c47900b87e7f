"""The typed client. Oracles: the description of a running server, and its plain HTTP answers."""

import ast
import importlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import wait_until
from web_setup import TOKEN, encoded, running
from write_client import PLACE

import labelwise.client
from labelwise.client import Client, ServerError
from labelwise.errors import SettingsError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_reference"))
source = importlib.import_module("client_source")


def test_the_client_is_the_one_of_the_servers_description(server):
    made = source.client_source(server.get("/openapi.json"))
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(PLACE.read_text())), "run: make client"


def test_every_request_of_the_api_has_a_method(server):
    described = server.get("/openapi.json")["paths"]
    names = {
        operation["operationId"].removesuffix("_of_model")
        for path, methods in described.items()
        for operation in methods.values()
        if path.startswith("/api/v1/")
    }
    assert names - {"session"} == {name for name in vars(Client) if not name.startswith("_")}


def test_answers_are_the_servers(run, library, tmp_path):
    odd = tmp_path / 'a "b" é.png'
    odd.write_bytes(encoded(seed=3))
    with running(run, library, decoders=0, token=TOKEN) as server:
        client = Client(server.address, TOKEN)
        who = {"Authorization": f"Bearer {TOKEN}"}

        def plain(path):
            return server.get(path, **who)

        assert client.first_model() == plain("/api/v1/model")
        assert client.model("tiny") == client.first_model()
        assert client.labels(model="tiny") == client.labels() == plain("/api/v1/labels")
        found = client.search("dog, -beach", top=3, keyword=None)
        assert found["hits"] == plain("/api/v1/search?q=dog,%20-beach&top=3")["hits"]
        assert client.photo(found["hits"][0]["id"])["id"] == found["hits"][0]["id"]
        assert client.thumbnail(found["hits"][0]["id"], side=160)[:2] == b"\xff\xd8"
        assert client.chart("dog").startswith(b"<svg")
        by_path = client.predict([odd], model="tiny")
        by_bytes = client.predict([odd.read_bytes()])
        assert by_path["results"][0]["name"] == "a %22b%22 é.png"
        assert by_path["results"][0]["labels"] == by_bytes["results"][0]["labels"]
        status, _, body = server.upload(("a", odd.read_bytes()), **who)
        assert status == 200
        assert json.loads(body)["results"][0]["labels"] == by_path["results"][0]["labels"]
        assert client.reload("tiny") == {"changed": False, "model": client.first_model()}
        with pytest.raises(ServerError, match="unknown label 'zebra'") as refused:
            client.search("zebra")
        assert refused.value.status == 422
        with pytest.raises(ServerError, match="a token is needed here") as refused:
            Client(server.address).first_model()
        assert refused.value.status == 401


def test_a_job_by_the_client(run, tmp_path):
    paths = []
    for seed in range(5):
        paths.append(tmp_path / f"{seed}.png")
        paths[-1].write_bytes(encoded(seed=seed))
    with running(run, decoders=0) as server:
        client = Client(server.address)
        job = client.begin_job()["id"]
        client.add_pictures(job, paths[:3])
        client.add_pictures(job, paths[3:])
        client.close_job(job)
        wait_until(lambda: client.job(job)["state"] == "done")
        lines = client.job_results(job).splitlines()
        assert [json.loads(line)["path"] for line in lines] == [path.name for path in paths]
        assert len(client.job_results(job, format="csv").splitlines()) == 6
        client.delete_job(job)
        assert client.every_job() == []


def test_a_busy_server_is_asked_again_and_a_missing_one_is_named(monkeypatch):
    waits, statuses, named = [], [429, 503, 200], []
    monkeypatch.setattr("labelwise.client.connection.time", SimpleNamespace(sleep=waits.append))

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self):
            status = statuses.pop(0)
            self.send_response(status)
            self.send_header("Retry-After", named.pop(0) if named else "7")
            good = status == 200 and not self.path.startswith("/odd/")
            body = b"[]" if good else b"out of order"
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given):
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            assert Client(address).models() == []
            assert waits == [7, 7]
            statuses[:] = [429, 503, 200]
            named[:] = ["999999", "Wed, 21 Oct 2026 07:28:00 GMT"]
            assert Client(address).models() == []
            assert waits[2:] == [60, 1]  # no longer than a minute; a date is not waited for
            statuses[:] = [429] * 4
            with pytest.raises(ServerError) as refused:
                Client(address).models()
            assert (refused.value.status, len(waits), statuses) == (429, 7, [])
            statuses[:] = [200]
            with pytest.raises(ServerError, match="does not answer in JSON"):
                Client(f"{address}/odd").models()
            statuses[:] = [503]
            with pytest.raises(ServerError, match="answers with status 503"):
                Client(address, retries=0).models()
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(ServerError, match="does not answer") as missing:
        Client(address).models()
    assert missing.value.status == 0
    for wrong in ("127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://127.0.0.1/?a=b"):
        with pytest.raises(SettingsError, match=r"as in http://127\.0\.0\.1:8000"):
            Client(wrong)


def test_the_client_needs_neither_torch_nor_a_server():
    code = "import sys, labelwise.client; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert "labelwise" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "fastapi", "pyarrow", "PIL"}
    assert labelwise.client.__all__ == sorted(labelwise.client.__all__)
