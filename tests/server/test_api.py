"""The API against what the library, ``CheckSession`` and ``Predictor`` say of the same photos."""

import base64
import io
import json
import re
import shutil
import threading
from dataclasses import asdict
from urllib.parse import quote

import numpy as np
import pytest
from forged import facts_of, rewrite
from made_index import made_index
from open_indexes import open_index
from patience import PATIENCE, wait_until
from PIL import ExifTags, Image
from pydantic import BaseModel
from search_setup import LABELS, save_model
from test_batching import metrics
from web_setup import TOKEN, encoded, running

from labelwise.base.progress import Silent
from labelwise.errors import SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.metrics import label_reliability
from labelwise.models.run_folder import RunFolder
from labelwise.photos import likeness_of, questions, update_index, verify_lists
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.lists import CheckSession
from labelwise.photos.query import answer
from labelwise.pictures.worker_starter import DecoderError, Decoders
from labelwise.queries import Query
from labelwise.server import ServeSettings, schemas
from labelwise.server.service import ServedModel, Service


@pytest.fixture(scope="module")
def predictor(run):
    return Predictor.load(run)


def expected(predictor, *contents):
    return predictor.predict([Image.open(io.BytesIO(content)) for content in contents])


def test_pictures_get_the_answers_of_the_model(server, predictor):
    contents = [encoded(seed=n, size=(30 + n, 40)) for n in range(5)]
    told = server.told(server.upload(*[(f"{n}.png", c) for n, c in enumerate(contents)]))
    truth = expected(predictor, *contents)
    for row, result in enumerate(told["results"]):
        assert result["name"] == f"{row}.png"
        shown = {one["label"]: one for one in result["labels"]}
        own = zip(truth.space.names, truth.probs[row], truth.sets[row], strict=True)
        for name, prob, decided in own:
            assert shown[name]["probability"] == pytest.approx(float(prob), abs=1e-6)
            assert (shown[name]["decided"], shown[name]["threshold"]) == (bool(decided), 0.5)
        assert result["decided"] == list(truth.labels[row])
        assert result["none"] == (not truth.labels[row])
        chances = [one["probability"] for one in result["labels"]]
        assert chances == sorted(chances, reverse=True)


def test_a_model_that_cuts_off_edges_does_so_once(tmp_path):
    folder = save_model(tmp_path / "cropping")
    transform = facts_of(folder / "model.json")["transform"]
    rewrite(folder / "model.json", transform=transform | {"crop": 0.75})
    content = encoded(size=(50, 40))
    truth = expected(Predictor.load(folder), content)
    with running(folder) as client:
        shown = json.loads(client.upload(("a.png", content))[2])["results"][0]["labels"]
    chances = {one["label"]: one["probability"] for one in shown}
    answered = [chances[name] for name in truth.space.names]
    assert answered == pytest.approx(truth.probs[0].tolist(), abs=1e-6)


def test_pictures_in_json_or_as_they_are_get_the_answers_of_the_form(server, predictor):
    contents = [encoded(seed=8), encoded("JPEG", seed=9)]
    text = [base64.b64encode(one).decode() for one in contents]
    given = {"pictures": [text[0], f"data:image/jpeg;base64,{text[1]}"]}
    sent = server.upload(("picture 0", contents[0]), ("picture 1", contents[1]))
    both = (server.post("/api/v1/predict", given), sent)
    ours, theirs = (server.told(one)["results"] for one in both)
    for one, other in zip(ours, theirs, strict=True):
        assert (one["name"], one["decided"]) == (other["name"], other["decided"])
        found, truth = ({x["label"]: x["probability"] for x in y["labels"]} for y in (one, other))
        assert found == pytest.approx(truth, abs=1e-6)  # passes of two sizes round differently
    for wrong in ([], {}, {"pictures": []}, {"pictures": [1]}, {"pictures": text, "x": 1}, "a"):
        assert server.post("/api/v1/predict", wrong)[0] == 422
    for wrong in ("no base64!", "data:text/html;base64,AAAA", "data:image/png,AAAA", "AAA"):
        answer = server.post("/api/v1/predict", {"pictures": [wrong]})
        assert "base64" in server.problem(answer, 422)
    content = encoded("JPEG", seed=3)
    path = "/api/v1/predict?format=hf"
    answer = server.send("POST", path, content, {"Content-Type": "image/jpeg"})
    ((first, *_),) = server.told(answer)
    truth = expected(predictor, content)
    assert first["score"] == pytest.approx(float(truth.probs.max()), abs=1e-6)
    assert first["label"] == truth.space.names[int(truth.probs.argmax())]


