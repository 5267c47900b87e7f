"""The access log and what is said of alarms, shares and promises, held to what was sent."""

import json
import shutil

import pytest
from web_setup import encoded, running

from labelwise.decide import Promise
from labelwise.errors import SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.server.monitoring import AccessLog


def test_only_drawn_photos_count_as_audited(run, own_library):
    with running(run, own_library, decoders=0) as server:
        first = server.get("/api/v1/review?by=audit&count=8")["questions"]
        assert len({(one["id"], one["label"]) for one in first}) == 8
        assert {one["label"] for one in first} == {"beach", "cat", "dog", "row"}
        one = first[0]
        path = f"/api/v1/photos/{one['id']}/labels"
        assert server.put(path, {"labels": {one["label"]: "present"}})[0] == 200

        def audited():
            return {a["label"]: a for a in server.get("/api/v1/trust")["alarms"]}

        assert audited()[one["label"]]["audited"] == 0  # a correction is no audit
        again = server.get("/api/v1/review?by=audit&count=8")["questions"]
        assert one["id"] in {q["id"] for q in again if q["label"] == one["label"]}
        given = {"labels": {one["label"]: "absent"}, "source": "audit"}
        assert server.put(path, given)[0] == 200
        alarm = audited()[one["label"]]
        assert (alarm["audited"], alarm["present"]) == (1, 0)
        assert alarm["expected"] == pytest.approx(one["probability"])
        three = server.get("/api/v1/review?by=audit&count=3")["questions"]  # the others come first
        assert one["label"] not in {q["label"] for q in three}
        # Changing one's mind keeps the photo in the sample.
        assert server.put(path, {"labels": {one["label"]: "present"}})[0] == 200
        assert audited()[one["label"]]["present"] == 1
        text = server.send("GET", "/metrics")[2].decode()
        assert f'labelwise_calibration_evalue{{label="{one["label"]}"}}' in text


def test_recent_pictures_tell_the_share_of_a_label(run):
    with running(run, decoders=0, max_files=64) as server:
        files = [(f"{n}.png", encoded(seed=n)) for n in range(60)]
        assert server.upload(*files)[0] == 200
        shares = server.get("/api/v1/trust")["shares"]
        assert {one["label"] for one in shares} == {"beach", "cat", "dog", "row"}
        assert {one["photos"] for one in shares} == {60}
        text = server.send("GET", "/metrics")[2].decode()
        assert 'labelwise_label_share{label="dog",model="tiny"}' in text


def test_promises_are_checked_on_audited_photos_and_not_on_what_people_happened_to_see(
    run, own_library, tmp_path
):
    promise = Promise("recall", 0.5, 0.9, 100, 90, 0.6, "promise photos", "2026-01-01", "exact")
    folder = tmp_path / "promised"
    shutil.copytree(run, folder)
    spec = RunFolder(folder).spec.model_copy(update={"promises": (promise.spec(),)})
    spec.save(folder / "model.json")
    with running(folder, own_library, decoders=0) as server:
        (one,) = server.get("/api/v1/promises")
        assert one["verdict"] == "cannot tell"
        assert one["text"] == str(promise)
        hits = server.get("/api/v1/search?q=dog")["hits"]
        # Read before the first correction, which changes what the model says of the others.
        photos = [server.get(f"/api/v1/photos/{hit['id']}") for hit in hits]
        for source, verdict in (("correction", "cannot tell"), ("audit", "broken")):
            for photo in photos:
                sets = {label["label"]: label["decided"] for label in photo["labels"]}
                wrong = {name: "absent" if given else "present" for name, given in sets.items()}
                told = {"labels": wrong, "source": source}
                assert server.put(f"/api/v1/photos/{photo['id']}/labels", told)[0] == 200
            (one,) = server.get("/api/v1/promises")
            assert one["verdict"] == verdict
        assert "on 12 new photos" in one["checked"]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_request_is_one_line_without_what_is_private(run, tmp_path):
    path = tmp_path / "access.jsonl"
    with running(run, decoders=0, access_log=path) as server:
        answers = [
            server.send("GET", "/api/v1/model?secret=1", headers={"Authorization": "secret"}),
            server.upload(("secret.png", encoded())),
            server.send("HEAD", "/health/live"),
            server.send("GET", '/a"%0a%25s'),
        ]
    found = lines_of(path)
    sent = [(status, len(body)) for status, _, body in answers]
    assert [(one["status"], one["bytes"]) for one in found] == sent
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
    assert [file.name[12:] for file in files] == ["", ".1", ".2", ".3", ".4", ".5"]
    assert all(file.stat().st_size <= 2000 for file in files)
    kept = [one["status"] for file in [*files[:0:-1], path] for one in lines_of(file)]
    assert kept == list(range(200 - len(kept), 200))
    with pytest.raises(SettingsError, match="cannot be written"):
        AccessLog(tmp_path / "nowhere" / "access.jsonl")
