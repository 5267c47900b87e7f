"""`labelwise evaluate` of shards. Oracle: the in-memory evaluation of the same rows."""

import csv
import hashlib
import json
import pickle
import shutil
from contextlib import ExitStack
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bucket_setup import served_bucket
from sample_scores import assert_close, in_memory
from shard_setup import answers, picture, task, write_model, write_photos, write_tar
from sklearn.metrics import average_precision_score
from tiny_predictor import NAMES, make
from typed import must_run, refused

from labelwise.errors import CheckpointError, DataError
from labelwise.predictions import Predictions
from labelwise.scores import fixed_rule
from labelwise.shards import LocalEngine, evaluate_shards, predict_shards
from labelwise.shards import evaluation_task as module
from labelwise.shards.evaluation_task import KnownLabels
from labelwise.tables import load

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


@pytest.fixture(scope="module")
def truth(shards):
    """Return {path: (present, known)} of all rows but two, some of them not known."""
    draw = np.random.default_rng(0)
    rows = sorted(row["path"] for row in answers(shards))[2:]
    present = {path: draw.random(3) < 0.4 for path in rows}
    return {path: (hits, draw.random(3) < 0.9) for path, hits in present.items()}


def write_labels(path, truth, order=1):
    """Write a table with a column per label, relative paths, and rows that were not scored."""
    names = NAMES[::order]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", *names))
        for place, (present, known) in truth.items():
            cells = [int(y) if seen else "" for y, seen in zip(present, known, strict=True)]
            writer.writerow(("/".join(place.split("/")[-2:]), *cells[::order]))
        writer.writerow(("never scored.png", *[0] * len(names)))
    return str(path)


@pytest.fixture(scope="module")
def labels(photos, truth):
    return write_labels(photos / "labels.csv", truth)


def truth_of(shards, truth, rule):
    """Return the in-memory evaluation of the rows that have scores and labels."""
    link = make().link
    rows = [row for row in answers(shards) if row["error"] is None and row["path"] in truth]
    labels, known = (np.array([truth[row["path"]][k] for row in rows]) for k in (0, 1))
    ids, logits = [row["path"] for row in rows], torch.tensor([row["logits"] for row in rows])
    present = torch.from_numpy(labels & known).to(torch.uint8)
    predictions = Predictions(ids, logits, present, torch.from_numpy(known), NAMES, "", link)
    if rule is None:
        rule = torch.tensor([[name in row["labels"] for name in NAMES] for row in rows])
    return in_memory(predictions, link, rule)


def assert_same(found, truth):
    found, truth = asdict(found), asdict(replace(truth, judgement=None))  # needs all photos
    if found["sets"] is not None and truth["sets"]["rule"] == "sets as given":
        truth["sets"]["rule"] = found["sets"]["rule"]
        for one, other in zip(found["headline"], truth["headline"], strict=True):
            if one["name"].startswith("F1"):
                other["how"] = one["how"]
    assert_close(found, truth)


@pytest.mark.parametrize(
    ("rule", "order"), [(None, 1), (None, -1), ("0.45", 1), ("top-2", -1), ("none", -1)]
)
def test_figures_are_those_of_all_rows_in_memory(shards, photos, truth, monkeypatch, rule, order):
    monkeypatch.setattr(module, "GROUP_ENTRIES", 50)  # several groups of shards
    labels = write_labels(photos / f"labels{order}.csv", truth, order)
    chosen = None if rule in (None, "none") else fixed_rule(rule)
    found = evaluate_shards(str(shards), labels, LocalEngine(1), rule=chosen, sets=rule != "none")
    whole = truth_of(shards, truth, chosen)
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


def test_labels_may_stand_in_the_shards(shards, truth, tmp_path):
    def with_labels(_, table):
        rows = [truth.get(path) for path in table["path"].to_pylist()]
        kind = pa.list_(pa.string())

        def chosen(masks):
            return pa.array([m if m is None else list(np.array(NAMES)[m]) for m in masks], kind)

        present = chosen([row and row[0] & row[1] for row in rows])
        unknown = chosen([row and ~row[1] for row in rows])
        return table.append_column("truth", present).append_column("unknown", unknown)

    folder = shutil.copytree(shards, tmp_path / "copy")
    rewrite(folder, with_labels)
    assert_same(evaluate_shards(str(folder), None, LocalEngine(1)), truth_of(shards, truth, None))


class Travelling:
    """An engine whose tasks and results travel, as to another process."""

    def run(self, task, shards):
        work = pickle.loads(pickle.dumps(task)).start()
        return (pickle.loads(pickle.dumps(work(shard))) for shard in shards)


def test_labels_and_sums_travel_to_other_processes(shards, labels):
    """Oracle: the same evaluation in this process."""
    here, there = (evaluate_shards(str(shards), labels, e) for e in (LocalEngine(1), Travelling()))
    assert_same(there, here)


def test_options_that_do_not_apply_to_shards_are_refused(shards, labels):
    told = refused("evaluate", f"file://{shards}", "--labels", labels, "--split", "test")
    assert "--split does not apply" in told
    assert "--workers does not apply" in refused("evaluate", labels, "--workers", "2")