def test_head_is_get_without_the_body_and_the_description_says_how_to_prove_who_asks(server):
    for path in ("/", "/api/v1/model", "/health/live", "/openapi.json", "/nowhere"):
        status, headers, body = server.send("HEAD", path)
        expected, whole, content = server.send("GET", path)
        assert (status, body) == (expected, b"")
        assert headers["content-length"] == whole["content-length"] == str(len(content))
    whole = server.get("/openapi.json")
    assert set(whole["components"]["securitySchemes"]) == {"token", "cookie"}
    assert whole["paths"]["/api/v1/model"]["get"]["security"][0] == {"token": []}
    assert whole["paths"]["/health/live"]["get"]["security"] == []
    named = {one.rpartition("/")[2] for one in re.findall(r'"#/[^"]+', json.dumps(whole))}
    assert named <= whole["components"]["schemas"].keys()


def test_one_bad_picture_does_not_spoil_the_others_nor_has_it_the_servers_trouble(
    server, monkeypatch
):
    files = [("a.png", encoded()), ("b.png", b"no picture"), ("c.png", b"")]
    good, bad, empty = server.told(server.upload(*files))["results"]
    assert good["error"] is None
    assert bad["error"] == "b.png: this is not an image file"
    assert "empty" in empty["error"]
    assert server.problem(server.upload(files[1]), 422) == "b.png: this is not an image file"

    def trouble(*_):
        raise DecoderError("pictures cannot be opened in time at the moment; try again")

    monkeypatch.setattr(Decoders, "pixels", trouble)
    for files in ([("a.png", encoded())], [("a.png", encoded()), ("b.png", encoded())]):
        refused = server.upload(*files)
        assert "try again" in server.problem(refused, 503)
        assert refused[1]["retry-after"] == "1"
    monkeypatch.undo()
    assert server.upload(("a.png", encoded()))[0] == 200


def test_reliability_is_counted_on_held_out_photos(server, run):
    held_out = RunFolder(run).predictions("test")
    probs = held_out.link(held_out.logits.astype(np.float64))
    truth = held_out.labels > 0
    for column, view in enumerate(server.get("/api/v1/labels")):
        assert view["label"] == held_out.names[column]
        for one in view["bins"]:
            inside = (probs[:, column] > one["low"]) & (probs[:, column] <= one["high"])
            assert one["photos"] == inside.sum()
            assert one["carried"] == truth[inside, column].sum()
            assert one["share_low"] <= one["carried"] / max(one["photos"], 1) <= one["share_high"]
        found = label_reliability(probs, truth.astype(float))
        assert view["ece"] == pytest.approx(found.ece()[column])


def test_without_an_index_there_is_tagging_only(bare):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert bare.upload(("a.png", encoded()), **headers)[0] == 200
    for path in ("search?q=dog", "review", "complete", "check/x", f"photos/{'0' * 64}/thumbnail"):
        answer = bare.send("GET", f"/api/v1/{path}", headers=headers)
        assert "no index is served" in bare.problem(answer, 404)
    assert bare.get("/api/v1/model", **headers)["photos"] is None


@pytest.mark.parametrize("query", ["dog", "dog, -beach", "-row"])
def test_search_is_that_of_the_index(server, library, query):
    found = answer(open_index(library), Query.parse(query), top=24)
    shown, cursor = [], ""
    while cursor is not None:
        part = server.get(f"/api/v1/search?q={quote(query)}&top=7{cursor and '&cursor=' + cursor}")
        shown += part["hits"]
        cursor = part["cursor"]
    assert [hit["probability"] for hit in shown] == [hit.probability for hit in found.hits]
    assert [hit["reasons"] for hit in shown] == [hit.reasons for hit in found.hits]
    count = found.count
    assert part["expected"] == pytest.approx(count.expected)
    assert (part["low"], part["high"], part["photos"]) == (None, None, 24)
    assert part["untested"] == found.untested  # too few photos to compare them
    cut = found.hits[4].probability
    few = server.get(f"/api/v1/search?q={quote(query)}&at_least={cut}")
    assert few["above"] == len(few["hits"]) >= 4


