"""`labelwise evaluate` of shards. Oracle: the in-memory evaluation of the same rows."""

import csv
import hashlib
import json
import pickle
import shutil
from dataclasses import asdict
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sample_scores import assert_close, in_memory
from shard_setup import answers, task, write_model, write_photos
from typed import must_run, refused

from labelwise.data import load
from labelwise.errors import CheckpointError, DataError
from labelwise.methods import link_from_spec
from labelwise.predictions import Predictions
from labelwise.scores import fixed_rule
from labelwise.shards import (
    EvaluationTask,
    LocalEngine,
    evaluate_shards,
    evaluation_task,
    predict_shards,
)
from labelwise.shards.evaluation_task import StoredLabels

COUNT = 60


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), COUNT)


@pytest.fixture(scope="module")
def shards(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("shards") / "out"
    model = write_model(tmp_path_factory.mktemp("model"))
    predict_shards(task(model, out), [str(photos)], LocalEngine(1), shard_rows=7)
    return out


def names_of(shards):
    facts = json.loads(pq.read_schema(shards / "part-00000.parquet").metadata[b"labelwise"])
    return tuple(facts["names"]), link_from_spec(facts["link"])


def draw_labels(shards):
    """Return {path: (present, known)} of all rows but two, some of them not known."""
    draw = np.random.default_rng(0)
    width = len(names_of(shards)[0])
    rows = sorted(row["path"] for row in answers(shards))[2:]
    present = {path: draw.random(width) < 0.4 for path in rows}
    return {path: (hits, draw.random(width) < 0.9) for path, hits in present.items()}


def write_labels(path, shards, truth, order=1):
    """Write a table with a column per label, relative paths, and rows that were not scored."""
    names = names_of(shards)[0][::order]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", *names))
        for place, (present, known) in truth.items():
            cells = [int(y) if seen else "" for y, seen in zip(present, known, strict=True)]
            writer.writerow(("/".join(place.split("/")[-2:]), *cells[::order]))
        writer.writerow(("never scored.png", *[0] * len(names)))
    return str(path)


def truth_of(shards, truth, rule):
    """Return the in-memory evaluation of the rows that have scores and labels."""
    names, link = names_of(shards)
    rows = [row for row in answers(shards) if row["error"] is None and row["path"] in truth]
    labels = np.array([truth[row["path"]][0] for row in rows])
    known = np.array([truth[row["path"]][1] for row in rows])
    ids, logits = [row["path"] for row in rows], torch.tensor([row["logits"] for row in rows])
    present = torch.from_numpy(labels & known).to(torch.uint8)
    predictions = Predictions(ids, logits, present, torch.from_numpy(known), names, "", link)
    if rule is None:
        rule = torch.tensor([[name in row["labels"] for name in names] for row in rows])
    return in_memory(predictions, link, rule)


def assert_same(found, truth):
    found, truth = asdict(found), asdict(truth)
    if found["sets"] is not None and truth["sets"]["rule"] == "sets as given":
        truth["sets"]["rule"] = found["sets"]["rule"]
        for one, other in zip(found["headline"], truth["headline"], strict=True):
            if one["name"].startswith("F1"):
                other["how"] = one["how"]
    assert_close(found, truth)


@pytest.mark.parametrize("rule", [None, "0.45", "top-2", "none"])
@pytest.mark.parametrize("order", [1, -1])
def test_figures_are_those_of_all_rows_in_memory(
    shards, photos, tmp_path, monkeypatch, rule, order
):
    monkeypatch.setattr(evaluation_task, "GROUP_ENTRIES", 50)  # several groups of shards
    truth = draw_labels(shards)
    labels = write_labels(photos / f"labels{order}.csv", shards, truth, order)
    chosen = None if rule is None else fixed_rule(rule)
    found = evaluate_shards(str(shards), labels, LocalEngine(1), rule=chosen, sets=rule != "none")
    whole = truth_of(shards, truth, chosen if rule != "none" else None)
    if rule == "none":
        assert found.sets is None
        assert found.before.log_loss == pytest.approx(whole.before.log_loss, abs=1e-9)
        return
    assert_same(found, whole)
    assert found.notes[0].startswith("3 images of ")
    assert "has labels of 55 of the 57 rows" in found.notes[1]
    assert found.notes[2].startswith("4 rows of ")  # one was never there, three have no scores


def rewrite(folder, change):
    """Write each shard anew, changed, with the manifest to it."""
    lines = []
    for path in sorted(folder.glob("part-*.parquet")):
        table = change(int(path.stem[-5:]), pq.read_table(path))
        pq.write_table(table, path)
        digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        size = path.stat().st_size
        record = {"shard": path.name, "rows": table.num_rows, "failed": 0, "bytes": size}
        lines.append(json.dumps(record | {"hash": digest}))
    (folder / "_manifest.jsonl").write_text("\n".join(lines) + "\n")


def copied(shards, tmp_path):
    return shutil.copytree(shards, tmp_path / "copy")


def test_labels_may_stand_in_the_shards(shards, tmp_path):
    truth, names = draw_labels(shards), names_of(shards)[0]

    def with_labels(_, table):
        rows = [truth.get(path) for path in table["path"].to_pylist()]
        kind = pa.list_(pa.string())

        def chosen(masks):
            return pa.array([m if m is None else list(np.array(names)[m]) for m in masks], kind)

        present = chosen([row and row[0] & row[1] for row in rows])
        unknown = chosen([row and ~row[1] for row in rows])
        return table.append_column("truth", present).append_column("unknown", unknown)

    folder = copied(shards, tmp_path)
    rewrite(folder, with_labels)
    assert_same(evaluate_shards(str(folder), None, LocalEngine(1)), truth_of(shards, truth, None))


class Travelling:
    """An engine whose tasks and results travel, as to another process."""

    def run(self, task, shards):
        work = pickle.loads(pickle.dumps(task)).start()
        return (pickle.loads(pickle.dumps(work(shard))) for shard in shards)


def test_another_machine_makes_its_own_store_of_labels(shards, photos, tmp_path, monkeypatch):
    labels = write_labels(photos / "labels.csv", shards, draw_labels(shards))
    here = evaluate_shards(str(shards), labels, Travelling())
    task = EvaluationTask(str(shards), labels, str(tmp_path / "not here"))
    groups = len(evaluation_task.ShardFolder(str(shards)).groups)
    sums = [one.sums for one in Travelling().run(task, range(groups))]
    there = reduce(lambda one, other: one.merge(other), sums)
    assert there.rows == here.data.rows == 55
    assert there.stages[0].log_loss.score().value == pytest.approx(here.before.log_loss, abs=1e-9)


def test_the_command_evaluates_shards(shards, photos):
    truth = draw_labels(shards)
    labels = write_labels(photos / "labels.csv", shards, truth)
    command = must_run("evaluate", f"file://{shards}", "--labels", labels, "--json")
    shown, whole = json.loads(command.stdout), truth_of(shards, truth, None)
    assert shown["before"]["log_loss"] == pytest.approx(whole.before.log_loss, abs=1e-9)
    assert shown["ranking"]["map_class"] == pytest.approx(whole.ranking.map_class, abs=1e-9)
    told = refused("evaluate", shards, "--labels", labels, "--split", "test")
    assert "--split does not apply" in told
    assert "--workers does not apply" in refused("evaluate", labels, "--workers", "2")


def without(*names):
    """Return a change of a folder: these files are gone."""
    return lambda folder: [(folder / name).unlink() for name in names]


def spoiled(folder):
    (folder / "part-00003.parquet").write_bytes(b"x" * 100)


def turned(number, table):
    facts = json.loads(table.schema.metadata[b"labelwise"])
    facts["names"] = facts["names"][::-1] if number == 4 else facts["names"]
    return table.replace_schema_metadata({"labelwise": json.dumps(facts)})


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        (without("_SUCCESS"), CheckpointError, "is not finished, 9 shards are; run the s"),
        (without("_SUCCESS", "_manifest.jsonl"), CheckpointError, r"there is no _manifest\.jsonl"),
        (
            spoiled,
            CheckpointError,
            r"part-00003\.parquet is not what .* says, its bytes are others",
        ),
        (without("part-00003.parquet"), CheckpointError, "is not what .* says, it is gone"),
        (
            lambda folder: rewrite(folder, turned),
            DataError,
            r"00004\.parquet has other labels, ano",
        ),
    ],
)
def test_shards_that_cannot_be_trusted_are_refused(shards, photos, tmp_path, change, kind, match):
    change(copied(shards, tmp_path))
    labels = write_labels(photos / "labels.csv", shards, draw_labels(shards))
    with pytest.raises(kind, match=match):
        evaluate_shards(str(tmp_path / "copy"), labels, LocalEngine(1))


