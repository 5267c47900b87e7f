"""How many random one-line faults the tests catch.

    python tests/random_faults.py --count 100 --seed 1 --jobs 16

Each fault is put into a copy of the tree. Then tests run until one fails: those that import the
changed module, those of its room, those of the modules that import it. One that fails without the
fault too is left out. Prints a line of JSON for each fault as soon as it is judged, then the sums.
"""

import argparse
import ast
import contextlib
import copy
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/labelwise")
FLIPPED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


class Fault(NamedTuple):
    """A piece of one line and what stands there instead."""

    kind: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str


def changed(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Give the kinds of faults that can be made of a node: what is replaced, and by what."""
    other = copy.deepcopy(node)
    if isinstance(other, ast.Compare) and type(other.ops[0]) in FLIPPED:
        other.ops[0] = FLIPPED[type(other.ops[0])]()
        yield "comparison", node, f"({ast.unparse(other)})"
    elif isinstance(other, ast.BinOp) and type(other.op) in SIGNS:
        other.op = SIGNS[type(other.op)]()
        yield "sign", node, f"({ast.unparse(other)})"
    elif isinstance(other, ast.Constant) and type(other.value) is int:
        yield "constant", node, str(other.value + 1)
    elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.Not):
        yield "dropped not", node, f"({ast.unparse(other.operand)})"
    elif isinstance(other, ast.Name) and other.id in EXTREMES and isinstance(other.ctx, ast.Load):
        yield "extreme", node, EXTREMES[other.id]
    elif isinstance(other, ast.If | ast.While | ast.IfExp):
        yield "condition", node.test, f"(not ({ast.unparse(other.test)}))"
    elif isinstance(other, ast.FunctionDef):
        plain = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
        for line in node.body:
            if isinstance(line, plain) and not isinstance(line.value, ast.Constant):
                yield "early return", line, "return None"


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs: no annotations, and nothing inside f-strings, whose places are not known."""
    for name, field in ast.iter_fields(tree):
        if name not in ("annotation", "returns"):
            for one in field if isinstance(field, list) else [field]:
                if isinstance(one, ast.AST) and not isinstance(one, ast.JoinedStr):
                    yield one
                    yield from nodes(one)


def faults() -> dict[str, list[Fault]]:
    """Return every fault that could be made, by its kind."""
    found: dict[str, list[Fault]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        text = path.read_text()
        lines = [line.encode() for line in text.split("\n")]
        for node in nodes(ast.parse(text)):
            for kind, place, new in changed(node):
                if place.lineno == place.end_lineno:
                    spot = (place.lineno, place.col_offset, place.end_col_offset)
                    old = lines[spot[0] - 1][spot[1] : spot[2]].decode()
                    fault = Fault(kind, str(path.relative_to(ROOT)), *spot, old, new)
                    found.setdefault(kind, []).append(fault)
    return found


def module_names() -> dict[str, Path]:
    """Return the dotted name of every module of the package."""
    named = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imported(path: Path, modules: dict[str, Path]) -> set[tuple[str, str]]:
    """Return the modules of the package that a file imports anywhere, and the names from each."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for one in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            home = getattr(node, "module", None)
            whole = f"{home}.{one.name}" if home else one.name
            found.add((whole, "") if whole in modules else (home, one.name))
    return {(module, name) for module, name in found if module in modules}


class Rings:
    """Which tests are near a module: that import it, of its room, of its importers.

    A name that a package hands on from one of its modules counts as imported from that module.
    """

    def __init__(self) -> None:
        self.modules = module_names()
        uses = {name: imported(path, self.modules) for name, path in self.modules.items()}
        packages = [one for one, path in self.modules.items() if path.name == "__init__.py"]
        handed = [(package, *use) for package in packages for use in uses[package] if use[1]]
        self.handed_on = {(package, name): module for package, module, name in handed}
        self.needs = {name: self.found(used) for name, used in uses.items()}
        tests = sorted((ROOT / "tests").rglob("test_*.py"))
        self.tested = {path: self.found(imported(path, self.modules)) for path in tests}

    def found(self, used: set[tuple[str, str]]) -> set[str]:
        return {self.handed_on.get(one, one[0]) for one in used}

    def around(self, file: str) -> list[list[str]]:
        """Return the tests of a file, nearest first."""
        (module,) = (name for name, path in self.modules.items() if path == ROOT / file)
        above = {name for name, needed in self.needs.items() if module in needed} - {module}
        room = Path(file).relative_to(PACKAGE).parts[0].removesuffix(".py").strip("_")
        rings = [
            [ROOT / file, *(path for path, needed in self.tested.items() if module in needed)],
            [path for path in self.tested if room in path.parts or f"test_{room}" in path.name],
            [path for path, needed in self.tested.items() if needed & above],
        ]
        told, seen = [], set()
        for ring in rings:
            told.append([str(path.relative_to(ROOT)) for path in ring if path not in seen])
            seen.update(ring)
        return [ring for ring in told if ring]


class Trial:
    """A copy of the tree into which faults are put, one after another."""

    def __init__(self, tree: Path, seconds: float, rings: Rings) -> None:
        self.tree, self.seconds, self.rings, self.red = tree, seconds, rings, set()

    def run(self, tests: list[str], seconds: float) -> tuple[int, list[str]]:
        """Return the status of the tests and those that failed; 124 where the time ran out."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "-n", "0"]
        command += ["-p", "no:cacheprovider", "--hypothesis-seed=1", "--tb=no"]
        command += [word for test in sorted(self.red) for word in ("--deselect", test)]
        environment = os.environ | {"PYTHONPATH": str(self.tree / "src"), "BROWSER": "no"}
        environment["PYTHONDONTWRITEBYTECODE"] = ""  # every run would compile all of the sources
        how = {"cwd": self.tree, "env": environment, "stderr": subprocess.DEVNULL}
        with tempfile.TemporaryFile("w+") as out:
            tests = [*command, *tests]
            process = subprocess.Popen(tests, stdout=out, start_new_session=True, **how)
            try:
                status = process.wait(max(seconds, 1))
            except subprocess.TimeoutExpired:
                status = 124
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            out.seek(0)
            lines = [line.split(" - ")[0].split(" ", 1) for line in out.read().splitlines()]
        named = [line[1].strip() for line in lines if line[0] in ("FAILED", "ERROR") and line[1:]]
        return status, named

    def judge(self, fault: Fault) -> dict[str, object]:
        """Return ``caught`` with the test, ``survived``, or ``out of time``.

        A test that fails without the fault too is left out from then on.
        """
        path, begun, ended = self.tree / fault.file, time.monotonic(), "survived"
        sound, changed_at = path.read_bytes(), path.stat().st_mtime
        lines = sound.split(b"\n")
        line = lines[fault.line - 1]
        lines[fault.line - 1] = line[: fault.start] + fault.new.encode() + line[fault.end :]
        broken, by = b"\n".join(lines), ""
        waiting = self.rings.around(fault.file)
        while waiting and ended == "survived":
            path.write_bytes(broken)
            os.utime(path, (begun, changed_at - 1 - begun % 1e6))  # else compiled code may be stale
            left = self.seconds - (time.monotonic() - begun)
            status, failed = self.run(waiting[0], left)
            path.write_bytes(sound)
            os.utime(path, (changed_at, changed_at))
            if status == 124:
                ended = "out of time"
            elif status in (0, 5):  # 5: there is no test
                waiting = waiting[1:]
            elif (
                failed and "::" in failed[0] and self.run(failed[:1], self.seconds)[0] not in (0, 5)
            ):
                self.red.add(failed[0])
            else:
                ended, by = "caught", failed[0] if failed else f"status {status}"
        took = round(time.monotonic() - begun)
        return fault._asdict() | {"ended": ended, "by": by, "seconds": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("--count", 100), ("--seed", 1), ("--jobs", 1), ("--first", 0)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each fault")
    given = parser.parse_args()
    draw, kinds = random.Random(given.seed), faults()
    drawn = [draw.choice(kinds[draw.choice(sorted(kinds))]) for _ in range(given.count)]
    trials, rings = queue.Queue(), Rings()
    with tempfile.TemporaryDirectory() as spare, ThreadPoolExecutor(given.jobs) as pool:
        hidden = shutil.ignore_patterns(".git", ".venv*", "runs", "*cache*", "node_modules")
        for job in range(given.jobs):
            tree = Path(shutil.copytree(ROOT, Path(spare, str(job)), ignore=hidden))
            trials.put(Trial(tree, given.timeout, rings))

        def judged(fault: Fault) -> str:
            trial = trials.get()
            told = trial.judge(fault)
            trials.put(trial)
            print(json.dumps(told, ensure_ascii=False), flush=True)
            return told["ended"]

        ends = Counter(pool.map(judged, drawn[given.first :]))
        red = sorted(set().union(*(trials.get().red for _ in range(given.jobs))))
    print(json.dumps({"faults": ends.total(), **ends, "red without a fault": red}))


if __name__ == "__main__":
    main()
