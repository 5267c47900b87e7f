"""Work on very many rows: shards, carried out on this machine or a cluster, each exactly once."""

from labelwise.engines.engine import Engine, Task
from labelwise.engines.evaluation_task import EvaluationTask, evaluate_shards
from labelwise.engines.local import LocalEngine
from labelwise.engines.manifest import Manifest, ShardRecord
from labelwise.engines.scoring_task import ModelFiles, Outcome, ScoringTask, predict_shards
from labelwise.storage import Storage, StorageError, storage_at

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
