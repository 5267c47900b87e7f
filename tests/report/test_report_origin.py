"""The report of a typed command says what it is of; oracle: the command itself."""

import sys
from html import unescape

from typed import must_run


def test_a_report_names_method_backbone_weights_data_and_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "{num_train: 300, num_val: 80, num_test: 80, num_labels: 3}"
    arguments = ["train", "posterior", "--method", "spa", "--backbone", "identity", "-o", "my run"]
    arguments += ["--epochs", "1", "--set", f"data_options={options}"]
    monkeypatch.setattr(sys, "argv", ["labelwise", *arguments])
    must_run(*arguments)
    page = unescape((tmp_path / "my run" / "report.html").read_text(encoding="utf-8"))
    for fact in (
        "<dt>Method</dt><dd>spa</dd>",
        "<dt>Backbone</dt><dd>identity</dd>",
        "<dt>Weights</dt><dd>none: trained from random values</dd>",
        "<dt>Data</dt><dd>posterior</dd>",
        "<dt>Command</dt><dd>labelwise train posterior --method spa --backbone identity",
        "-o 'my run'",
    ):
        assert fact in page


def test_a_report_written_again_still_shows_the_photos(tmp_path, monkeypatch):
    """Oracle: the report that training wrote."""
    monkeypatch.chdir(tmp_path)
    options = "{num_train: 24, num_val: 12, num_test: 12, size: 32}"
    must_run("train", "scenes", "--epochs", "1", "--set", f"data_options={options}", "-o", "run")
    first = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    must_run("report", "run")
    again = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert again.count("<img") == first.count("<img") > 0
