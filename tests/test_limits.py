"""Held to: the page in the docs, written again from the figures that are kept; ratios by hand."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def limits(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import limits

    return limits


def test_the_page_is_made_of_the_kept_figures(limits):
    assert (ROOT / "evidence" / "limits.md").read_text(encoding="utf-8") == limits.page(
        limits.goals()
    )


def test_the_picture_is_made_of_them_too(limits):
    drawn = (ROOT / "evidence" / "limits.svg").read_text(encoding="utf-8")
    assert drawn == limits.picture(limits.goals())
    peers = [goal for part in limits.goals().values() for goal in part.values() if goal.ratio]
    bars = [text for text in ElementTree.fromstring(drawn).itertext() if text.strip()]
    assert all(any((goal.short or goal.what)[:71] in text for text in bars) for goal in peers)


SPEED = re.compile(
    r"[\d.,]*\d(?= ?(?:×|x|times) (?:as fast|faster|slower|the speed))"
    r"|[\d.,]*\d(?= (?:photos|images|pictures|requests|queries|steps)(?:/s| (?:a|per) second))"
    r"|[\d.,]*\d(?= ?(?:ms|µs|us)\b)"
)


def unmeasured(text, measured):
    """The speeds that prose states and no results file holds; blocks of code are left out."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    return [found for found in SPEED.findall(prose) if found not in measured]


def test_a_speed_in_readme_or_docs_is_one_of_the_kept_figures():
    measured = (ROOT / "evidence" / "limits.md").read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert not unmeasured(page.read_text(encoding="utf-8"), measured), page.name


def test_a_speed_that_nobody_measured_is_found():
    text = "It is 31 times faster, takes 7.5 ms and tags 1,234 photos per second.\n```\n9 ms\n```"
    assert unmeasured(text, "| 7.5 ms |") == ["31", "1,234"]


def test_each_goal_has_a_figure_that_its_program_records(limits):
    """Names may be made of a number of rows, or of what is named before they are recorded."""
    assert {*limits.goals()} == {*limits.COMMANDS}
    for part, goals in limits.goals().items():
        program = limits.COMMANDS[part].split()[0].removesuffix(".py")
        sources = [ROOT / "benchmarks" / f"{name}.py" for name in {program, part}]
        sources += (ROOT / "benchmarks").glob(f"{program}_*.py")  # which it may start
        text = "".join(path.read_text(encoding="utf-8") for path in sources if path.exists())
        named = [re.escape(name) for name in re.findall(r'"([a-z][\w{}:.+-]+)"', text)]
        patterns = [re.sub(r"\\\{.*?\\\}", "[\\\\w.+-]+", name) for name in named]
        for name in goals:
            assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_ratios_say_how_many_times_as_good_ours_is(limits):
    faster = limits.Goal("a", "a", "ms", peer="b", ratio=3)
    assert faster.ratio_of(2.0, 6.0) == 3
    assert faster.is_met(2.0, 6.0)
    assert not faster.is_met(2.1, 6.0)
    more = limits.Goal("a", "a", "per second", peer="b", ratio=0.9, rate=True)
    assert more.is_met(9.0, 10.0)
    assert not more.is_met(8.9, 10.0)
    assert not more.is_met(9.0, None)
    small = limits.Goal("a", "a", "MiB", at_most=10)
    assert small.is_met(10, None)
    assert not small.is_met(11, None)
    assert not limits.Goal("a", "a", "share", at_least=0.99).is_met(0.98, None)


def test_a_goal_that_was_missed_or_not_measured_stays_in_the_table(limits):
    goals = {name: limits.Goal(name, f"what {name} is", "ms", at_most=10) for name in "ab"}
    rows = limits.rows_of(goals, {"a": {"ours": 12.0, "peer": None}})
    assert rows == [
        ["what a is", "12 ms", "", "", "", "≤ 10 ms", "**no**"],
        ["what b is", "not measured", "", "", "", "≤ 10 ms", ""],
    ]


def test_a_goal_says_why_it_was_missed_only_where_it_was(limits):
    goals = {"a": limits.Goal("a", "what a is", "ms", at_most=10, why="it waits for b")}
    line = ["", "* what a is: it waits for b"]
    assert limits.reasons(goals, {"a": {"ours": 12.0, "peer": None}}) == line
    assert limits.reasons(goals, {}) == line
    assert limits.reasons(goals, {"a": {"ours": 10.0, "peer": None}}) == []


def test_figures_from_elsewhere_are_kept_beside_those_of_their_machine(
    limits, monkeypatch, tmp_path
):
    monkeypatch.setattr(limits, "RESULTS", tmp_path / "limits")
    goal = limits.Goal("a", "what a is", "ms", at_most=10)
    limits.keep({"a": {"ours": 1.0, "peer": None}}, {"a": goal}, "A GPU, 2 cores", load=3.5)
    (tmp_path / "figures.jsonl").write_text(
        '{"name": "b", "ours": 12.0, "peer": 6.0}\n{"name": "c", "ours": 1, "peer": null}\n'
    )
    found = limits.recorded(tmp_path / "figures.jsonl")
    limits.keep(found, {"a": goal, "b": goal}, "A GPU, 2 cores")
    kept = json.loads((tmp_path / "limits" / "a-gpu--2-cores.json").read_text())
    assert kept["machine"] == "A GPU, 2 cores"
    assert (kept["a"]["ours"], kept["a"]["load"]) == (1.0, 3.5)
    assert (kept["b"]["ours"], kept["b"]["peer"]) == (12.0, 6.0)
    assert "c" not in kept
    page = limits.page({"search": {"a": goal, "b": goal}})
    assert "at a load of 3.5 (" in page
    assert "| what a is | 12 ms |" in page


@pytest.mark.parametrize("given", [{}, {"ratio": 2}, {"at_most": 1, "at_least": 1}])
def test_a_goal_must_be_one(limits, given):
    with pytest.raises(ValueError, match="must have one goal"):
        limits.Goal("a", "a", "ms", **given)
