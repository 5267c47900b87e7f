"""Sessions of onnxruntime, which is imported by one function alone."""

from pathlib import Path
from typing import Any

from labelwise.base.text import first_line
from labelwise.errors import CheckpointError
from labelwise.pictures.labelwise_runtime import onnx_runtime

QUIET = 4  # fatal only: what goes wrong is raised as well


def open_session(
    model: Any,
    *,
    threads: int | None = None,
    name: str = "the model",
    simplified: Path | None = None,
) -> Any:
    """Return a session on the CPU for a model, or its bytes; perhaps write it simplified."""
    runtime = onnx_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = QUIET
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    if simplified is not None:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(simplified)
    content = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common base but this
        raise not_run(name, error) from None


def not_run(name: str, error: Exception) -> CheckpointError:
    """Return the error for a model that onnxruntime cannot run."""
    return CheckpointError(f"{name} cannot be run by onnxruntime: {first_line(error)[:300]}")
