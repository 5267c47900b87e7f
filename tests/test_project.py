"""What the project says of itself. Oracles: make, which tells what it would run; the files."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from planted_faults import FAULTS, check_anchors

import labelwise

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def would_run(tmp_path, *words):
    """Return the commands of a make target in a clone where nothing is installed."""
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}/venv", *words]
    given = {
        name: value for name, value in os.environ.items() if name not in ("BROWSER", "MAKEFLAGS")
    }
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_version_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert PROJECT["version"] == labelwise.__version__ == str(cited)
    assert f"\n## {labelwise.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_tries_every_python_that_is_promised():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    tried = jobs["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={tried[0]}"
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert set(promised) <= set(tried)


def test_the_base_is_eleven_packages_without_torch():
    names = [re.match(r"[\w-]+", one)[0] for one in PROJECT["dependencies"]]
    assert len(names) == 11
    assert not {"torch", "torchvision", "timm", "scikit-learn", "matplotlib"} & set(names)


def test_the_readme_does_not_say_that_it_is_on_an_index():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert "pip install labelwise\n" not in page.read_text(), page.name
        assert "pip install labelwise`" not in page.read_text(), page.name


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("words", "there", "left_out"),
    [
        ("demo", (" -e . ", 'labelwise" demo'), ("torch", "[train", "[dev", "chromium")),
        ("test", (".[dev,docs,onnx,ray,serve,train]", "--durations=25"), ()),
        ("test BROWSER=no", ("BROWSER=no",), ("chromium",)),
    ],
)
def test_each_command_of_make_installs_what_it_needs(tmp_path, words, there, left_out):
    commands = would_run(tmp_path, *words.split())
    assert [one for one in there if one not in commands] == []
    assert [one for one in left_out if one in commands] == []
    if words == "test":
        assert commands.index("it is installed now") < commands.index("apt-get install")
        assert "--no-install-recommends" in commands.partition("apt-get install")[2]
        assert commands.index("Chromium") < commands.index("pip install")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_another_index_is_asked_for_torch_alone(tmp_path):
    commands = would_run(tmp_path, "test", "TORCH_INDEX=https://index.example/cpu")
    (line,) = [line for line in commands.splitlines() if '--index-url "https://index' in line]
    assert "torch torchvision" in line
    for file in ("Makefile", "Dockerfile"):
        assert "--extra-index-url" not in (ROOT / file).read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_python_without_venv_leaves_no_half_environment(tmp_path):
    """Debian's python3 does this where python3-venv is missing."""
    half, venv = tmp_path / "python3", tmp_path / "venv"
    half.write_text('#!/bin/sh\nmkdir -p "$3/bin" && ln -s /bin/false "$3/bin/python"\nexit 1\n')
    half.chmod(0o755)
    command = ["make", "--no-print-directory", f"VENV={venv}", f"PYTHON={half}", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stdout
    assert not venv.exists()


def test_one_argument_pins_the_base_image_of_every_stage():
    before, *stages = re.split("^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)
    assert [stage.split()[0] for stage in stages] == ["${BASE}", "${BASE}"]
    assert re.search("^ARG BASE=python:", before, re.M)


def test_every_planted_fault_still_has_its_place():
    """`make faults` finds each by the text around it; oracle: the files as they are."""
    assert len(FAULTS) == 100
    assert [f"{fault.path}: {fault.old}" for fault in check_anchors()] == []