def test_a_list_is_cut_with_an_estimate_or_the_reason_why_there_is_none(server):
    """Where nothing can be said of a list, none is shown; ``above`` counts what the cut leaves."""
    plain = server.get("/api/v1/search?q=cat&top=3")
    assert plain["statement"] is plain["above"] is None
    made = server.get("/api/v1/search?q=-beach&wrong_about=0.5")  # of 12 photos
    nothing = {"kind": "none", "wrong": None, "low": None, "high": None}
    words = "No estimate: your photos were not compared with the test photos; audit the list."
    assert made["statement"] == nothing | {"sentence": words}
    assert made["above"] > 0
    assert made["hits"] == []
    none = server.get("/api/v1/search?q=cat&top=3&wrong_about=0.001")
    words = "No estimate: no list is expected to be at most"
    assert none["statement"]["sentence"].startswith(words)
    assert none["hits"] == []


def test_an_answer_says_whether_its_photos_are_like_the_held_out_ones(run, tmp_path):
    """Oracle: the comparison of the index itself, for a library of other logits, and like ones."""
    draws = np.random.default_rng(1)
    for name, middle, outcome in (("like", -1, "alike"), ("unlike", 3, "pictures differ")):
        folder = made_index(tmp_path / f"{name}.index", run, draws.normal(middle, 2, (600, 4)))
        likeness = likeness_of(open_index(folder))
        assert likeness.likeness.outcome == outcome
        with running(run, folder, decoders=0) as server:
            found = server.get("/api/v1/search?q=dog&wrong_about=0.4")
            old = server.get("/api/v1/search?q=dog&wrong_at_most=0.4")  # until 0.5
            assert old["hits"] == found["hits"]
            assert found["likeness"] == {"outcome": outcome, "sentence": likeness.sentence()}
            assert len(found["hits"]) == (50 if outcome == "alike" else 0)
            if outcome == "alike":
                judged = found["statement"]
                assert judged["low"] <= judged["wrong"] <= judged["high"]
                assert f" of this list of {found['above']} photos is wrong (" in judged["sentence"]
            else:
                assert found["statement"]["kind"] == "none"
                assert "your photos differ from the test photos;" in found["statement"]["sentence"]


def test_a_photo_and_its_likes(server, library):
    index = open_index(library)
    hits = server.get("/api/v1/search?q=dog&top=1")["hits"]
    photo = server.get(f"/api/v1/photos/{hits[0]['id']}")
    row = index.store.rows_by_hash([bytes.fromhex(hits[0]["id"])])[bytes.fromhex(hits[0]["id"])]
    probs = np.exp(index.log_probs(np.array([row])))[0]
    shown = {one["label"]: one["probability"] for one in photo["labels"]}
    assert shown == pytest.approx(dict(zip(index.space.names, probs.tolist(), strict=True)))
    assert (photo["width"], photo["height"], photo["copies"]) == (32, 24, 0)
    near = server.get(f"/api/v1/photos/{hits[0]['id']}/similar?count=3")
    assert len(near) == 3
    assert hits[0]["id"] not in {one["id"] for one in near}
    status, _, body = server.send("GET", f"/api/v1/photos/{near[0]['id']}/thumbnail?side=160")
    assert status == 200
    assert Image.open(io.BytesIO(body)).size == (32, 24)
    assert server.send("GET", f"/api/v1/photos/{near[0]['id']}/thumbnail?side=99")[0] == 422


