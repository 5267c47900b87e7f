"""Where a run finds its data again.

Oracle: files that lie where the command was typed, asked for from other folders.
"""

import pytest

from labelwise.models.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "work" / "runs" / "photos"
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text("data: tables/photos.csv\n")
    return RunFolder(folder)


def test_data_is_found_from_another_folder(run, tmp_path, monkeypatch):
    table = tmp_path / "work" / "tables" / "photos.csv"
    table.parent.mkdir()
    table.write_text("path,labels\n")
    monkeypatch.chdir(tmp_path / "work")
    assert run.data == "tables/photos.csv"
    monkeypatch.chdir(tmp_path)
    assert run.data == str(table)


def test_data_that_is_nowhere_keeps_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run.data == "tables/photos.csv"
