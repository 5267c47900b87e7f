"""Held to: the page in the docs, written again from the figures that are kept; ratios by hand."""

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
    kept = " ".join(path.read_text("utf-8") for path in limits.RESULTS.glob("*.json"))
    named = [pair for part in limits.goals().values() for pair in part.items()]
    peers = [goal for name, goal in named if goal.ratio and f'"{name}"' in kept]
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


def test_each_goal_has_a_figure_that_its_program_records(limits):
    """Names may be made of a number of rows, or of what is named before they are recorded."""
    assert {*limits.goals()} == {*limits.COMMANDS}
    for part, goals in limits.goals().items():
        if part in limits.GONE:  # its program is in that commit alone
            continue
        program = limits.COMMANDS[part].split()[0].removesuffix(".py")
        sources = [ROOT / "benchmarks" / f"{name}.py" for name in {program, part, "measure"}]
        sources += (ROOT / "benchmarks").glob(f"{program}_*.py")  # which it may start
        text = "".join(path.read_text(encoding="utf-8") for path in sources if path.exists())
        named = [re.escape(name) for name in re.findall(r'"([a-z][\w{}:.+-]+)"', text)]
        patterns = [re.sub(r"\\\{.*?\\\}", "[\\\\w.+-]+", name) for name in named]
        for name in goals:
            assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_a_goal_that_was_missed_stays_and_one_that_was_not_measured_is_named(limits):
    goals = {name: limits.Goal(name, f"what {name} is", "ms", at_most=10) for name in "ab"}
    figures = {"a": {"ours": 12.0, "peer": None}}
    missed = ["what a is", "12 ms", "", "", "", "≤ 10 ms", "**no**"]
    assert limits.rows_of(goals, figures) == [missed]
    assert limits.reasons(goals, figures) == ["", "* Not measured: what b is."]
    assert limits.reasons(goals, figures, {"b"}) == []  # another machine has measured it
