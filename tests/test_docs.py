"""Every example in README and docs runs.

``python`` blocks of a page run in order in one namespace; lines ``$ labelwise ...`` of ``console``
blocks run as commands in the page's temporary folder and must succeed. A block whose fence says
``no-run`` is output, or needs data that is not here.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)


def blocks(page):
    for language, flags, body in FENCE.findall(page.read_text()):
        if "no-run" not in flags and language in ("python", "console"):
            yield language, body


def run_console(body, folder):
    for line in body.splitlines():
        if line.startswith("$ labelwise "):
            command = [sys.executable, "-m", "labelwise", *shlex.split(line, comments=True)[2:]]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__docs__"}
    for language, body in blocks(page):
        if language == "python":
            exec(compile(body, str(page.name), "exec"), namespace)
        else:
            run_console(body, tmp_path)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
