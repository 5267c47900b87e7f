"""KEPT: what runs, indexes and exports keep beside their answers, and models of other programs.

Plans, receipts, facts of OpenVINO folders, logs of answers, marks of seen photos, vocabularies.
Each is read a second time with ``json`` or Arrow alone; a receipt must be the one that was kept.
A damaged ``likeness.json`` is made again, so its outcome must be the undamaged one's.
"""

import json
import re
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fuzz_inputs import (
    Files,
    as_json,
    damage,
    damage_json,
    damage_json_lines,
    strange_json,
    strange_value,
)
from fuzz_readers import Target, drawn, of_file, parquet, same, saved
from fuzz_results import metadata
from made_index import made_index
from safetensors.torch import save
from search_setup import LABELS, save_model

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.answers.version_0_2 import AS_ANSWER
from labelwise.contrib.skos import read_skos
from labelwise.decide import Promise
from labelwise.models.graph_file import UNSEALED, Facts
from labelwise.models.graph_model import FACTS, GRAPH, WEIGHTS, _read_facts, digest
from labelwise.models.seen_photos import HASH, LOOK, _kept
from labelwise.networks.backbones.weights import architecture_of, read_state
from labelwise.photos import Index
from labelwise.photos.receipts import RECEIPTS_FILE, keep_receipt, receipts_of
from labelwise.photos.shift import likeness_of
from labelwise.photos.words import WordList
from labelwise.photos.words.answers import KeptAnswers
from labelwise.pictures.fingerprint import WIDTH
from labelwise.shards.inputs import InputRow
from labelwise.shards.scoring_task import PLAN_SCHEMA, ScoringPlan, plan_name, plan_rows, to_parquet
from labelwise.system.storage import storage_at


def openvino_files(rng: Random) -> Files:
    """Return a folder whose facts are strange but sealed, or good ones with a damaged file."""
    graph, weights = b"<net/>", b"\0" * 8
    hashes = {GRAPH: digest(graph), WEIGHTS: digest(weights)}
    stated: Any = {**metadata(), "files": hashes}
    kind = rng.randrange(3)
    if kind == 0:
        key = rng.choice(sorted(set(stated) - {"sha256"}))
        try:
            told = json.loads(stated[key])
        except (TypeError, ValueError):
            told = stated[key]
        changed = as_json(strange_json(rng, told)).decode("utf-8", "ignore")
        stated[key] = changed if rng.random() < 0.8 else strange_value(rng)
    elif kind == 1:
        stated = strange_json(rng, stated)
    text = as_json(stated).decode()
    text = text.replace(UNSEALED, digest(text.encode()), 1)
    files = {FACTS: text.encode(), GRAPH: graph, WEIGHTS: weights}
    if kind == 2:
        chosen = rng.choice(sorted(files))
        files[chosen] = damage(rng, files[chosen])
    return files


def same_openvino(read: Facts, folder: Path) -> bool:
    stated, found = json.loads((folder / FACTS).read_bytes()), read.metadata()
    for key in ("labels", "link", "rule", "transform", "promises", "taxonomy"):
        if key in stated:
            same(json.loads(found[key]), json.loads(stated[key]), key)
    for name, sha256 in stated["files"].items():
        if name in (GRAPH, WEIGHTS):
            assert digest((folder / name).read_bytes()) == sha256
    return True


def plan_files() -> Files:
    facts = {"inputs": ["photos"], "model": "0" * 64, "batch_size": 8, "shard_rows": 2, "rows": 2}
    rows = [InputRow("a.jpg", "photos", b"a.jpg"), InputRow("b.jpg", "photos", b"t.tar", 5, 9)]
    columns = zip(PLAN_SCHEMA, zip(*rows, strict=True), strict=True)
    table = pa.table([pa.array(values, field.type) for field, values in columns], PLAN_SCHEMA)
    plan = json.dumps(facts | {"shards": 1, "decode": "cpu"}).encode()
    return {"_plan.json": plan, plan_name(0): to_parquet(table)}


