"""Receipts of promised lists. Oracles: the answer that promised, read back by another connection;
hashes computed by hand; SQL that tries to change what was written; a process that is killed.
"""

import hashlib
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index

from labelwise.errors import CheckpointError
from labelwise.photos import Index, answer, keep_found, receipts_of, search
from labelwise.photos.answering import listed_rows
from labelwise.photos.checking import CheckSession
from labelwise.photos.receipts import carry_receipts, rows_in_order
from labelwise.photos.refused_searches import note_refused, refused_by_share
from labelwise.retrieval import Query

DOG, CAT = Query.parse("dog"), Query.parse("cat")


def promised(index, query=DOG, share=0.2, who=None, **options):
    found = answer(index, query, wrong_at_most=share, **options)
    return found, keep_found(index, query, found, who)


def test_a_receipt_says_what_was_promised_of_which_photos_by_which_model(index, folder):
    found, receipt = promised(index, who="ann")
    (read,) = receipts_of(open_index(folder))
    assert read == receipt
    assert (read.number, read.query, read.who, read.withdrawn) == (1, "dog", "ann", False)
    assert read.promise == found.promised
    assert read.promise.listed == found.above
    rows = sorted(rows_in_order(index, read).tolist())
    everything = answer(index, DOG, wrong_at_most=0.2, top=600)
    assert rows == sorted(hit.row for hit in everything.hits)
    assert rows == sorted(listed_rows(index, DOG, found).tolist())
    hashes = sorted(index.store.contents_of([row])[row].hash for row in rows)
    assert read.photos == hashlib.sha256(b"".join(hashes)).hexdigest()
    assert read.weights == index.spec.weights_sha256
    assert read.held_out == index.evidence().digest
    assert json.loads(json.dumps(read.spec()))["promise"]["text"] == str(found.promised)


def test_the_same_promise_is_kept_once_and_another_one_anew(index):
    _, first = promised(index)
    assert promised(index, top=3)[1] == first  # another page of the same list
    _, other = promised(index, share=0.3)
    _, sure = promised(index, share=0.5, promise="sure")
    index.correct(int(rows_in_order(index, first)[0]), {"dog": "absent"})
    _, shorter = promised(index)
    assert [one.number for one in receipts_of(index)] == [1, 2, 3, 4]
    assert [first.number, other.number, sure.number, shorter.number] == [1, 2, 3, 4]
    assert shorter.photos != first.photos
    assert shorter.promise.listed == first.promise.listed - 1


def test_nothing_is_kept_where_nothing_is_promised(index, folder):
    assert keep_found(index, DOG, answer(index, DOG)) is None
    assert promised(index, share=0.01)[1] is None
    assert receipts_of(index) == []
    search(folder, "dog", wrong_at_most=0.2)
    assert [one.query for one in receipts_of(index)] == ["dog"]


def test_photos_have_an_order_of_their_own_which_is_no_ranking(index):
    found, receipt = promised(index)
    order = rows_in_order(index, receipt).tolist()
    assert order == rows_in_order(index, receipt).tolist()
    _, other = promised(index, CAT, 0.5)
    assert len({receipt.number, other.number}) == 2
    assert order not in (sorted(order), listed_rows(index, DOG, found).tolist())


