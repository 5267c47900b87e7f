"""Memory and speed of evaluating shards: ``python benchmarks/evaluate_shards.py [--quick]``.

Shards of random logits (80 labels, 4,096 rows each) and a table of labels are written as `predict`
and a user would, for two numbers of rows. Each is evaluated from the shards, and in memory
(``evaluate`` of all rows, without queries and intervals of ECE); figures must agree. Peak memory is
what the call adds to its process.
"""

import argparse
import hashlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from measure import measure

from labelwise.evaluation import evaluate
from labelwise.learn.methods import link_to_spec
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions
from labelwise.shards import LocalEngine, Manifest, ShardRecord, evaluate_shards, storage_at
from labelwise.shards.engine import shard_name
from labelwise.shards.scoring_task import answer_schema, to_parquet

LABELS, SHARD_ROWS = 80, 4096
NAMES = tuple(f"label-{number}" for number in range(LABELS))


def draw(shard):
    """Return logits and labels of a shard: labels are drawn with half the log-odds."""
    generator = torch.Generator().manual_seed(shard)
    odds = 2 * torch.randn(SHARD_ROWS, LABELS, generator=generator) - 3
    return 2 * odds, torch.rand(odds.shape, generator=generator) < odds.sigmoid()


def write(folder, shards):
    """Write shards, their manifest and the table of labels."""
    facts = {"names": NAMES, "link": link_to_spec(Sigmoid()), "model": ""}
    schema = answer_schema(json.dumps(facts))
    storage = storage_at(str(folder / "scores"))
    storage.folder.mkdir()
    manifest = Manifest(storage)
    kind = pa.schema([("path", pa.string()), ("labels", pa.list_(pa.string()))])
    names = np.array(NAMES)
    with pq.ParquetWriter(folder / "labels.parquet", kind) as table:
        for shard in range(shards):
            logits, present = draw(shard)
            ids = [f"photos/{shard:05d}/{row:04d}.jpg" for row in range(SHARD_ROWS)]
            chosen = [names[row].tolist() for row in (logits > 0).numpy()]
            columns = [
                ids,
                chosen,
                logits.sigmoid().tolist(),
                [None] * SHARD_ROWS,
                logits.tolist(),
            ]
            arrays = [
                pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
            ]
            path = storage.folder / shard_name(shard)
            path.write_bytes(to_parquet(pa.table(arrays, schema)))
            digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
            size = path.stat().st_size
            manifest.add(ShardRecord(path.name, SHARD_ROWS, 0, size, digest))
            truth = pa.array([names[row].tolist() for row in present.numpy()], kind.field(1).type)
            table.write_table(pa.table([pa.array(ids), truth], kind))
    manifest.write()
    storage.write("_SUCCESS", b"")


def figures(result):
    return {
        "log loss": result.before.log_loss,
        "Brier": result.before.brier,
        "ECE": result.before.pooled.ece,
        "macro F1": result.sets.macro_f1,
        "mAP": result.ranking.map_class,
        "bound": result.ranking.map_class_bound,
    }


def from_shards(folder):
    engine = LocalEngine(1)
    return figures(evaluate_shards(f"{folder}/scores", f"{folder}/labels.parquet", engine))


def in_memory(shards):
    parts = [draw(shard) for shard in range(shards)]
    logits, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    ids = [str(row) for row in range(len(logits))]
    predictions = Predictions(ids, logits, labels.to(torch.uint8), None, NAMES, "", Sigmoid())
    return figures(evaluate(predictions, Sigmoid(), logits > 0, query_length=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for shards in (4, 8) if arguments.quick else (16, 64):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
            folder = Path(place)
            write(folder, shards)
            ours = measure(lambda folder=folder: from_shards(folder))
        theirs = measure(lambda shards=shards: in_memory(shards))
        rows = shards * SHARD_ROWS
        for name, value in theirs.value.items():
            slack = ours.value["bound"] if name == "mAP" else 1e-9
            assert name == "bound" or abs(ours.value[name] - value) <= slack, name
        print(
            f"{rows:>9,} rows: shards {ours.seconds:6.1f} s, {rows / ours.seconds:9,.0f} rows/s, "
            f"+{ours.peak_mib:5.0f} MiB; in memory {theirs.seconds:6.1f} s, "
            f"+{theirs.peak_mib:6.0f} MiB; mAP {ours.value['mAP']:.5f} "
            f"± {ours.value['bound']:.1e}, exact {theirs.value['mAP']:.5f}"
        )
        results.append({"rows": rows, "ours": asdict(ours), "in memory": asdict(theirs)})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
