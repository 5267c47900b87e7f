"""Whether a tree gives the answers that version 0.2 gave, by the command line and files alone.

    python tests/same_answers.py record FOLDER     in the tree of 0.2: write down its answers
    python tests/same_answers.py compare FOLDER    in a later tree: name every answer that differs
                                                   (compare FOLDER OPENED: 0.2's own files alone)

FOLDER/artifacts keeps what 0.2 wrote: runs, indexes, exports, tables, people's answers. ``compare``
makes all of it again from the same photos and tables, then opens a copy of 0.2's own files and goes
on with them. Sentences are left out, since they may be worded anew, and so is the time of day.
Weights are equal to the bit only on one machine with one torch.
"""

import csv
import hashlib
import json
import multiprocessing
import os
import runpy
import shlex
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from same_answers_inputs import answer_on_page, answer_questions, draw_inputs

COMMANDS = Path(__file__).with_suffix(".txt")
SHORT = {"SMALL": "--backbone small-cnn --image-size 32 --epochs 2", "SCENES": "--epochs 2"}
for split, rows in (("train", 256), ("val", 96), ("test", 96)):
    SHORT["SCENES"] += f" --set data_options.num_{split}={rows}"
FOLDER_FILES = "model.safetensors evaluation.json link.json answers.csv part-*.parquet"
FOLDER_FILES += " predictions/*.parquet predictions.parquet probabilities.parquet"
PASSING = {"at", "made", "when", "seconds", "version", "receipt", "bounded"}
# Questions are drawn by a fresh seed: what follows from new ones is compared in OPENED alone.
DRAWN = ("ANEW estimate photos.index", "ANEW review", "ANEW label photos.index --export")
SENTENCE = "(a sentence)"
FORKS = multiprocessing.get_context("forkserver")  # large packages are imported once
LARGE = "torch torchvision timm scipy.stats pyarrow.parquet onnxruntime safetensors.numpy PIL.Image"


def labelwise(folder: Path, words: list[str], spare: Path) -> None:
    """Do in this process what ``python -m labelwise WORDS`` does in the folder."""
    for number in (1, 2):
        os.dup2(os.open(spare / str(number), os.O_CREAT | os.O_WRONLY), number)
    os.chdir(folder)
    sys.argv = ["labelwise", *words]
    runpy.run_module("labelwise", run_name="__main__", alter_sys=True)


def read(path: Path) -> Any:
    """Return what a file or folder holds; of an exported network its answers about pictures."""
    if path.is_dir():
        files = [file for pattern in FOLDER_FILES.split() for file in sorted(path.rglob(pattern))]
        return {str(file.relative_to(path)): read(file) for file in files}
    if not path.exists():
        return "missing"
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        shape = [side if isinstance(side, int) else 40 for side in session.get_inputs()[0].shape]
        random, name = np.random.default_rng(7), session.get_inputs()[0].name
        asked = [random.integers(0, 256, shape).astype(np.uint8) for _ in range(4)]
        outputs = [one.name for one in session.get_outputs()]
        told = [session.run(outputs, {name: picture}) for picture in asked]
        return [dict(zip(outputs, one, strict=True)) for one in told]
    if path.suffix == ".csv":
        rows = list(csv.DictReader(path.open(newline="")))
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else []
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_text().split("\n")


