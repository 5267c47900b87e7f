"""The command line itself: what it imports, what it says, how it ends."""

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType, NoneType
from typing import get_args

import pytest
import typer.main
from patience import PATIENCE
from PIL import Image
from search_setup import save_model

from labelwise.cli import main
from labelwise.cli.app import app
from labelwise.cli.command import WRITTEN
from labelwise.errors import LabelwiseError

VERBS = (
    *("demo", "train", "predict", "evaluate", "calibrate", "compare", "report", "export", "serve"),
    *("index", "search", "audit", "count", "label", "tag", "papers", "data"),
)
SUBVERBS = {
    "data": (
        *("describe", "split", "convert", "review", "group", "votes", "import", "observe", "rules"),
    ),
    "papers": ("list", "run", "methods"),
}


def writes(command):
    """Return the options of a command by which it writes files."""
    names = [param.name for param in command.params]
    return [name for name in names if name in WRITTEN]


def call(monkeypatch, *arguments):
    """Run the command in this process; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["labelwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


def program(arguments, **options):
    """Run Python in a process of its own."""
    told = {"capture_output": True, "text": True, "timeout": PATIENCE}
    return subprocess.run([sys.executable, *arguments], **told, **options)


def commands():
    """Yield every command with its path, such as ``data split``."""
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        if name in SUBVERBS:
            yield from ((f"{name} {below}", one) for below, one in command.commands.items())
        else:
            yield name, command


COMMANDS = dict(commands())


def test_labelwise_alone_lists_all_verbs_by_what_they_are_for(monkeypatch, capsys):
    below = {f"{name} {one}" for name, names in SUBVERBS.items() for one in names}
    assert {*COMMANDS} == {*VERBS} - {*SUBVERBS} | below
    assert call(monkeypatch) == 2  # as git does
    shown = capsys.readouterr()
    lines = (shown.out or shown.err).rstrip().splitlines()
    assert len(lines) <= 25
    titles = ("start here", "your photos", "your scores", "tables", "research")
    assert [line for line in lines[1:] if not line.startswith(" ")] == [*titles]
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(VERBS)
    assert all(line.endswith(".") for line in lines if line.startswith("  "))


@pytest.mark.parametrize("path", COMMANDS)
def test_a_help_page_is_one_sentence_two_examples_and_at_most_twelve_options(
    monkeypatch, capsys, path
):
    assert call(monkeypatch, *path.split(), "--help") == 0
    page = capsys.readouterr().out
    sentence = page.split("\n\n")[1]
    assert sentence.endswith(".")
    assert ". " not in sentence
    examples = re.findall(rf"^  labelwise ({path}\b.*)$", page, re.M)
    assert len(examples) == 2
    for words in map(shlex.split, examples):  # options that there are
        known = {flag for one in COMMANDS[path].params for flag in (*one.opts, *one.secondary_opts)}
        assert {word for word in words if re.match("--[a-z]|-[a-z]$", word)} <= known, words
    shown = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", page.partition("Options:\n")[2], re.M)
    assert len(shown) <= 12
    assert call(monkeypatch, *path.split(), "--help-all") == 0
    everything = capsys.readouterr().out
    for one in COMMANDS[path].params:
        if one.param_type_name == "option" and not one.hidden:
            assert one.opts[0] in everything


def test_an_option_has_one_type_and_one_meaning_everywhere():
    """Oracle: what the commands themselves tell of their options."""
    meanings = {}
    for path, command in COMMANDS.items():
        for one in command.params:
            if one.param_type_name == "option":
                hint = get_args(command.callback.__annotations__[one.name])[0]
                kind = (one.help, *({*(get_args(hint) or [hint])} - {NoneType}))
                if (path, one.opts[0]) == ("data describe", "--settings"):
                    continue  # it writes what train --settings reads
                for flag in one.opts:
                    assert meanings.setdefault(flag, kind) == kind, (path, flag)


@pytest.mark.skipif(sys.platform != "linux", reason="nobody can write a file into /proc")
@pytest.mark.parametrize(
    "line", ["predict nothing nothing", "evaluate nothing --scores probs", "data group nothing"]
)
def test_work_that_cannot_be_written_does_not_begin(line, monkeypatch, capsys):
    """Oracle: what they would read is not there either, and is not asked for."""
    assert call(monkeypatch, *line.split(), "-o", "/proc/tags.csv") == 1
    assert capsys.readouterr().err.startswith("labelwise: cannot write /proc/tags.csv: ")


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes there")
def test_names_that_are_not_utf8_are_shown_in_a_sentence(tmp_path, monkeypatch, capsys):
    """Oracle: the byte that makes the name, as an escape."""
    odd = os.fsdecode(b"caf\xe9")
    for photo in (f"dog/{odd}.png", "cat/1.png"):
        (tmp_path / "pets" / photo).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pets" / photo)
    monkeypatch.chdir(tmp_path)
    Path(f"{odd}.csv").write_text("id,score:cat,score:dog\na,0.5,0.25\nb,0.5,0.75\n")
    Path("labels.csv").write_text("path,labels\na,cat\nb,dog\n")
    scores = ("evaluate", f"{odd}.csv", "--scores", "probs", "--labels", "labels.csv")
    for words, sentence in (
        (scores, "the name caf\\xe9.csv is not UTF-8; rename it"),
        (("data", "describe", f"{odd}.csv"), "caf\\xe9.csv: its name is not UTF-8; rename it"),
        (("data", "convert", "pets", "-o", "x.csv"), "pets: the file name dog/caf\\xe9.png"),
    ):
        status = call(monkeypatch, *words)
        assert (status, sentence in capsys.readouterr().err) == (1, True), words
    Path(f"{odd}.csv").rename("scores.csv")
    assert call(monkeypatch, "evaluate", "scores.csv", *scores[2:], "-o", odd) == 0
    again = f"evaluate scores.csv {' '.join(scores[2:])} -o $'caf\\xe9'"
    assert again in (Path(odd) / "report.html").read_text()  # as bash takes it
    assert call(monkeypatch, "data", "describe", "pets") == 0
    assert (
        "1 photo with a name that is not UTF-8, such as dog/caf\\xe9.png" in capsys.readouterr().out
    )


def test_a_variable_for_the_labelling_page_does_not_stop_what_is_not(monkeypatch, capsys):
    monkeypatch.setenv("LABELWISE_DECODERS", "1")
    assert call(monkeypatch, "label", "next", "nowhere") == 1
    assert "nowhere" in capsys.readouterr().err
    assert call(monkeypatch, "label", "next", "nowhere", "--decoders", "1") == 1
    assert "--decoders does not apply: it belongs to --page" in capsys.readouterr().err


@pytest.mark.parametrize("path", [path for path in COMMANDS if "out" in writes(COMMANDS[path])])
def test_no_file_that_a_person_made_is_overwritten(monkeypatch, capsys, tmp_path, path):
    """Of every verb that writes: nothing is done, and the sentence names the file and the way."""
    monkeypatch.delenv("LABELWISE_OVERWRITE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("months of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "diary.txt").write_text("me")
    needed = ["x"] * sum(one.required for one in COMMANDS[path].params if one.name != "out")
    for option in writes(COMMANDS[path]):
        flag = f"--{option.replace('_', '-')}"
        more = [] if option == "out" else ["--out", "new.csv"]
        assert call(monkeypatch, *path.split(), *needed, *more, flag, "mine") == 1
        said = capsys.readouterr().err
        assert said.startswith("labelwise: mine exists and would be overwritten; ")
        assert "--overwrite" in said
    assert call(monkeypatch, *path.split(), *needed, "--out", "folder") == 1
    said = capsys.readouterr().err
    assert "folder holds files that labelwise did not make, such as 'diary.txt'" in said
    assert (tmp_path / "mine").read_text() == "months of work"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "mine"]


@pytest.mark.parametrize("name", ["evaluation.json", "report.html"])
def test_a_folder_is_ours_by_what_its_files_say(monkeypatch, capsys, tmp_path, name):
    """Oracle: the bytes of a person's file that is named like one of ours, before and after."""
    monkeypatch.delenv("LABELWISE_OVERWRITE", raising=False)
    rows = "".join(f"a{row},.9,1\nb{row},.2,0\n" for row in range(3))
    (tmp_path / "scores.csv").write_text(f"id,score:cat,label:cat\n{rows}")
    words = ["evaluate", tmp_path / "scores.csv", "--scores", "probs", "-o", tmp_path / "out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text('{"mine": 1}')
    assert call(monkeypatch, *words) == 1
    assert f"holds files that labelwise did not make, such as '{name}'" in capsys.readouterr().err
    assert {one.name for one in (tmp_path / "out").iterdir()} == {name}
    assert (tmp_path / "out" / name).read_text() == '{"mine": 1}'
    assert call(monkeypatch, *words, "--overwrite") == 0
    assert call(monkeypatch, *words) == 0  # a folder that labelwise wrote
    (tmp_path / "out" / name).write_text('{"mine": 1}')
    assert call(monkeypatch, *words) == 1  # also beside files of ours
    (tmp_path / "out" / name).write_text("")  # killed as it began to write
    assert call(monkeypatch, *words) == 0


def test_files_written_beside_others_are_not_overwritten_either(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("LABELWISE_OVERWRITE", raising=False)
    mine = [tmp_path / name for name in ("tasks.config.xml", "labelwise_runtime.py", "log.txt")]
    for file in mine:
        file.write_text("months of work")
    table, review = tmp_path / "photos.csv", tmp_path / "review.csv"
    table.write_text("path,labels\na.png,dog\nb.png,cat\n")
    review.write_text(
        "rank,photo,label,given,probability,check,promised,answer\n1,a.png,dog,present,0.1,,,no\n"
    )
    for photo in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / photo)
    run = save_model(tmp_path / "run")
    for words in (
        f"data convert {table} --for label-studio -o {tmp_path}/tasks.json",
        f"export {run} --with-runtime -o {tmp_path}/model.onnx",
        f"data review {table} --apply {review} --changes {mine[2]} -o {tmp_path}/new.csv",
    ):
        assert call(monkeypatch, *words.split()) == 1
        said = capsys.readouterr().err.replace("\n", "")
        assert "would be overwritten" in said or "is not an answer log" in said
    assert all(one.read_text() == "months of work" for one in mine)
    made = {"run", "a.png", "b.png", table.name, review.name, *(one.name for one in mine)}
    assert {one.name for one in tmp_path.iterdir()} == made
    words = ("data", "convert", table, "--for", "label-studio", "-o", tmp_path / "tasks.json")
    assert call(monkeypatch, *words, "--overwrite") == 0
    assert mine[0].read_text() != "months of work"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["compare", "scenes", "-o", "s3://bucket/runs"], "out"),
        (["export", "runs/mine", "-o", "gs://bucket/model.onnx"], "out"),
        (["calibrate", "s3://bucket/scores.csv", "-o", "out"], "source"),
        (["data", "describe", "scenes", "--taxonomy", "https://host/labels.csv"], "taxonomy"),
    ],
)
def test_a_uri_is_refused_where_a_path_is_taken(monkeypatch, capsys, tmp_path, arguments, named):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 1
    uri = next(one for one in arguments if "://" in one).rstrip("/")
    wanted = f"labelwise: {named} must be on a local or mounted disk, got {uri};"
    assert capsys.readouterr().err.startswith(wanted)
    assert list(tmp_path.iterdir()) == []


