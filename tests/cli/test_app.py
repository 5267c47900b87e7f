"""The command line itself: what it imports, what it says, how it ends."""

import os
import re
import subprocess
import sys

import pytest
import typer.main
from patience import PATIENCE

from labelwise.cli import main
from labelwise.cli.app import app
from labelwise.cli.evaluated import (
    EVERY,
    ROWS,
    ExportedModel,
    RunOnData,
    ScoreFile,
    Shards,
    Source,
)
from labelwise.errors import LabelwiseError

VERBS = {
    *("demo", "train", "compare", "evaluate", "calibrate", "decide", "predict", "reproduce"),
    *("aggregate", "check", "dossier", "estimate", "mcp", "start", "verify"),
    *("apply", "methods", "data", "index", "search", "review", "label", "tag", "export", "serve"),
}


def call(monkeypatch, *arguments):
    """Run the command in this process; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["labelwise", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; sys.argv = ['labelwise', *sys.argv[1:]]\n"
        "from labelwise.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: status = end.code\n"
        "heavy = {'torch', 'numpy', 'pandas', 'pyarrow', 'sklearn', 'PIL'}\n"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_help_of_evaluate_groups_options_by_the_source_that_owns_them(monkeypatch, capsys):
    assert call(monkeypatch, "evaluate", "--help") == 0
    sections = re.split(r"^(\S.*):$", capsys.readouterr().out, flags=re.M)
    shown = {
        title: {found.replace("-", "_") for found in re.findall(r"^  --([a-z-]+)", text, re.M)}
        for title, text in zip(sections[1::2], sections[2::2], strict=True)
    }
    own = {kind: set(kind.options) - set(ROWS) for kind in Source.__subclasses__()}
    assert shown.pop("Of shards") | {"labels"} == own[Shards]
    assert shown.pop("Of a file of scores") == own[ScoreFile]
    assert shown.pop("Of a run or an exported model, on labelled photos") == own[ExportedModel]
    assert shown.pop("Of a run") == own[RunOnData] - own[ExportedModel]
    assert set(ROWS) | set(EVERY) <= shown.pop("Options") | {"out"}
    assert not set().union(*shown.values()), "an option in a group that no source owns"


def test_the_shell_can_complete_a_verb():
    completing = {
        "_LABELWISE_COMPLETE": "complete_bash",
        "COMP_WORDS": "labelwise ca",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "labelwise"],
        env={**os.environ, **completing},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.split() == ["calibrate"]


def test_every_verb_is_there(monkeypatch, capsys):
    assert call(monkeypatch, "--help") == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert {line.split()[0] for line in listed.splitlines() if line.strip()} == VERBS


@pytest.mark.parametrize("group", [[], ["data"]])
def test_the_list_of_verbs_shows_whole_sentences(monkeypatch, capsys, group):
    assert call(monkeypatch, *group, "--help") == 0
    listed = capsys.readouterr().out.partition("Commands:")[2].strip().splitlines()
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_an_error_is_one_sentence_and_status_1(monkeypatch, capsys):
    assert call(monkeypatch, "methods", "bse") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "labelwise: unknown method 'bse'; did you mean 'bce' or 'lsep'?\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["compare", "scenes", "-o", "s3://bucket/runs"], "out"),
        (["export", "runs/mine", "-o", "gs://bucket/model.onnx"], "out"),
        (["apply", "calibrated", "s3://bucket/scores.csv", "-o", "out.csv"], "source"),
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


def test_wrong_usage_is_status_2(monkeypatch, capsys):
    assert call(monkeypatch, "methods", "--colour", "red") == 2
    assert "No such option: --colour" in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch):
    for arguments in (["--debug", "methods", "bse"], ["methods", "bse", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["labelwise", *arguments])
        with pytest.raises(LabelwiseError, match="unknown method"):
            main()


def test_an_unforeseen_error_is_a_sentence_too(monkeypatch, capsys):
    monkeypatch.setattr("labelwise.cli.text.show_table", lambda *rows, **words: 1 / 0)
    assert call(monkeypatch, "methods") == 1
    assert capsys.readouterr().err == (
        "labelwise: ZeroDivisionError: division by zero; "
        "this should not happen, --debug shows where it did\n"
    )


def test_a_message_is_cut_in_its_middle(monkeypatch, capsys):
    assert call(monkeypatch, "methods", "x" * 100_000) == 1
    shown = capsys.readouterr().err
    assert len(shown) <= len("labelwise: \n") + 2000
    assert shown.startswith("labelwise: unknown method 'xxx")
    assert " ... x" in shown


def test_only_the_first_process_complains(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert call(monkeypatch, "methods", "bse") == 1
    assert capsys.readouterr().err == ""


def test_methods_are_listed_with_an_honest_word(monkeypatch, capsys):
    from labelwise.methods import METHODS

    assert call(monkeypatch, "methods") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()}
    for name, method in METHODS.items():
        assert method.probabilities in rows[name]
        assert method.sentence in rows[name]


def test_one_method_is_shown_with_its_options(monkeypatch, capsys):
    assert call(monkeypatch, "methods", "spa") == 0
    shown = capsys.readouterr().out
    assert "zeta_neg" in shown
    assert "labelwise train DATA --method spa --set options.KEY=VALUE" in shown


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
        ("torch", ["train", "scenes", "-o", "new"], "stopped; nothing was written"),
        ("torch", ["predict", "model", "a.png"], "stopped"),
        ("PIL", ["predict", "model", "a.png", "-o", "a.csv"], "stopped; a.csv was not written"),
    ],
)
def test_ctrl_c_during_imports_is_answered_in_words(tmp_path, module, arguments, sentence):
    """Oracle: the folder, in which nothing new is."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_AN_IMPORT, module, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 130
    assert done.stderr.startswith(f"labelwise: {sentence}")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_tests_put_the_command_line_together_once():
    assert typer.main.get_command(app) is typer.main.get_command(app)
