"""Whatever a file holds, it is read or refused by a sentence, in bounded time and memory.

The oracle of what is accepted is a second reading of the same bytes, another way, where there is
one. A night (``make fuzz``) tries three hundred files of each kind, a day three.
"""

import json
import re
import socket
import tempfile
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import numpy as np
import official
import pyarrow.parquet as pq
import pytest
import torch
from band_files import dicom, npy, tiff
from damaging import EXAMPLES, STRANGE, archive, changed, cut, damaged, parquet
from forged import rewrite
from hypothesis import given
from hypothesis import strategies as st
from labelling_setup import labelling
from limited import limited
from made_index import made_index
from onnx import TensorProto, helper
from patience import PATIENCE
from PIL import Image
from safetensors.torch import save as as_bytes
from sample_pictures import Folder, jpeg
from sample_scores import Halved, sample, spec_of
from search_setup import LABELS, picture, save_model
from tiny_clip import clip_folder
from web_setup import encoded, running, served

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.answers.suspects import read_review
from labelwise.base.files import without_sum
from labelwise.base.progress import Silent
from labelwise.base.storage import storage_at
from labelwise.base.yaml_values import parse_assignments
from labelwise.calibration import Platt
from labelwise.contrib.skos import read_skos
from labelwise.decide import Promise, Threshold
from labelwise.decide.parse_rule import find_rule
from labelwise.errors import LabelwiseError, QuestionError
from labelwise.evaluation import Evaluation, evaluate
from labelwise.learn.backbones.weights import architecture_of, read_state
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Sigmoid
from labelwise.models import ModelSpec
from labelwise.models.graph_file import Facts, read_model, sealed
from labelwise.models.run_folder import Journal, RunFolder
from labelwise.papers.comparison import Comparison
from labelwise.papers.protocols import DATASETS
from labelwise.photos import Index, update_index
from labelwise.photos.index import IndexFacts
from labelwise.photos.lists import RECEIPTS_FILE, keep_receipt, read_list_answers, receipts_of
from labelwise.photos.metadata import photo_keywords, read_facts, read_photo_metadata
from labelwise.photos.prevalence import read_answers
from labelwise.photos.shift import likeness_of
from labelwise.photos.words import TwoTowers, WordList
from labelwise.photos.xmp import Keyword, entries, noted, tagged, untagged
from labelwise.pictures import FileImages, Transform
from labelwise.pictures.decode import decode
from labelwise.pictures.multiband import open_cube
from labelwise.predictions import Predictions
from labelwise.queries import Query
from labelwise.report import write_report
from labelwise.scores.aggregating import aggregate_table
from labelwise.scores.embeddings import read_embeddings, read_prompts, read_texts
from labelwise.scores.fitted import read_fitted
from labelwise.scores.read import read_detections, read_scores
from labelwise.server import ServeSettings
from labelwise.server.mcp import PhotoTools, make_mcp_app, make_mcp_server
from labelwise.shards.engine import Manifest
from labelwise.tables import export, load, open_table
from labelwise.tables.camera_results import read_camera_results
from labelwise.tables.votes import Votes, count_votes
from labelwise.taxonomy import AttributeGroups, Taxonomy
from labelwise.training.checkpoint import load_latest, save
from labelwise.training.settings import read_settings
from labelwise.types import LabelSpace

NAMES = ("x", "y", "z")
WAY = re.compile(r"  \d\. .*: `--set .+`")  # a reading that a question offers
PLATT = Platt(Sigmoid(), [1.0, 2.0, 3.0], [0.5, 0.0, -0.5], 30.0)
LOGITS = np.random.default_rng(0).normal(size=(60, len(LABELS)))
SPACE = LabelSpace(("dog", "cat", "beach"))
PROMISE = Promise("list", 0.9, 0.95, 40, 40, 0.95, "photos", "2026-01-01", "exact", kind="sure")


def reads_back(table, folder):
    """What was read must be the same after it was written and read again."""
    names_are_plain = all(name.strip() == name and name != "*" for name in table.space.names)
    are_files = isinstance(table.images, FileImages) and not any("\\" in x for x in table.ids)
    if names_are_plain and are_files:
        export(table, folder / "again.parquet")
        again = load(folder / "again.parquet", check_files=False, duplicates="keep")
        assert again.space.names == table.space.names
        for sets, other in ((table.present, again.present), (table.unknown, again.unknown)):
            assert np.array_equal(sets.dense(), other.dense()), "labels changed by writing them"


