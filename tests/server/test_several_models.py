"""Several models with one server, loaded anew while it answers. Oracle: ``Predictor`` itself."""

import json
import shutil
import threading

import pytest
from patience import PATIENCE, wait_until
from search_setup import LABELS, save_model
from test_batching import metrics
from web_setup import TOKEN, encoded, running

from labelwise.errors import SettingsError
from labelwise.models import Predictor
from labelwise.server import ServeSettings
from labelwise.server.service import ServedModel, Service

COLOURS = ("blue", "dog", "red")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("second") / "run", seed=5, labels=COLOURS)


@pytest.fixture(scope="module")
def both(run, second):
    with running(run, decoders=1, models=(("colours", second),)) as client:
        yield client


@pytest.fixture
def own_run(run, tmp_path):
    return shutil.copytree(run, tmp_path / "tiny")


def told(answer):
    """Return the weights and the probabilities by label of the first picture of an answer."""
    status, _, body = answer
    assert status == 200, body
    found = json.loads(body)
    labels = found["results"][0]["labels"]
    return found["model"], {one["label"]: one["probability"] for one in labels}


def truth(folder, content):
    predictor = Predictor.load(folder)
    found = predictor.predict([content])
    return dict(zip(predictor.space.names, found.probs[0].tolist(), strict=True))


def test_each_model_answers_by_its_name_and_the_first_without_one(both, run, second):
    content = encoded(seed=3)
    picture = ("a.png", content)
    for path, folder in (
        ("/api/v1/predict", run),
        ("/api/v1/models/tiny/predict", run),
        ("/api/v1/models/colours/predict", second),
    ):
        _, probs = told(both.upload(picture, path=path))
        assert probs == pytest.approx(truth(folder, content), abs=1e-6)
    listed = both.get("/api/v1/models")
    assert [one["name"] for one in listed] == ["tiny", "colours"]
    assert both.get("/api/v1/models/colours") == listed[1]
    assert both.get("/api/v1/model") == listed[0]
    assert [one["label"] for one in both.get("/api/v1/models/colours/labels")] == list(COLOURS)
    assert [one["label"] for one in both.get("/api/v1/labels")] == list(LABELS)
    assert both.get("/api/v1/models/colours/trust")["alarms"] == []
    text = metrics(both)
    assert 'labelwise_photos_total{model="tiny"} 2.0' in text
    assert 'labelwise_photos_total{model="colours"} 1.0' in text
    assert 'route="/api/v1/models/{model}/predict",status="200"} 2.0' in text
    listed = json.loads(both.post("/v2/repository/index", {})[2])
    states = [(one["name"], one["state"]) for one in listed]
    assert states == [("tiny", "READY"), ("colours", "READY")]
    facts = both.get("/v2/models/colours")
    assert facts["parameters"]["labels"] == list(COLOURS)
    assert facts["versions"] == [listed[1]["version"]]
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 4, 4, 3], "data": [9] * 48}
    asked = {"inputs": [tensor], "outputs": [{"name": "label"}]}
    answer = json.loads(both.post("/v2/models/colours/infer", asked)[2])
    assert answer["parameters"]["labels"] == list(COLOURS)
    assert answer["outputs"][0]["shape"] == [1, 3]
    refused = both.problem(both.post("/v2/models/cats/infer", asked), 404)
    assert refused == "there is no model of this name; those here are 'tiny', 'colours'"
    wrong = f"/v2/models/colours/versions/{both.get('/v2/models/tiny')['versions'][0]}"
    assert "no such version" in both.problem(both.send("GET", wrong), 404)


def test_two_models_of_one_name_are_refused(run, second):
    with pytest.raises(SettingsError, match="two models have the name 'tiny'"):
        running(run, models=(("tiny", second),)).__enter__()
    with pytest.raises(SettingsError, match="must begin with a letter or digit"):
        ServeSettings(models=(("../x", second),))


