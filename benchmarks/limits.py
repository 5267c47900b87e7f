"""The table of limits: ours, a peer's, their ratio, the goal and whether it is met.

    python benchmarks/limits.py run search heads      measure parts of limits.yaml on this machine
    python benchmarks/limits.py table                 print what was measured, machine by machine
    python benchmarks/limits.py page evidence/limits.md   write the page
    python benchmarks/limits.py keep FILE --machine "NVIDIA H200, 16 cores"
                                                      keep figures that were recorded elsewhere

``run`` starts the program of each part with LABELWISE_FIGURES set to a file; what the program
records there is kept in limits/MACHINE.json, the figures of other parts stay as they were. A goal
that is missed, or not measured, stays in the table.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import yaml

HERE = Path(__file__).parent
RESULTS = HERE / "limits"
COMMANDS = {
    "search": "search.py --rows 1e6 1e7 --similar 1e5 --files 0",
    "heads": "heads.py",
    "heads_large": "heads_large.py --part memory",
    "heads_gpu": "heads_large.py",
    "starts": "starts.py",
    "serve": "serve.py clients fair attack",
    "scoring_gpu": "scoring.py --device cuda --decode both --sizes 500x375",
    "overlap": "overlap.py",
    "training": "training.py --part files",
    "first_minutes": "first_minutes.py",
    "beside": "beside.py --s3",
}
ON_GPU = ("heads_gpu", "scoring_gpu", "overlap", "training", "first_minutes")
HEAD = """# At the limit

Each goal beside the peer or the limit named, both measured in one run. This page is
written by `python benchmarks/limits.py page evidence/limits.md` from the figures of `make limits`.
A goal that was missed, or not measured, stays in the table. Milliseconds are those of the
machine named; ratios carry over better.
"""


@dataclass(frozen=True)
class Goal:
    """What one figure is held to: a number of its own unit, or a ratio to a peer."""

    name: str
    what: str
    unit: str
    peer: str | None = None
    rate: bool = False
    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    why: str | None = None  # where it is missed or not measured

    def __post_init__(self) -> None:
        given = [self.ratio, self.at_most, self.at_least]
        if sum(one is not None for one in given) != 1 or (self.ratio is None) != (
            self.peer is None
        ):
            raise ValueError(
                f"{self.name} must have one goal: at_most, at_least, or ratio with a peer"
            )

    def words(self) -> str:
        if self.ratio is not None:
            return f"ratio ≥ {self.ratio:g}"
        return (
            f"≤ {self.at_most:g} {self.unit}"
            if self.at_most is not None
            else f"≥ {self.at_least:g}"
        )

    def ratio_of(self, ours: float, peer: float | None) -> float | None:
        """Return how many times as good ours is, None without a peer."""
        if peer is None:
            return None
        return ours / peer if self.rate else peer / ours

    def is_met(self, ours: float, peer: float | None) -> bool:
        if self.ratio is not None:
            ratio = self.ratio_of(ours, peer)
            return ratio is not None and ratio >= self.ratio
        return ours <= self.at_most if self.at_most is not None else ours >= self.at_least


def goals() -> dict[str, dict[str, Goal]]:
    """Return the goals of each part, by name."""
    parts = yaml.safe_load((HERE / "limits.yaml").read_text(encoding="utf-8"))
    return {
        part: {name: Goal(name, **given) for name, given in some.items()}
        for part, some in parts.items()
    }


def machine() -> str:
    """Return this machine in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def measured(part: str) -> dict[str, dict[str, float | None]]:
    """Run the program of a part and return the figures that it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "figures.jsonl")
        program, *given = COMMANDS[part].split()
        command = [sys.executable, str(HERE / program), *given]
        done = subprocess.run(command, env={**os.environ, "LABELWISE_FIGURES": str(place)})
        if done.returncode not in (0, 1):  # 1: a goal of its own was missed
            raise SystemExit(f"{program} ended with status {done.returncode}")
        return recorded(place) if place.exists() else {}


def recorded(place: Path) -> dict[str, dict[str, float | None]]:
    """Return the figures that a program left in a file, by name."""
    found = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    return {one["name"]: {"ours": one["ours"], "peer": one["peer"]} for one in found}


def run(parts: list[str], known: dict[str, dict[str, Goal]]) -> None:
    """Measure parts and keep what the goals name."""
    for part in parts:
        keep(measured(part), known[part], machine(), load=round(os.getloadavg()[0], 1))


def keep(
    figures: dict[str, dict[str, float | None]],
    known: Mapping[str, Goal],
    name: str,
    *,
    load: float | None = None,
) -> None:
    """Keep the figures of a machine that goals name; its others stay as they were."""
    place = RESULTS / f"{''.join(c if c.isalnum() else '-' for c in name.lower())}.json"
    kept = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    today = date.today().isoformat()
    stamp = {"date": today} if load is None else {"date": today, "load": load}
    kept |= {one: {**values, **stamp} for one, values in figures.items() if one in known}
    RESULTS.mkdir(exist_ok=True)
    place.write_text(json.dumps({"machine": name, **kept}, indent=1) + "\n", encoding="utf-8")


def rows_of(part: dict[str, Goal], figures: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the lines of a table."""
    rows = []
    for name, goal in part.items():
        if name not in figures:
            rows.append([goal.what, "not measured", goal.peer or "", "", "", goal.words(), ""])
            continue
        ours, peer = figures[name]["ours"], figures[name]["peer"]
        ratio = goal.ratio_of(ours, peer)
        rows.append(
            [
                goal.what,
                f"{_number(ours)} {goal.unit}",
                goal.peer or "",
                "" if peer is None else f"{_number(peer)} {goal.unit}",
                "" if ratio is None else f"{ratio:.2f}",
                goal.words(),
                "yes" if goal.is_met(ours, peer) else "**no**",
            ]
        )
    return rows