def test_a_photo_is_given_back_as_its_file_is_with_its_path_and_place(run, tmp_path):
    """Oracle: the file itself. HEIC photos are drawn as any other, where they can be read."""
    pillow_heif = pytest.importorskip("pillow_heif")
    exif, gps = Image.Exif(), ExifTags.GPS
    exif[ExifTags.Base.Model] = "X-T5"
    place = {gps.GPSLatitudeRef: "N", gps.GPSLatitude: (52, 30, 36.0)}
    place |= {gps.GPSLongitudeRef: "E", gps.GPSLongitude: (13, 22, 30.0)}
    exif.get_ifd(ExifTags.IFD.GPSInfo).update(place)
    photos = tmp_path / "photos"
    photos.mkdir()
    photo = Image.open(io.BytesIO(encoded(size=(80, 60))))
    photo.save(photos / "caf\u00e9 1.jpg", exif=exif)
    pillow_heif.from_pillow(photo).save(photos / "phone.heic")
    update_index(tmp_path / "photos.index", [photos], model=run, watch=Silent())
    with running(run, tmp_path / "photos.index") as server:
        hits = server.get("/api/v1/search?q=dog")["hits"]
        for hit in hits:
            file, address = photos / hit["name"], f"/api/v1/photos/{hit['id']}"
            status, headers, body = server.send("GET", f"{address}/original")
            assert (status, body) == (200, file.read_bytes())
            assert headers["content-type"] == "application/octet-stream"
            assert headers["content-disposition"].endswith(quote(hit["name"]))
            known = ("X-T5", 52.51, 13.375) if file.suffix == ".jpg" else (None, None, None)
            expected = {"paths": [str(file)]}
            expected |= dict(zip(("camera", "latitude", "longitude"), known, strict=True))
            assert server.get(f"{address}/facts") == expected
            _, _, drawn = server.send("GET", f"{address}/thumbnail?side=160")
            assert Image.open(io.BytesIO(drawn)).size == (80, 60)
            file.write_bytes(b"another photo by now")
            for part in ("facts", "original"):
                gone = server.send("GET", f"{address}/{part}")
                assert "is gone or has changed" in server.problem(gone, 404)
    assert len(hits) == 2


def test_a_search_looks_at_some_folders_and_days_and_says_what_is_wrong(server, library):
    """Oracle: the search of the index with the same filter."""
    found = answer(open_index(library), Query.parse("dog"), photos=PhotoFilter("2023"), top=24)
    shown = server.get("/api/v1/search?q=dog&folder=2023&top=24")
    assert (shown["photos"], len(shown["hits"])) == (found.photos, len(found.hits)) == (12, 12)
    assert server.get("/api/v1/search?q=dog&since=1990")["photos"] == 0  # none has a date
    for path, words in (
        ("search?q=dog&since=June", "since must be a day"),
        ("photos/abc", "photo must be the id of a photo as /api/v1/search lists it: 64 digits"),
        ("search?q=dog&cursor=x", "cursor must be the one of the answer before"),
    ):
        said = server.problem(server.send("GET", f"/api/v1/{path}"), 422)
        assert said.startswith(words)
        assert "^" not in said


def test_corrections_count_at_once_are_undone_and_outlive_the_server(run, own_library):
    with running(run, own_library, decoders=0) as server:
        hits = server.get("/api/v1/search?q=dog")["hits"]
        photo = f"/api/v1/photos/{hits[0]['id']}"
        labels = {"dog": "absent", "cat": "unknown"}
        view = server.told(server.put(f"{photo}/labels", {"labels": labels}))
        shown = {one["label"]: one for one in view["labels"]}
        assert (shown["dog"]["probability"], shown["dog"]["decided"]) == (0, False)
        assert (shown["dog"]["corrected"], shown["cat"]["corrected"]) == ("absent", "unknown")
        assert view["before"] == {"dog": "withdrawn", "cat": "withdrawn"}
        after = server.get("/api/v1/search?q=dog")["hits"]
        assert hits[0]["id"] not in {hit["id"] for hit in after if hit["probability"] > 0}
        assert after[0]["probability"] != hits[1]["probability"]  # the label was fitted anew
    with running(run, own_library, decoders=0) as server:
        said = {one["label"]: one["corrected"] for one in server.get(photo)["labels"]}
        assert said["dog"] == "absent"
        assert server.put(f"{photo}/labels", {"labels": view["before"]})[0] == 200
        again = server.get("/api/v1/search?q=dog")["hits"]
        assert [hit["probability"] for hit in again] == pytest.approx(
            [hit["probability"] for hit in hits]
        )
        for bad in ({"dgo": "absent"}, {"dog": "perhaps"}, {}):
            assert server.put(f"{photo}/labels", {"labels": bad})[0] == 422
        nowhere = server.put(f"/api/v1/photos/{'0' * 64}/labels", {"labels": {"dog": "absent"}})
        assert nowhere[0] == 404


