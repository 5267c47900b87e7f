"""RESULTS: every reader of what training, fitting, evaluation and export write.

The second reading is plain JSON, YAML or Arrow of the same file: what was accepted must be what
stands there, number by number.
"""

import contextlib
import json
import math
import re
from dataclasses import asdict

import numpy as np
import pyarrow.parquet as pq
import torch
from forged import rewrite
from fuzz_inputs import (
    Target,
    UnreadError,
    archive,
    as_json,
    damage,
    drawn,
    of_file,
    parquet,
    same,
    saved,
    strange_json,
)
from onnx import TensorProto, helper
from sample_scores import Halved, sample, spec_of

from labelwise.answers.suspects import read_review
from labelwise.base.files import without_sum
from labelwise.base.storage import storage_at
from labelwise.calibration import Platt
from labelwise.decide import Threshold
from labelwise.decide.parse_rule import find_rule
from labelwise.evaluation import Evaluation, evaluate
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Sigmoid
from labelwise.models import ModelSpec
from labelwise.models.graph_file import Facts, read_model, sealed
from labelwise.models.run_folder import Journal
from labelwise.papers.comparison import Comparison
from labelwise.pictures import Transform
from labelwise.predictions import Predictions
from labelwise.report import write_report
from labelwise.report.page import page
from labelwise.scores.embeddings import read_embeddings, read_texts
from labelwise.scores.fitted import read_fitted
from labelwise.scores.read import read_scores
from labelwise.shards.engine import Manifest
from labelwise.tables.votes import Votes, count_votes
from labelwise.taxonomy import Taxonomy
from labelwise.training.settings import read_settings
from labelwise.types import LabelSpace

NAMES = ("x", "y", "z")


def predictions():
    logits = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -3.0]])
    labels = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.uint8)
    observed = torch.tensor([[True, True, False], [True, True, True]])
    return Predictions(["a", "b"], logits, labels, observed, NAMES, "val", Sigmoid())


def predictions_file(path):
    """Write them as 0.2 did, without sums, which would refuse every damage before it is read."""
    predictions().save(path)
    table = pq.read_table(path)
    stated = without_sum(json.loads(table.schema.metadata[b"labelwise"]))
    pq.write_table(table.replace_schema_metadata({"labelwise": json.dumps(stated)}), path)


def same_predictions(read, folder):
    table = pq.read_table(folder / "p.parquet")
    stated = json.loads(table.schema.metadata[b"labelwise"])
    same(list(read.names), stated["names"])
    same(list(read.ids), table["id"].to_pylist())
    logits = np.array(table["logits"].to_pylist(), np.float32)
    assert np.array_equal(np.asarray(read.logits), logits), "logits changed"
    seen = np.ones(logits.shape, bool)
    if "observed" in table.column_names:
        seen = np.array(table["observed"].to_pylist())
    labels = np.array(table["labels"].to_pylist(), np.float64)
    assert np.allclose(np.asarray(read.labels)[seen], labels[seen]), "labels changed"
    known = np.ones_like(seen) if read.observed is None else np.asarray(read.observed)
    assert np.array_equal(known, seen), "what is known changed"
    if read.link is not None:
        are_probabilities(read.link(read.logits))


def are_probabilities(probs):
    assert bool(((probs >= 0) & (probs <= 1)).all()), "a probability is not one"


def model_json(path):
    spec_of(NAMES, PLATT, Threshold(0.5)).save(path)
    rewrite(path)  # without its sum, which would refuse every damage before it is read


def same_spec(spec, folder):
    same(spec.model_dump(mode="json"), json.loads((folder / "model.json").read_bytes()))
    rows = torch.tensor([[0.0, 1.0, -2.0], [40.0, -40.0, 3.0]])[:, : len(spec.labels)]
    if spec.made_link is not None and rows.shape[1] == len(spec.labels):
        are_probabilities(probs := spec.made_link(rows))
        spec.made_rule(probs)


def evaluation(path):
    scores = sample(60, unknown=0.1)
    evaluate(scores, Halved(), Threshold(0.5), query_length=1).save(path)


