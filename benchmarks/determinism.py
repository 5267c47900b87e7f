"""Whether runs of one seed are equal to the bit on a GPU: ``determinism.py FOLDER TRIALS``.

TRIALS whole runs of ``scenes``, and as many that are killed with SIGKILL at a random moment and
resumed, each in a process of its own. Prints one JSON line a run, with the hash of its weights;
ends with status 1 unless all are equal. ``--free`` leaves ``--deterministic`` out, ``--set
KEY=VALUE`` changes a setting.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path

BASE = (
    *("--set", "hardware.accelerator=cuda", "--set", "calibrate=none", "--set", "augment=shift"),
    *("--set", "recipe.epochs=4", "--set", "recipe.log_steps=5", "--set", "recipe.save_seconds=0"),
    *("--set", "data_options={num_train: 4000, num_val: 500, num_test: 500}"),
)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def command(folder: Path, settings: list[str]) -> list[str]:
    given = [word for pair in settings for word in ("--set", pair)]
    return [sys.executable, "-m", "labelwise", "train", "scenes", *BASE, *given, "-o", str(folder)]


def killed(words: list[str], folder: Path, target: int) -> bool:
    """Start a run and kill it once its journal has ``target`` lines; return whether it lived."""
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while lines(folder) < target and child.poll() is None:
        time.sleep(0.002)
    alive = child.poll() is None
    child.kill()
    child.wait()
    return alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("trials", type=int)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    asked = parser.parse_args()
    settings = [f"deterministic={str(not asked.free).lower()}", *asked.settings]
    chance, found = random.Random(str(asked.folder)), []
    for trial in range(asked.trials):
        whole, resumed = asked.folder / f"whole-{trial}", asked.folder / f"resumed-{trial}"
        began = time.monotonic()
        subprocess.run(command(whole, settings), check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        ended = [
            lines(resumed)
            for target in sorted(chance.sample(range(1, lines(whole)), 2))
            if killed(command(resumed, settings), resumed, target)
        ]
        subprocess.run(command(resumed, settings), check=True, stdout=subprocess.DEVNULL)
        found += [digest(whole), digest(resumed)]
        print(json.dumps({"whole": found[-2], "resumed": found[-1], "killed after lines": ended,
                          "seconds": round(seconds, 1)}), flush=True)  # fmt: skip
    print(json.dumps({"runs": len(found), "equal": found.count(found[0])}))
    return 0 if found.count(found[0]) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
