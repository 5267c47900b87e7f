"""The table of limits: ours, a peer's, their ratio, the goal and whether it is met.

    python benchmarks/limits.py run search starts     measure parts of limits.yaml on this machine
    python benchmarks/limits.py page evidence/limits.md     write the page
    python benchmarks/limits.py picture evidence/limits.svg draw our ratio to each peer
    python benchmarks/limits.py keep FILE --machine "NVIDIA H200, 16 cores" --commit 1a2b3c4
                                                      keep figures that were recorded elsewhere

``run`` starts the program of each part with LABELWISE_FIGURES set to a file, and ends it when its
time is over; what it has recorded by then is kept in limits/MACHINE.json with date, load and
commit, and the figures of other parts stay as they were. All parts together take at most half an
hour. A goal that is missed stays in the table; one that no machine measured is named below it.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path

import torch
import yaml

HERE = Path(__file__).parent
RESULTS = HERE / "limits"
COMMANDS = {
    "arrays": "arrays.py",
    "search": "search.py --rows 1e6 1e7",
    "starts": "starts.py",
    "serve": "serve.py single clients fair",
    "whole": "training.py --part whole",
    "scoring": "scoring.py",
    "scoring_gpu": "scoring.py --device cuda",
    "training": "training.py --part files",
    "engines": "beside.py --s3",
}
GONE = {"engines": "e2bcf06e"}  # parts whose program left, by the last commit that holds it
ON_GPU = ("whole", "scoring_gpu", "training")
SECONDS = {"arrays": 420, "search": 420, "starts": 240, "serve": 240}
OTHERS_SECONDS = 110
HEAD = """# At the limit

Each goal beside the peer or the limit named, both measured in one run. This page is
written by `python benchmarks/limits.py page evidence/limits.md` from the figures of `make limits`,
which are kept in `benchmarks/limits/`. A goal that was missed stays in the table. Each row is
shown for the machines that measured it. Goals of fast paths that left, of attacks on the server,
of pauses and of whole runs on a GPU are on this page at commit `6d9d65b5`, with their programs.
Similar photos by sign codes and queries that are no sum are on it at `6d9d65b5`, solved heads and
the first minutes of a compiled run at `ad8fbb06`, CUDA graphs at `03689262`. Three goals were never
measured and have no row: `predict` with torchvision's decoder on a GPU, similar photos beside
usearch, and a hundred million photos on Ray.
Milliseconds are those of the machine named; ratios carry over better.

![Our ratio to each peer or limit, beside its goal](limits.svg)
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
    why: str | None = None  # where it is missed or not measured
    short: str | None = None  # in the picture

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.at_most is None) or (self.ratio is None) != (
            self.peer is None
        ):
            raise ValueError(f"{self.name} must have one goal: at_most, or ratio with a peer")

    def words(self) -> str:
        if self.ratio is not None:
            return f"ratio ≥ {self.ratio:g}"
        return f"≤ {self.at_most:g} {self.unit}"

    def ratio_of(self, ours: float, peer: float | None) -> float | None:
        """Return how many times as good ours is, None without a peer."""
        if peer is None:
            return None
        return ours / peer if self.rate else peer / ours

    def is_met(self, ours: float, peer: float | None) -> bool:
        if self.ratio is not None:
            ratio = self.ratio_of(ours, peer)
            return ratio is not None and ratio >= self.ratio
        return ours <= self.at_most


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
        limit = SECONDS.get(part, OTHERS_SECONDS)
        try:
            done = subprocess.run(
                command, env={**os.environ, "LABELWISE_FIGURES": str(place)}, timeout=limit
            )
            if done.returncode not in (0, 1):  # 1: a goal of its own was missed
                print(f"{part}: {program} ended with status {done.returncode}", file=sys.stderr)
        except subprocess.TimeoutExpired:
            print(f"{part}: not finished in {limit} s", file=sys.stderr)
        return recorded(place) if place.exists() else {}


def recorded(place: Path) -> dict[str, dict[str, float | None]]:
    """Return the figures that a program left in a file, by name."""
    found = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    return {one.pop("name"): one for one in found}


