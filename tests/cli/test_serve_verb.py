"""``labelwise serve`` as a process: says where it is, answers, stops, refuses what is unsafe."""

import http.client
import os
import re
import signal
import subprocess
import sys

import pytest
from search_setup import save_model
from typer.testing import CliRunner

from labelwise.cli.app import app


def test_it_says_where_it_is_answers_and_stops(tmp_path):
    command = [sys.executable, "-m", "labelwise", "serve", str(save_model(tmp_path / "run"))]
    environment = {**os.environ, "LABELWISE_PORT": "0", "LABELWISE_DECODERS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            port = re.fullmatch(r"labelwise is at http://127\.0\.0\.1:(\d+)/ .*\n", line)[1]
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
            connection.request("GET", "/health/ready")
            assert connection.getresponse().read() == b'{"status":"ready"}'
            connection.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, 130)
            assert process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "a token is needed"),
        (["--token-file", "nowhere"], "cannot be read"),
        (["--max-files", "300"], "max_queue"),
        ([], "does not exist"),
    ],
)
def test_what_is_unsafe_or_cannot_work_is_refused(tmp_path, monkeypatch, options, words):
    monkeypatch.delenv("LABELWISE_TOKEN", raising=False)
    done = CliRunner().invoke(app, ["serve", str(tmp_path), *options])
    assert done.exit_code == 1
    assert words in str(done.exception)


def test_a_token_comes_from_a_file_or_the_environment_once(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("short")
    done = CliRunner().invoke(app, ["serve", str(tmp_path), "--token-file", str(file)])
    assert "at least 16" in str(done.exception)
    monkeypatch.setenv("LABELWISE_TOKEN", "x" * 20)
    done = CliRunner().invoke(app, ["serve", str(tmp_path), "--token-file", str(file)])
    assert "once" in str(done.exception)