def same(read, stated, place=""):
    """Compare plain data: tuples are lists, and true is not 1."""
    if isinstance(stated, dict):
        for key in stated.keys() - {"format"}:  # true is 1 as well
            same(read[key], stated[key], f"{place}.{key}")
    elif isinstance(stated, list):
        assert len(read) == len(stated), place
        for number, pair in enumerate(zip(read, stated, strict=True)):
            same(*pair, f"{place}[{number}]")
    else:
        assert isinstance(read, bool) == isinstance(stated, bool), place
        assert read == stated, place


def predictions(folder):
    """Write them as 0.2 did, without sums, which would refuse every damage before it is read."""
    observed = torch.tensor([[True, True, False], [True, True, True]])
    labels, logits = torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.randn(2, 3)
    path = folder / "p.parquet"
    Predictions(["a", "b"], logits, labels, observed, NAMES, "val", Sigmoid()).save(path)
    table = pq.read_table(path)
    stated = without_sum(json.loads(table.schema.metadata[b"labelwise"]))
    pq.write_table(table.replace_schema_metadata({"labelwise": json.dumps(stated)}), path)


def same_predictions(read, folder):
    table = pq.read_table(folder / "p.parquet")
    assert list(read.ids) == table["id"].to_pylist()
    assert np.array_equal(read.logits, np.array(table["logits"].to_pylist(), np.float32))
    seen = np.ones(read.logits.shape, bool) if read.observed is None else read.observed
    assert np.array_equal(read.labels[seen], np.array(table["labels"].to_pylist())[seen])


def model(folder):
    spec_of(NAMES, PLATT, Threshold(0.5)).save(folder / "model.json")
    rewrite(folder / "model.json")  # without its sum


def same_spec(spec, folder):
    same(spec.model_dump(mode="json"), json.loads((folder / "model.json").read_bytes()))
    if len(spec.labels) == len(NAMES) and spec.made_link is not None:
        probs = spec.made_link(torch.tensor([[0.0, 1.0, -2.0], [40.0, -40.0, 3.0]]))
        assert bool(((probs >= 0) & (probs <= 1)).all())


def evaluation(folder):
    whole = evaluate(sample(60, unknown=0.1), Halved(), Threshold(0.5), query_length=1)
    whole.save(folder / "evaluation.json")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 9, "epoch": 1}\n')


def draw_report(folder):
    read = Evaluation.load(folder / "evaluation.json")
    history = Journal(folder / "metrics.jsonl").read()
    write_report(read, folder / "report.html", history=history)
    return read


def same_evaluation(read, folder):
    same(asdict(read), json.loads((folder / "evaluation.json").read_bytes()))


def onnx_facts(folder):
    facts = Facts(LabelSpace(NAMES), PLATT, Threshold(0.5), Transform(32), "bce", "1" * 64)
    stated = {k: json.loads(v) if v[1:2] == '"' else v for k, v in facts.metadata().items()}
    (folder / "facts.json").write_text(json.dumps(stated))


def read_onnx(folder):
    """Read a graph with the facts of a file, sealed: its hash is right whatever it says."""
    stated = {}
    with suppress(ValueError, TypeError, RecursionError):  # then it has none
        stated = dict(json.loads((folder / "facts.json").read_bytes()))
    ends = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 3]) for x in ("a", "b")]
    graph = helper.make_graph([helper.make_node("Identity", ["a"], ["b"])], "g", ends[:1], ends[1:])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in stated.items()}
    helper.set_model_props(file, texts)
    content = file.SerializeToString()
    with suppress(ValueError):  # without a place for its hash
        content = sealed(file)
    read_model(content, "m.onnx")


def checkpoint(folder):
    for step in (1, 2):
        save(folder / "c", {"w": torch.full((3,), float(step))}, {"step": step, "best_step": None})


def same_checkpoint(read, folder):
    """Tensors and facts are those of one checkpoint, as they were saved."""
    if all(b'"sha256"' in one.read_bytes() for one in (folder / "c").glob("*/state.json")):
        assert read.tensors["w"].tolist() == [float(read.facts["step"])] * 3


def index(folder):
    with Index(made_index(folder / "i.index", save_model(folder / "model"), LOGITS)) as opened:
        for rows in ([0, 2], [1, 2, 3]):
            keep_receipt(opened, "dog", PROMISE, np.array(rows), "someone")
        likeness_of(opened)


