"""ONNX files as all who read them open them: whole, in a session of onnxruntime.

A session has one thread count, no chatter, and errors in a sentence.
"""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labelwise.errors import CheckpointError, SettingsError
from labelwise.system.text import first_line

FORMAT = 1  # of the files that labelwise exports
UNSEALED = "0" * 64  # stands for the hash of a file while it is computed
QUIET = 4  # fatal only: what goes wrong is raised as well


def require_onnx() -> None:
    """Raise, with what to install, unless the packages of the extra ``onnx`` are there."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"exported files need the package {error.name!r}: pip install 'labelwise[onnx]'"
        ) from None
    del onnx


def is_whole(content: bytes, digest: str) -> bool:
    """Return whether the bytes of a file are those that were hashed when it was written."""
    whole = content.replace(digest.encode(), UNSEALED.encode(), 1) if len(digest) == 64 else b""
    return hashlib.sha256(whole).hexdigest() == digest


def simplified(model: Any) -> Any:
    """Return a model with everything computed that follows from its constants.

    It still consists of standard operators.
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        content = model.SerializeToString()
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def open_session(model: Any, *, threads: int | None = None, name: str = "the model") -> Any:
    """Return a session on the CPU for a model, or its bytes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    content = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common base but this
        reason = first_line(error)[:300]
        raise CheckpointError(f"{name} cannot be run by onnxruntime: {reason}") from None