def without(*names):
    """Return a change of a folder: these files are gone."""
    return lambda folder: [(folder / name).unlink() for name in names]


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
            lambda folder: (folder / "part-00003.parquet").write_bytes(b"x" * 100),
            CheckpointError,
            r"00003\.parquet is not what .* says, its bytes are others",
        ),
        (without("part-00003.parquet"), CheckpointError, "is not what .* says, it is gone"),
        (lambda one: rewrite(one, turned), DataError, r"00004\.parquet has other labels, ano"),
    ],
)
def test_shards_that_cannot_be_trusted_are_refused(shards, labels, tmp_path, change, kind, match):
    change(shutil.copytree(shards, tmp_path / "copy"))
    with pytest.raises(kind, match=match):
        evaluate_shards(str(tmp_path / "copy"), labels, LocalEngine(1))


def test_labels_that_do_not_fit_and_photos_that_come_twice(shards, labels, photos, tmp_path):
    text = (photos / "labels.csv").read_text()
    with pytest.raises(DataError, match="has no labels; give them with --labels"):
        evaluate_shards(str(shards), None, LocalEngine(1))
    for table, match in (
        ("path,labels\nnowhere.png,\n", "no id of .* is in it, first"),
        (text + text.splitlines()[1] + "\n", "named once, got .* in rows 1 and 60"),
        ("path,dog\nday 0/000.png,1\n", "label .* of the scores is missing"),
    ):
        (photos / "odd.csv").write_text(table)
        with pytest.raises(DataError, match=match):
            evaluate_shards(str(shards), str(photos / "odd.csv"), LocalEngine(1))

    def repeated(number, table):
        first = pq.read_table(shards / "part-00000.parquet")
        return pa.concat_tables([table, first.slice(3, 1)]) if number == 6 else table

    rewrite(shutil.copytree(shards, tmp_path / "copy"), repeated)
    with pytest.raises(DataError, match=r"twice, in part-00000\.parquet and part-00006\.parq"):
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
    store = KnownLabels.read(str(path), names)
    labels, observed = load(path, names=list(names), check_files=False).targets()
    rows = draw.permutation(500)
    found = store.find([f"{row:04d}.png" for row in rows] + ["none.png"])
    assert found.tolist() == [*rows.tolist(), -1]
    assert store.find([f"{tmp_path}/./0007.png"]).tolist() == [7]
    present, known = store.take(found[:-1])
    np.testing.assert_array_equal(present, labels[rows].astype(bool))
    np.testing.assert_array_equal(known, observed[rows])


# Labels inside the shards that were predicted. Oracle: scikit-learn's average precision.

ROWS = 16
WHOLE = 30  # pictures from this number on are whole


def labels_of(number):
    return [name for name, every in zip(NAMES, (2, 3, 5), strict=True) if number % every == 0]


def write_labelled_tar(path, numbers):
    """Write pictures with labels, in folders of the shard, their ends in capitals or not."""
    files = []
    for number in numbers:
        name, suffix = f"day {number % 2}/{number:03d}", ("png", "PNG")[number % 2]
        files.append((f"{name}.{suffix}", picture(WHOLE + number)))
        files.append((f"{name}.json", json.dumps({"labels": labels_of(number)}).encode()))
    write_tar(path, files)


def write_parquet(path, numbers):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [picture(WHOLE + number) for number in numbers]
    columns = {"image": images, "labels": list(map(labels_of, numbers))}
    pq.write_table(pa.table(columns), path, row_group_size=5)


PLACES = [("tar", "nested"), ("tar", "bucket"), ("parquet", "file"), ("parquet", "folder")]


@pytest.mark.parametrize(("kind", "where"), PLACES)
@pytest.mark.filterwarnings("ignore")  # of boto3 and moto
def test_what_was_predicted_from_shards_is_evaluated_with_their_labels(
    tmp_path, monkeypatch, kind, where
):
    write = {"tar": write_labelled_tar, "parquet": write_parquet}[kind]
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model")
    names = {"file": ("x",), "nested": ("a/x", "b/deep/x")}.get(where, ("x", "y"))
    shards = [f"{name}.{kind}" for name in names]
    for shard, numbers in zip(shards, np.split(np.arange(ROWS), len(shards)), strict=True):
        write(tmp_path / "shards" / shard, numbers.tolist())
    with ExitStack() as stack:
        source = f"shards/{shards[0]}" if where == "file" else "shards"
        if where == "bucket":
            bucket = stack.enter_context(served_bucket())
            for shard in shards:
                bucket.put(f"{kind}/{shard}", (tmp_path / "shards" / shard).read_bytes())
            source = bucket.place(kind)
        must_run("predict", model, source, "-o", "out/")
        shown = must_run("evaluate", "out", "--labels", source, "--json").stdout
    present = np.array([[name in labels_of(number) for name in NAMES] for number in range(ROWS)])
    logits = np.array([row["logits"] for row in answers(tmp_path / "out")])  # in order
    expected = average_precision_score(present, logits)
    assert json.loads(shown)["ranking"]["map_class"] == pytest.approx(expected, abs=1e-9)