def test_a_warning_is_one_line_and_one_for_programmers_is_not_shown(monkeypatch, capsys):
    def verb(*_, **__):
        warnings.warn("the slope is capped", stacklevel=1)
        warnings.warn("old name", DeprecationWarning, stacklevel=1)
        sys.exit()

    monkeypatch.setattr("labelwise.cli.start.app", verb)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert call(monkeypatch) == 0
    assert capsys.readouterr().err == "labelwise: the slope is capped\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("bse", 1, "labelwise: unknown method 'bse'; did you mean 'bce' or 'lsep'?\n"),
        ("--colour red", 2, "No such option: --colour"),
        ("a\n\x1b[1Ab", 1, "unknown method 'a\\n\\x1b[1Ab'"),  # one line whatever it quotes
        (100_000 * "x", 1, "labelwise: unknown method 'xxx"),  # cut in its middle
    ],
    ids=["unknown", "usage", "quoted", "long"],
)
def test_an_error_is_one_sentence_and_wrong_usage_another_status(
    monkeypatch, capsys, words, status, said
):
    assert call(monkeypatch, "papers", "methods", *words.split(" ")) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert status == 2 or (shown.err.count("\n"), len(shown.err) <= 2013) == (1, True)
    monkeypatch.setenv("LOCAL_RANK", "1")  # only the first process complains
    assert call(monkeypatch, "papers", "methods", *words.split(" ")) == status
    assert status == 2 or capsys.readouterr().err == ""