def reasons(part: dict[str, Goal], figures: dict[str, dict[str, float]]) -> list[str]:
    """Return why goals were missed or not measured, where that is known."""
    lines = []
    for name, goal in part.items():
        found = figures.get(name)
        if goal.why and (found is None or not goal.is_met(found["ours"], found["peer"])):
            lines.append(f"* {goal.what}: {goal.why}")
    return ["", *lines] if lines else []


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def page(known: dict[str, dict[str, Goal]]) -> str:
    """Return the page: each part by the machine that measured it last."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    text = [HEAD]
    for part, some in known.items():
        found = [one for one in results if any(name in one for name in some)] or [{}]
        for figures in found:
            where = figures.get("machine", "no machine yet")
            stamps = [figures[name] for name in some if name in figures]
            days = sorted({one["date"] for one in stamps})
            loads = sorted({one["load"] for one in stamps if "load" in one})
            text.append(f"\n## {part.replace('_', ' ')}: {where}\n")
            text.append(f"`python benchmarks/{COMMANDS[part]}`" + _when(days, loads) + "\n")
            text.append("| what | ours | peer or limit | its figure | ratio | goal | met |")
            text.append("| --- | --- | --- | --- | --- | --- | --- |")
            rows = rows_of(some, figures)
            text += [
                f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
                for row in rows
            ]
            text += reasons(some, figures)
    return "\n".join(text) + "\n"


def _when(days: list[str], loads: list[float]) -> str:
    if not days:
        return ""
    if not loads:
        return f", measured on {days[-1]}."
    load = f"{loads[0]:g}" if len(loads) == 1 else f"{loads[0]:g} to {loads[-1]:g}"
    return f", measured on {days[-1]} at a load of {load} (by the system, at the end of each part)."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    some = commands.add_parser("run", help="measure parts, without any: all that fit this machine")
    some.add_argument("parts", nargs="*", choices=[*COMMANDS, []])
    commands.add_parser("table", help="print the figures that are kept")
    commands.add_parser("page", help="write the page").add_argument("file", type=Path)
    other = commands.add_parser("keep", help="keep what a program left by LABELWISE_FIGURES")
    other.add_argument("file", type=Path)
    other.add_argument("--machine", required=True)
    given = parser.parse_args()
    known = goals()
    if given.command == "keep":
        every = {name: goal for part in known.values() for name, goal in part.items()}
        keep(recorded(given.file), every, given.machine)
    if given.command == "run":
        on_gpu = torch.cuda.is_available()
        run(given.parts or [part for part in COMMANDS if (part in ON_GPU) == on_gpu], known)
    if given.command == "page":
        given.file.write_text(page(known), encoding="utf-8")
    else:
        print(page(known))


if __name__ == "__main__":
    main()
