"""The hashes of the server's image, held to constraints.txt and to what installed packages need."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"([\w.-]+)==([\w.+]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
FILES = ("build.txt", "server.txt")


def pins(name):
    """Return the versions of a file that holds pins with hashes and nothing else."""
    text = (ROOT / "deploy/hashes" / name).read_text()
    assert PIN.sub("", text) == ""
    return {canonicalize_name(found[1]): found[2] for found in PIN.finditer(text)}


def constrained():
    pairs = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    return {canonicalize_name(name): version for name, version in pairs}


def needed(roots):
    """Return the names that requirements lead to here, by what installed packages say."""
    found, waiting = set(), [Requirement(text) for text in roots]
    while waiting:
        one = waiting.pop()
        for extra in ("", *one.extras):
            key = (canonicalize_name(one.name), extra)
            further = [] if key in found else map(Requirement, requires(one.name) or ())
            found.add(key)
            here = {"extra": extra}
            waiting += [more for more in further if not more.marker or more.marker.evaluate(here)]
    return {name for name, _ in found}


def declared():
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, extras = facts["project"], facts["project"]["optional-dependencies"]
    server = [*project["dependencies"], *extras["serve"]]
    return {"build.txt": facts["build-system"]["requires"], "server.txt": server}


@pytest.mark.parametrize("name", FILES)
def test_versions_are_those_of_the_constraints(name):
    known = constrained()
    assert pins(name) == {package: known.get(package) for package in pins(name)}


@pytest.mark.parametrize("name", FILES)
def test_every_package_that_is_needed_has_hashes_and_no_other(name):
    # What constraints.txt does not name is another platform's.
    asked = needed(declared()[name]) & constrained().keys()
    assert pins(name).keys() == asked


def test_the_image_installs_by_hash_all_but_the_project_and_no_torch():
    steps = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").split("&&")
    installs = [" ".join(step.split()) for step in steps if "pip install" in step]
    assert all("--no-deps" in step for step in installs)
    *by_hash, own = installs
    assert all("--require-hashes" in step for step in by_hash)
    assert [step.rpartition("/")[2] for step in by_hash] == list(FILES)
    assert own.endswith("--no-index /wheels/*.whl")
    assert not {"torch", "timm", "torchvision"} & pins("server.txt").keys()