def read_plan(folder: Path) -> tuple[ScoringPlan | None, list[InputRow]]:
    storage = storage_at(str(folder))
    return ScoringPlan.load(storage), plan_rows(storage, 0)


def same_plan(read: Any, folder: Path) -> bool:
    plan, rows = read
    same(vars(plan), json.loads((folder / "_plan.json").read_bytes()))
    table = pq.read_table(folder / plan_name(0)).to_pylist()
    assert [row._asdict() for row in rows] == table
    return True


PROMISE = Promise("list", 0.9, 0.95, 40, 40, 0.95, "photos", "2026-01-01", "exact", kind="sure")
RECEIPTS = f"i.index/{RECEIPTS_FILE}"
_RECEIPTS: Files = {}


def keep_two(place: Path) -> None:
    model = save_model(place.parent / "model")
    logits = np.random.default_rng(0).normal(size=(6, len(LABELS)))
    with Index(made_index(place, model, logits)) as index:
        for rows in ([0, 2], [1, 2, 3]):
            keep_receipt(index, "dog", PROMISE, np.array(rows), "someone")
        index.store.checksums.put_missing()


def index_with_receipts() -> Files:
    if not _RECEIPTS:
        _RECEIPTS.update(saved(keep_two, "i.index")())
    return _RECEIPTS


def receipt_files(rng: Random) -> Files:
    """Return an index whose receipts were changed, as an editor or a bad disk would."""
    whole, change = index_with_receipts(), rng.choice((damage, damage_json_lines))
    return {**whole, RECEIPTS: change(rng, whole[RECEIPTS])}


def read_receipts(folder: Path) -> list[Any]:
    with Index(folder / "i.index") as index:
        return receipts_of(index)


def same_receipts(read: list[Any], folder: Path) -> bool:
    """Whatever was changed, receipts that are read are those that were kept; a tail can be cut."""
    kept = [(1, PROMISE, "dog", "someone"), (2, PROMISE, "dog", "someone")]
    assert [(one.number, one.promise, one.query, one.who) for one in read] == kept[: len(read)]
    return True


ANSWERS = [
    {"photo": f"{n}.jpg", "label": "dog", "state": state, "who": "a", "at": "2026-01-01"}
    for n, state in enumerate(("present", "absent", "unknown"))
]


def read_log(folder: Path) -> Any:
    said = LabelAnswers(AnswerLog(folder / "a.jsonl"))._said
    return {key: dict(people) for key, people in said.items()}


def same_log(read: Any, folder: Path) -> bool:
    said: dict[tuple[str, str], dict[str, str]] = {}
    for line in (folder / "a.jsonl").read_bytes().splitlines():
        one = json.loads(line)
        people = said.setdefault((one["photo"], one["label"]), {})
        people.pop(one["who"], None)
        if one["state"] != "withdrawn":
            people[one["who"]] = AS_ANSWER[one["state"]]
    assert read == said
    return True


def seen_parquet() -> bytes:
    looks = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * WIDTH, np.float32)), WIDTH)
    return parquet({"sha256": pa.array([b"\1" * 32, b"\2" * 32], HASH), "fingerprint": looks})


def same_marks(read: Any, folder: Path) -> bool:
    if read is None:
        return False
    table = pq.read_table(folder / "seen.parquet")
    assert (table["sha256"].type, table["fingerprint"].type) == (HASH, LOOK)
    assert read.hashes == table["sha256"].to_pylist()
    assert read.looks.shape == (len(read.hashes), WIDTH)
    return True


def answers_parquet() -> bytes:
    words = pa.list_(pa.string())
    return parquet(
        {
            "digest": pa.array([b"\1", b"\2"], pa.binary()),
            "id": ["a.jpg", "b.jpg"],
            "present": pa.array([["dog"], []], words),
            "absent": pa.array([[], ["cat"]], words),
            "aside": [True, False],
        }
    )


