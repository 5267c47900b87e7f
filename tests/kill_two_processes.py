"""Kill training in two processes while a checkpoint is written, and compare bit for bit.

    python tests/kill_two_processes.py                20 kills, at most five per run
    python tests/kill_two_processes.py --kills 3      a first look

One run is left alone. Others are begun again and again, and all their processes are killed
(SIGKILL) when a checkpoint, or the best weights, have begun to be written and are not whole. A kill
that comes too late for that is counted apart, and followed by another one. Each run then goes on to
its end, and must have the weights, predictions and figures of the one that was left alone. A
command that takes longer than five minutes is ended, and fails.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from warm_commands import StartedCommand, WarmCommands

SMALL = {
    "data_options": "{num_train: 48, num_val: 8, num_test: 8, size: 32, threads: 1}",
    "head_options": "{width: 32, feedforward: 64, decoder_layers: 1, dropout: 0.3}",
    "recipe.save_seconds": "0",
    "hardware.workers": "1",
    "calibrate": "none",
}
FLAGS = (
    *("--head", "query2label", "--batch-size", "16", "--image-size", "32"),
    *("--accelerator", "cpu"),  # there may be one GPU
)


def start_training(commands: WarmCommands, folder: Path, **settings: object) -> StartedCommand:
    """Start a small run of two processes, in a session of its own, as a person would type it."""
    given = {"recipe__epochs": 3} | settings
    pairs = [*SMALL.items(), *((key.replace("__", "."), value) for key, value in given.items())]
    assignments = [word for key, value in pairs for word in ("--set", f"{key}={value}")]
    words = ["train", "scenes", "--devices", "2", *FLAGS, *assignments, "-o", folder]
    return commands.start(words, folder.parent)


def half_written(run: Path) -> set[str]:
    """Return the checkpoints that have begun to be written and are not whole."""
    try:
        return {name for name in os.listdir(run / "checkpoint") if name.startswith(".")}
    except FileNotFoundError:
        return set()


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def kill_in_checkpoint(command: StartedCommand, run: Path, skipped: int) -> bool | None:
    """Kill a run in a checkpoint after some others; return whether it was not whole.

    None if the run came to its end before that.
    """
    seen = half_written(run)  # by the kill before
    while is_alive(command.pid):
        new = half_written(run) - seen
        if new and not skipped:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
            return bool(half_written(run) - seen)
        if new:
            seen |= new
            skipped -= 1
        time.sleep(0.0005)
    finish(command)
    return None


def require_same(run: Path, alone: Path) -> None:
    """Raise unless a run has the weights and figures of the one that was left alone."""
    for name in ("model.safetensors", "predictions/test.parquet"):
        if (run / name).read_bytes() != (alone / name).read_bytes():
            raise SystemExit(f"{name} of {run.name} is not that of the run that was left alone")
    if figures(run) != figures(alone):
        raise SystemExit(f"the figures of {run.name} are not those of the run left alone")


def figures(run: Path) -> list[dict[str, object]]:
    """Return what a run noted of its steps and epochs, without how long they took."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def finish(command: StartedCommand) -> None:
    done = command.wait()
    if done.returncode:
        raise SystemExit(f"status {done.returncode}: {done.stderr[-500:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, often = random.Random(given.seed), {"recipe__epochs": 8, "recipe__log_steps": 1}
    hits = late = runs = 0
    with tempfile.TemporaryDirectory() as made:
        commands, alone = WarmCommands(), Path(made, "alone")
        try:
            finish(start_training(commands, alone, **often))
            while hits < given.kills:
                run, of_run = Path(made, f"run-{runs}"), 0
                while of_run < 5 and hits < given.kills:
                    command = start_training(commands, run, **often)
                    hit = kill_in_checkpoint(command, run, draw.randrange(4))
                    if hit is None:
                        break
                    hits, late, of_run = hits + hit, late + (not hit), of_run + hit
                    print(f"{hits:2d} of run {runs}: {'hit' if hit else 'too late'}", flush=True)
                finish(start_training(commands, run, **often))
                require_same(run, alone)
                runs += 1
        finally:
            commands.close()
    print(
        f"{hits} kills in half-written checkpoints, {late} beside them; {runs} runs, all the same"
    )


if __name__ == "__main__":
    main()