def test_the_review_queue_is_that_of_the_index(server, library):
    for by in ("uncertain", "missing", "wrong", "value"):
        asked = server.get(f"/api/v1/review?by={by}&count=5")["questions"]
        truth = questions(open_index(library), by, 5)
        assert [q["label"] for q in asked] == [q.label for q in truth]
        chances = [q.probability for q in truth]
        assert [q["probability"] for q in asked] == pytest.approx(chances)
    (only,) = server.get("/api/v1/review?label=cat&count=1")["questions"]
    assert only["label"] == "cat"
    assert server.get("/api/v1/complete?q=dog,%20-b") == ["dog, -beach"]
    assert len(server.get("/api/v1/complete")) == 4


def test_metrics_count_what_happened(run):
    with running(run, decoders=0) as server:
        answer = server.upload(("a.png", encoded()), ("b.png", b"x"))
        given = json.loads(answer[2])["results"][0]["decided"]
        server.send("GET", "/nowhere/at/all")
        text = metrics(server)
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        assert values['labelwise_photos_total{model="tiny"}'] == "1.0"
        assert values["labelwise_failures_total"] == "1.0"
        assert values["labelwise_queue_length"] == "0.0"
        assert values["labelwise_batch_size_count"] == "1.0"
        for name in ("dog", "cat", "beach"):
            counted = values[f'labelwise_predictions_total{{label="{name}",model="tiny"}}']
            assert float(counted) == (name in given)
        assert not [name for name in values if "nowhere" in name]


def test_photos_that_fitted_the_link_are_named_as_such(tmp_path):
    """A cross-fitted run without a test split: each of its photos fitted something."""
    run = save_model(tmp_path / "run")
    predictions = run / "predictions"
    (predictions / "test.parquet").rename(predictions / "promise.parquet")
    shutil.copy(predictions / "promise.parquet", predictions / "val.parquet")
    (run / "settings.yaml").write_text("cross_fit: true\n")
    note = "shown on photos of the split promise, which the calibration was fitted on"
    with running(run) as server:
        assert server.get("/api/v1/model")["held_out"] == "promise"
        assert [one for one in server.get("/api/v1/trust")["notes"] if note in one]
    (run / "settings.yaml").write_text("cross_fit: false\n")
    with running(run) as server:
        assert server.get("/api/v1/model")["held_out"] == "promise"
        assert server.get("/api/v1/trust")["notes"] == []


def test_what_is_sent_may_hold_nothing_unknown_and_answers_may_grow():
    """Oracle: pydantic's own schema of each model."""
    models = [model for model in vars(schemas).values() if isinstance(model, type)]
    models = [model for model in models if issubclass(model, BaseModel)]
    strict = {model.__name__ for model in models if model.model_config.get("extra") == "forbid"}
    assert strict - {"Strict"} == {"CorrectionsIn", "CheckIn", "CheckAnswerIn", "SessionIn"}


LIST = {"q": "dog", "wrong_at_most": 0.3, "top": 12}


def asked(server, step="list", **more):
    """Return the view after a step; an answer's photo and answer stand beside its list."""
    said = {name: more.pop(name) for name in ("photo", "answer") if name in more}
    given = {"checked": {**LIST, **more}, **said} if said else {**LIST, **more}
    return server.told(server.post(f"/api/v1/check/{step}", given))


def beside(server, **options):
    """Return the session of the same list, opened by somebody else."""
    index = open_index(server.library)
    chosen = {"wrong_at_most": 0.3, "top": 12, "who": "page", **options}
    return index, CheckSession(index, Query.parse("dog"), **chosen)


def id_of(index, row):
    return index.store.contents_of([row])[row].hash.hex()


def test_a_check_asks_what_the_session_asks_and_ends_with_its_promise(own):
    view = asked(own)
    seen = []
    while view["statement"] is None:
        index, session = beside(own)
        photo, state = session.ask("page"), session.state()
        assert view["question"]["photo"]["id"] == photo.photo
        assert view["question"]["repeated"] == photo.repeated
        assert (view["checked"], view["more"]) == (state.check.checked, state.more)
        after = session.upcoming("page", photo)
        assert view["following"] == (after[0].photo if after else None)
        index.close()
        seen.append(view["question"]["photo"]["id"])
        view = asked(own, "answer", photo=seen[-1], answer="no" if len(seen) == 2 else "yes")
    index, session = beside(own)
    assert view["statement"] == asdict(session.state().statement)
    assert view["question"] is None
    left = [id_of(index, row) for row in session.left().tolist()]
    assert [one["id"] for one in view["photos"]] == left
    assert (view["listed"], view["left"], len(left)) == (12, 11, 11)
    assert seen[1] not in left
    assert {one.who for one in index.store.corrections("dog")} == {"page"}
    index.close()


