"""What strangers send is read in threads beside the event loop, in pieces and in short turns.

Oracles: the thread's name, the sizes that C code is given, Python's slices, base64 and collector.
"""

import base64
import gc
import json
import sys
import threading
from random import Random

import pytest
from web_setup import encoded, running

from labelwise.server import ServeSettings, bridges, inference_protocol, serving
from labelwise.server import api as requests
from labelwise.server import bodies as json_bodies
from labelwise.server.bodies import PIECE, copied, from_base64, require_cheap
from labelwise.server.security import RefusedError

PICTURE = base64.b64encode(encoded()).decode()
TENSOR = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [PICTURE]}
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
        (inference_protocol.from_base64, "/v2/models/tiny/infer", {"inputs": [TENSOR]}),
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
    for module in (requests, json_bodies, inference_protocol, bridges):
        for name in wanted:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    status, _, answer = bridged.post(path, body)
    assert status in (200, 422), answer  # the labels of the config are others
    assert set(threads) == set(wanted)
    assert all(name.startswith("aside") for name in threads.values()), threads


@pytest.mark.parametrize("length", [4, PIECE - 4, PIECE, PIECE + 4, 2 * PIECE, 2 * PIECE + 8])
@pytest.mark.parametrize("padding", ["", "=", "=="])
def test_base64_is_what_the_standard_library_takes_for_it(length, padding):
    """Two texts in a row, each with its padding, are not one, wherever a piece ends."""
    first = "A" * (length - len(padding)) + padding
    assert from_base64(first) == base64.b64decode(first, validate=True)
    for text in (first + "AAAA", first + "AA==", first + "A", first + "!AAA"):
        try:
            expected = base64.b64decode(text, validate=True)
        except ValueError:
            with pytest.raises(RefusedError):
                from_base64(text)
        else:
            assert from_base64(text) == expected


def test_long_bytes_are_copied_and_decoded_in_pieces(monkeypatch):
    content, rng = Random(1).randbytes(3 * PIECE), Random(2)
    edges = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE, 3 * PIECE + 9]
    edges += [rng.randrange(3 * PIECE) for _ in range(5)]
    for start in edges:
        for end in edges:
            for given in (content, memoryview(content)):
                assert copied(given, start, end) == content[start:end]
    sizes, decode = [], base64.b64decode

    def noted(text, **more):
        sizes.append(len(text))
        return decode(text, **more)

    monkeypatch.setattr(json_bodies.base64, "b64decode", noted)
    content = Random(0).randbytes(3 * PIECE + 5)
    assert from_base64("data:image/png;base64," + base64.b64encode(content).decode()) == content
    assert (max(sizes), len(sizes)) == (PIECE, 5)


def test_numbers_and_costs_are_found_across_pieces():
    for at in range(PIECE - 70, PIECE + 2):
        body = b"[" + b" " * at + b"7" * 64 + b"]"
        with pytest.raises(RefusedError, match="64 digits"):
            require_cheap(body, 1000)
        require_cheap(body.replace(b"7" * 64, b"7" * 63), 1000)
    # The oracle is the formula, on the whole.
    body = json.dumps([{"a": ["\\", 1]}] * (PIECE // 8)).encode()
    cost = sum(body.count(mark) * weight for mark, weight in json_bodies.COSTS.items())
    require_cheap(body, cost)
    with pytest.raises(RefusedError):
        require_cheap(body, cost - 1)


def test_a_server_runs_so_and_its_threads_ask_for_the_lock_early(monkeypatch):
    def noted(*_, **__):
        seen.append((sys.getswitchinterval(), gc.get_freeze_count() > 10_000))

    seen, before = [], sys.getswitchinterval()  # and only what is new is searched for garbage
    monkeypatch.setattr(serving.Server, "run", noted)
    serving.serve(lambda *_: None, ServeSettings(port=0))
    assert seen == [(pytest.approx(0.0005), True)]
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == (before, 0)
