"""Commands that compute nothing import little. Oracles: Python's modules, a search with torch."""

import json
import re
import shlex
import subprocess
import sys

from PIL import Image
from search_setup import picture, save_model
from typed import must_run, run

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
    "data describe photos.csv": ("4 images, 3 labels", SLOW),
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


WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # whoever imports it now gets an error
from labelwise.cli.app import app
from typer.testing import CliRunner
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    print(json.dumps([done.exit_code, done.output, "scipy" in sys.modules]))
"""
PLAIN = """label INDEX photos/photos/1.png dog -cat
label next INDEX
label next INDEX --order wrong
label INDEX -o labels.csv
search INDEX dog
count INDEX dog
tag INDEX --xmp
tag INDEX --xmp --undo
search INDEX 'dog, -beach'
search INDEX '(cat | dog), -beach' --json
search INDEX pet --count
search INDEX cat --sort date --folder photos --top 3
search INDEX none --paths-only"""
BOUNDED = """search INDEX dog --at-least 0.1
search INDEX dog --wrong-about 0.3 --count --json
search INDEX dog --wrong-about 0.5"""  # scipy computes the bounds


def test_photos_are_searched_labelled_counted_and_tagged_without_torch(tmp_path, monkeypatch):
    model, photos, folder = save_model(tmp_path / "run"), tmp_path / "photos", tmp_path / "index"
    for number in range(12):
        picture(photos / "photos" / f"{number}.png", number)
    (tmp_path / "kinds.csv").write_text("child,parent\ndog,pet\ncat,pet\n")
    words = ["index", photos, "--model", model, "-o", folder, "--taxonomy", tmp_path / "kinds.csv"]
    must_run(*words, catch_exceptions=False)
    monkeypatch.setenv("LABELWISE_OVERWRITE", "1")
    monkeypatch.chdir(tmp_path)
    typed = f"{PLAIN}\n{BOUNDED}".replace("INDEX", str(folder)).splitlines()
    commands = [shlex.split(line) for line in typed]
    program = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    plain = found[: len(PLAIN.splitlines())]
    assert not any(imported for _, _, imported in plain), "scipy was imported"
    for words, (status, said, _) in zip(commands, found, strict=True):
        expected = run(*words, catch_exceptions=False)
        assert (status, _unnumbered(said)) == (
            expected.exit_code,
            _unnumbered(expected.output),
        ), words
        assert status == int("No estimate" in said and "--json" not in words), words


def _unnumbered(said):
    """Return what a search said without the number of its receipt, which each search has anew."""
    return re.sub(r'receipt"?:? [0-9]+', "receipt", said)
