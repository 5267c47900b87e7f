"""Each printed ``Next:`` line is a command that runs, in folders with a blank in their names.

Oracle: the exit status of the line as it is printed, with files of this folder in the place of its
words in capitals.
"""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer.main
from search_setup import save_model, twelve_photos
from typed import must_run, run

from labelwise.cli.app import app
from labelwise.decide import Promise
from labelwise.photos import Index
from labelwise.photos.lists import keep_receipt
from labelwise.queries import Query

FILES = {  # in the place of words in capitals
    "FOLDER": "'fitted again'",
    "OTHER_SCORES.csv": "'my scores.csv'",
    "TRUTH.csv": "'my truth.csv'",
    "LABELLED.csv": "'my photos.csv'",
    "NEW_PHOTOS.csv": "'my photos.csv'",
    "PHOTOS": "'my photos'",
    "PHOTO": "'my photos/0.png'",
    "PICTURES...": "'my photos'",
    "TABLE": "'my photos.csv'",
    "RUN": "'my run'",
    "'LABEL, -OTHER'": "'dog | -dog'",  # all of them: a list that can be guaranteed
    "LABEL": "dog",
    "-OTHER": "-cat",
    "'?UNSURE'": "'?row'",
    "NAME": "spa",
    "DATA": "'my photos.csv'",
    "OWNER/NAME": "someone/model",
}
NOT_HERE = re.compile(  # of other tests; and what is calibrated again, from labels it gave
    r"labelwise (train|serve|compare|label --page|papers)\b|--page$|--by site$|calibrate tags.csv"
)
MOST = 12  # lines of one journey


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELWISE_OVERWRITE", "1")
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    random = np.random.default_rng(0)
    scores, truth = ["id,score:cat,score:dog"], ["path,labels"]
    for row in range(300):
        cat, dog = (random.random(2) < (0.5, 0.3)).tolist()
        shown = random.normal([2.0 * cat - 1, 2.0 * dog - 1])
        scores.append(f"{row}.jpg,{shown[0]:.3f},{shown[1]:.3f}")
        truth.append(f"{row}.jpg,{'|'.join(['cat'] * cat + ['dog'] * dog)}")
    (tmp_path / "my work/my scores.csv").write_text("\n".join(scores) + "\n")
    (tmp_path / "my work/my truth.csv").write_text("\n".join(truth) + "\n")
    photos = twelve_photos(tmp_path / "my work/my photos")
    paths = sorted(path.relative_to(photos.parent) for path in photos.rglob("*.png"))
    table = [f"{path},{'dog' if number % 2 else 'cat'}" for number, path in enumerate(paths)]
    (tmp_path / "my work/my photos.csv").write_text("\n".join(["path,labels", *table]) + "\n")
    votes = [
        f"{path},dog,{who},{'yes' if path > paths[4] else 'no'}" for path in paths for who in "ab"
    ]
    (tmp_path / "my work/my votes.csv").write_text(
        "\n".join(["photo,label,worker,answer", *votes]) + "\n"
    )
    (tmp_path / "my work/my groups.csv").write_text(
        "group,kind,labels\nanimal,at-most-one,cat|dog\n"
    )
    return tmp_path / "my work"


def steps(output):
    """Return the commands that an output names as next ones."""
    lines = re.findall(r"^(?:Next:|     ) (labelwise .*)$", output, re.M)
    for line in lines:
        for word, file in FILES.items():
            line = re.sub(rf"(?<=\s){re.escape(word)}(?=\s|$)", file, line)
        yield line


def parsed(line):
    """Parse a line that is not run here: its verb knows every option, and takes these values."""
    group, words = typer.main.get_command(app), shlex.split(line)[1:]
    while hasattr(group, "commands"):
        name, group, words = group.resolve_command(group.make_context("", ["x"]), words)
    group.make_context(name, words)


def answered(line, answer):
    """Fill the questions of a table that a line gives back."""
    words = shlex.split(line)
    path = Path(words[words.index("--answers") + 1]) if "--answers" in words else None
    if path is not None and path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(row | {"answer": answer} for row in rows)


