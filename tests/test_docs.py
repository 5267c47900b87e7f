"""Every example in README and docs runs.

``python`` blocks of a page run in order in one namespace; lines ``$ labelwise ...`` of ``console``
blocks run as commands in the page's temporary folder and must succeed. A ``text`` block after them
is their output: most of its words must be in what they printed. ``labelwise demo`` runs once for
all pages; each has a copy of its folder. A block whose fence says ``no-run`` needs data that is
not here. mkdocs judges links and the navigation, griffe what a public function is called with.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import griffe
import pytest
import typer.main
from patience import wait_until
from words_setup import save_words_example

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_reference"))
from arguments import DESCRIBED, MEANINGS, arguments_of, exported, meaning  # noqa: E402

from labelwise.cli.app import app  # noqa: E402

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^([ ]*)```(\w+)([^\n]*)\n(.*?)^\1```$", re.M | re.S)


def blocks(text):
    """Yield (language, content) of examples; ``text`` only where it follows a command."""
    ran = False
    for _, language, flags, body in FENCE.findall(text):
        shown, ran = language == "text" and ran, "no-run" not in flags
        ran = ran and language in ("python", "console")
        if ran or shown:
            yield language, dedent(body)


def test_blocks_inside_notes_are_examples_too():
    page = """!!! note "x"\n    ```python\n    if True:\n        y = 1\n    ```\n
    ```console no-run\n    $ rm\n    ```\n\n```text\nlost\n```\n
```console\n$ labelwise data\n```\n\n```text\nshown\n```\n"""
    console = [("console", "$ labelwise data\n"), ("text", "shown\n")]
    assert list(blocks(page)) == [("python", "if True:\n    y = 1\n"), *console]


def words_in(text):
    return set(re.findall(r"[a-z]{4,}", text.lower()))


def made_once(tmp_path_factory, name, make):
    """Return the folder that ``make(folder)`` fills in whichever process of tests comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    whole, begun, part, failed = (
        shared / f"{name}{end}" for end in ("", ".begun", ".part", ".failed")
    )
    try:
        begun.mkdir()  # it stays: nobody makes it twice
    except FileExistsError:
        wait_until(lambda: whole.exists() or failed.exists())
        assert whole.exists(), f"{name} could not be made, as another test says"
        return whole
    part.mkdir()
    try:
        make(part)
    except BaseException:
        failed.touch()
        raise
    return part.rename(whole)


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory, warm_commands):
    """Return a folder beside open-photos where ``labelwise demo`` ran, and what was printed."""

    def make(folder):
        shutil.copytree(ROOT / "open-photos", folder / "open-photos")
        done = warm_commands.run(["demo"], folder)
        assert done.returncode == 0, done.stderr
        (folder / "printed.txt").write_text(done.stdout)

    folder = made_once(tmp_path_factory, "demo", make)
    return folder, (folder / "printed.txt").read_text()


def run_console(body, folder, warm_commands, demo):
    printed = ""
    for line in body.splitlines():
        if line.startswith("$ labelwise demo"):
            shutil.copytree(demo()[0], folder, dirs_exist_ok=True)
            printed += demo()[1]
        elif line.startswith("$ labelwise "):
            done = warm_commands.run(shlex.split(line, comments=True)[2:], folder)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout + done.stderr
    return printed


# Pages that are followed one after the other in one folder: the second finds features and index.
TOGETHER = {"README.md": "quickstart.md", "search.md": "tutorial-library.md"}
FIRST = [p for p in PAGES if any(blocks(p.read_text())) and p.name not in TOGETHER.values()]


@pytest.mark.parametrize("page", FIRST, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch, warm_commands, request, capsys):
    monkeypatch.chdir(tmp_path)
    if page.name == "tutorial-no-labels.md":
        save_words_example(tmp_path)
    follow(page, tmp_path, warm_commands, request, capsys)
    if page.name in TOGETHER:
        follow(ROOT / "docs" / TOGETHER[page.name], tmp_path, warm_commands, request, capsys)


