"""``predict`` of shards, then ``evaluate`` with the labels inside the same shards, as typed.

Oracle: scikit-learn's average precision of the logits that ``predict`` wrote, with the labels that
were written into the shards.
"""

import json
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bucket_setup import served_bucket
from shard_setup import answers, picture, write_model, write_tar
from sklearn.metrics import average_precision_score
from tiny_predictor import NAMES
from typed import must_run

from labelwise.data import load

COUNT = 16
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
    columns = {
        "image": [picture(WHOLE + number) for number in numbers],
        "labels": [labels_of(number) for number in numbers],
    }
    pq.write_table(pa.table(columns), path, row_group_size=5)


PLACES = {"tar": ("file", "nested", "bucket"), "parquet": ("file", "folder", "bucket")}


@pytest.mark.parametrize(("kind", "where"), [(k, one) for k in PLACES for one in PLACES[k]])
@pytest.mark.filterwarnings("ignore")  # of boto3 and moto
def test_what_was_predicted_from_shards_is_evaluated_with_their_labels(
    tmp_path, monkeypatch, kind, where
):
    write = {"tar": write_labelled_tar, "parquet": write_parquet}[kind]
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model")
    names = {"file": ("x",), "nested": ("a/x", "b/deep/x")}.get(where, ("x", "y"))
    shards = [f"{name}.{kind}" for name in names]
    for shard, numbers in zip(shards, np.split(np.arange(COUNT), len(shards)), strict=True):
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
    present = np.array([[name in labels_of(number) for name in NAMES] for number in range(COUNT)])
    logits = np.array([row["logits"] for row in answers(tmp_path / "out")])  # in order
    expected = average_precision_score(present, logits)
    assert json.loads(shown)["ranking"]["map_class"] == pytest.approx(expected, abs=1e-9)


def test_a_shard_is_called_the_same_by_everybody(tmp_path):
    """Oracle: what stands in the tar file, below the folder that was named."""
    write_labelled_tar(tmp_path / "shards" / "a" / "x.tar", range(4))
    expected = [
        f"a/x.tar/day {number % 2}/{number:03d}.{('png', 'PNG')[number % 2]}" for number in range(4)
    ]
    for source in (tmp_path / "shards", f"file://{tmp_path}/shards"):
        table = load(source)
        assert list(table.ids) == expected
        assert [table.images.address(row) for row in range(4)] == [
            f"{tmp_path}/shards/{name}" for name in expected
        ]