@pytest.mark.parametrize("words", ["--debug papers methods bse", "papers methods bse --debug"])
def test_debug_shows_the_traceback(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["labelwise", *words.split()])
    with pytest.raises(LabelwiseError, match="unknown method"):
        main()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "KeyError: 'x'; this should not happen, --debug shows where it did"),
        (PermissionError(13, "Permission denied", "a.csv"), "a.csv: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (  # the name is in a page, which is not shown
            UnicodeEncodeError("utf-8", 200 * "-" + "o\udcff" + 200 * "-", 201, 202, "surrogates"),
            f"the name {59 * '-'}o\\xff{60 * '-'} is not UTF-8; rename it, or choose another",
        ),
    ],
)
def test_an_unforeseen_error_is_a_sentence_too(monkeypatch, capsys, error, said):
    def fails(*rows, **words):
        raise error

    monkeypatch.setattr("labelwise.cli.methods.show_table", fails)
    assert call(monkeypatch, "papers", "methods") == 1
    assert capsys.readouterr().err == f"labelwise: {said}\n"


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        *((name, "train") for name in ("torch", "torchvision.io", "timm", "safetensors.torch")),
        *(("fastapi", "serve"), ("uvicorn", "serve"), ("onnxscript", "onnx")),
        *(("ray", "ray"), ("mcp.server", "mcp")),
    ],
)
def test_a_package_that_is_not_installed_says_which_extra_brings_it(
    monkeypatch, capsys, module, extra
):
    monkeypatch.setitem(sys.modules, module, None)  # Python says of it that it is not there
    package = module.partition(".")[0]
    if package != module:
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setattr("labelwise.cli.methods.show_table", lambda *_, **__: import_module(module))
    assert call(monkeypatch, "papers", "methods") == 1
    said = f"labelwise: This needs labelwise[{extra}]: pip install 'labelwise[{extra}]'\n"
    assert capsys.readouterr().err == said