def follow(page, tmp_path, warm_commands, request, capsys):
    """Do as a page says, in a folder that others may have been followed in."""
    if "open-photos" in page.read_text():
        shutil.copytree(ROOT / "open-photos", tmp_path / "open-photos", dirs_exist_ok=True)
    namespace, printed = {"__name__": "__docs__"}, ""
    for language, body in blocks(page.read_text()):
        if language == "python":
            capsys.readouterr()
            exec(compile(body, str(page.name), "exec"), namespace)
            printed = capsys.readouterr().out
        elif language == "console":
            printed = run_console(
                body, tmp_path, warm_commands, lambda: request.getfixturevalue("demo_folder")
            )
        else:
            shown = words_in(body)
            missing = shown - words_in(printed)
            assert len(missing) <= 0.5 * len(shown), f"{sorted(missing)} not in:\n{printed}"


def commands_named(text):
    """Return the words of every ``labelwise ...`` that a page names, run or not."""
    joined = text.replace("\\\n", " ")
    lines = re.findall(r"^\$ (?:\w+=\S+ )*(labelwise .+)$|^(labelwise .+)$", joined, re.M)
    named = [one or other for one, other in lines] + re.findall(r"`(labelwise [a-z][^`]*)`", joined)
    return [re.sub(r"\s#.*", "", line).split()[1:] for line in named]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SKILL.md"], ids=lambda page: page.name)
def test_commands_and_options_exist(page):
    for words in commands_named(page.read_text()):
        command = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        query = {word for word in flags if re.match(r"-[a-z]{2,}", word)}  # -beach: without it
        assert flags - query <= known | {"--help", "--help-all"}, f"{command.name} {words}"


def test_the_notebook_runs(tmp_path, warm_commands):
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text())["cells"]
    program = ["import os; os.environ['MPLBACKEND'] = 'agg'"]  # there is no screen
    program += ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    (tmp_path / "tour.py").write_text("\n\n".join(program))
    done = warm_commands.run([], tmp_path, module="tour.py")
    assert done.returncode == 0, done.stderr
    assert "ECE" in done.stdout


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_outside_the_site_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", (ROOT / page).read_text()):
        assert (ROOT / target).exists(), f"{page} links to {target}"


def test_the_site_builds_strictly_and_asks_the_network_for_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    how = {"env": os.environ | {"NO_MKDOCS_2_WARNING": "1"}, "timeout": 300}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"([^\"]+)", text)
        assert not [url for url in loaded if url.startswith(("http", "//"))], page
        assert "no-run" not in text or page.stem in ("contributing", "changelog"), page
    install = (tmp_path / "install.html").read_text()
    assert re.search(r"<pre>.*?pip.*?--index-url.*?</pre>", install, re.S), "a block"
    assert 'id="labelwise.api.train"' in (tmp_path / "reference" / "api.html").read_text()
    reference = (tmp_path / "reference" / "learn.objectives.html").read_text()
    shown = reference[reference.index('id="labelwise.learn.objectives.cross_entropy.spa_loss"') :]
    assert "the model's outputs, one per image and label." in shown
    assert shown.index("Parameters") < shown.index("Returns") < shown.index("<h2")


@cache
def public():
    """Return the public functions and classes whose arguments the reference describes."""
    return list(described(griffe.load("labelwise", search_paths=[ROOT / "src"])))


def described(source):
    for package in DESCRIBED:
        module = source[package]
        for name in exported(module):
            path = module.imports.get(name, f"{module.path}.{name}")
            target = source[path.removeprefix("labelwise.")]
            if target.is_function or target.is_class:
                yield target


def is_result(target):
    """Return whether a class holds what was found, and is not made by its users."""
    return target.is_class and "dataclass" in target.labels and "Rule" not in map(str, target.bases)


def test_the_reference_explains_every_argument():
    wanted = [t for t in public() if not is_result(t) and "Args:" not in t.docstring.value]
    missing = [f"{t.name}.{a}" for t in wanted for a in arguments_of(t) if not meaning(t.name, a)]
    assert missing == [], "describe them in docs/_reference/arguments.yaml"


def test_no_explanation_is_left_over():
    given = {(t.name, a) for t in public() for a in arguments_of(t)}
    words = {f"{owner}.{a}" for owner, a in given} | {a for _, a in given}
    assert set(MEANINGS) <= words