def run(parts: list[str], known: dict[str, dict[str, Goal]]) -> None:
    """Measure parts and keep what the goals name."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=HERE, capture_output=True, text=True
    ).stdout.strip()
    for part in parts:
        load = round(os.getloadavg()[0], 1)
        keep(measured(part), known[part], machine(), load=load, commit=commit)


def keep(
    figures: dict[str, dict[str, float | None]],
    known: Mapping[str, Goal],
    name: str,
    *,
    load: float | None = None,
    commit: str | None = None,
) -> None:
    """Keep the figures of a machine that goals name; its others stay as they were."""
    place = RESULTS / f"{''.join(c if c.isalnum() else '-' for c in name.lower())}.json"
    kept = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    today = date.today().isoformat()
    given = {"date": today, "load": load, "commit": commit or None}
    stamp = {name: value for name, value in given.items() if value is not None}
    kept |= {one: {**values, **stamp} for one, values in figures.items() if one in known}
    RESULTS.mkdir(exist_ok=True)
    place.write_text(json.dumps({"machine": name, **kept}, indent=1) + "\n", encoding="utf-8")


def rows_of(part: dict[str, Goal], figures: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the lines of a table."""
    rows = []
    for name, goal in part.items():
        if name not in figures:
            continue
        ours, peer = figures[name]["ours"], figures[name]["peer"]
        ratio = goal.ratio_of(ours, peer)
        rows.append(
            [
                goal.what,
                f"{_number(ours)} {goal.unit}",
                goal.peer or "",
                "" if peer is None else f"{_number(peer)} {goal.unit}",
                "" if ratio is None else f"{ratio:.2f}" + _spread(figures[name].get("range")),
                goal.words(),
                "yes" if goal.is_met(ours, peer) else "**no**",
            ]
        )
    return rows


def reasons(
    part: dict[str, Goal], figures: dict[str, dict[str, float]], anywhere: Set[str] = frozenset()
) -> list[str]:
    """Return why goals were missed, where that is known, and which no machine has measured."""
    lines = []
    for name, goal in part.items():
        found = figures.get(name)
        if goal.why and found is not None and not goal.is_met(found["ours"], found["peer"]):
            lines.append(f"* {goal.what}: {goal.why}")
    unseen = part.keys() - figures.keys() - anywhere
    missing = [goal.short or goal.what for name, goal in part.items() if name in unseen]
    if missing:
        lines.append(f"* Not measured: {'; '.join(missing)}.")
    return ["", *lines] if lines else []


