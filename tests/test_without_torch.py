"""The verbs on scores run where torch cannot be imported. Oracle: a hook that refuses it."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

BLOCKED = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "safetensors"}:
            raise ImportError(f"{name} is refused here")

sys.meta_path.insert(0, Refused())
"""
RUN = "from labelwise.cli.app import main\nsys.argv = ['labelwise', *sys.argv[1:]]\nmain()\n"
NAMES = ("dog", "cat", "boat")


def without_torch(code, *arguments):
    command = [sys.executable, "-W", "error", "-c", BLOCKED + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def world(rows=300):
    random = np.random.default_rng(0)
    odds = random.normal(-1, 1.5, (rows, len(NAMES)))
    labels = random.random(odds.shape) < 1 / (1 + np.exp(-odds))
    return [f"photo-{row}" for row in range(rows)], 2 * odds, labels.astype(int)


@pytest.fixture(params=["csv", "npz", "parquet"])
def scores(request, tmp_path):
    ids, logits, labels = world()
    path = tmp_path / f"scores.{request.param}"
    header = ["id", *(f"score:{name}" for name in NAMES), *(f"label:{name}" for name in NAMES)]
    if request.param == "npz":
        np.savez(path, ids=np.array(ids), scores=logits, labels=labels, names=np.array(NAMES))
    elif request.param == "csv":
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(header)
            writer.writerows(zip(ids, *logits.T.tolist(), *labels.T.tolist(), strict=True))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = [ids, *logits.T, *labels.T]
        pq.write_table(pa.table(dict(zip(header, map(pa.array, columns), strict=True))), path)
    return path


def test_scores_are_evaluated_calibrated_and_decided(scores, tmp_path):
    out = [tmp_path / name for name in ("evaluated", "calibrated", "thresholds.json")]
    without_torch(RUN, "evaluate", scores, "--scores", "logits", "--out", out[0])
    assert json.loads((out[0] / "evaluation.json").read_text())["data"]["rows"] == 300
    without_torch(RUN, "calibrate", scores, "--scores", "logits", "--out", out[1])
    without_torch(RUN, "decide", scores, "--scores", "logits", "--rule", "best-f", "--out", out[2])
    assert (out[1] / "link.json").is_file()
    assert set(json.loads(out[2].read_text())["thresholds"]) == set(NAMES)


def test_arrays_are_evaluated_calibrated_and_searched_by_the_library():
    code = """
import numpy as np
import labelwise
from labelwise import calibrate, decide
from labelwise.links import Sigmoid

random = np.random.default_rng(0)
odds = random.normal(-1, 1.5, (200, 3))
labels = (random.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.uint8)
ids = [str(row) for row in range(200)]
rows = labelwise.Predictions(ids, 2 * odds, labels, None, ("a", "b", "c"), "test", Sigmoid())
choice = calibrate.auto(rows.logits, rows.labels, rows.link)
rule = decide.best_f(choice.link(rows.logits), rows.labels)
found = labelwise.evaluate(rows, rows.link, rule, calibrated=choice.link)
points = labelwise.retrieval_map(*rows.log_probs(), rows.labels)
print(found.after.log_loss < found.before.log_loss, len(points) > 0, "torch" in sys.modules)
"""
    assert without_torch(code).split() == ["True", "True", "False"]
