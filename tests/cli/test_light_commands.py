"""Commands that compute nothing import little. The oracle is Python's own list of modules."""

import json
import subprocess
import sys

import pytest
from PIL import Image

SLOW = {"torch", "torchvision", "timm", "scipy", "sklearn", "matplotlib", "lightning_fabric"}
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


@pytest.mark.parametrize("words", [["predict", "--help"], ["search", "--help"], ["--version"]])
def test_help_is_there_without_what_computes(words):
    said, packages = modules_after(*words)
    assert said
    assert packages & {*SLOW, "numpy", "pyarrow", "PIL"} == set()
