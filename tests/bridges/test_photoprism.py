"""PhotoPrism's Vision API. Oracles: its structures and rules, from its source; the model itself."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from search_setup import LABELS
from web_setup import TOKEN, encoded, running

from labelwise.decide import Threshold
from labelwise.learn.predictor import Predictor

PATH = "/photoprism/labels"


@pytest.fixture(scope="module")
def server(model):
    with running(model, photoprism=True, token=TOKEN) as client:
        yield client


def request(*pictures, **more):
    """Return what PhotoPrism sends: ApiRequest of internal/ai/vision/api_request.go, as JSON."""
    urls = [f"data:image/png;base64,{base64.b64encode(one).decode()}" for one in pictures]
    facts = {"id": "4e7a", "model": "labelwise", "suffix": "", "stream": False, "images": urls}
    return facts | more


def is_empty(answer):
    """Whether PhotoPrism takes an answer for a failure: ApiResult.IsEmpty of api_response.go."""
    result = answer["result"]
    parts = [result.get(name) or [] for name in ("labels", "nsfw", "embeddings")]
    return not any(parts) and result.get("caption") is None


def asked(server, given):
    return server.post(PATH, given, Authorization=f"Bearer {TOKEN}")


def test_labels_come_with_their_probabilities(server, model):
    pictures = [encoded(seed=seed) for seed in range(6)]
    predictor, counts = Predictor.load(model), []
    for one in pictures:
        own = predictor.predict(one)
        status, _, body = asked(server, request(one))
        assert status == 200
        answer = json.loads(body)
        assert (answer["id"], answer["code"]) == ("4e7a", 200)
        assert answer["model"]["type"] == "labels"
        found = {label["name"]: label["confidence"] for label in answer["result"]["labels"]}
        probs = dict(zip(LABELS, own.probs[0].tolist(), strict=True))
        assert found == pytest.approx({name: probs[name] for name in own.labels[0]}, abs=1e-5)
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert not is_empty(answer)
        counts.append(len(found))
    assert max(counts) > 0


def test_a_photo_without_labels_is_no_failure_there(model, tmp_path):
    replace(Predictor.load(model), rule=Threshold(1.0)).save(tmp_path / "none")
    with running(tmp_path / "none", photoprism=True) as client:
        status, _, body = client.post(PATH, request(encoded()))
    answer = json.loads(body)
    assert (status, answer["result"]["labels"]) == (200, [])
    assert answer["result"]["caption"] == {"text": ""}
    assert not is_empty(answer)


def test_of_several_cut_outs_the_surest_counts(server, model):
    pictures = [encoded(seed=seed) for seed in (3, 4)]
    own = Predictor.load(model).predict(pictures)
    _, _, body = asked(server, request(*pictures))
    found = {one["name"]: one["confidence"] for one in json.loads(body)["result"]["labels"]}
    probs = own.probs.max(0)
    expected = {LABELS[k]: probs[k] for k in np.flatnonzero(own.sets.any(0))}
    assert found == pytest.approx(expected, abs=1e-5)


def test_failures_are_told_as_photoprism_reads_them(server):
    for given, rule in (
        (request(b"no picture"), "picture 0"),
        (request(), "images"),
        (request(encoded(), images=["https://photos.example/a.jpg"]), "base64"),
        (request(*[encoded()] * 17), "1 to 16 pictures"),
    ):
        status, _, body = asked(server, given)
        answer = json.loads(body)
        assert (status, answer["code"]) == (422, 422)
        assert rule in answer["error"]
    assert server.post(PATH, request(encoded()))[0] == 401


def test_it_is_off_unless_asked_for(model):
    with running(model) as client:
        assert client.post(PATH, request(encoded()))[0] == 404