def follow(*first, answer="yes"):
    """Run commands and all that they name as next ones; return the lines that ran."""
    waiting, done = list(first), []
    while waiting and len(done) < MOST:
        line = waiting.pop(0)
        if line in done:
            continue
        if NOT_HERE.search(line):
            parsed(line)
            continue
        answered(line, answer)
        result = run(*shlex.split(line)[1:], input="s\n" * 9)
        # Where nothing can be estimated, no list is shown: a way on is named instead.
        unmeasured = " --wrong-about " in line and "No estimate" in result.output
        assert result.exit_code == int(unmeasured), (line, result.output, result.exception)
        done.append(line)
        waiting += steps(result.output)
    return done


@pytest.mark.parametrize(
    ("first", "named"),
    [
        ("evaluate 'my scores.csv' --scores logits --labels 'my truth.csv'", "calibrate"),
        ("calibrate 'my scores.csv' --scores logits --labels 'my truth.csv' -o 'a b'", "predict"),
        ("data describe 'my photos.csv'", "data split"),
        ("data observe 'my photos.csv' --keep 0.5 -o 'a b.csv'", "train"),
        ("data group 'my photos.csv' -o 'a b.csv'", "data split"),
        ("data convert 'my photos.csv' -o 'a b.csv'", "data describe"),
        ("data split 'my photos.csv' -o 'a b.csv'", "train"),
        ("data convert 'my photos.csv' --for label-studio -o 'a b.json'", "train"),
        ("data votes 'my votes.csv' -o 'a b.csv'", "data describe"),
        ("data rules 'my photos.csv' 'my groups.csv'", "train"),
        ("audit 'my photos.csv' --photos . --csv 'a b.csv' -o 'my audit'", "audit"),
        ("papers list", "papers run"),
        ("papers methods", "papers methods"),
        ("papers methods spa", "train"),
    ],
)
def test_what_is_named_about_tables_runs(folder, first, named):
    lines = follow(f"labelwise {first}")
    shown = " ".join([*lines, *steps(run(*shlex.split(first)).output)])
    assert f"labelwise {named} " in shown


def test_what_is_named_about_photos_runs(folder):
    save_model(folder / "my run")
    lines = follow("labelwise index 'my photos' --model 'my run' -o 'my index'")
    verbs = {line.split()[1] for line in lines}
    assert verbs == {"index", "search", "tag", "audit"}
    follow("labelwise count 'my index' dog --ask 5 -o 'a b.csv'")
    follow("labelwise count 'my index' dog --ask 6 --by folder -o 'by folder.csv'")
    lines = follow(
        "labelwise count 'my index' dog",
        "labelwise audit 'my index'",
        "labelwise audit 'my index' dog --top 5",
        "labelwise label next 'my index'",
        "labelwise label 'my index' 'my photos/0.png' dog",
    )
    assert {line.split()[1] for line in lines} >= {"count", "audit", "label"}


def test_what_is_named_about_lists_with_a_guarantee_runs(folder):
    save_model(folder / "my run")
    must_run("index", "my photos", "--model", "my run", "-o", "my index")
    said = ("list", 0.5, 0.95, 400, 50, 0.95, "held-out photos", "2026-01-01", "exact")
    with Index(folder / "my index") as index:
        rows = np.arange(len(index))
        promise = Promise(*said, kind="sure", listed=len(rows))
        keep_receipt(index, Query.parse("dog", index.space), promise, rows, "someone")
    lines = follow("labelwise audit 'my index'")
    assert lines[1:] == [
        "labelwise audit 'my index' --ask 30 -o questions.csv",
        "labelwise audit 'my index' --answers questions.csv",
    ]


def test_what_is_named_about_wrong_tags_runs(folder):
    """Every answer is no: nothing is guaranteed, so lower levels are named until none is left."""
    first = "labelwise audit 'my photos.csv' --photos . --csv 'a b.csv' -o 'my audit'"
    lines = follow(first, answer="no")
    assert any(" --right-at-least 0.8" in line for line in lines), lines


def test_what_is_named_about_a_run_runs(folder):
    save_model(folder / "my run")
    lines = follow(
        "labelwise evaluate 'my run'",
        "labelwise predict 'my run' 'my photos'",
        "labelwise report 'my run'",
        "labelwise export 'my run' --data 'my photos.csv' -o 'a b.onnx'",
    )
    assert {line.split()[1] for line in lines} >= {
        "evaluate",
        "predict",
        "report",
        "data",
        "export",
    }
