"""Commands that compute nothing import little. Oracles: Python's modules, a search with torch."""

import json
import re
import subprocess
import sys

from PIL import Image

SLOW = {"torch", "torchvision", "timm", "scipy", "sklearn", "matplotlib"}
COMMANDS = """
import json, sys
from labelwise.cli.app import app
for words in json.loads(sys.argv[1]):
    try:
        app(words, prog_name="labelwise")
    except SystemExit as end:
        print(json.dumps([end.code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
COMPUTING = {*SLOW, "numpy", "pandas", "pyarrow", "PIL"}
LIGHT = {  # what a command says, and what it does not import
    "--help": ("start here", COMPUTING),
    "train --help": ("Train a model", COMPUTING),
    "papers --help": ("papers list", COMPUTING),
    "--version": ("labelwise 0", COMPUTING),
    "papers methods": ("spa", SLOW),
    "papers methods spa": ("zeta_neg", SLOW),
    "data describe photos.csv": ("4 images, 3 labels", SLOW - {"scipy"}),  # which counts pairs
}


def test_commands_that_compute_nothing_import_little(tmp_path):
    """One process runs them in this order: what one imports is there in all that follow."""
    rows = ["path,labels"]
    for number, labels in enumerate(["dog|beach", "cat", "", "dog|beach"]):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{labels}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    program = [sys.executable, "-c", COMMANDS, json.dumps([words.split() for words in LIGHT])]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path)
    *told, end = re.split(r"^(\[.*)\n", done.stdout, flags=re.M)
    assert end == ""
    for said, last, (words, (part, heavy)) in zip(
        told[::2], told[1::2], LIGHT.items(), strict=True
    ):
        status, packages = json.loads(last)
        assert (status or 0, part in said) == (0, True), (words, said)
        assert not heavy & {*packages}, words
    assert "2.00" in said  # beach with dog: twice as often as by chance


def test_a_table_is_refused_before_anything_that_a_run_needs_is_imported(tmp_path):
    """Oracle: Python's modules."""
    (tmp_path / "photos.csv").write_text("path,labels\na.png,dog\nb.png,?\nc.png,none\n")
    program = COMMANDS.replace('name.partition(".")[0]', "name")
    program = program.replace("SystemExit", "Exception").replace("end.code", "str(end)")
    words = [sys.executable, "-c", program, json.dumps([["train", "photos.csv"]])]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    sentence, modules = json.loads(done.stdout)
    needed = {"evaluation", "calibration", "training.run", "contrib.camtrap"}
    assert "can be read in 4 ways" in sentence
    assert not {f"labelwise.{name}" for name in needed} & {*modules}
