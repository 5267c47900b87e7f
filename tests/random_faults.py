"""How many random one-line faults the tests of a room catch.

    python tests/random_faults.py --count 100 --seed 1 --jobs 16

Each fault is put into a copy of the tree, and the tests of its room (a folder below src/labelwise)
run until one fails. Rooms whose tests fail without a fault are named and left out. Prints JSON.
"""

import argparse
import ast
import copy
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/labelwise")
FLIPPED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Fault:
    """A piece of one line and what stands there instead."""

    kind: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def room(self) -> str:
        """The folder below the package, or the module's own name at its root."""
        return Path(self.file).relative_to(PACKAGE).parts[0].removesuffix(".py")


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


def passes(tree: Path, room: str, seconds: float) -> bool:
    """Run the tests of a room in a tree."""
    tests = [tree / "tests" / room] if (tree / "tests" / room).is_dir() else []
    tests = tests or sorted((tree / "tests").rglob(f"test_{room.strip('_')}*.py"))
    sources = [place for place in (tree / PACKAGE / room,) if place.is_dir()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        arguments = [*command, *map(str, tests + sources)]
        done = subprocess.run(arguments, cwd=tree, env=environment, timeout=seconds, **quiet)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)  # 5: there is no test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("--count", 100), ("--seed", 1), ("--jobs", os.cpu_count())):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds for the tests of a room"
    )
    given = parser.parse_args()
    draw, kinds = random.Random(given.seed), faults()
    drawn = [draw.choice(kinds[draw.choice(sorted(kinds))]) for _ in range(given.count)]
    trees: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory() as spare, ThreadPoolExecutor(given.jobs) as pool:
        hidden = shutil.ignore_patterns(".git", ".venv", "runs", "*cache*", "node_modules")
        for job in range(given.jobs):
            trees.put(Path(shutil.copytree(ROOT, Path(spare, str(job)), ignore=hidden)))

        def tried(room: str, fault: Fault | None = None) -> bool:
            tree = trees.get()
            path = tree / (fault.file if fault else "pyproject.toml")
            sound = path.read_bytes()
            lines = sound.split(b"\n")
            if fault:
                line = lines[fault.line - 1]
                new = line[: fault.start] + fault.new.encode() + line[fault.end :]
                path.write_bytes(b"\n".join([*lines[: fault.line - 1], new, *lines[fault.line :]]))
            good = passes(tree, room, given.timeout)
            path.write_bytes(sound)
            trees.put(tree)
            return good

        rooms = sorted({fault.room for fault in drawn})
        red = [room for room, good in zip(rooms, pool.map(tried, rooms), strict=True) if not good]
        judged = [fault for fault in drawn if fault.room not in red]
        survived = list(pool.map(tried, [fault.room for fault in judged], judged))
    told = [
        asdict(fault) | {"caught": not out} for fault, out in zip(judged, survived, strict=True)
    ]
    total = {"faults": len(judged), "caught": len(judged) - sum(survived), "red rooms": red}
    print(json.dumps({"total": total, "faults": told}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