def of_index(read):
    def opened(folder):
        with Index(folder / "i.index") as index:
            return read(index)

    return opened


def log_probs(index):
    return [index.odds(label).log_p[: len(index)].tolist() for label in range(len(index.space))]


def same_logits(read, folder):
    """Whatever was damaged, an index that answers gives the probabilities it was made with."""
    assert np.allclose(read, -np.log1p(np.exp(-LOGITS.astype(np.float32))).T, atol=1e-5)


def same_receipts(read, folder):
    """Receipts that are read are those that were kept; a tail can be cut."""
    kept = [(1, PROMISE, "dog", "someone"), (2, PROMISE, "dog", "someone")]
    assert [(one.number, one.promise, one.query, one.who) for one in read] == kept[: len(read)]


def comparison(folder):
    seeds = {n: {"mAP@class": 0.5 + n / 100, "log loss after": float("inf")} for n in (0, 1)}
    settings = {"bce": {"lr": 0.1}, "asl": {"lr": 0.2}}
    Comparison(dict.fromkeys(settings, seeds), settings).save(folder)


def sidecar(folder):
    mine = tagged(None, [Keyword("grandma", 0.5, "m", "2020-01-01", ())])
    (folder / "a.xmp").write_bytes(mine.replace(b"labelwise", b"other"))


def read_sidecar(folder):
    data = (folder / "a.xmp").read_bytes()
    noted(data), untagged(data, {"dc": frozenset({"x"})})
    return tagged(data, [Keyword("new", 0.5, "m", "2020-01-01", ("animal",))])


def names_the_keyword(read, folder):
    assert "new" in entries(read)["dc"], "the keyword was not written"


def photo(kind):
    def write(folder):
        image = Image.new("RGB", (8, 6), "red")
        exif = image.getexif()
        exif[0x010F], exif[0x9C9E] = "Maker", "a;b".encode("utf-16-le")
        exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 8.0, 0.0), 3: "W", 4: (11.0, 34.0, 30.0)})
        packet = tagged(None, [Keyword("dog", 0.5, "m", "2020-01-01", ())])
        image.save(folder / f"a.{kind}", exif=exif, xmp=packet)

    return write


def read_photo(folder):
    (place,) = folder.iterdir()
    facts = read_facts(place.read_bytes())
    photo_keywords(place)
    read_photo_metadata(place)
    return facts, decode(place.read_bytes(), place.name).size


def is_a_photo(read, folder):
    facts, size = read
    assert facts.latitude is None or abs(facts.latitude) <= 90
    assert facts.camera is None or facts.camera.isprintable()
    with Image.open(*folder.iterdir()) as image:
        assert sorted(size) == sorted(image.size)  # it may be turned


def read_cube(folder):
    (place,) = folder.iterdir()
    open_cube(place.read_bytes(), place.name)


def read_query(folder):
    return Query.parse((folder / "q.txt").read_bytes().decode("utf-8", "replace"), SPACE)


def parses_again(query, folder):
    assert Query.parse(str(query), SPACE) == query


def read_towers(folder):
    towers = TwoTowers(folder)
    side = towers.image.transform.size
    towers.image(torch.zeros(1, 3, side, side))
    towers.text(torch.tensor([towers.tokens.of("a dog")]))


def shard(folder):
    facts = b'{"labels": ["x"], "unknown": ["y"], "split": "train", "group": 3}'
    Folder(folder).tar("t.tar", {"a.jpg": jpeg(), "a.json": facts, "b.jpg": jpeg(1)})


