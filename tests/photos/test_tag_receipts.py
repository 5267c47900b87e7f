"""Receipts of promised tags. Oracles: the tags that are written themselves, by the function that
writes them, and answers that make all of them right or wrong.
"""

import csv
import json

import numpy as np
import pytest
from open_indexes import open_index
from search_setup import LABELS
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.links import Sigmoid
from labelwise.photos import Index, receipts_of, verify_lists
from labelwise.photos.receipts import rows_in_order
from labelwise.photos.tag_receipts import (
    keep_tags,
    labels_of_tags,
    tags_of_rows,
    tags_title,
    withdraw_tags,
)
from labelwise.photos.tagging import promised_rule, tags_of


def labelwise(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return result.output, result.exit_code


def pairs(found):
    return {(row, label) for label, rows in found.items() for row in rows.tolist()}


@pytest.mark.parametrize("per_label", [False, True])
def test_a_receipt_knows_the_tags_that_are_written(index, folder, per_label):
    made = promised_rule(index, 0.3, 0.9, per_label=per_label)
    receipts = keep_tags(index, made, "ann")
    assert receipts == receipts_of(open_index(folder)) == keep_tags(index, made, "bob")  # once
    written = {(row, one.label) for row, some in tags_of(index, made.rule) for one in some}
    every = np.arange(600)
    known = [pairs(tags_of_rows(index, one, every)) for one in receipts]
    assert set().union(*known) == written
    assert sum(map(len, known)) == len(written)
    for receipt, promise, own in zip(receipts, made.promises, known, strict=True):
        assert (receipt.who, receipt.promise.level) == ("ann", promise.level)
        assert receipt.promise.listed == len(own)
        assert sorted(rows_in_order(index, receipt).tolist()) == sorted({row for row, _ in own})
        assert set(labels_of_tags(receipt.query)) == set(promise.labels or LABELS)


def test_tags_are_not_more_than_may_be_on_a_photo(index):
    """A rule of at most two tags: the receipt's tags are its own, photo by photo."""
    from dataclasses import replace

    from labelwise.decide import AtMost

    made = promised_rule(index, 0.4, 0.9)
    few = replace(
        made,
        rule=AtMost(made.rule, 2),
        promises=tuple(replace(one, at_most=2) for one in made.promises),
    )
    (receipt,) = keep_tags(index, few)
    written = {(row, one.label) for row, some in tags_of(index, few.rule) for one in some}
    assert pairs(tags_of_rows(index, receipt, np.arange(600))) == written
    assert receipt.promise.listed == len(written)


def test_tags_of_labels_that_nobody_answered_about_are_neither_written_nor_on_the_receipt(index):
    """They may be the most probable labels of a photo, and so take the place of another's tag."""
    from dataclasses import replace

    from labelwise.decide import AtMost, promise_tags

    evidence = index.evidence()
    known = np.array(LABELS) != LABELS[0]
    answers = replace(
        evidence.answers,
        present=evidence.answers.present & known,
        absent=evidence.answers.absent & known,
    )
    made = promise_tags(replace(evidence, answers=answers), level=0.6, confidence=0.9)
    one = replace(
        made,
        rule=AtMost(made.rule, 1),
        promises=tuple(replace(promise, at_most=1) for promise in made.promises),
    )
    (receipt,) = keep_tags(index, one)
    written = {(row, tag.label) for row, some in tags_of(index, one.rule) for tag in some}
    assert LABELS[0] not in {label for _, label in written}
    assert pairs(tags_of_rows(index, receipt, np.arange(600))) == written
    assert receipt.promise.listed == len(written) > 0
    assert set(labels_of_tags(receipt.query)) == set(LABELS[1:])


def answer_all(index, receipt, right):
    order = rows_in_order(index, receipt)
    for row, label in pairs(tags_of_rows(index, receipt, order)):
        index.correct(row, {label: "present" if right(row, label) else "absent"})


def test_answers_decide_whether_the_tags_kept_their_promise(index):
    (receipt,) = keep_tags(index, promised_rule(index, 0.3, 0.9))
    ((_, before),) = verify_lists(index).tags
    assert before.verdict == "cannot tell"
    answer_all(index, receipt, lambda row, label: True)
    ((_, kept),) = verify_lists(index).tags
    assert kept.verdict == "kept"
    assert f"0 of {receipt.promise.listed} tags of" in str(kept)
    answer_all(index, receipt, lambda row, label: False)
    ((_, broken),) = verify_lists(index).tags
    assert broken.verdict == "broken"


def test_only_photos_at_the_beginning_of_the_order_count(index):
    """The first photo is not answered: all the others, each of them wrong, are no sample."""
    (receipt,) = keep_tags(index, promised_rule(index, 0.3, 0.9))
    order = rows_in_order(index, receipt)
    for row, label in pairs(tags_of_rows(index, receipt, order[1:])):
        index.correct(row, {label: "absent"})
    ((_, verdict),) = verify_lists(index).tags
    assert verdict.verdict == "cannot tell"


def test_probabilities_that_changed_leave_the_tags_unknown(index, model):
    keep_tags(index, promised_rule(index, 0.3, 0.9))
    from labelwise.calibration import Platt
    from labelwise.methods import link_to_spec

    link = link_to_spec(Platt(Sigmoid(), [1.0] * 4, [0.5] * 4, 30.0))
    index.use(index.spec.model_copy(update={"link": link}), index.held_out)
    ((_, verdict),) = verify_lists(index).tags
    assert "has changed since" in str(verdict)


def test_the_command_line_keeps_asks_and_verifies(folder, tmp_path):
    table = tmp_path / "answers.csv"
    options = ("--wrong-at-most", "0.3", "--confidence", "0.9", "--who", "ann")
    labelwise("tag", folder, "--xmp", *options, "--dry-run")
    assert labelwise("verify", folder, "--receipts")[0] == ""
    output, _ = labelwise("tag", folder, "--xmp", *options)
    assert "receipt 1: labelwise verify holds the promise to answers" in output
    (kept,) = labelwise("verify", folder, "--receipts")[0].splitlines()
    assert json.loads(kept)["who"] == "ann"
    labelwise("verify", folder, "--ask", 400, "-o", table)
    with table.open(newline="") as file:
        rows = [{**row, "answer": "yes"} for row in csv.DictReader(file)]
    assert {row["query"] for row in rows} <= set(LABELS)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    output, status = labelwise("verify", folder, "--answers", table)
    title = tags_title(json.loads(kept)["query"])
    assert (status, f"receipt 1, {title}: kept: 0 of {len(rows)} tags" in output) == (0, True)
    table.write_text(table.read_text().replace(",yes", ",no"))
    output, status = labelwise("verify", folder, "--answers", table, "--json")
    assert (status, json.loads(output)["tags"][0]["verdict"]) == (1, "broken")


def test_tags_that_are_taken_out_are_no_longer_promised(folder):
    with Index(folder) as index:
        keep_tags(index, promised_rule(index, 0.3, 0.9))
        assert withdraw_tags(index, "ann") == 1
        assert withdraw_tags(index, "ann") == 0
        assert [one.withdrawn for one in receipts_of(index)] == [True]
        assert verify_lists(index).tags == ()