def test_a_check_keeps_its_promise_and_withdraws_it_with_the_answer(index):
    session = CheckSession(index, DOG, wrong_at_most=0.3, top=12, alone=True, who="ann")
    state = session.state()
    while state.promise is None:
        assert receipts_of(index) == []
        state = session.answer(session.next_photo(), "yes")
    (receipt,) = receipts_of(index)
    assert receipt.promise == state.promise
    assert (receipt.promise.kind, receipt.held_out) == ("checked", "")  # no held-out photo joined
    assert sorted(rows_in_order(index, receipt)) == sorted(session.left())
    assert session.undo().promise is None
    assert [one.withdrawn for one in receipts_of(index)] == [True]
    session.answer(session.next_photo(), "yes")
    assert [one.withdrawn for one in receipts_of(index)] == [True, False]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE receipts SET who = 'eve' WHERE id = 1",
        "DELETE FROM receipts WHERE id = 1",
        "UPDATE receipts SET rows = zeroblob(9) WHERE id = 2",
    ],
)
def test_a_receipt_cannot_be_changed_and_whoever_forces_it_is_noticed(index, folder, change):
    promised(index)
    promised(index, share=0.3)
    with closing(sqlite3.connect(folder / "photos.sqlite", isolation_level=None)) as database:
        with pytest.raises(sqlite3.IntegrityError, match="receipts are never changed"):
            database.execute(change)
        assert len(receipts_of(index)) == 2
        for verb in ("UPDATE", "DELETE"):
            database.execute(f"DROP TRIGGER receipts_stay_{verb}")
        database.execute(change)
    with pytest.raises(CheckpointError, match=r"were changed or are damaged from number [12] on"):
        receipts_of(index)


KILLED = """
import os, signal, sys
from pathlib import Path
from labelwise.retrieval import Query
from labelwise.photos import Index, answer, keep_found
index = Index(Path(sys.argv[1]))
query = Query.parse("dog")
for percent in range(20, 50):
    found = answer(index, query, wrong_at_most=percent / 100)
    keep_found(index, query, found)
    print(percent, flush=True)
    if percent == 25:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_kept_outlives_a_process_that_is_killed(folder, tmp_path, warm_commands):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = warm_commands.run([folder], tmp_path, module=script)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Index(folder) as index:
        kept = receipts_of(index)
        assert len(kept) == len(done.stdout.split()) == 6
        assert [round(1 - one.promise.level, 2) for one in kept][::5] == [0.2, 0.25]
        assert promised(index, share=0.5)[1].number == 7


def test_an_index_that_may_only_be_read_is_searched_without_a_receipt(folder, monkeypatch):
    with Index(folder) as index:
        promised(index)
    with closing(sqlite3.connect(folder / "photos.sqlite")) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    opened = sqlite3.connect

    def read_only(address, *values, **options):
        if "mode=rw" in str(address):
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorname = "SQLITE_CANTOPEN"
            raise error
        return opened(address, *values, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)  # root may write wherever it likes
    with Index(Path(os.fspath(folder))) as index:
        assert not index.store.writable
        found, receipt = promised(index, share=0.3)
        assert found.promised is not None
        assert receipt is None
        assert len(receipts_of(index)) == 1


def test_an_index_built_anew_takes_its_receipts_over(index, model, tmp_path):
    """Oracle: the contents of the listed photos, before and after, in another order of rows."""
    _, kept = promised(index, who="ann")
    session = CheckSession(index, CAT, wrong_at_most=0.3, top=12, alone=True)
    while session.state().promise is None:
        session.answer(session.next_photo(), "yes")
    session.undo()
    note_refused(index.store, "cat", 0.1, 600, "weights", "link")
    logits = np.stack([index.store.column(k) for k in range(4)], axis=1)
    rebuilt = made_index(tmp_path / "other" / "photos.index", model, logits[:0])
    other = open_index(rebuilt)
    contents = [index.store.contents_of([row])[row] for row in reversed(range(600))]
    other.store.append(contents, logits[::-1], None, [])
    for _ in range(2):  # a second time, as after a kill, adds nothing
        carry_receipts(index.store, other)
        first, second = receipts_of(other)
        assert refused_by_share(other.store) == {0.1: 1}
        assert first == kept
        assert (second.query, second.withdrawn) == ("cat", True)
        listed = other.store.contents_of(rows_in_order(other, first).tolist()).values()
        hashes = sorted(one.hash for one in listed)
        assert kept.photos == hashlib.sha256(b"".join(hashes)).hexdigest()
