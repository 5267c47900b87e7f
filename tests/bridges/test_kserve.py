"""The inference protocol (KServe v2). Oracles: Triton's HTTP client; the model itself."""

import base64
import io
import json
import struct

import numpy as np
import pytest
from PIL import Image
from search_setup import LABELS
from web_setup import TOKEN, encoded, running

from labelwise.models import Predictor

BASE = "/v2/models/tiny"
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def server(model):
    with running(model) as client:
        yield client


@pytest.fixture
def triton(server):
    http = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    client = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=600)
    yield http, client
    client.close()


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("kind", ["BYTES", "UINT8"])
def test_tritons_client_gets_the_models_answers(triton, model, kind, as_bytes):
    http, client = triton
    blobs = [encoded(seed=seed, size=(16, 16)) for seed in range(3)]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(blob))) for blob in blobs])
    as_json = list(map(base64.b64encode, blobs))  # JSON has no bytes
    given = pixels if kind == "UINT8" else np.array(blobs if as_bytes else as_json, dtype=object)
    tensor = http.InferInput("image", list(given.shape), kind)
    tensor.set_data_from_numpy(given, binary_data=as_bytes)
    own = Predictor.load(model).predict(blobs)
    for outputs in (
        None,
        [http.InferRequestedOutput(name, binary_data=True) for name in ("label", "probability")],
        [http.InferRequestedOutput("probability", binary_data=False)],
    ):
        found = client.infer("tiny", [tensor], outputs=outputs, request_id="7")
        probs = found.as_numpy("probability")
        assert probs.dtype == np.float64
        np.testing.assert_allclose(probs, own.probs, atol=1e-6)
        assert found.get_response()["id"] == "7"
        if outputs is None or len(outputs) == 2:
            np.testing.assert_array_equal(found.as_numpy("label"), own.sets)
        if outputs is None:
            np.testing.assert_allclose(found.as_numpy("logits"), own.logits, atol=1e-5)


def test_tritons_client_reads_health_metadata_and_errors(triton):
    http, client = triton
    assert all((client.is_server_live(), client.is_server_ready(), client.is_model_ready("tiny")))
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    facts = client.get_model_metadata("tiny")
    assert facts["parameters"]["labels"] == list(LABELS)
    (version,) = facts["versions"]
    assert client.get_model_metadata("tiny", version) == facts
    assert client.is_model_ready("tiny", version)
    tensor = http.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([encoded()], dtype=object))
    assert client.infer("tiny", [tensor], model_version=version).as_numpy("label").shape == (1, 4)
    for name, asked, rule in (
        ("other", "", "there is no model of this name"),
        ("tiny", "0", "there is no such version"),
    ):
        with pytest.raises(Exception, match=rule):
            client.infer(name, [tensor], model_version=asked)
    tensor.set_data_from_numpy(np.array([b"no picture"], dtype=object))
    with pytest.raises(Exception, match="picture 0"):
        client.infer("tiny", [tensor])


def send(server, tensor, data, **more):
    """Ask for a picture ``tensor`` whose bytes follow the JSON."""
    facts = {"name": "image", "datatype": "BYTES", "shape": [1]} | tensor
    head = json.dumps({"inputs": [facts], **more}).encode()
    return server.send("POST", f"{BASE}/infer", head + data, {LENGTH: str(len(head))})


def elements(*blobs):
    return b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)


def test_bytes_after_the_json_are_read_and_written(server, model):
    blob = encoded(seed=5)
    tensor = {"parameters": {"binary_data_size": 4 + len(blob)}}
    more = {"parameters": {"binary_data_output": True}}
    status, found, answer = send(server, tensor, elements(blob), **more)
    assert status == 200, answer
    length = int(found[LENGTH.lower()])
    told, rest = json.loads(answer[:length]), answer[length:]
    sizes = {one["name"]: one["parameters"]["binary_data_size"] for one in told["outputs"]}
    assert sizes == {"probability": 32, "label": 4, "logits": 16}
    own = Predictor.load(model).predict([blob])
    np.testing.assert_allclose(np.frombuffer(rest[:32], "<f8"), own.probs[0], atol=1e-6)
    np.testing.assert_array_equal(np.frombuffer(rest[32:36], bool), own.sets[0])
    np.testing.assert_allclose(np.frombuffer(rest[36:], "<f4"), own.logits[0], atol=1e-5)


PICTURE = encoded(size=(4, 4))


@pytest.mark.parametrize(
    ("changes", "data", "rule"),
    [
        ({}, elements(PICTURE) + b"x", "1 bytes after the JSON are of no tensor"),
        ({"parameters": {"binary_data_size": 10**6}}, elements(PICTURE), "must fit into"),
        ({"parameters": {"binary_data_size": -1}}, elements(PICTURE), "must fit into"),
        ({"parameters": {"binary_data_size": True}}, elements(PICTURE), "must fit into"),
        ({}, struct.pack("<I", 2**31) + PICTURE, "longer than its data"),
        ({"shape": [2]}, elements(PICTURE), r"shape must be [1], got [2]"),
        ({"shape": [99]}, elements(*[b""] * 99), "1 to 16 pictures, got more"),
        ({"data": ["a"]}, elements(PICTURE), "either data or the parameter"),
        ({"datatype": "UINT8", "shape": [1, 4, 4, 3]}, bytes(47), "must be 48 bytes"),
        ({"datatype": "UINT8", "shape": [48]}, bytes(48), "must have shape (N, H, W, 3)"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(server, changes, data, rule):
    size = len(data) - (1 if "of no tensor" in rule else 0)
    answer = send(server, {"parameters": {"binary_data_size": size}} | changes, data)
    assert rule in server.problem(answer, 422)
    assert json.loads(answer[2])["error"] == json.loads(answer[2])["detail"]


@pytest.mark.parametrize("header", ["-1", "x", "9" * 20, "100000"])
def test_a_length_that_is_none_is_refused(server, header):
    answer = server.send("POST", f"{BASE}/infer", b"{}", {LENGTH: header})
    assert "must be the length of the JSON" in server.problem(answer, 400)


def test_forms_of_other_sites_are_not_tensors(server):
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = server.send("POST", f"{BASE}/infer", b"{}", {"Content-Type": kind})
        assert "send application/json" in server.problem(answer, 415)


def test_a_token_is_asked_for_on_every_path(model):
    with running(model, token=TOKEN) as client:
        for place in (BASE, f"{BASE}/versions/1"):
            assert client.send("GET", place)[0] == 401
            assert client.send("GET", f"{place}/ready")[0] == 401
            assert client.send("POST", f"{place}/infer", b"{}")[0] == 401