def draw(folder):
    """Read an evaluation and draw its report, as `labelwise evaluate RUN --report` does."""
    read = Evaluation.load(folder / "evaluation.json")
    history = Journal(folder / "metrics.jsonl").read()
    write_report(read, folder / "report.html", history=history)
    return read


def same_evaluation(read, folder):
    same(asdict(read), json.loads((folder / "evaluation.json").read_bytes()))
    for chart in re.findall(r"<svg.*?</svg>", page(read, title="t"), re.DOTALL):
        assert not re.search(r'[" ,](nan|-?inf)[" ,]', chart), "a place is not a number"


JOURNAL = b'{"step": 1, "loss": 0.5, "lr": 0.1}\n{"step": 9, "loss": 0.25, "epoch": 1}\n'
EVALUATION = saved(evaluation, "evaluation.json")() | {"metrics.jsonl": JOURNAL}
PLATT = Platt(Sigmoid(), [1.0, 2.0, 3.0], [0.5, 0.0, -0.5], 30.0)


def metadata():
    rule, kinds = Threshold((0.5, 0.6, 0.4)), Taxonomy({"x": "y"})
    weights = "1" * 64  # zeros stand for a hash that is not there yet
    space = LabelSpace(NAMES)
    return Facts(space, PLATT, rule, Transform(32), "bce", weights, taxonomy=kinds).metadata()


def onnx_bytes(stated):
    """Return a graph with this metadata, sealed: its hash is right whatever it says."""
    names = ("pixels", "logits")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in names]
    node = helper.make_node("Identity", *([name] for name in names))
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, stated)
    with contextlib.suppress(ValueError):
        return sealed(model)
    return model.SerializeToString()


def made_onnx(rng):
    if rng.random() < 0.3:
        return {"m.onnx": damage(rng, onnx_bytes(metadata()))}
    stated = metadata()
    for _ in range(rng.choice((1, 1, 2))):
        key = rng.choice(sorted(stated))
        if rng.random() < 0.15:
            stated.pop(key)
        elif key == "sha256":
            continue
        else:
            try:
                changed = as_json(strange_json(rng, json.loads(stated[key])))
            except ValueError:
                changed = damage(rng, stated[key].encode())
            stated[key] = changed.decode("utf-8", "ignore").replace("\x00", "")
    return {"m.onnx": onnx_bytes(stated), "stated.json": json.dumps(stated).encode()}


def read_onnx(folder):
    return read_model((folder / "m.onnx").read_bytes(), "m.onnx")


def same_facts(read, folder):
    place = folder / "stated.json"
    if not place.exists():
        raise UnreadError
    stated, found = json.loads(place.read_text()), read[1].metadata()
    for key in ("labels", "link", "rule", "transform", "promises", "taxonomy"):
        if key in stated:
            same(json.loads(found[key]), json.loads(stated[key]), key)
    for key in ("exact_resize", "open_thresholds"):
        assert json.loads(stated.get(key, "true")) is json.loads(found[key])


FITTED = {"link": link_to_spec(PLATT), "rule": rule_to_spec(Threshold(0.5))}
FITTED |= {"format": 1, "names": list(NAMES), "scores": "logits"}


LINEAR = np.linspace(0.1, 0.9, 12).reshape(4, 3)
LABELLED = {"labels": LINEAR > 0.5, "names": np.array(NAMES)}
PROMPTED = {"prompts": np.array(["an x", "a y", "a z"]), "labels": np.array(NAMES)}
NPZ = archive(scores=LINEAR, **LABELLED)
EMBEDDINGS = archive(ids=np.array(list("abcd")), embeddings=LINEAR, **LABELLED)
TEXTS = archive(embeddings=np.eye(3), logit_scale=np.float64(10.0), **PROMPTED)


def read_votes(path):
    votes = Votes.read(path)
    return votes, count_votes(votes)


def comparison(folder):
    folder.mkdir()
    seeds = {n: {"mAP@class": 0.5 + n / 100, "log loss after": math.inf} for n in (0, 1)}
    settings = {"bce": {"lr": 0.1}, "asl": {"lr": 0.2}}
    Comparison(dict.fromkeys(settings, seeds), settings).save(folder)


