"""The verbs on scores run where torch cannot be imported. Oracle: a hook that refuses it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BLOCKED = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "safetensors"}:
            raise ImportError(f"{name} is refused here")

sys.meta_path.insert(0, Refused())
"""
RUN = """
import json
from labelwise.cli.app import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["labelwise", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
NAMES = ("dog", "cat", "boat")


def world(rows=300):
    random = np.random.default_rng(0)
    odds = random.normal(-1, 1.5, (rows, len(NAMES)))
    labels = random.random(odds.shape) < 1 / (1 + np.exp(-odds))
    return [f"photo-{row}" for row in range(rows)], 2 * odds, labels.astype(int)


def save_scores(path):
    ids, logits, labels = world()
    header = ["id", *(f"score:{name}" for name in NAMES), *(f"label:{name}" for name in NAMES)]
    columns = [ids, *logits.T.tolist(), *labels.T.tolist()]
    if path.suffix == ".npz":
        np.savez(path, ids=np.array(ids), scores=logits, labels=labels, names=np.array(NAMES))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *zip(*columns, strict=True)])
    else:
        pq.write_table(pa.table(dict(zip(header, columns, strict=True))), path)


LIBRARY = """
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
assert found.after.log_loss < found.before.log_loss
assert len(points) > 0
assert "torch" not in sys.modules
"""


def test_scores_are_evaluated_calibrated_and_decided_by_verbs_and_by_the_library(tmp_path):
    made = [tmp_path / name for name in ("evaluated", "calibrated", "thresholds.json")]
    verbs = ("evaluate SCORES.csv", "calibrate SCORES.npz", "decide SCORES.parquet --rule best-f")
    commands = []
    for verb, out in zip(verbs, made, strict=True):
        words = verb.replace("SCORES", str(tmp_path / "scores")).split()
        save_scores(Path(words[1]))
        commands.append([*words, "--scores", "logits", "--out", str(out)])
    program = [sys.executable, "-W", "error", "-c", BLOCKED + RUN + LIBRARY, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    evaluated, calibrated, thresholds = made
    assert json.loads((evaluated / "evaluation.json").read_text())["data"]["rows"] == 300
    assert (calibrated / "link.json").is_file()
    assert set(json.loads(thresholds.read_text())["thresholds"]) == set(NAMES)