def test_an_answer_is_taken_once_and_taken_back(own):
    before = asked(own)
    photo = before["question"]["photo"]["id"]
    after = asked(own, "answer", photo=photo, answer="no")
    assert (after["checked"], after["left"]) == (1, 11)
    twice = own.post("/api/v1/check/answer", {"checked": LIST, "photo": photo, "answer": "no"})
    assert "not the one asked about now" in own.problem(twice, 422)
    assert asked(own) == after
    assert asked(own, "undo") == before
    assert asked(own, "undo") == before
    assert open_index(own.library).store.corrections() == []


def test_a_list_that_would_take_long_offers_a_shorter_one_in_words_of_the_page(run, tmp_path):
    """Oracle: the state of the session, for a library of 600 chosen logits."""
    logits = np.random.default_rng(0).normal(-1, 2, (600, 4))
    folder = made_index(tmp_path / "many.index", run, logits)
    options = {"wrong_at_most": 0.05, "top": 600}
    with running(run, folder, decoders=0) as server:
        server.library = folder
        view = asked(server, **options)
        assert view["shorter"] == 300
        assert "a list of the best 300 may take fewer" in view["sentence"]
        assert "--" not in view["sentence"]
        photo = view["question"]["photo"]["id"]
        view = asked(server, "answer", **options, photo=photo, answer="no")
        index, session = beside(server, **options)
        assert session.state().more is None  # so nobody is asked on
        assert view["question"] is None
        index.close()
        assert asked(server, wrong_at_most=0.05, top=view["shorter"])["listed"] == 300


def test_photos_that_leave_the_library_leave_its_lists(own):
    for given, words in (
        ({"q": "dog", "wrong_at_most": 0.001}, "no list of dog is likely to be at most 0.1 % wr"),
        ({"q": "zebra"}, "unknown label 'zebra'"),
    ):
        assert words in own.problem(own.post("/api/v1/check/list", given), 422)
    first = asked(own)["question"]["photo"]
    with open_index(own.library) as index:
        (root,) = index.store.roots()
        assert len(index.store.mark_missing(root, "", [first["name"]])) == 1
    view = asked(own)
    assert view["listed"] == 11
    assert view["question"]["photo"]["id"] != first["id"]


def test_receipts_are_those_of_the_index_with_what_is_known_of_each(own):
    """Oracle: the receipts and verdicts of the index, read beside the server."""
    assert own.get("/api/v1/receipts") == {"receipts": [], "together": "nothing was promised"}
    view = asked(own)
    while view["statement"] is None:
        view = asked(own, "answer", photo=view["question"]["photo"]["id"], answer="yes")
    shown = own.get("/api/v1/receipts")
    with open_index(own.library) as index:
        verified = verify_lists(index)
    assert shown["together"] == str(verified.together)
    assert [one["number"] for one in shown["receipts"]] == [1]
    for one, (receipt, verdict) in zip(shown["receipts"][::-1], verified.lists, strict=True):
        assert (one["text"], one["told"]) == (str(receipt.promise), str(verdict))
        assert (one["photos"], one["verdict"]) == (receipt.photos, verdict.verdict)
        assert (one["who"], one["method"]) == ("page", receipt.promise.test)
    asked(own, "undo")
    first = own.get("/api/v1/receipts")["receipts"][0]
    assert (first["withdrawn"], first["told"]) == (True, "an answer it rests on was taken back")


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
    refused = both.problem(both.upload(picture, path="/api/v1/models/cats/predict"), 404)
    assert refused == "there is no model of this name; those here are 'tiny', 'colours'"


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
        refused = server.problem(server.post("/api/v1/models/tiny/reload", {}), 409)
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
        assert server.post("/api/v1/models/tiny/reload", {})[0] == 200
        _, probs = told(server.upload(("a.png", content)))
        assert probs == pytest.approx(truth(own_run, content), abs=1e-6)
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