def read_rule(path):
    return find_rule(path.read_bytes().decode("utf-8", "surrogateescape"))


def rule_texts(rng):
    texts = ("best-f", "top-3", "threshold=0.5", "average-k=2", "auto", "expected-f", "at-most=3")
    return {"rule.txt": damage(rng, rng.choice(texts).encode())}


REVIEW = (
    b"rank,photo,label,given,probability,check,promised,answer\n"
    b"1,a.jpg,x,present,0.25,,yes,no\n2,b.jpg,y,absent,0.75,yes,,\n"
)
SETTINGS = b"""data: scenes
method: bce
seed: 3
batch_size: 32
data_options: {num_train: 20}
recipe: {epochs: 2, optimizer: {lr: 0.1}}
"""
YAML_WORDS = (b"!!timestamp 2020-13-45", b"!!timestamp x", b"2020-01-01", b"!!binary x", b"&a [*a]")
SCORES = b"id,score:x,score:y,label:x,label:y,split\na,0.5,0.1,1,0,val\nb,0.2,0.7,,1,test\n"
TABLE = {"id": ["a", "b"], "score:x": [0.5, 0.25], "score:y": [0.125, 0.75]}
TABLE |= {"label:x": [1.0, None], "label:y": [0.0, 1.0]}
SHARD = {"shard": "part-00000.parquet", "rows": 9, "failed": 1, "bytes": 100, "hash": "ab"}
MANIFEST = b"\n".join(
    json.dumps({**SHARD, "shard": f"part-0000{n}.parquet"}).encode() for n in range(3)
)


def damage_yaml(rng, content):
    """Return damaged bytes, or YAML whose value has another type."""
    if rng.random() < 0.5:
        return damage(rng, content)
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    key = lines[place].partition(b":")[0]
    strange = as_json(strange_json(rng, {"a": 1}))
    value = rng.choice(YAML_WORDS) if rng.random() < 0.4 else strange
    lines[place] = key + b": " + value
    return b"\n".join(lines)


YAML_DAMAGE = {".yaml": damage_yaml}
TAXONOMY = b"child,parent\ndog,animal\ncat,animal\npuppy,dog\n"
VOTES = b"photo,label,worker,answer\na,x,u,yes\na,x,v,no\nb,y,u,no\n"


def of_saved(name, file, save, read, check):
    """Return the target of a file that the project writes."""
    return Target(name, saved(save, file), lambda folder: read(folder / file), check)


RESULTS = (
    of_saved("predictions", "p.parquet", predictions_file, Predictions.load, same_predictions),
    of_saved("model.json", "model.json", model_json, ModelSpec.load, same_spec),
    Target("evaluation and report", EVALUATION, draw, same_evaluation),
    drawn("onnx metadata", made_onnx, read_onnx, same_facts),
    of_file("fitted", "link.json", as_json(FITTED), read_fitted),
    of_file("settings", "s.yaml", SETTINGS, read_settings, {}, damage=YAML_DAMAGE),
    of_file("scores npz", "s.npz", NPZ, read_scores, "probs"),
    of_file("scores csv", "s.csv", SCORES, read_scores, "probs"),
    of_file("scores parquet", "s.parquet", parquet(TABLE), read_scores, "probs"),
    of_file("embeddings", "e.npz", EMBEDDINGS, read_embeddings),
    of_file("texts", "t.npz", TEXTS, read_texts),
    of_file("taxonomy", "t.csv", TAXONOMY, Taxonomy.read),
    of_file("taxonomy of paths", "t.txt", b"animal|dog|puppy\nanimal|cat\n", Taxonomy.read),
    of_file("votes", "v.csv", VOTES, read_votes),
    Target("manifest", {"_manifest.jsonl": MANIFEST}, lambda f: Manifest(storage_at(str(f)))),
    Target("comparison", saved(comparison, "c"), lambda f: Comparison.load(f / "c").markdown()),
    of_file("review", "r.csv", REVIEW, read_review),
    drawn("rules", rule_texts, lambda folder: read_rule(folder / "rule.txt")),
)