LINES = (
    b'{"path": "a.jpg", "labels": ["x"], "unknown": ["y"], "split": "train", "group": "g"}\n'
    b'{"path": "b.jpg", "labels": [], "unknown": ["*"], "split": "val", "group": "h"}\n'
)
LABELLED = {"labels": np.eye(4, 3) > 0.5, "names": np.array(NAMES)}
PROMPTED = {"prompts": np.array(["an x", "a y", "a z"]), "labels": np.array(NAMES)}
FITTED = {"link": link_to_spec(PLATT), "rule": rule_to_spec(Threshold(0.5)), "format": 1}
CALLS = {"Start (s)": [0.0, 3.0], "End (s)": [3.0, 6.0], "Confidence": [0.5, 0.25]}
CALLS |= {"Scientific name": ["Parus major", "Sylvia"], "Common name": ["Tit", "Warbler"]}
SCORED = {"id": ["a", "b"], "score:x": [0.5, 0.25], "label:x": [1.0, None]}
TIMM = {"conv1.weight": torch.zeros(2, 3), "fc.bias": torch.ones(2)}
GREY = np.arange(20, dtype=np.uint16).reshape(4, 5)
CAMTRAP = {
    "deployments.csv": b"deploymentID,locationID\nd,hill\n",
    "media.csv": b"mediaID,deploymentID,timestamp,filePath,fileMediatype\n"
    b"m1,d,2024-05-01T06:30:00Z,a.jpg,image/jpeg\nm2,d,2024-05-01T06:31:00Z,b.jpg,image/jpeg\n",
    "observations.csv": b"observationID,deploymentID,mediaID,eventStart,eventEnd,"
    b"observationLevel,observationType,scientificName,classificationMethod\n"
    b"o1,d,m1,2024-05-01T06:30:00Z,2024-05-01T06:30:00Z,media,animal,Vulpes vulpes,human\n"
    b"o2,d,m2,2024-05-01T06:31:00Z,2024-05-01T06:31:00Z,media,blank,,human\n",
    "datapackage.json": b'{"resources": [{"name": "deployments", "path": "deployments.csv"},'
    b'{"name": "media", "path": "media.csv"},'
    b'{"name": "observations", "path": "observations.csv"}]}',
}


def at(name, read, *more):
    """Return what reads one file of a folder."""
    return lambda folder: read(folder / name, *more)


def table(name):
    return at(name, lambda path: load(path, check_files=False))


def published(data):
    """Return files and reader of a paper's data set in its official layout."""
    options = {"at_least": 1} if data == "vqa" else {}

    def read(folder):
        place = folder / DATASETS[data].folder
        return load(f"{DATASETS[data].format}:{place}", check_files=False, **options)

    return lambda folder: official.write(data, folder), read, reads_back


