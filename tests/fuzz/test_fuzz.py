"""Whatever a file or request holds, it is read or refused by a sentence in bounded time and memory.

The oracle of what is accepted is a second reading of the same bytes, another way, by each target.
The inputs are made from good ones, seeded; the process is one of its own, so that a crash is seen.
Without ``LABELWISE_FUZZ_SECONDS`` (`make fuzz` takes ten minutes) each target gets three inputs;
``LABELWISE_FUZZ_SEED`` sets where it begins.
"""

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

RUN = Path(__file__).with_name("fuzz_run.py")


def test_no_input_ends_in_an_internal_error(tmp_path):
    seconds, now = os.environ.get("LABELWISE_FUZZ_SECONDS"), tmp_path / "now"
    length = ["--seconds", seconds] if seconds else ["--rounds", "3"]
    seed = os.environ.get("LABELWISE_FUZZ_SEED", "0")
    command = [sys.executable, str(RUN), *length, "--now", str(now), "--seed", seed]
    patience = float(seconds or 0) + PATIENCE
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    at_work = now.read_text() if now.exists() else "the start"
    assert done.returncode == 0, f"at {at_work}:\n{done.stdout}\n{done.stderr[-3000:]}"
    assert " 0 kinds of failure" in done.stderr
