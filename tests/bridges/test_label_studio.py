"""Label Studio. Oracles: its SDK's validators where installed; the table; the model itself."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from search_setup import LABELS, picture
from web_setup import TOKEN, encoded, running

from labelwise.contrib.annotation_tools import (
    Guesses,
    export_for_tool,
    labelling_config,
    read_config,
)
from labelwise.decide import Threshold
from labelwise.errors import DataError, SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.pictures import FileImages
from labelwise.server import ServeSettings
from labelwise.tables import LabelTable, load

SDK = "label_studio_sdk.label_interface"
NAMES = ("dog", "red car", "Straße", 'a "b" & <c>')
OTHER = """<View><Image name="photo" value="$picture"/>
<Choices name="kind" toName="photo" choice="multiple"><Choice value="dog"/><Choice value="tree"/>
<Choice value="cat"/></Choices><Choices name="unknown" toName="photo"><Choice value="dog"/>
<Choice value="cat"/><Choice value="row"/></Choices></View>"""


def table_in(folder, names=("a b.png", "in/ä.png", "c.png")):
    for number, name in enumerate(names):
        picture(folder / name, number)
    labels = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]])
    known = np.array([[True] * 4, [True] * 4, [True, True, False, True]])
    return LabelTable.from_arrays(NAMES, FileImages(folder, list(names)), labels, known, name="t")


def dense(table):
    return table.present.dense().tolist(), table.unknown.dense().tolist()


@pytest.mark.parametrize("place", ["photos/tasks.json", "tasks.json", "other/deep/tasks.json"])
def test_tasks_show_photos_below_one_folder_and_come_back(tmp_path, place):
    table = table_in(tmp_path / "photos")
    target = tmp_path / place
    target.parent.mkdir(parents=True, exist_ok=True)
    root = export_for_tool(table, target, "label-studio").rpartition("DOCUMENT_ROOT=")[2]
    assert (tmp_path / "photos").is_relative_to(root)
    for task in json.loads(target.read_text()):
        address = task["data"]["image"]
        assert address.startswith("/data/local-files/?d=")
        assert " " not in address
    back = load(target)
    assert back.space.names == NAMES
    assert dense(back) == dense(table)
    for row in range(3):
        assert back.images.path(row).resolve() == table.images.path(row).resolve()


def test_the_sdk_finds_no_fault_with_config_tasks_and_predictions(tmp_path):
    sdk = pytest.importorskip(SDK, reason="label-studio-sdk is not installed")
    table = table_in(tmp_path)
    guesses = Guesses(np.full((3, 4), 0.9), np.ones((3, 4), bool), "model 1")
    export_for_tool(table, tmp_path / "tasks.json", "label-studio", guesses)
    interface = sdk.LabelInterface((tmp_path / "tasks.config.xml").read_text())
    interface.validate()
    assert set(interface.get_tag("labels").labels) == set(NAMES)
    for task in json.loads((tmp_path / "tasks.json").read_text()):
        assert interface.validate_task({"data": task["data"]}), task
        assert all(interface.validate_annotation(one) for one in task["annotations"]), task
        assert all(interface.validate_prediction(one) for one in task["predictions"]), task
    (third,) = json.loads((tmp_path / "tasks.json").read_text())[2]["predictions"]
    assert third["result"][0]["value"]["choices"] == ["Straße"]  # the one that is not known
    wrong = json.loads(json.dumps(third))
    wrong["result"][0]["value"]["choices"] = ["unicorn"]
    assert not interface.validate_prediction(wrong)  # the validator does look


def test_uploads_are_found_by_the_name_they_were_given(tmp_path):
    for number, name in enumerate(("beach 1 (2).jpg", "sub/dog.jpg")):
        picture(tmp_path / "photos" / name, number)
    result = {"from_name": "labels", "to_name": "image", "type": "choices"}
    tasks = [
        {
            "id": number,
            "data": {"image": f"/data/upload/3/0a1b2c3d-{name}"},
            "annotations": [{"result": [result | {"value": {"choices": ["x"]}}]}],
        }
        for number, name in enumerate(["beach_1_2.jpg", "dog.jpg"])
    ]
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks))
    table = load(file, root=tmp_path / "photos")
    assert list(table.ids) == ["beach 1 (2).jpg", "sub/dog.jpg"]
    for number, name in enumerate(("0a1b2c3d-beach_1_2.jpg", "0a1b2c3d-dog.jpg")):
        picture(tmp_path / "media" / "upload" / "3" / name, number)
    table = load(file, root=tmp_path / "media")
    assert list(table.ids)[1] == "upload/3/0a1b2c3d-dog.jpg"
    picture(tmp_path / "photos" / "dog.jpg", 2)
    with pytest.raises(DataError, match="holds 2 photos of that name"):
        load(file, root=tmp_path / "photos")
    with pytest.raises(DataError, match="no photo of that name; give the folder"):
        load(file, root=tmp_path / "photos" / "sub")


def test_configs_of_others_are_read_for_their_names():
    config = read_config(OTHER, LABELS)
    assert (config.from_name, config.to_name, config.field) == ("kind", "photo", "picture")
    assert config.labels == ("dog", "cat")  # not what cannot be told, nor what the model lacks
    own = read_config(labelling_config(NAMES).decode(), NAMES)
    assert (own.from_name, own.labels) == ("labels", NAMES)
    for text, labels, told in (
        ("<View/>", LABELS, "must have <Image> and <Choices>"),
        (OTHER, ["beach"], "none of the choices 'kind'"),
        ("<View>", LABELS, "not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><View/>', LABELS, "entities are not allowed"),
    ):
        with pytest.raises(DataError, match=told):
            read_config(text, labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("served") / "photos"
    for number in range(5):
        picture(root / f"{number}.png", number)
    picture(root.parent / "outside.png", 9)
    (root / "link.png").symlink_to(root.parent / "outside.png")
    return root


@pytest.fixture(scope="module")
def backend(model, folder):
    with running(model, label_studio=folder, max_files=2) as client:
        yield client


def tasks_of(*addresses):
    return [{"id": 7 + n, "data": {"picture": one}} for n, one in enumerate(addresses)]


def test_the_backend_predicts_the_choices_of_the_config(backend, model, folder):
    assert backend.get("/label-studio/health")["status"] == "UP"
    asked = {"project": "1.2", "schema": OTHER}
    version = backend.told(backend.post("/label-studio/setup", asked))["model_version"]
    names = [f"{number}.png" for number in range(5)]
    given = {"tasks": tasks_of(*(f"/data/local-files/?d={name}" for name in names))}
    given |= {"label_config": OTHER, "project": "1.2", "params": {"context": None}}
    results = backend.told(backend.post("/label-studio/predict", given))["results"]
    own = Predictor.load(model).predict([folder / name for name in names])
    columns = [LABELS.index("cat"), LABELS.index("dog")]
    for row, result in enumerate(results):
        probs, chosen = own.probs[row, columns], own.sets[row, columns]
        expected = [name for name, one in zip(("cat", "dog"), chosen, strict=True) if one]
        place = {"from_name": "kind", "to_name": "photo", "type": "choices"}
        assert result["result"] == [place | {"value": {"choices": expected}}] * bool(expected)
        chance = np.where(chosen, probs, 1 - probs).prod()
        assert result["score"] == pytest.approx(chance, abs=1e-5)
        assert result["model_version"] == version
    assert len({round(result["score"], 6) for result in results}) > 1
    status, _, body = backend.post("/label-studio/webhook", {"action": "ANNOTATION_CREATED"})
    assert status == 201
    assert json.loads(body)["result"].startswith("not trained")


LOCAL = "/data/local-files/?d="
ELSEWHERE = (
    *(f"{LOCAL}../outside.png", f"{LOCAL}link.png", f"{LOCAL}%00", "file:///etc/passwd", "\0", 3),
    *("http://127.0.0.1:1/a.png", "/etc/passwd", "s3://bucket/a.png", "missing.png", None),
    *("/data/upload/3/0a1b2c3d-missing.png", "http://[", "x" * 5000),
)


def predicted(backend, *addresses):
    given = {"tasks": tasks_of(*addresses), "label_config": OTHER}
    return backend.told(backend.post("/label-studio/predict", given))["results"]


def test_each_task_gets_an_answer_and_no_file_outside_the_folder_is_opened(backend, folder):
    """One missing photo failed the whole batch, with advice that the server cannot follow."""
    (folder / "broken.png").write_bytes(b"not a photo")
    addresses = (f"{LOCAL}0.png", *ELSEWHERE, "broken.png", f"{LOCAL}1.png")
    first, *without, broken, last = predicted(backend, *addresses)
    assert broken["error"].startswith(f"task {8 + len(ELSEWHERE)}: broken.png: ")
    assert len(without) == len(ELSEWHERE)
    for number, answer in enumerate(without, 8):
        assert answer["error"].startswith(f"task {number}: ")
        assert "--label-studio" in answer["error"]
        assert "--set" not in answer["error"]
        assert len(answer["error"]) < 600
        assert (answer["result"], answer["score"]) == ([], 0.0)
    assert "error" not in first
    assert predicted(backend, f"{LOCAL}1.png") == [last]


def test_the_sdk_finds_no_fault_with_its_predictions(backend):
    sdk = pytest.importorskip(SDK, reason="label-studio-sdk is not installed")
    interface = sdk.LabelInterface(OTHER)
    for one in predicted(backend, *(f"{LOCAL}{n}.png" for n in range(5))):
        assert interface.validate_prediction(one), one


def test_bad_requests_are_refused_in_one_sentence(backend):
    for given, rule in (
        ({"tasks": [], "label_config": "<View/>"}, "must have <Image>"),
        ({"label_config": OTHER}, "tasks: Field required"),
        ({"tasks": [{}] * 1001, "label_config": OTHER}, "at most 1000"),
    ):
        assert rule in backend.problem(backend.post("/label-studio/predict", given), 422)


def test_basic_authentication_brings_the_token(model, folder):
    words = {f"any:{TOKEN}": 200, "any:" + "x" * len(TOKEN): 401, "any:": 401}
    values = {base64.b64encode(word.encode()).decode(): status for word, status in words.items()}
    with running(model, label_studio=folder, token=TOKEN) as client:
        for value, status in (values | {"%": 401}).items():
            given = {"Authorization": f"Basic {value}"}
            assert client.send("GET", "/label-studio/health", headers=given)[0] == status


def test_it_is_off_unless_a_folder_is_given(model, tmp_path):
    with running(model) as client:
        assert client.send("GET", "/label-studio/health")[0] == 404
    with pytest.raises(SettingsError, match="must be the folder"):
        ServeSettings(label_studio=tmp_path / "no")


# PhotoPrism's Vision API. Oracles: its structures and rules, from its source; the model itself.

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