TARGETS = {  # what writes good files or the files themselves, what reads them, a second reading
    **{  # tables of labels
        name: ({file: content}, table(file), reads_back)
        for name, file, content in (
            ("lists", "t.csv", b'path,labels,unknown,split\na.jpg,x|y,z,train\n"b.jpg",,*,val\n'),
            ("columns", "t.csv", b"path,x,y,group\na.jpg,1,,g\nb.jpg,0,1,h\n"),
            ("written lists", "t.txt", b"path\tlabels\na.jpg\t['x', 'y']\nb.jpg\t[]\n"),
            ("json lines", "t.jsonl", LINES),
            ("parquet", "t.parquet", parquet({"path": ["a", "b"], "labels": [["x"], []]})),
            ("images", "t.parquet", parquet({"image": [jpeg(), jpeg(1)], "labels": [0, 1]})),
            ("metadata", "train/metadata.jsonl", LINES.replace(b"path", b"file_name")),
            (
                "coco",
                "t.json",
                b'{"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],'
                b'"categories": [{"id": 3, "name": "x"}, {"id": 9, "name": "y"}], "annotations":'
                b'[{"image_id": 1, "category_id": 3}, {"image_id": 2, "category_id": 9}]}',
            ),
            (
                "label studio",
                "t.json",
                b'[{"id": 1, "data": {"image": "a.jpg", "split": "val"}, "annotations": [{"result":'
                b'[{"from_name": "labels", "type": "choices", "value": {"choices": ["x"]}},'
                b'{"from_name": "unknown", "type": "choices", "value": {"choices": ["y"]}}]}]},'
                b'{"id": 2, "data": {"image": "b.jpg", "split": "test"}, "annotations": []}]',
            ),
            (
                "cvat",
                "t.xml",
                b'<annotations><image id="0" name="a.jpg" subset="train"><tag label="x"/>'
                b'<tag label="y"><attribute name="state">unknown</attribute></tag></image>'
                b'<image id="1" name="b.jpg" subset="val"/></annotations>',
            ),
            (
                "fiftyone",
                "samples.json",
                b'{"classes": ["x"], "samples": [{"filepath": "a.jpg", "tags": ["train"],'
                b'"ground_truth": {"_cls": "Classifications", "classifications": [{"label": "x"}]}'
                b'}, {"filepath": "c.jpg", "tags": ["val"], "ground_truth": null}]}',
            ),
        )
    },
    "tar shard": (shard, table("t.tar"), reads_back),
    "camtrap": (CAMTRAP, lambda f: load(f"camtrap-dp:{f}", check_files=False), reads_back),
    **{data: published(data) for data in ("cifar10", "nus-wide", "vispr", "voc", "vqa", "wider")},
    "groups": (
        {"g.csv": b"group,kind,labels\ncolour,exactly-one,red|green\nlight,at-most-one,day|dusk\n"},
        at("g.csv", AttributeGroups.read),
    ),
    "megadetector": (
        {
            "m.json": b'{"images": [{"file": "a.jpg", "detections": [{"category": "1", "conf": 0.5,'
            b'"bbox": [0.1, 0.2, 0.3, 0.4], "classifications": [["0", 0.5]]}]},'
            b'{"file": "b.jpg", "failure": "no such file"}], "detection_categories": {"1": "x"},'
            b'"classification_categories": {"0": "deer"}}'
        },
        at("m.json", read_camera_results),
    ),
    "speciesnet": (
        {
            "m.json": b'{"predictions": [{"filepath": "a.jpg", "classifications": {"classes":'
            b'["i;mammalia;;;;;deer"], "scores": [0.5]}, "detections": [{"category": "1",'
            b'"conf": 0.5, "bbox": [0, 0, 1, 0.5]}]}, {"filepath": "b.jpg"}]}'
        },
        at("m.json", read_camera_results),
    ),
    "birdnet": (
        {"d.parquet": parquet(CALLS | {"File": ["a.wav", "b.wav"]})},
        at("d.parquet", read_detections),
    ),
    "units": (
        {"s.csv": b"id,burst,time,score:x\na,1,2026-01-01,0.5\nb,1,2026-01-02,0.2\n"},
        at("s.csv", aggregate_table, "probs", ["burst"], "any"),
    ),
    "answered": ({"a.jsonl": LINES}, lambda folder: open_table(folder / "a.jsonl").holds),
    "predictions": (predictions, at("p.parquet", Predictions.load), same_predictions),
    "model.json": (model, at("model.json", ModelSpec.load), same_spec),
    "evaluation": (evaluation, draw_report, same_evaluation),
    "onnx": (onnx_facts, read_onnx),
    "checkpoint": (checkpoint, at("c", load_latest), same_checkpoint),
    "comparison": (comparison, lambda folder: Comparison.load(folder).markdown()),
    "fitted": (
        {"link.json": json.dumps(FITTED | {"names": list(NAMES), "scores": "logits"}).encode()},
        at("link.json", read_fitted),
    ),
    "settings": (
        {"s.yaml": b"data: scenes\nseed: 3\nrecipe: {epochs: 2, optimizer: {lr: 0.1}}\n"},
        at("s.yaml", read_settings, {}),
    ),
    "assignments": (
        {"set.txt": b"a.b=1\nc=[1, 2]\nd=x"},
        lambda f: parse_assignments(
            (f / "set.txt").read_bytes().decode("utf-8", "replace").split()
        ),
    ),
    "run": (
        {
            "settings.yaml": b"data: scenes\nseed: 1\n",
            "metrics.jsonl": b'{"step": 1}\n{"step": 2}\n',
        },
        lambda folder: (RunFolder(folder).journal.read(), RunFolder(folder).settings),
    ),
    "scores npz": (
        {"s.npz": archive(scores=np.linspace(0.1, 0.9, 12).reshape(4, 3), **LABELLED)},
        at("s.npz", read_scores, "probs"),
    ),
    "scores csv": (
        {
            "s.csv": b"id,score:x,score:y,label:x,label:y,split\n"
            b"a,0.5,0.1,1,0,val\nb,0.2,0.7,,1,test\n"
        },
        at("s.csv", read_scores, "probs"),
    ),
    "scores parquet": ({"s.parquet": parquet(SCORED)}, at("s.parquet", read_scores, "probs")),
    "embeddings": (
        {"e.npz": archive(ids=np.array(list("abcd")), embeddings=np.eye(4), **LABELLED)},
        at("e.npz", read_embeddings),
    ),
    "texts": (
        {"t.npz": archive(embeddings=np.eye(3), logit_scale=np.float64(10.0), **PROMPTED)},
        at("t.npz", read_texts),
    ),
    "prompts": (
        {"p.csv": b"label,prompt\ndog,a photo of a dog\ncat,a cat\n"},
        at("p.csv", read_prompts),
    ),
    "taxonomy": ({"t.csv": b"child,parent\ndog,animal\npuppy,dog\n"}, at("t.csv", Taxonomy.read)),
    "paths": ({"t.txt": b"animal|dog|puppy\nanimal|cat\n"}, at("t.txt", Taxonomy.read)),
    "votes": (
        {"v.csv": b"photo,label,worker,answer\na,x,u,yes\na,x,v,no\nb,y,u,no\n"},
        at("v.csv", lambda path: count_votes(Votes.read(path))),
    ),
    "manifest": (
        {"_manifest.jsonl": b'{"shard": "part-00000.parquet", "rows": 9, "bytes": 100}'},
        lambda folder: Manifest(storage_at(str(folder))),
    ),
    "review": (
        {
            "r.csv": b"rank,photo,label,given,probability,check,promised,answer\n"
            b"1,a.jpg,x,present,0.25,,yes,no\n2,b.jpg,y,absent,0.75,yes,,\n"
        },
        at("r.csv", read_review),
    ),
    "rule": (
        {"r.txt": b"threshold=0.5", "a.txt": b"average-k=2", "b.txt": b"at-most=3"},
        lambda f: [find_rule(x.read_bytes().decode("utf-8", "ignore")) for x in f.iterdir()],
    ),
    "answers": (
        {"a.jsonl": b'{"photo": "a", "label": "dog", "state": "present", "who": "a"}\n'},
        at("a.jsonl", lambda path: LabelAnswers(AnswerLog(path))),
    ),
    "checked": (
        {"a.csv": b"path,question,answer\na.jpg,is it?,yes\nb.jpg,is it?,no\n"},
        at("a.csv", read_answers),
    ),
    "skos": (
        {
            "v.nt": b'<u:dog> <http://www.w3.org/2004/02/skos/core#prefLabel> "p\\u00e9t"@en .\n'
            b"<u:dog> <http://www.w3.org/2004/02/skos/core#broader> <u:pet> .\n"
        },
        at("v.nt", read_skos),
    ),
    "words": (
        {"w.txt": b"dog\ncat: a photo of a cat, a kitten\n# a comment\nsparrow; bird\n"},
        at("w.txt", WordList.read),
    ),
    "query": ({"q.txt": b'-(dog, "cat") | (beach, -cat), dog<0.5'}, read_query, parses_again),
    "index.json": (
        {"index.json": b'{"format": 1, "model": "m", "held_out": "test", "decode": "cpu"}'},
        at("index.json", IndexFacts.load),
    ),
    "index": (index, of_index(log_probs), same_logits),
    f"i.index/{RECEIPTS_FILE}": (index, of_index(receipts_of), same_receipts),
    "i.index/likeness.json": (index, of_index(lambda index: likeness_of(index).sentence())),
    "lists": (
        lambda f: (index(f), (f / "asked.csv").write_text("path,answer,query\n/p/0.jpg,yes,dog\n")),
        lambda f: of_index(lambda index: read_list_answers(index, f / "asked.csv"))(f),
    ),
    "sidecar": (sidecar, read_sidecar, names_the_keyword),
    **{f"{kind} photo": (photo(kind), read_photo, is_a_photo) for kind in ("jpeg", "png", "webp")},
    "npy": ({"a.npy": npy(GREY)}, read_cube),
    "tiff": ({"a.tif": tiff(np.stack([GREY] * 3, 2), ("a", "b", "c"), 7)}, read_cube),
    "dicom": ({"a.dcm": dicom(GREY)}, read_cube),
    "timm": (
        {"config.json": b'{"architecture": "resnet18"}', "model.safetensors": as_bytes(TIMM)},
        lambda folder: (architecture_of(folder), read_state(folder)),
    ),
    "clip": (clip_folder(), read_towers),
}


