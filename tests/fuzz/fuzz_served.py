"""SERVED: jobs that a server kept, answers that a client gets, lists of words, what an index keeps.

A job is read a second time line by line with ``json``; an answer with ``json`` alone; words with
``str.split``. A damaged ``likeness.json`` is made anew, so its outcome must be the undamaged one's.
"""

import contextlib
import json
import socket
import tempfile
import threading
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz_inputs import Files, damage, damage_json, damage_json_lines
from fuzz_readers import Target, one, saved
from made_index import made_index
from patience import PATIENCE
from search_setup import LABELS, save_model

from labelwise.client import Client
from labelwise.models.answer_rows import Answer
from labelwise.photos import Index
from labelwise.photos.likeness import likeness_of
from labelwise.photos.words import WordList
from labelwise.server.job_folder import JobFacts, JobFolder
from labelwise.server.uploads import Upload

PROBS = (0.1, 0.2, 0.9, 0.0)


def make_job(place: Path) -> None:
    facts = JobFacts(id="a" * 32, model="tiny", labels=LABELS, made="2026-01-01")
    job = JobFolder.create(place, facts)
    job.add([Upload(f"{n}.png", bytes([n])) for n in range(4)])
    job.answer([Answer(0, "0.png", ("dog",), PROBS), Answer(1, "1.png", error="bad")], "v")


def read_job(folder: Path) -> tuple[JobFolder, list[Answer], list[Upload]]:
    job = JobFolder.load(folder / "job")
    return job, list(job.results()), job.next_pictures(9)


def same_job(read: Any, folder: Path) -> bool:
    job, answers, pictures = read
    lines = (folder / "job" / "results.jsonl").read_bytes().split(b"\n")[:-1]
    assert len(answers) == job.answered == len(lines)
    for answer, line in zip(answers, lines, strict=True):
        record = json.loads(line)
        assert answer.id == str(record["path"])
        if "error" not in record:
            assert answer.probs == tuple(record["probs"][name] for name in job.facts.labels)
    names = [
        str(json.loads(line)["name"])
        for line in (folder / "job" / "pictures.jsonl").read_bytes().split(b"\n")[:-1]
    ]
    assert [picture.name for picture in pictures] == names[job.answered :]
    return True


ANSWER = json.dumps([{"id": "a" * 32, "model": "tiny", "state": "open", "received": 1}]).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRetry-After: 0\r\n"


def http_answer(rng: Random) -> Files:
    body = damage_json(rng, ANSWER) if rng.random() < 0.7 else ANSWER
    status = rng.choice((b"200 OK", b"200 OK", b"422 No", b"503 Busy", b"204 None"))
    head = HEAD.replace(b"200 OK", status) + f"Content-Length: {len(body)}\r\n\r\n".encode()
    return {"answer": damage(rng, head + body) if rng.random() < 0.5 else head + body}


def read_answer(folder: Path) -> Any:
    """Ask a server that answers with these bytes, whatever is asked."""
    content = (folder / "answer").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as line:
                line.recv(4096)
                line.sendall(content)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return Client(address, retries=0, timeout=PATIENCE).every_job()
        finally:
            listener.close()
            thread.join()


def same_answer(read: Any, folder: Path) -> bool:
    _, found, body = (folder / "answer").read_bytes().partition(b"\r\n\r\n")
    if not found:
        return False
    with contextlib.suppress(ValueError):
        assert repr(read) == repr(json.loads(body))
        return True
    return False  # a length that was damaged leaves a part of it, or its chunks


WORDS = b"dog\ncat: a photo of a cat, a kitten\n# a comment\nsparrow; bird\nbird\n"


def same_words(read: WordList, folder: Path) -> bool:
    text = (folder / "words.txt").read_text(encoding="utf-8-sig")
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    assert len(read.words) == len(lines), "a line is one word"
    again = folder / "again.txt"
    again.write_text(read.text(), encoding="utf-8")
    assert [word.name for word in WordList.read(again).words] == [w.name for w in read.words]
    return True


def make_library(place: Path) -> None:
    model = save_model(place.parent / "model")
    logits = np.random.default_rng(0).normal(size=(60, len(LABELS)))
    with Index(made_index(place, model, logits)) as index:
        likeness_of(index)
        index.store.checksums.put_missing()


_WHOLE: Files = {}


def library_files() -> Files:
    """Return what an index keeps beside its photos; the rest of it stays whole."""
    if not _WHOLE:
        _WHOLE.update(saved(make_library, "i.index")())
    return {name: content for name, content in _WHOLE.items() if name.endswith("likeness.json")}


def read_likeness(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        for name, content in _WHOLE.items():
            given = folder / name
            place = Path(temporary) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(given.read_bytes() if given.is_file() else content)
        (place,) = (one.parent for one in Path(temporary).rglob("likeness.json"))
        with Index(place) as index:
            return likeness_of(index).sentence()


_TRUTH: list[str] = []


def same_likeness(read: str, folder: Path) -> bool:
    if not _TRUTH:
        with tempfile.TemporaryDirectory() as temporary:
            _TRUTH.append(read_likeness(Path(temporary)))
    assert read == _TRUTH[0], f"{read!r:.200} is not {_TRUTH[0]!r:.200}"
    return True


JOB_DAMAGE = {".json": damage_json, ".jsonl": damage_json_lines}
SERVED = (
    Target("job", saved(make_job, "job"), read_job, JOB_DAMAGE, same_job),
    Target("client", dict, read_answer, {}, same_answer, http_answer),
    Target(
        "words",
        one("words.txt", WORDS),
        lambda folder: WordList.read(folder / "words.txt"),
        {},
        same_words,
    ),
    Target("likeness.json", library_files, read_likeness, {".json": damage_json}, same_likeness),
)
