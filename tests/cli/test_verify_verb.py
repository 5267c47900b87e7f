"""``labelwise audit`` of past guarantees. Oracles: the functions below, labels that break one."""

import csv
import json

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import save_model
from typed import run

from labelwise.decide import Promise
from labelwise.errors import DataError, SettingsError
from labelwise.models import ModelSpec
from labelwise.photos import receipts_of
from labelwise.photos.lists import keep_receipt, rows_in_order


def labelwise(*arguments, **options):
    result = run(*arguments, catch_exceptions=False, **options)
    return result.output, result.exit_code


@pytest.fixture
def folder(tmp_path):
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    return made_index(tmp_path / "photos.index", save_model(tmp_path / "run"), logits)


def answers(folder, table, word):
    """Answer the questions of ``--ask`` all in the same way."""
    output, status = labelwise("audit", folder, "--ask", 40, "-o", table, "--overwrite")
    assert (status, "40 photos to answer" in output) == (0, True)
    with table.open(newline="") as file:
        rows = [{**row, "answer": word} for row in csv.DictReader(file)]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def old_receipt(folder):
    """Keep the receipt of a list that version 0.2 promised on average."""
    index = open_index(folder)
    said = ("list", 0.5, None, 400, 50, 0.95, "held-out photos", "2026-01-01", "conformal")
    rows = np.arange(120)
    return keep_receipt(index, "dog", Promise(*said, kind="expected", listed=120), rows)


def test_a_list_of_version_0_2_is_verified_from_its_receipt_to_the_exit_status(folder, tmp_path):
    old_receipt(folder)
    output, status = labelwise("audit", folder)
    assert (status, "1 cannot be decided yet" in output) == (0, True)
    table = tmp_path / "answers.csv"
    answers(folder, table, "yes")
    output, status = labelwise("audit", folder, "--answers", table)
    assert (
        "receipt 1, dog (expected): cannot tell: 0 of 40 photos drawn from it are wrong" in output
    )
    assert status == 0
    answers(folder, table, "no")
    output, status = labelwise("audit", folder, "--answers", table)
    assert "40 of 40 photos drawn from it are wrong" in output
    assert status == 0  # one list of many may hold more than the average


def test_a_checked_list_that_turns_out_wrong_is_broken(folder):
    labelwise("audit", folder, "dog", "--top", 40, "--wrong-at-most", 0.3, input="y\n" * 60)
    assert labelwise("audit", folder, "--strict")[1] == 0
    index = open_index(folder)
    (receipt,) = receipts_of(index)
    for row in rows_in_order(index, receipt).tolist():
        index.correct(row, {"dog": "absent"})
    output, status = labelwise("audit", folder, "--strict", "--json")
    (found,) = json.loads(output)["lists"]
    assert (found["kind"], found["verdict"], status) == ("checked", "broken", 1)


def test_receipts_are_printed_as_json(folder):
    old_receipt(folder)
    output, status = labelwise("audit", folder, "--receipts")
    (line,) = output.splitlines()
    (receipt,) = receipts_of(open_index(folder))
    assert json.loads(line) == json.loads(json.dumps(receipt.spec()))
    assert status == 0


def with_promise(run, level):
    """Let the model of a run promise its mean F1."""
    spec = ModelSpec.load(run / "model.json")
    said = Promise("f", level, 0.95, 400, 400, level, "photos", "2026-01-01", "betting")
    spec.model_copy(update={"promises": (said.spec(),)}).save(run / "model.json")


def test_the_promises_of_a_run_are_held_to_its_test_photos(tmp_path):
    run = save_model(tmp_path / "run")
    with pytest.raises(DataError, match="has no guarantee to check"):
        labelwise("audit", run)
    with_promise(run, 0.05)
    output, status = labelwise("audit", run)
    assert output.startswith("kept: ")
    assert ("kept in 1 of 1" in output, status) == (True, 0)
    with_promise(run, 0.99)
    output, status = labelwise("audit", run, "--json")
    assert ([one["verdict"] for one in json.loads(output)], status) == (["broken"], 1)
    (run / "predictions" / "test.parquet").unlink()
    with pytest.raises(DataError, match="has no held-out photos"):
        labelwise("audit", run)


def test_options_that_do_not_fit_are_refused(folder):
    for options, words in (
        ([folder, "--ask", "3"], "give both --ask N and --out FILE"),
        ([folder, "--receipts", "--answers", "x.csv"], "do different things"),
        ([folder, "--receipts", "--json"], "about verdicts"),
        ([folder.parent / "run", "--strict"], "--strict does not apply: .* is not an index"),
    ):
        with pytest.raises(SettingsError, match=words):
            labelwise("audit", *options)