def test_methods_are_listed_without_torch_as_the_catalogue_has_them():
    from labelwise.learn.methods import METHODS, READINGS

    listed = json.loads((files("labelwise.cli") / "methods.json").read_text("utf-8"))
    assert listed == {
        key: {
            "probabilities": method.probabilities,
            "head": method.head,
            "sentence": method.sentence,
            "source": method.source,
            "link": READINGS[key],
            "options": {
                name: [repr(value), ", ".join(map(repr, method.tuning.get(name, ())))]
                for name, value in method.options.items()
            },
        }
        for key, method in METHODS.items()
    }


def test_a_split_says_when_too_few_test_photos_are_left(monkeypatch, capsys, tmp_path):
    """Oracle: the share of test photos, of which guarantees take 50."""
    for number in range(100):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{'dog' if number % 2 else 'cat'}" for number in range(100)]
    (tmp_path / "photos.csv").write_text("\n".join(["path,labels", *rows]))
    monkeypatch.chdir(tmp_path)
    words = ("data", "split", "photos.csv", "-o", "split.csv", "--overwrite", "--shares")
    for shares, few in (("train=.8,test=.2", True), ("train=.5,test=.5", False)):
        assert call(monkeypatch, *words, shares) == 0
        shown = capsys.readouterr()
        assert ("Only 20 test photos: guarantees need at least 50." in shown.err) == few
        assert shown.out.splitlines()[-1] == "Next: labelwise train split.csv"


STOPPED_AT_AN_IMPORT = """
import signal, sys

module = sys.argv.pop(1)

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Stop())
from labelwise.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "arguments", "sentence"),
    [
        ("typer", ["train", "scenes", "-o", "new"], "stopped"),
        (
            "torch",
            ["train", "scenes", "-o", "new", "--method", "spa"],
            "stopped; run the same command",
        ),
    ],
)
def test_ctrl_c_during_imports_is_answered_in_words(tmp_path, module, arguments, sentence):
    """Oracle: the folder, in which nothing new is."""
    done = program(["-c", STOPPED_AT_AN_IMPORT, module, *arguments], cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.startswith(f"labelwise: {sentence}")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