class Answers:
    """What commands print and write in a folder: each value under a name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.values = folder, {}

    def run(self, part: str) -> None:
        """Run a part of the commands."""
        parts = COMMANDS.read_text().split("\n== ")[1:]
        named = {name: text.strip() for name, text in (part.split("\n", 1) for part in parts)}
        text = named[part].replace("SEARCHES", named["SEARCHES"])
        for short, meant in SHORT.items():
            text = text.replace(short, meant)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda chain: self.chain(part, chain.splitlines()), text.split("\n\n")))

    def chain(self, part: str, commands: list[str]) -> None:
        for command in commands:
            words, name = shlex.split(command), f"{part} {command}"
            try:
                if words[0] == "answer":
                    answer_questions(self.folder / words[1])
                elif words[0] == "page":
                    self.take(name, answer_on_page(self.folder, range(*map(int, words[1:]))))
                    self.take(f"{name} / table", read(self.folder / "paged.csv"))
                else:
                    self.command(name, words)
            except Exception as error:  # named, and its answers are missing
                self.values[f"{name} :: failed"] = repr(error)

    def command(self, name: str, words: list[str]) -> None:
        with tempfile.TemporaryDirectory() as spare:
            process = FORKS.Process(target=labelwise, args=(self.folder, words, Path(spare)))
            process.start()
            process.join()
            printed, notes = (Path(spare, name).read_text() for name in ("1", "2"))
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"$ {name}\n{printed[-3000:]}{notes}status {process.exitcode}\n")
        self.values[f"{name} :: status"] = process.exitcode
        if "--json" in words:
            texts = [printed] if printed.startswith("{\n") else printed.splitlines()
            try:
                self.take(name, [json.loads(text) for text in texts])
            except ValueError:
                self.take(name, "no JSON")
        elif "--paths-only" in words:
            self.take(name, printed.splitlines())
        for option, value in pairwise(words):
            if option in ("-o", "--out", "--csv", "--export") and not value.endswith(".index"):
                self.take(f"{name} :: {value}", read(self.folder / value))

    def take(self, name: str, value: Any) -> None:
        """Take each value under its own name; numbers or words of one list stay together."""
        if isinstance(value, dict):
            for key in value.keys() - PASSING:
                self.take(f"{name} / {key}", value[key])
        elif isinstance(value, list):
            try:
                self.values[name] = np.array(value, dtype=float)
            except (TypeError, ValueError):
                if not any(isinstance(one, dict | list) for one in value):
                    self.values[name] = [self.word(one) for one in value]
                    return
                self.values[f"{name} / length"] = len(value)
                for place, one in enumerate(value):
                    self.take(f"{name} / {place}", one)
        else:
            self.values[name] = self.word(value)

    def word(self, value: Any) -> Any:
        """Return a path without the folder, a sentence as nothing, anything else as it is."""
        if not isinstance(value, str):
            return value
        value = value.replace(f"{self.folder}/", "")
        return SENTENCE if " " in value else value


def difference(old: Any, new: Any) -> str:
    """Say how two values differ; nothing if they are equal to the bit."""
    try:
        one, other = np.asarray(old, float), np.asarray(new, float)
    except (TypeError, ValueError):
        return "" if np.array_equal(old, new) else f"{str(old)[:200]} -> {str(new)[:200]}"
    if one.shape != other.shape:
        return f"shape {one.shape} -> {other.shape}"
    if one.tobytes() == other.tobytes():
        return ""
    return f"largest difference {np.max(np.abs(one - other)):.3g} of {np.max(np.abs(one)):.3g}"


def compare(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Print each command with what differs in its answers; return whether anything does."""
    commands: dict[str, dict[str, str]] = {}
    for name in (name for name in old if not name.startswith(DRAWN) and str(old[name]) != SENTENCE):
        told = difference(old[name], new[name]) if name in new else "gone"
        commands.setdefault(name.split(" :: ")[0].split(" / ")[0], {})[name] = told
    for command, entries in commands.items():
        differ = {name: told for name, told in entries.items() if told}
        print(f"{len(entries) - len(differ)} of {len(entries)} equal to the bit: {command}")
        for name, told in differ.items():
            print(f"    {name.removeprefix(command)}: {told}")
    print("".join(f"only now: {name}\n" for name in sorted(new.keys() - old.keys())), end="")
    total = sum(bool(told) for entries in commands.values() for told in entries.values())
    print(f"{total} of {len(old)} entries differ")
    return total > 0


def main(task: str, folder: Path, *parts: str) -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "USER": "ada"}
    os.environ |= {"LOGNAME": "ada", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    FORKS.set_forkserver_preload(LARGE.split())
    work, start = folder / "work", time.monotonic()
    answers = Answers(work)
    if task == "record":
        shutil.rmtree(folder, ignore_errors=True)
        draw_inputs(folder / "inputs")
    for part, begin in (("ANEW", "inputs"), ("OPENED", "artifacts")):
        if part in (parts or (part,)):
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(folder / begin, work)
            answers.run(part)
        if task == "record" and part == "ANEW":
            shutil.copytree(work, folder / "artifacts")
    new, place = answers.values, folder / "answers"
    print(f"{len(new)} entries in {time.monotonic() - start:.0f} s", file=sys.stderr)
    if task == "record":
        arrays = {name: one for name, one in new.items() if isinstance(one, np.ndarray)}
        hashes = {name: hashlib.sha256(one.tobytes()).hexdigest() for name, one in arrays.items()}
        place.with_suffix(".json").write_text(json.dumps(new | hashes, indent=1))
        np.savez_compressed(place.with_suffix(".npz"), **arrays)
        return 0
    old = json.loads(place.with_suffix(".json").read_text()) | dict(np.load(f"{place}.npz"))
    return compare({name: one for name, one in old.items() if name.startswith(parts or "")}, new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).resolve(), *sys.argv[3:]))
