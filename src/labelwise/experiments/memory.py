"""The largest memory of this process since a moment, on the host and on the GPU, in MB."""

from contextlib import suppress
from pathlib import Path

import torch

__all__ = ["peak_memory", "start_peak_memory"]

PROCESS = Path("/proc/self")
MARK = "VmHWM:"  # Linux: the high-water mark of resident memory


def start_peak_memory() -> None:
    """Forget earlier peaks, where the system can."""
    with suppress(OSError):  # elsewhere the host's peak is that of the whole process
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> dict[str, float]:
    """Return "host MB" where the system tells it, and "GPU MB" where there is a GPU."""
    peaks = _host()
    if torch.cuda.is_available():
        peaks["GPU MB"] = torch.cuda.max_memory_allocated() / 2**20
    return peaks


def _host() -> dict[str, float]:
    try:
        lines = (PROCESS / "status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    marks = [float(line.split()[1]) / 1024 for line in lines if line.startswith(MARK)]
    return {"host MB": marks[0]} if marks else {}