def test_a_changed_folder_is_loaded_and_requests_under_way_end_with_the_old_model(
    own_run, monkeypatch
):
    content, answers, go = encoded(seed=4), [], threading.Event()
    before, forward = truth(own_run, content), ServedModel.forward

    def held_back(self, pixels, names):
        if threading.current_thread().name.startswith("model"):
            go.wait(PATIENCE)
        return forward(self, pixels, names)

    with running(own_run, decoders=0) as server:
        old = server.get("/api/v1/model")
        monkeypatch.setattr(ServedModel, "forward", held_back)
        asking = threading.Thread(
            target=lambda: answers.append(told(server.upload(("a.png", content))))
        )
        asking.start()
        wait_until(lambda: "labelwise_queue_length 1.0" in metrics(server))
        save_model(own_run, seed=9)
        now = server.told(server.post("/api/v1/models/tiny/reload", {}))
        assert now["changed"]
        assert now["model"] == server.get("/api/v1/model")
        assert now["model"]["weights"] != old["weights"]
        go.set()
        asking.join(PATIENCE)
        ((weights, probs),) = answers
        assert weights == old["weights"]
        assert probs == pytest.approx(before, abs=1e-6)
        weights, probs = told(server.upload(("a.png", content)))
        assert weights == now["model"]["weights"]
        assert probs == pytest.approx(truth(own_run, content), abs=1e-6)
        assert not server.told(server.post("/api/v1/models/tiny/reload", {}))["changed"]
        assert 'labelwise_photos_total{model="tiny"} 1.0' in metrics(server)  # of the new one


def test_a_model_that_cannot_be_served_is_refused_and_the_old_one_goes_on(own_run, monkeypatch):
    content = encoded(seed=4)
    with running(own_run, decoders=0) as server:
        old = told(server.upload(("a.png", content)))
        save_model(own_run, seed=9)
        weights = own_run / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: len(whole) // 2])
        for path in ("/api/v1/models/tiny/reload", "/v2/repository/models/tiny/load"):
            refused = server.problem(server.post(path, {}), 409)
            assert refused.startswith("'tiny' goes on as it was, because ")
            assert "model.safetensors" in refused
            assert told(server.upload(("a.png", content))) == old
        weights.write_bytes(whole)
        real = Predictor.logits
        with monkeypatch.context() as patch:
            patch.setattr(Predictor, "logits", lambda *given: real(*given) * float("nan"))
            refused = server.problem(server.post("/api/v1/models/tiny/reload", {}), 409)
        assert "has no answer for a grey picture" in refused
        assert told(server.upload(("a.png", content))) == old
        assert server.post("/v2/repository/models/tiny/load", {})[0] == 200
        assert told(server.upload(("a.png", content)))[1] == pytest.approx(
            truth(own_run, content), abs=1e-6
        )
        assert server.problem(server.post("/api/v1/models/other/reload", {}), 404)


def test_no_second_model_is_loaded_meanwhile(own_run, monkeypatch):
    path, load = "/api/v1/models/tiny/reload", Service._load
    begun, go, first = threading.Event(), threading.Event(), []

    def held_back(self, name):
        begun.set()
        go.wait(PATIENCE)
        return load(self, name)

    with running(own_run, decoders=0) as server:
        save_model(own_run, seed=9)
        monkeypatch.setattr(Service, "_load", held_back)
        asking = threading.Thread(target=lambda: first.append(server.post(path, {})[0]))
        asking.start()
        assert begun.wait(PATIENCE)
        second = server.post(path, {})
        assert "another model is being loaded" in server.problem(second, 409)
        assert second[1]["retry-after"] == "5"
        go.set()
        asking.join(PATIENCE)
        assert first == [200]
        assert server.post(path, {})[0] == 200


def test_a_model_with_an_index_keeps_its_weights_and_loading_needs_the_token_and_json(
    own_run, own_library
):
    path, who = "/api/v1/models/tiny/reload", {"Authorization": f"Bearer {TOKEN}"}
    with running(own_run, own_library, decoders=0, token=TOKEN) as server:
        assert server.post(path, {})[0] == 401
        plain = server.send("POST", path, b"", {**who, "Content-Type": "text/plain"})
        assert "send the header Content-Type: application/json" in server.problem(plain, 415)
        assert server.post(path, {}, **who, Origin="https://elsewhere.example")[0] == 403
        assert server.post(path, {}, **who)[0] == 200
        old = server.get("/api/v1/model", **who)
        save_model(own_run, seed=9)
        refused = server.problem(server.post(path, {}, **who), 409)
        assert "the index was made with other weights" in refused
        assert server.get("/api/v1/model", **who) == old
