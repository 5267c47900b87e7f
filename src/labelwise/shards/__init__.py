"""Work on very many rows: shards, carried out on this machine or a cluster, each exactly once."""

from labelwise.base.storage import Storage, StorageError, storage_at
from labelwise.errors import SettingsError
from labelwise.shards.engine import Engine, LocalEngine, Manifest, ShardRecord, Task
from labelwise.shards.evaluation_task import EvaluationTask, evaluate_shards
from labelwise.shards.scoring_task import ModelFiles, Outcome, ScoringTask, predict_shards

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
    "make_engine",
    "predict_shards",
    "storage_at",
]


def make_engine(name: str, workers: int, device: str = "cpu") -> Engine:
    """Return the engine of a name."""
    if name == "ray":
        from labelwise.shards.ray_cluster import RayEngine

        kind, _, number = device.partition(":")
        if number:
            raise SettingsError(
                f"--engine ray gives each worker its own GPU: give --device {kind}, not {device}"
            )
        return RayEngine(workers, gpus=1.0 if kind == "cuda" else 0.0)
    return LocalEngine(workers)
