"""Jobs for many photos. Oracles: ``labelwise predict`` on the same files; a server killed between.

A job that goes on after a restart gives the lines that one without a restart gives.
"""

import csv
import io
import json
import shutil
import threading

import pytest
from patience import PATIENCE, wait_until
from search_setup import LABELS, save_model
from typer.testing import CliRunner
from web_setup import TOKEN, encoded, form, running

from labelwise.cli.app import app
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.models.answer_rows import Answer
from labelwise.server import job_folder as job_folder_module
from labelwise.server import jobs as jobs_module
from labelwise.server.job_folder import JobFacts, JobFolder
from labelwise.server.served_model import ServedModel
from labelwise.server.uploads import Upload

JOBS = "/api/v1/jobs"
PHOTOS = [(f"{n}.png", encoded(seed=n)) for n in range(20)] + [("=bad.png", b"no picture")]


def begin(server, **asked):
    status, _, body = server.post(JOBS, asked)
    assert status == 201, body
    return f"{JOBS}/{json.loads(body)['id']}"


def send(server, job, photos):
    for start in range(0, len(photos), 16):
        answer = server.upload(*photos[start : start + 16], path=f"{job}/pictures")
        assert answer[0] == 202, answer


def finished(server, job):
    wait_until(lambda: server.get(job)["state"] == "done")
    return server.get(job)


def lines(server, job):
    status, headers, body = server.send("GET", f"{job}/results")
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in body.splitlines()]


