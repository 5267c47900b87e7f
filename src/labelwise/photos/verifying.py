"""Were the promises of an index kept? Its receipts, held against what people say of the photos.

Receipts are of lists that answer a query, or of written tags, which are judged by label.

What is known of a photo comes from the index (corrections, audits and checks) and from a table of
answers. It is right for a query where everybody who spoke of it said so: "no", "unsure" and answers
that disagree count as wrong, as in a check.

A sample must not be chosen by what it shows. So of the answers only those count as drawn that
stand, without a gap, at the beginning of the receipt's own random order; all others only say
that so many photos are right or wrong at least.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import KeptLists, ListAnswers, ListVerdict, judge_list, judge_lists
from labelwise.errors import DataError, LabelwiseError
from labelwise.photos.answer_tables import read_answered
from labelwise.photos.asked import said_of
from labelwise.photos.check_log import answers_of, is_of_text
from labelwise.photos.index import Index
from labelwise.photos.receipts import Receipt, receipts_of, rows_in_order
from labelwise.photos.refused_searches import refused_by_share
from labelwise.photos.tag_receipts import (
    TagsVerdict,
    is_of_tags,
    judge_tags,
    labels_of_tags,
    tags_of_rows,
)
from labelwise.retrieval import Query
from labelwise.system.csv_files import write_csv
from labelwise.system.text import from_cell

COLUMNS = ("receipt", "query", "path", "answer")

Told = Mapping[str, Mapping[int, bool]]  # whether a row is right, by query


@dataclass(frozen=True)
class VerifiedLists:
    """Every receipt that stands with its verdict, and those of lists together."""

    lists: tuple[tuple[Receipt, ListVerdict], ...]
    together: KeptLists
    tags: tuple[tuple[Receipt, TagsVerdict], ...] = ()

    @property
    def by_number(self) -> dict[int, ListVerdict | TagsVerdict]:
        """The verdict of each receipt."""
        lists = {receipt.number: verdict for receipt, verdict in self.lists}
        return lists | {receipt.number: verdict for receipt, verdict in self.tags}


def verify_lists(index: Index, answers: Told | None = None) -> VerifiedLists:
    """Return whether the promises of an index were kept, as far as anybody can tell.

    ``answers`` are those of :func:`read_list_answers`, beside what the index knows.
    """
    receipts = [one for one in receipts_of(index) if not one.withdrawn]
    every = {} if answers is None else answers

    @cache
    def known(query: str) -> dict[int, bool]:
        return _known(index, query, every.get(query, {}))

    lists, tags = [], []
    for receipt in receipts:
        if is_of_tags(receipt.query):
            tags.append((receipt, judge_tags(index, receipt, lambda one: known(_spelled(one)))))
        else:
            told = _answers(rows_in_order(index, receipt), known(receipt.query))
            lists.append((receipt, judge_list(receipt.promise, told)))
    refused = refused_by_share(index.store)
    together = judge_lists([verdict for _, verdict in lists], refused)
    return VerifiedLists(tuple(lists), together, tuple(tags))


def write_list_questions(index: Index, path: Path, each: int) -> int:
    """Write the first photos of each receipt's order as a table to answer; return how many."""
    if each < 1:
        raise DataError(f"at least one photo per list must be asked about, got {each}")
    receipts = [receipt for receipt in receipts_of(index) if not receipt.withdrawn]
    if not receipts:
        raise DataError(
            "nothing was promised, so there is nothing to ask; `labelwise search` and `labelwise "
            "tag` promise with --wrong-at-most, where they can"
        )
    questions = []
    for receipt in receipts:
        first = rows_in_order(index, receipt)[:each]
        places = index.store.paths_of(first.tolist())
        for query, rows in _asked_of(index, receipt, first).items():
            known = _known(index, query, {})
            asked = [row for row in rows if row not in known and places[row]]
            questions += [(receipt.number, query, places[row][0], "") for row in asked]
    write_csv(path, COLUMNS, questions)
    return len(questions)


def _asked_of(index: Index, receipt: Receipt, rows: NDArray[np.int64]) -> dict[str, list[int]]:
    """Return about which queries photos of a receipt are asked: its own, or one for each tag."""
    if not is_of_tags(receipt.query):
        return {receipt.query: rows.tolist()}
    tags = tags_of_rows(index, receipt, rows)
    return {_spelled(label): found.tolist() for label, found in tags.items()}


def _spelled(label: str) -> str:
    """Return the query for a label, as receipts spell queries."""
    return str(Query.of([label]))


def read_list_answers(index: Index, path: Path) -> dict[str, dict[int, bool]]:
    """Return the answers of a table: path, answer, and query where lists of several were promised.

    Photos without an answer are passed over. A photo that was answered twice is right if it is both
    times.
    """
    queries = sorted({query for one in receipts_of(index) for query in _queries_of(one)})
    columns, lines = read_answered(path)
    if "query" not in columns and len(queries) > 1:
        raise DataError(
            f"{path} must say in a column query of which query each answer is: lists of "
            f"{len(queries)} queries were promised"
        )
    found: dict[str, dict[int, bool]] = {}
    for line in lines:
        query = (queries or [""])[0]
        if "query" in columns:
            query = _as_kept(index, from_cell(line.cells["query"] or ""))
        if query not in queries:
            raise DataError(f"{line.place}: no list of {query!r} was promised")
        row, rows = index.row_of(line.path), found.setdefault(query, {})
        rows[row] = rows.get(row, True) and line.answer == "yes"
    return found


def _queries_of(receipt: Receipt) -> list[str]:
    """Return the queries whose answers count for a receipt."""
    if is_of_tags(receipt.query):
        return [_spelled(label) for label in labels_of_tags(receipt.query)]
    return [receipt.query]


def _as_kept(index: Index, text: str) -> str:
    """Return a query as receipts spell it; the text itself where it is not a query."""
    with suppress(LabelwiseError):
        return str(Query.parse(text, index.space, index.taxonomy))
    return text


def _known(index: Index, text: str, more: Mapping[int, bool]) -> dict[int, bool]:
    """Return whether photos are right for a query, by what everybody said of them."""
    known: dict[int, bool] = {}
    if not is_of_text(text):
        query = Query.parse(text, index.space, index.taxonomy)
        rows, hits, told = said_of(index, index.bound(query))
        known = dict(zip(rows[told].tolist(), hits[told].tolist(), strict=True))
    checked = [(one.row, one.answer == "yes") for one in answers_of(index.store, text)]
    return _joined([*known.items(), *checked, *more.items()])


def _joined(said: Iterable[tuple[int, bool]]) -> dict[int, bool]:
    right: dict[int, bool] = {}
    for row, is_right in said:
        right[row] = right.get(row, True) and is_right
    return right


def _answers(order: NDArray[np.int64], known: Mapping[int, bool]) -> ListAnswers:
    """Return the answers about a list's photos, which stand in the order drawn for them."""
    rows = order.tolist()
    given = [known[row] for row in rows if row in known]
    drawn = next((at for at, row in enumerate(rows) if row not in known), len(rows))
    missed = sum(not known[row] for row in rows[:drawn])
    return ListAnswers(sum(given), len(given) - sum(given), drawn, missed)
