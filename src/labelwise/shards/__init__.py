"""Work on very many rows: shards, carried out on this machine or a cluster, each exactly once."""

from labelwise.shards.engine import Engine, LocalEngine, Manifest, ShardRecord, Task
from labelwise.shards.evaluation_task import EvaluationTask, evaluate_shards
from labelwise.shards.scoring_task import ModelFiles, Outcome, ScoringTask, predict_shards
from labelwise.system.storage import Storage, StorageError, storage_at

__all__ = [
    "Engine",
    "EvaluationTask",
    "LocalEngine",
    "Manifest",
    "ModelFiles",
    "Outcome",
    "ScoringTask",
    "ShardRecord",
    "Storage",
    "StorageError",
    "Task",
    "evaluate_shards",
    "predict_shards",
    "storage_at",
]