def same_kept(read: KeptAnswers, folder: Path) -> bool:
    rows = pq.read_table(folder / "k.parquet").to_pylist()
    if len({row["digest"] for row in rows}) < len(rows):
        return False  # what two rows say of a photo is joined
    for row in rows:
        one = read.photos[row["digest"]]
        assert one.id == row["id"]
        assert {name for name, is_present in one.labels.items() if is_present} == set(
            row["present"]
        )
    return True


def timm_folder() -> Files:
    return {
        "config.json": b'{"architecture": "resnet18"}',
        "model.safetensors": save({"conv1.weight": torch.zeros(2, 3), "fc.bias": torch.ones(2)}),
    }


def read_timm(folder: Path) -> Any:
    return architecture_of(folder), read_state(folder)


def same_timm(read: Any, folder: Path) -> bool:
    assert read[0] == json.loads((folder / "config.json").read_bytes())["architecture"]
    content = (folder / "model.safetensors").read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    shapes = {name: one["shape"] for name, one in head.items() if name != "__metadata__"}
    assert {name: list(one.shape) for name, one in read[1].items()} == shapes
    return True


SKOS = "http://www.w3.org/2004/02/skos/core#"
LINES = (
    f'<u:dog> <{SKOS}prefLabel> "dog"@en .\n<u:pet> <{SKOS}prefLabel> "p\\u00e9t \\U0001F600" .\n'
    f"<u:dog> <{SKOS}broader> <u:pet> .\n"
).encode()
GRAPH_LD = {
    "@graph": [
        {"@id": "u:dog", "skos:prefLabel": {"@value": "dog", "@language": "en"}},
        {"@id": "u:pet", "prefLabel": {"en": "pet", "de": "Haustier"}},
        {"@id": "u:dog", "skos:broader": [{"@id": "u:pet"}]},
    ]
}
XML = (
    f'<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:s="{SKOS}">'
    '<s:Concept r:about="u:dog"><s:prefLabel xml:lang="en">dog</s:prefLabel>'
    '<s:broader r:resource="u:pet"/></s:Concept>'
    '<s:Concept r:about="u:pet"><s:prefLabel>pet</s:prefLabel></s:Concept></r:RDF>'
).encode()


def read_vocabularies(folder: Path) -> Any:
    return [read_skos(folder / name) for name in ("v.nt", "v.jsonld", "v.rdf")]


def same_vocabularies(read: Any, folder: Path) -> bool:
    """Every parent is a name, and every name stands in the file, but for escapes."""
    for one, name in zip(read, ("v.nt", "v.jsonld", "v.rdf"), strict=True):
        text = (folder / name).read_text("utf-8-sig")
        for child, parent in one.parents.items():
            assert parent in one.uris
            plain = re.fullmatch(r"[a-z]+", child)
            assert plain is None or child in text
    return True


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


LOG = b"".join(as_json(one) + b"\n" for one in ANSWERS)
VOCABULARIES = {"v.nt": LINES, "v.jsonld": as_json(GRAPH_LD), "v.rdf": XML}
KEPT = (
    drawn("openvino", openvino_files, _read_facts, same_openvino),
    Target("plan", plan_files(), read_plan, same_plan),
    drawn("receipts", receipt_files, read_receipts, same_receipts),
    Target(
        "log of answers",
        {"a.jsonl": LOG},
        read_log,
        same_log,
        {".jsonl": lambda rng, content: damage_json_lines(rng, content) + b"\n"},
    ),
    of_file("seen photos", "seen.parquet", seen_parquet(), _kept, check=same_marks),
    Target(
        "kept answers",
        {"k.parquet": answers_parquet()},
        lambda folder: KeptAnswers.load(folder / "k.jsonl"),
        same_kept,
    ),
    Target("timm folder", timm_folder(), read_timm, same_timm),
    Target(
        "vocabularies", VOCABULARIES, read_vocabularies, same_vocabularies, {".jsonld": damage_json}
    ),
    of_file("words", "words.txt", WORDS, WordList.read, check=same_words),
    Target("likeness.json", library_files, read_likeness, same_likeness),
)