def test_results_are_those_of_predict(run, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, content in PHOTOS[:-1]:
        (photos / name).write_bytes(content)
    paths = [str(photos / name) for name, _ in PHOTOS[:-1]]
    for kind in ("jsonl", "csv"):
        out = tmp_path / f"out.{kind}"
        done = CliRunner().invoke(app, ["predict", str(run), *paths, "-o", str(out)])
        assert done.exit_code == 0, done.output
    truth = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with running(run, decoders=0) as server:
        job = begin(server)
        assert server.get(job)["state"] == "open"
        send(server, job, PHOTOS)
        assert server.post(f"{job}/close", {})[0] == 200
        view = finished(server, job)
        assert (view["received"], view["answered"], view["failed"]) == (21, 21, 1)
        assert (view["model"], view["kept"], view["held_up"]) == ("tiny", False, None)
        found = lines(server, job)
        status, headers, body = server.send("GET", f"{job}/results?format=csv")
        assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
        assert server.get(JOBS) == [view]
        version = server.get("/v2/models/tiny")["versions"][0]
        answer = server.upload(("a.png", PHOTOS[0][1]), path=f"{job}/pictures")
        assert "is closed and takes no more" in server.problem(answer, 409)
        assert server.send("DELETE", job)[0] == 204
        assert server.problem(server.send("GET", job), 404)
        assert server.get(JOBS) == []
        queue = server.app.service.queue
        for client in "ab":
            queue.reserve(client, queue.client_queue)
        assert server.problem(server.upload(PHOTOS[0]), 429)
        send(server, begin(server), PHOTOS[:1])  # it waits with the job, and needs no place
    for one, other, (name, _) in zip(found, truth, PHOTOS, strict=False):
        assert one["path"] == name
        assert one["model"] == version
        assert one["labels"] == other["labels"]
        assert one["probs"] == pytest.approx(other["probs"], abs=1e-6)
    assert found[-1]["path"] == "=bad.png"
    assert "=bad.png" in found[-1]["error"]
    rows = list(csv.reader(io.StringIO(body.decode())))
    written = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert rows[0] == written[0]
    for row, other in zip(rows[1:-1], written[1:], strict=True):
        assert row[1:3] == other[1:3]
        assert [float(cell) for cell in row[3:]] == pytest.approx(
            [float(cell) for cell in other[3:]], abs=1e-5
        )
    assert rows[-1][0] == "'=bad.png"  # not a formula


def test_a_job_goes_on_where_another_server_left_it(run, tmp_path, monkeypatch):
    folder, real, go = tmp_path / "jobs", ServedModel.forward, threading.Event()
    seen = []

    def slow(self, pixels, names):
        if threading.current_thread().name.startswith("model"):
            seen.append(len(names))
            if sum(seen) > 4:  # the first four pictures are answered
                go.wait(PATIENCE)
        return real(self, pixels, names)

    with running(run, decoders=0) as server:
        job = begin(server)
        send(server, job, PHOTOS)
        server.post(f"{job}/close", {})
        finished(server, job)
        truth = lines(server, job)
    monkeypatch.setattr(ServedModel, "forward", slow)
    with running(run, decoders=0, jobs=folder, max_batch=4) as server:
        job = begin(server)
        send(server, job, PHOTOS)
        assert server.post(f"{job}/close", {})[0] == 200
        wait_until(lambda: sum(seen) > 4)
        view, before = server.get(job), lines(server, job)
        go.set()  # the server ends in the middle of the job
    assert (view["state"], view["answered"], len(before)) == ("working", 4, 4)
    monkeypatch.setattr(ServedModel, "forward", real)
    (kept,) = folder.iterdir()
    with (kept / "results.jsonl").open("ab") as stream:
        stream.write(b'{"path": "cut o')
    with running(run, decoders=0, jobs=folder) as server:
        assert finished(server, job)["kept"]
        after = lines(server, job)
        with (
            pytest.raises(LabelwiseError, match="another server keeps its jobs"),
            running(run, jobs=folder),
        ):
            pass
    assert after[: len(before)] == before
    for one, other in zip(after, truth, strict=True):
        assert one.keys() == other.keys()
        assert one["path"] == other["path"]
        assert one.get("labels") == other.get("labels")
        assert one.get("probs", {}) == pytest.approx(other.get("probs", {}), abs=1e-6)
    assert list((kept / "pictures").iterdir()) == []


def test_a_job_that_is_cancelled_keeps_what_was_answered(run, monkeypatch):
    real, go = ServedModel.forward, threading.Event()
    monkeypatch.setattr(
        ServedModel,
        "forward",
        lambda self, pixels, names: (
            go.wait(PATIENCE if threading.current_thread().name.startswith("model") else 0),
            real(self, pixels, names),
        )[1],
    )
    with running(run, decoders=0) as server:
        job = begin(server)
        send(server, job, PHOTOS)
        wait_until(lambda: "labelwise_queue_length 16.0" in metrics(server))
        assert json.loads(server.post(f"{job}/cancel", {})[2])["state"] == "cancelled"
        go.set()
        wait_until(lambda: "labelwise_queue_length 0.0" in metrics(server))
        view = server.get(job)
        assert (view["state"], view["received"], view["answered"]) == ("cancelled", 21, 0)
        assert lines(server, job) == []


def metrics(server):
    return server.send("GET", "/metrics")[2].decode()


def test_there_are_limits(run, monkeypatch):
    monkeypatch.setattr(jobs_module, "MOST_JOBS", 2)
    monkeypatch.setattr(jobs_module, "MOST_PICTURES", 2)
    with running(run, decoders=0, jobs_disk=100_000, max_body=200_000) as server:
        job = begin(server)
        answer = server.upload(*PHOTOS[:3], path=f"{job}/pictures")
        assert "a job may hold 2 pictures" in server.problem(answer, 422)
        answer = server.upload(("a", bytes(120_000)), path=f"{job}/pictures")
        assert "as many bytes as it keeps" in server.problem(answer, 429)
        assert server.get(job)["received"] == 0
        answer = server.send(
            "POST", f"{job}/pictures", bytes(200_001), {"Content-Type": "image/png"}
        )
        assert "200,000 bytes" in server.problem(answer, 413)
        begin(server)
        assert "keeps 2 jobs" in server.problem(server.post(JOBS, {}), 429)
        body, kind = form(*PHOTOS[:1])
        nowhere = server.send("POST", f"{JOBS}/{'0' * 32}/pictures", body, {"Content-Type": kind})
        assert "no such job" in server.problem(nowhere, 404)
        assert server.problem(server.post(JOBS, {"model": "cats"}), 404)


def test_one_address_leaves_room_for_the_jobs_of_others(run, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "MOST_JOBS", 4)
    monkeypatch.setattr(jobs_module, "MOST_OF_CLIENT", 2)
    with running(run, decoders=0, jobs=tmp_path / "jobs") as server:
        job = begin(server)
        begin(server)
        refused = server.problem(server.post(JOBS, {}), 429)
        assert refused == (
            "the server keeps 2 jobs of one address; delete one whose results you have"
        )
        assert server.send("DELETE", job)[0] == 204
        begin(server)
        assert server.problem(server.post(JOBS, {}), 429)
    with running(run, decoders=0, jobs=tmp_path / "jobs") as server:
        assert len(server.get(JOBS)) == 2  # of nobody, and among the four
        begin(server)
        begin(server)
        assert "keeps 4 jobs;" in server.problem(server.post(JOBS, {}), 429)


def test_jobs_that_begin_at_once_share_the_places(run, monkeypatch):
    monkeypatch.setattr(jobs_module, "MOST_OF_CLIENT", 2)
    real, go = JobFolder.create.__func__, threading.Event()

    def slow(cls, path, facts):
        go.wait(PATIENCE)
        return real(cls, path, facts)

    monkeypatch.setattr(JobFolder, "create", classmethod(slow))
    found = []
    with running(run, decoders=0) as server:
        asking = [
            threading.Thread(target=lambda: found.append(server.post(JOBS, {})[0]))
            for _ in range(5)
        ]
        for one in asking:
            one.start()
        wait_until(lambda: len(found) == 3)  # those that find no place, while two wait
        go.set()
        for one in asking:
            one.join(PATIENCE)
        assert sorted(found) == [201, 201, 429, 429, 429]
        assert len(server.get(JOBS)) == 2


def test_a_job_that_could_not_begin_takes_no_place(run, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "MOST_OF_CLIENT", 1)
    folder = tmp_path / "jobs"
    with running(run, decoders=0, jobs=folder) as server:
        real = JobFolder.create

        def full(path, facts):
            raise LabelwiseError("no space is left")

        monkeypatch.setattr(JobFolder, "create", full)
        assert server.post(JOBS, {})[0] >= 400
        monkeypatch.setattr(JobFolder, "create", real)
        begin(server)


def test_jobs_are_behind_the_token(run):
    with running(run, decoders=0, token=TOKEN) as server:
        assert server.send("GET", JOBS)[0] == 401
        assert server.post(JOBS, {})[0] == 401


def test_a_job_waits_for_its_model(run, tmp_path):
    second = save_model(tmp_path / "second", seed=2)
    with running(run, decoders=0, jobs=tmp_path / "jobs", models=(("second", second),)) as server:
        job = begin(server, model="second")
        save_model(second, seed=3, labels=("a", "b"))
        assert server.post("/api/v1/models/second/reload", {})[0] == 200
        send(server, job, PHOTOS[:1])
        assert "has other labels now" in server.get(job)["held_up"]
    with running(run, decoders=0, jobs=tmp_path / "jobs") as server:
        assert server.get(job)["held_up"].startswith("no model 'second' is served now")
        assert server.get(job)["answered"] == 0


FACTS = {"id": "a" * 32, "model": "tiny", "labels": LABELS, "made": "2026-01-01"}


def on_disk(folder):
    return sum(
        file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and file.name != "job.json"
    )


def made_job(folder, count=3):
    job = JobFolder.create(folder, JobFacts(**FACTS))
    job.add([Upload(f"{n}", b"x" * (n + 1)) for n in range(count)])
    return job


GOOD = Answer(0, "0", ("dog",), (0.1, 0.2, 0.9, 0.0))


def pictures_of(folder):
    return sorted(file.name for file in (folder / "pictures").iterdir())


def test_a_job_counts_the_bytes_that_it_has_on_disk(tmp_path):
    job = made_job(tmp_path / "job")
    facts = len((tmp_path / "job" / "job.json").read_bytes())
    assert job.size == on_disk(tmp_path / "job") > 6
    job.answer([GOOD, Answer(1, "1", error="not a picture")], "v")
    assert job.size == on_disk(tmp_path / "job")
    again = JobFolder.load(tmp_path / "job")
    assert again.size == job.size + facts
    assert (job.failed, again.failed) == (1, 1)
    job.set_state("cancelled")
    assert job.size == on_disk(tmp_path / "job")
    job.remove()
    assert not (tmp_path / "job").exists()


def test_a_cancelled_job_has_no_pictures_left_now_and_after_a_restart(tmp_path):
    job = made_job(tmp_path / "job")
    job.answer([GOOD], "v")
    job.set_state("cancelled")
    assert pictures_of(tmp_path / "job") == []
    assert (job.waiting, job.received, job.answered) == (0, 3, 1)
    (tmp_path / "job" / "pictures" / "000000002").write_bytes(b"killed before it was removed")
    again = JobFolder.load(tmp_path / "job")
    assert (again.facts.state, again.waiting) == ("cancelled", 0)
    assert pictures_of(tmp_path / "job") == []


def test_what_a_killed_server_left_is_cleared_away(tmp_path):
    job = made_job(tmp_path / "job")
    job.answer([GOOD], "v")
    results = tmp_path / "job" / "results.jsonl"
    line = results.read_bytes()
    # an answered picture that was not removed, and one whose line was not written
    for name in ("000000000", "000000003"):
        (tmp_path / "job" / "pictures" / name).write_bytes(b"1")
    results.write_bytes(line * 5)  # more answers than pictures
    again = JobFolder.load(tmp_path / "job")
    assert (again.received, again.answered, again.waiting) == (3, 3, 0)
    assert results.read_bytes() == line * 3
    assert pictures_of(tmp_path / "job") == []
    results.write_bytes(line)
    shutil.rmtree(tmp_path / "job" / "pictures")  # empty folders are not always copied
    again = JobFolder.load(tmp_path / "job")
    assert again.next_pictures(9) == [Upload("1", b""), Upload("2", b"")]


def test_results_come_in_pieces_of_whole_lines(tmp_path, monkeypatch):
    job = made_job(tmp_path / "job")
    job.answer([GOOD, GOOD, GOOD], "v")
    whole = (tmp_path / "job" / "results.jsonl").read_bytes()
    monkeypatch.setattr(job_folder_module, "CHUNK", 1)
    pieces = list(job.result_chunks())
    assert pieces == [*whole.splitlines(keepends=True), b""]


def result(**changed):
    probs = dict.fromkeys(LABELS, 0.5) | changed
    return json.dumps({"path": "a", "labels": [], "probs": probs}).encode() + b"\n"


def test_a_damaged_job_is_named(tmp_path):
    job = JobFolder.create(tmp_path / "job", JobFacts(**FACTS))
    job.add([Upload("a", b"1"), Upload("b", b"22")])
    job.answer([Answer(0, "a", ("dog",), (0.1, 0.2, 0.9, 0.0))], "v")
    again = JobFolder.load(tmp_path / "job")
    assert (again.received, again.answered, again.waiting) == (2, 1, 1)
    assert again.next_pictures(5) == [Upload("b", b"22")]
    assert list(again.results()) == [Answer(0, "a", ("dog",), (0.1, 0.2, 0.9, 0.0))]
    assert again.size == job.size + len((tmp_path / "job" / "job.json").read_bytes())
    for name, content in (
        ("job.json", b"{}"),
        ("job.json", b"\xff"),
        ("pictures.jsonl", b'{"name": "a"}\n{"nam": 1}\n'),
        ("results.jsonl", b"[]\n"),
        ("results.jsonl", b'{"path": "a", "labels": [], "probs": {"dog": "x"}}\n'),
        ("results.jsonl", result(dog=1.5)),
        ("results.jsonl", result(dog="x")),
        ("results.jsonl", result(dog=True)),
    ):
        file = tmp_path / "job" / name
        whole = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"is damaged .*; remove its folder"):
            JobFolder.load(tmp_path / "job")
        file.write_bytes(whole)


def test_what_must_stand_beside_probabilities_is_in_both_forms_of_the_results(tmp_path):
    """Oracle: the answers themselves, of a model that was answered for between two pictures."""
    facts = JobFacts(id="0" * 32, model="m", labels=("red",), made="2026-01-01T00:00:00+00:00")
    job = JobFolder.create(tmp_path / "job", facts)
    job.add([Upload(name, b"x") for name in ("a", "b", "c")])
    beside = "not calibrated: no answers yet"
    job.answer([Answer(0, "a", ("red",), (0.75,), caution=beside)], "v1")
    job.answer([Answer(1, "b", error="no picture"), Answer(2, "c", (), (0.25,))], "v2")
    for one in (job, JobFolder.load(tmp_path / "job")):
        lines = [json.loads(line) for line in b"".join(one.result_chunks()).splitlines()]
        assert [line.get("caution") for line in lines] == [beside, None, None]
        table = list(csv.reader(io.StringIO(b"".join(jobs_module._csv(one)).decode())))
        assert table[0] == ["path", "labels", "error", "caution", "red"]
        assert [row[3:] for row in table[1:]] == [[beside, "0.75"], ["", ""], ["", "0.25"]]
        assert one.failed == 1