def _spread(found: list[float] | None) -> str:
    return "" if found is None else f" ({found[0]:.3f} to {found[1]:.3f}, {found[2]} runs)"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def page(known: dict[str, dict[str, Goal]]) -> str:
    """Return the page: each part by the machine that measured it last."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    text = [HEAD]
    for part, some in known.items():
        for figures in (one for one in results if any(name in one for name in some)):
            where = figures["machine"]
            stamps = [figures[name] for name in some if name in figures]
            days = sorted({one["date"] for one in stamps})
            loads = sorted({one["load"] for one in stamps if "load" in one})
            commits = sorted({one["commit"] for one in stamps if "commit" in one})
            text.append(f"\n## {part.replace('_', ' ')}: {where}\n")
            text.append(
                f"`python benchmarks/{COMMANDS[part]}`"
                + (f" (at `{GONE[part]}`)" if part in GONE else "")
                + _when(days, loads, commits)
                + "\n"
            )
            text.append("| what | ours | peer or limit | its figure | ratio | goal | met |")
            text.append("| --- | --- | --- | --- | --- | --- | --- |")
            rows = rows_of(some, figures)
            text += [
                f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
                for row in rows
            ]
            text += reasons(some, figures, {name for one in results for name in one})
    return "\n".join(text) + "\n"


def _when(days: list[str], loads: list[float], commits: list[str]) -> str:
    if not days:
        return ""
    load = f"{loads[0]:g}" if len(loads) == 1 else f"{loads[0]:g} to {loads[-1]:g}" if loads else ""
    words = f", measured on {' and '.join(days)}" + (
        f" at commit {', '.join(commits)}" if commits else ""
    )
    return words + (f", at a load of {load} (by the system, before each part)." if load else ".")


ROW, LEFT, WIDE, RIGHT = 22, 430, 420, 190  # of the picture, in pixels
COLOURS = {True: "#2b6cb0", False: "#c05621"}


def picture(known: dict[str, dict[str, Goal]]) -> str:
    """Return an SVG: our ratio to each peer on a logarithmic scale, and a line at each goal."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    bars: list[tuple[Goal, float, bool]] = []
    for some in known.values():
        for name, goal in some.items():
            if goal.ratio is None:
                continue
            there = [one[name] for one in results if name in one]
            if there:
                found = max(there, key=lambda one: one["date"])  # measured last
                met = goal.is_met(found["ours"], found["peer"])
                bars.append((goal, goal.ratio_of(found["ours"], found["peer"]) or 0.0, met))
    ends = [value for goal, ratio, _ in bars for value in (goal.ratio, ratio) if value]
    low, high = min(0.5, *ends), max(ends)

    def across(value: float) -> float:
        return LEFT + WIDE * math.log(value / low) / math.log(high / low)

    height = ROW * (len(bars) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="11" role="img">',
        "<title>labelwise against each peer: how many times as fast or as small</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="15" font-weight="bold">Times as good as the peer (1 = equal). Blue: goal '
        "met, orange: missed; the dark line is the goal.</text>",
    ]
    for tick in (1, 10, 100, 1000):
        if low <= tick <= high:
            x = across(tick)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ROW}" y2="{height - ROW}" stroke="#cbd5e0"/>'
                f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{tick}</text>'
            )
    for row, (goal, ratio, met) in enumerate(bars):
        y = ROW * (row + 1)
        what = goal.short or goal.what
        name = what if len(what) <= 72 else what[:71] + "…"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        start, aim = across(1), across(goal.ratio or 1)
        end = across(ratio)
        parts.append(
            f'<rect x="{min(start, end):.1f}" y="{y + 4}" height="13" '
            f'width="{max(abs(end - start), 1):.1f}" fill="{COLOURS[met]}"/>'
        )
        beside = max(start, aim, end) + 6
        peer = goal.peer if len(goal.peer or "") <= 34 else f"{goal.peer[:33]}…"
        parts.append(
            f'<line x1="{aim:.1f}" x2="{aim:.1f}" y1="{y + 2}" y2="{y + 19}" stroke="#1a202c" '
            f'stroke-width="2"/><text x="{beside:.1f}" y="{y + 14}">{ratio:.3g} '
            f'<tspan fill="#718096">{escape(peer or "")}</tspan></text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    some = commands.add_parser("run", help="measure parts, without any: all that fit this machine")
    some.add_argument("parts", nargs="*", choices=[*(COMMANDS.keys() - GONE.keys()), []])
    commands.add_parser("page", help="write the page").add_argument("file", type=Path)
    drawn = commands.add_parser("picture", help="draw our ratio to each peer")
    drawn.add_argument("file", type=Path)
    other = commands.add_parser("keep", help="keep what a program left by LABELWISE_FIGURES")
    other.add_argument("file", type=Path)
    other.add_argument("--machine", required=True)
    other.add_argument("--commit", help="that they were measured at")
    given = parser.parse_args()
    known = goals()
    if given.command == "keep":
        every = {name: goal for part in known.values() for name, goal in part.items()}
        keep(recorded(given.file), every, given.machine, commit=given.commit)
    if given.command == "run":
        on_gpu = torch.cuda.is_available()
        here = [part for part in COMMANDS if (part in ON_GPU) == on_gpu and part not in GONE]
        run(given.parts or here, known)
    if given.command == "page":
        given.file.write_text(page(known), encoding="utf-8")
    if given.command == "picture":
        given.file.write_text(picture(known), encoding="utf-8")


if __name__ == "__main__":
    main()
