"""Commands that compute nothing import little. Oracles: Python's modules, a search with torch."""

import json
import re
import subprocess
import sys

import pytest
from PIL import Image
from search_setup import picture, save_model
from typed import must_run, run

SLOW = {"torch", "torchvision", "timm", "scipy", "sklearn", "matplotlib"}
COMMAND = """
import json, sys
from labelwise.cli.app import main
sys.argv[0] = "labelwise"
try:
    main()
except SystemExit as end:
    status = end.code or 0
print(json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def modules_after(*words, cwd=None):
    """Return what a command said, and the packages it had imported when it ended."""
    command = [sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd)
    said, _, last = done.stdout.rstrip().rpartition("\n")
    status, packages = json.loads(last)
    assert status == 0, done.stderr
    return said, set(packages)


def test_a_table_is_described_without_torch(tmp_path):
    rows = ["path,labels"]
    for number, labels in enumerate(["dog|beach", "cat", "", "dog|beach"]):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{labels}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    said, packages = modules_after("data", "describe", "photos.csv", cwd=tmp_path)
    assert "4 images, 3 labels" in said
    assert "2.00" in said  # beach with dog: twice as often as by chance
    assert packages & SLOW == set()


@pytest.mark.parametrize("words", [["papers", "methods"], ["papers", "methods", "spa"]])
def test_methods_are_told_without_torch(words):
    said, packages = modules_after(*words)
    assert "spa" in said
    assert packages & SLOW == set()


@pytest.mark.parametrize("words", ["--help", "train --help", "papers --help", "--version"])
def test_help_is_there_without_what_computes(words):
    said, packages = modules_after(*words.split())
    assert said
    assert packages & {*SLOW, "numpy", "pandas", "pyarrow", "PIL"} == set()


WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # whoever imports it now gets an error
from labelwise.cli.app import app
from typer.testing import CliRunner
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    print(json.dumps([done.exit_code, done.output, "scipy" in sys.modules]))
"""
SEARCHES = [
    ["dog, -beach"],
    ["(cat | dog), -beach", "--json"],
    ["pet", "--count"],
    ["cat", "--sort", "date", "--folder", "photos", "--top", "3"],
    ["none", "--paths-only"],
]
BOUNDED = [  # scipy computes the bounds
    ["dog", "--at-least", "0.1"],
    ["dog", "--wrong-at-most", "0.3", "--count", "--json"],
    ["dog", "--wrong-at-most", "0.5"],
]


OTHERS = [
    *(["label", "INDEX", "photos/photos/1.png", "dog", "-cat"], ["label", "next", "INDEX"]),
    *(["label", "next", "INDEX", "--order", "wrong"], ["label", "INDEX", "-o", "labels.csv"]),
    *(["search", "INDEX", "dog"], ["count", "INDEX", "dog"], ["tag", "INDEX", "--xmp"]),
    ["tag", "INDEX", "--xmp", "--undo"],
]


def test_photos_are_searched_labelled_counted_and_tagged_without_torch(tmp_path, monkeypatch):
    model, photos, folder = save_model(tmp_path / "run"), tmp_path / "photos", tmp_path / "index"
    for number in range(12):
        picture(photos / "photos" / f"{number}.png", number)
    (tmp_path / "kinds.csv").write_text("child,parent\ndog,pet\ncat,pet\n")
    words = ["index", photos, "--model", model, "-o", folder, "--taxonomy", tmp_path / "kinds.csv"]
    must_run(*words, catch_exceptions=False)
    monkeypatch.setenv("LABELWISE_OVERWRITE", "1")
    monkeypatch.chdir(tmp_path)
    commands = [[str(folder) if word == "INDEX" else word for word in words] for words in OTHERS]
    commands += [["search", str(folder), *words] for words in (*SEARCHES, *BOUNDED)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any(imported for _, _, imported in found[: -len(BOUNDED)]), "scipy was imported"
    for words, (status, said, _) in zip(commands, found, strict=True):
        expected = run(*words, catch_exceptions=False)
        assert (status, _unnumbered(said)) == (0, _unnumbered(expected.output)), words


def _unnumbered(said):
    """Return what a search said without the number of its receipt, which each search has anew."""
    return re.sub(r'receipt"?:? [0-9]+', "receipt", said)
