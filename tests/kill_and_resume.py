"""Train in child processes that are killed with SIGKILL at random moments until one ends well.

Run as a script: ``kill_and_resume.py FOLDER LIVES SEED SETTINGS``, with the seed of the moments and
the overrides of the settings as JSON. It imports once and forks, so that a life costs no start-up.
Prints one JSON line: hashes of both runs, and where lives ended.
"""

import hashlib
import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import torch
from warm_commands import preload

from labelwise.training.run import train
from labelwise.training.settings import Settings, read_settings

BASE = {
    "data": "scenes",
    "data_options": {"num_train": 32, "num_val": 8, "num_test": 8, "size": 32, "threads": 1},
    "batch_size": 8,
    "image_size": 32,
    "augment": "shift",
    "hardware.workers": 1,
    "hardware.accelerator": "cpu",  # a GPU adds in another order each time
    "calibrate": "none",
    "recipe.epochs": 3,
    "recipe.log_steps": 2,
    "recipe.save_seconds": 0,
}


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def live(settings: Settings, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(settings, folder)
            status = 0
        finally:
            os._exit(status)
    return child


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for(child: int, folder: Path, target: int) -> bool:
    """Return whether the child is still alive when its run has written ``target`` lines."""
    while lines(folder) < target:
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            return False
        time.sleep(0.002)
    return True


def names_in(run: Path) -> list[str]:
    """Return what is in the folder of a run; a checkpoint's name counts how many were written."""
    names = (str(file.relative_to(run)) for file in run.rglob("*"))
    return sorted(re.sub("checkpoint/[0-9]+", "checkpoint/N", name) for name in names)


def kill_and_resume(folder: Path, lives: int, seed: int, overrides: dict) -> dict:
    settings = read_settings(None, BASE | overrides)
    whole, killed = folder / "whole", folder / "killed"
    _, status = os.waitpid(live(settings, whole), 0)
    if status:
        sys.exit("the uninterrupted run failed")
    chance = random.Random(seed)
    targets = sorted(chance.randrange(1, lines(whole)) for _ in range(lives - 1))
    steps = []
    for target in (*targets, lines(whole)):  # the last life ends while results are written
        child = live(settings, killed)
        if wait_for(child, killed, target):
            time.sleep(chance.uniform(0, 0.1))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        states = sorted((killed / "checkpoint").glob("[0-9]*/state.json"))
        steps.append(json.loads(states[-1].read_text())["step"] if states else 0)
    _, status = os.waitpid(live(settings, killed), 0)
    if status:
        sys.exit("the resumed run failed")
    records = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (whole, killed)
    ]
    for record in (*records[0], *records[1]):
        record.pop("seconds", None)
        record.pop("images_per_second", None)
    return {
        "whole": digest(whole),
        "killed": digest(killed),
        "steps": steps,
        "all_steps": max(record["step"] for record in records[0]),
        "same_metrics": records[0] == records[1],
        "files": [*map(names_in, (whole, killed))],
    }


def main() -> None:
    torch.set_num_threads(1)
    preload()
    folder, lives, seed, overrides = sys.argv[1:]
    print(json.dumps(kill_and_resume(Path(folder), int(lives), int(seed), json.loads(overrides))))


if __name__ == "__main__":
    main()