def test_labels_that_do_not_fit_and_photos_that_come_twice_are_refused(shards, photos, tmp_path):
    labels = write_labels(photos / "labels.csv", shards, draw_labels(shards))
    text = (photos / "labels.csv").read_text()
    for source, table, match in (
        (None, "", "has no labels; give them with --labels"),
        ("odd.csv", "path,labels\nnowhere.png,\n", "no id of .* is in it, first"),
        ("twice.csv", text + text.splitlines()[1] + "\n", "rows 1 and 60 name the same image"),
        ("fewer.csv", "path,dog\nday 0/000.png,1\n", "label .* of the scores is missing"),
    ):
        given = None if source is None else str(photos / source)
        if source is not None:
            (photos / source).write_text(table)
        with pytest.raises(DataError, match=match):
            evaluate_shards(str(shards), given, LocalEngine(1))

    def repeated(number, table):
        first = pq.read_table(shards / "part-00000.parquet")
        return pa.concat_tables([table, first.slice(3, 1)]) if number == 6 else table

    rewrite(copied(shards, tmp_path), repeated)
    match = r"is there twice, in part-00000\.parquet and part-00006\.parquet"
    with pytest.raises(DataError, match=match):
        evaluate_shards(str(tmp_path / "copy"), labels, LocalEngine(1))


def test_stored_labels_are_those_of_the_table(tmp_path):
    """Oracle: the table read into memory; lists, unknown ones and unlabelled rows."""
    draw = np.random.default_rng(1)
    names = tuple(f"label-{n}" for n in range(30))
    lines = ["path\tlabels\tunknown"]
    for row in range(500):
        order = draw.permutation(30)
        unknown = "*" if row % 7 == 0 else "|".join(names[c] for c in order[3:5])
        lines.append(f"{row:04d}.png\t{'|'.join(names[c] for c in order[: row % 4])}\t{unknown}")
    path = tmp_path / "table.tsv"
    path.write_text("\n".join(lines) + "\n")
    store = StoredLabels.build(str(path), names, tmp_path / "store")
    labels, observed = load(path, names=list(names), check_files=False).targets()
    rows = draw.permutation(500)
    found = store.find([f"{row:04d}.png" for row in rows] + ["none.png"])
    assert found.tolist() == [*rows.tolist(), -1]
    assert store.find([f"{tmp_path}/./0007.png"]).tolist() == [7]
    present, known = store.take(found[:-1])
    np.testing.assert_array_equal(present, labels[rows].astype(bool))
    np.testing.assert_array_equal(known, observed[rows])