@cache
def good_files(name):
    """Return the good files of a target by name."""
    made = TARGETS[name][0]
    if isinstance(made, dict):
        return made
    with tempfile.TemporaryDirectory() as place:
        made(Path(place))
        files = [file for file in Path(place).rglob("*") if file.is_file()]
        return {file.relative_to(place).as_posix(): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore")
@EXAMPLES
@given(data=st.data())
def test_a_damaged_file_is_read_as_what_it_says_or_refused_by_a_sentence(name, data):
    _, read, *check = TARGETS[name]
    good = good_files(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for file, content in damaged(data.draw, good, name if name in good else None).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        try:
            with limited(), torch.no_grad():
                value = read(folder)
        except LabelwiseError as error:
            sentence, *ways = str(error).strip().splitlines() or [""]
            is_question = isinstance(error, QuestionError) and all(map(WAY.fullmatch, ways))
            if not sentence or (ways and not is_question):
                pytest.fail(f"this is no sentence: {error!r}")
        else:
            for second in check:
                second(value, folder)


# Whatever is sent to a server, it answers as HTTP says, never 500, and refuses by a sentence.
# What is accepted is answered in JSON without NaN; the log of the labelling page holds what it
# took, and nothing that it refused. `make schema` sends what schemathesis makes up from the API's
# own description.

KIND = {"Content-Type": "application/json"}
MCP = KIND | {"Accept": "application/json", "MCP-Protocol-Version": "2025-06-18"}
LOGGED = {"present": "yes", "absent": "no", "unsure": "unsure", "withdrawn": "undo"}
GETS = (
    *("/", "/metrics", "/api/v1/model", "/api/v1/labels", "/api/v1/review?by=value&count=2"),
    *("/api/v1/search?q=dog&top=2&sort=date", "/api/v1/photos/{}/similar?count=2&side=40"),
    *("/api/v1/photos/{}/facts?label=dog", "/api/v1/photos/{}/thumbnail", "/api/v1/complete?q=d"),
    *("/api/v1/library", "/api/v1/trust", "/api/v1/promises", "/api/v1/receipts", "/openapi.json"),
    *(
        "/api/v1/photos/{}",
        "/api/v1/photos/{}/original",
        "/api/v1/labels/reliability.svg?label=dog",
    ),
    *("/api/v1/models/model", "/api/v1/text-search?text=sky&q=dog&top=2", "/health/ready", "/docs"),
    *(
        "/api/v1/review?by=audit&label=cat&count=3",
        "/api/v1/search?q=-dog&wrong_about=0.3&cursor=x",
    ),
)
SENT = (
    ("PUT", "/api/v1/photos/{}/labels", {"labels": {"dog": "present", "cat": "unknown"}}),
    ("POST", "/api/v1/check/list", {"q": "dog", "wrong_at_most": 0.2, "top": 2, "who": "a"}),
    ("POST", "/photoprism/labels", {"id": "a", "images": ["data:image/png;base64,AAAA"]}),
    ("POST", "/label-studio/predict", {"tasks": [{"id": 1, "data": {"image": "0.png"}}]}),
    ("POST", "/api/v1/models/model/reload", {}),
    ("POST", "/api/v1/session", {"token": "a"}),
    ("POST", "/api/v1/models/model/predict", {"pictures": ["data:image/png;base64,AAAA"]}),
    ("POST", "/api/v1/check/undo", {"q": "dog", "wrong_at_most": 0.2, "top": 2, "who": "a"}),
    ("POST", "/label-studio/setup", {"schema": "<View/>"}),
)
TOOLS = {
    "describe_library": {"labels_with": "o"},
    "search_photos": {"query": "dog, -cat", "top": 3, "at_least": 0.1, "wrong_about": 0.4},
    "count_photos": {"query": "dog"},
    "similar_photos": {"photo": "{}", "top": 2},
    "show_photo": {"photo": "{}"},
    "correct_photo": {"photo": "{}", "labels": {"dog": "present"}, "who": "a"},
    "draw_photos_to_answer": {"query": "dog", "answers": 3},
    "estimate_from_answers": {"query": "dog", "answers": {"{}": "yes"}},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder of four photos, a small model and their index."""
    root = tmp_path_factory.mktemp("library")
    model = save_model(root / "model")
    for number in range(4):
        picture(root / "photos" / f"{number}.png", number)
    update_index(root / "i.index", [root / "photos"], model=model, watch=Silent())
    return root


@pytest.fixture(scope="module")
def server(library):
    options = {"idle_seconds": 0.1, "photoprism": True, "label_studio": library / "photos"}
    with running(library / "model", library / "i.index", **options) as client:
        yield client, client.get(f"/api/v1/search?q={LABELS[0]}")["hits"][0]["id"]


def request(method, path, content, photo):
    """Return the bytes of a request."""
    kind = "image/png" if path == "/api/v1/predict" else KIND["Content-Type"]
    lines = [f"{method} {path.format(photo)} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}"]
    lines += [f"Content-Length: {len(content)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + content


REQUESTS = (*SENT, *(("GET", path, None) for path in GETS))


@pytest.mark.parametrize("sent", REQUESTS, ids=lambda sent: f"{sent[0]} {sent[1]}")
@EXAMPLES
@given(data=st.data())
def test_any_request_has_an_answer_that_is_no_mistake_of_the_server(server, sent, data):
    """Each as it should be; with another body, or with a picture; and damaged."""
    (client, photo), (method, path, body) = server, sent
    bodies = (body, body if body is None else changed(data.draw, body))
    contents = (b"" if body is None else json.dumps(one).encode() for one in bodies)
    whole, other = (request(method, path, content, photo) for content in contents)
    picture = request("POST", "/api/v1/predict", cut(data.draw, encoded()), photo)
    for content in (whole, other, picture, cut(data.draw, whole)):
        is_answered(client, content)


def is_answered(client, content):
    with socket.create_connection(("127.0.0.1", client.port), PATIENCE) as connection:
        head, _, body = content.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        with suppress(OSError):
            connection.sendall(content)
            if length and int(length[1]) > len(body):  # the server would wait for the rest
                connection.shutdown(socket.SHUT_WR)
        answer = HTTPResponse(connection, method=content.split(b" ", 1)[0].decode("latin-1"))
        try:
            answer.begin()
            body = answer.read()
        except (HTTPException, OSError):
            return  # a request that never came to its end has no answer
    assert answer.status < 500, body
    kind = answer.headers.get_content_type()
    if body and kind == "application/problem+json":
        assert json.loads(body)["status"] == answer.status
        assert len(body) < 3000
        assert b"Traceback" not in body
    if body and kind == "application/json":
        json.loads(body, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def tools(library):
    with Index(library / "i.index") as index:
        photos = PhotoTools(index, RunFolder(library / "model"), [library / "photos"])
        settings = ServeSettings(port=0)
        with served(
            make_mcp_app(make_mcp_server(photos, write=True), settings), settings
        ) as client:
            yield client, str(library / "photos" / "0.png")


@EXAMPLES
@given(data=st.data())
def test_any_question_to_a_tool_is_told_in_words(tools, data):
    client, photo = tools
    name = data.draw(st.sampled_from(sorted(TOOLS)))
    arguments = json.loads(json.dumps(TOOLS[name]).replace("{}", photo))
    asked = {"name": name, "arguments": changed(data.draw, arguments)}
    question = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
    content = json.dumps(question).encode()
    status, _, body = client.send(
        "POST", "/mcp", data.draw(st.sampled_from((content, cut(data.draw, content)))), MCP
    )
    assert status < 500, body
    assert b"Traceback" not in body
    if body:
        answer = json.loads(body, parse_constant=pytest.fail)
        error, result = answer.get("error"), answer.get("result", {})
        assert not isinstance(error, dict) or error["code"] != -32603, body
        facts = result.get("structuredContent") or {}
        assert result.get("isError") or not facts or (facts["in_words"] and facts["holds_if"])
        assert f"Error executing tool {name}" not in [
            x.get("text") for x in result.get("content", ())
        ]


@pytest.fixture(scope="module")
def page(library):
    with labelling(library) as client:
        photos = client.get("/api/v1/questions?label=dog&who=a")["photos"]
        yield client, {photo["id"]: photo["name"] for photo in photos}, library / "answers.jsonl"


@EXAMPLES
@given(data=st.data())
def test_the_log_of_answers_holds_what_was_taken_and_nothing_refused(page, data):
    client, photos, log = page
    states = {data.draw(st.sampled_from([*photos, "x"])): data.draw(st.sampled_from([*LOGGED]))}
    asked = {"label": data.draw(st.sampled_from(("dog", "zebra"))), "who": "a", "states": states}
    sent = data.draw(st.sampled_from((asked, changed(data.draw, asked), data.draw(STRANGE))))
    before = log.stat().st_size
    status, _, body = client.send("PUT", "/api/v1/answers", json.dumps(sent).encode(), KIND)
    lines = [json.loads(line) for line in log.read_bytes()[before:].splitlines()]
    kept = {
        Path(x["photo"]).name: (x["label"], x["who"], x["answer"]) for x in lines if "photo" in x
    }
    assert status < 500, body
    taken = sent["states"] if status == 200 else {}
    assert kept == {
        photos[photo]: (sent["label"], sent["who"], LOGGED[state]) for photo, state in taken.items()
    }
