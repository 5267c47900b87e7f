"""``labelwise serve`` as a process: says where it is, answers, stops, refuses what is unsafe."""

import hashlib
import http.client
import io
import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import closing, suppress
from itertools import count

import pytest
from open_indexes import open_index
from patience import PATIENCE, wait_until
from PIL import Image
from search_setup import picture, save_model
from typed import run
from web_setup import Client

from labelwise.base.progress import Silent
from labelwise.models.run_folder import RunFolder
from labelwise.photos import update_index


def test_it_says_where_it_is_answers_loads_anew_and_stops(tmp_path, warm_commands, monkeypatch):
    """Oracles: what is said at its start; the model's own file after SIGHUP; and for a picture that
    Pillow warns of, while errors go to a file, the answer to the same pixels without the fault.

    It is asked to stop while a photo is being sent, and once more while it waits for that.
    """
    cut_off = b"Exif\0\0II*\0\x08\0\0\0\x05\0"  # five entries are announced, none follows
    model = save_model(tmp_path / "run")
    monkeypatch.setenv("LABELWISE_PORT", "0")
    monkeypatch.setenv("LABELWISE_DECODERS", "1")
    with warm_commands.running(["serve", model], tmp_path) as process:
        line = process.line()
        port = re.fullmatch(r"labelwise is at http://127\.0\.0\.1:(\d+)/ .*\n", line)[1]
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)
        connection.request("GET", "/health/ready")
        assert connection.getresponse().read() == b'{"status":"ready"}'
        connection.close()
        client = Client(int(port))
        plain = client.upload(("a.jpg", jpeg()))
        warned = client.upload(("a.jpg", jpeg(exif=cut_off)))
        save_model(model, seed=1)
        os.kill(process.pid, signal.SIGHUP)
        weights = RunFolder(model).spec.weights_sha256[:12]
        wait_until(lambda: client.get("/api/v1/model")["weights"] == weights)
        connection.putrequest("POST", "/api/v1/predict")
        connection.putheader("Content-Type", "image/jpeg")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"half")
        os.kill(process.pid, signal.SIGINT)
        wait_until(lambda: not is_reached(int(port)))
        os.kill(process.pid, signal.SIGINT)
        done = process.wait()
        connection.close()
    assert done.returncode in (0, 130)
    assert plain[0] == warned[0] == 200, warned
    both = [json.loads(answer)["results"] for _, _, answer in (plain, warned)]
    assert both[0] == both[1]
    assert done.stderr.count("'a.jpg': Corrupt EXIF data") == 1
    loaded, *more = [one for one in done.stderr.splitlines() if "Corrupt EXIF data" not in one]
    assert loaded == "'run' was loaded again"
    # The second line only if the first stop had waited its five seconds out.
    allowed = ("labelwise: stopped", "Cancel 1 running task")
    assert all(line.startswith(allowed) for line in more), more


def is_reached(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def jpeg(**options):
    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(buffer, "JPEG", **options)
    return buffer.getvalue()


def test_a_server_that_is_killed_keeps_what_was_said_and_leaves_nothing_running(
    tmp_path, warm_commands
):
    model, index = save_model(tmp_path / "run"), tmp_path / "index"
    photo = picture(tmp_path / "photos" / "a.png", 0)
    update_index(index, [photo.parent], model=model, watch=Silent())
    name = hashlib.sha256(photo.read_bytes()).hexdigest()
    words, answered = ["serve", model, index, "--port", "0", "--decoders", "1"], []
    with warm_commands.running(words, tmp_path) as process:
        port = int(re.search(r":(\d+)/", process.line())[1])
        saying = threading.Thread(target=keep_saying, args=(port, name, answered))
        saying.start()
        while len(answered) < 5 and saying.is_alive():
            time.sleep(0.001)
        # and killed in the middle of a correction
    saying.join(PATIENCE)
    (correction,) = open_index(index).store.corrections()
    assert (correction.label, correction.state) == ("dog", "absent")
    assert answered[-1] <= int(correction.who) <= answered[-1] + 1
    wait_until(lambda: has_no_process(process.pid))  # its decoders end by themselves


def has_no_process(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def keep_saying(port, photo, answered):
    """Correct a photo again and again, each time as another person, until nobody answers."""
    kind = {"Content-Type": "application/json"}
    with (
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection,
        suppress(OSError, http.client.HTTPException),
    ):
        for number in count():
            body = f'{{"labels": {{"dog": "absent"}}, "who": "{number}"}}'
            connection.request("PUT", f"/api/v1/photos/{photo}/labels", body, kind)
            with connection.getresponse() as answer:
                answer.read()
            assert answer.status == 200
            answered.append(number)


@pytest.mark.parametrize(
    ("options", "token", "words"),
    [
        ("--host 0.0.0.0", "", "a token is needed"),
        ("--token-file nowhere", "", "cannot be read"),
        ("--token-file short", "", "at least 16"),
        ("--token-file short", 20 * "x", "once"),
        ("--max-files 300", "", "max_queue"),
        ("--also cats", "", "a name and a run, as in cats=runs/cats"),
        ("--also a/b=runs/cats", "", "must begin with a letter or digit"),
        ("", "", "does not exist"),
    ],
)
def test_what_is_unsafe_or_cannot_work_is_refused(tmp_path, monkeypatch, options, token, words):
    monkeypatch.setenv("LABELWISE_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    done = run("serve", tmp_path, *options.split())
    assert done.exit_code == 1
    assert words in str(done.exception)


def test_results_of_an_audit_are_written_when_its_page_is_stopped(tmp_path, warm_commands):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    (tmp_path / "tags.csv").write_text("path,labels\na.jpg,dog\n")
    asked = ["audit", "tags.csv", "--photos", ".", "--page", "--port", "0"]
    with warm_commands.running(asked, tmp_path) as process:
        assert process.line().startswith("labelwise is at http://127.0.0.1:")
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait()
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "tags.audit" / "audit.html").read_text()
    assert "Nothing is guaranteed yet: more answers are needed (0 answers)." in page
