"""Oracles: ``CheckSession`` of the same list without any server, and the answers in the index."""

from dataclasses import asdict

import numpy as np
from made_index import made_index
from open_indexes import open_index
from web_setup import running

from labelwise.photos import verify_lists
from labelwise.photos.lists import CheckSession
from labelwise.retrieval import Query

LIST = {"q": "dog", "wrong_at_most": 0.3, "top": 12}


def asked(server, step="list", **more):
    """Return the view after a step; an answer's photo and answer stand beside its list."""
    said = {name: more.pop(name) for name in ("photo", "answer") if name in more}
    given = {"checked": {**LIST, **more}, **said} if said else {**LIST, **more}
    return server.told(server.post(f"/api/v1/check/{step}", given))


def beside(server, **options):
    """Return the session of the same list, opened by somebody else."""
    index = open_index(server.library)
    chosen = {"wrong_at_most": 0.3, "top": 12, "who": "page", **options}
    return index, CheckSession(index, Query.parse("dog"), **chosen)


def id_of(index, row):
    return index.store.contents_of([row])[row].hash.hex()


def test_a_check_asks_what_the_session_asks_and_ends_with_its_promise(own):
    view = asked(own)
    seen = []
    while view["statement"] is None:
        index, session = beside(own)
        photo, state = session.next_photo(), session.state()
        assert view["question"]["photo"]["id"] == id_of(index, photo.row)
        assert view["question"]["repeated"] == photo.repeated
        assert (view["checked"], view["more"]) == (state.check.checked, state.more)
        after = session.photo_after(photo)
        assert view["following"] == (None if after is None else id_of(index, after.row))
        index.close()
        seen.append(view["question"]["photo"]["id"])
        view = asked(own, "answer", photo=seen[-1], answer="no" if len(seen) == 2 else "yes")
    index, session = beside(own)
    assert view["statement"] == asdict(session.state().statement)
    assert view["question"] is None
    left = [id_of(index, row) for row in session.left().tolist()]
    assert [one["id"] for one in view["photos"]] == left
    assert (view["listed"], view["left"], len(left)) == (12, 11, 11)
    assert seen[1] not in left
    assert {one.who for one in index.store.corrections("dog")} == {"page"}
    index.close()


def test_an_answer_is_taken_once_and_taken_back(own):
    before = asked(own)
    photo = before["question"]["photo"]["id"]
    after = asked(own, "answer", photo=photo, answer="no")
    assert (after["checked"], after["left"]) == (1, 11)
    twice = own.post("/api/v1/check/answer", {"checked": LIST, "photo": photo, "answer": "no"})
    assert "not the one asked about now" in own.problem(twice, 422)
    assert asked(own) == after
    assert asked(own, "undo") == before
    assert asked(own, "undo") == before
    assert open_index(own.library).store.corrections() == []


def test_a_list_that_would_take_long_offers_a_shorter_one_in_words_of_the_page(run, tmp_path):
    """Oracle: the state of the session, for a library of 600 chosen logits."""
    logits = np.random.default_rng(0).normal(-1, 2, (600, 4))
    folder = made_index(tmp_path / "many.index", run, logits)
    options = {"wrong_at_most": 0.05, "top": 600}
    with running(run, folder, decoders=0) as server:
        server.library = folder
        view = asked(server, **options)
        assert view["shorter"] == 300
        assert "a list of the best 300 may take fewer" in view["sentence"]
        assert "--" not in view["sentence"]
        photo = view["question"]["photo"]["id"]
        view = asked(server, "answer", **options, photo=photo, answer="no")
        index, session = beside(server, **options)
        assert session.state().more is None  # so nobody is asked on
        assert view["question"] is None
        index.close()
        assert asked(server, wrong_at_most=0.05, top=view["shorter"])["listed"] == 300


def test_photos_that_leave_the_library_leave_its_lists(own):
    for given, words in (
        ({"q": "dog", "wrong_at_most": 0.001}, "no list of dog is likely to be at most 0.1 % wr"),
        ({"q": "zebra"}, "unknown label 'zebra'"),
    ):
        assert words in own.problem(own.post("/api/v1/check/list", given), 422)
    first = asked(own)["question"]["photo"]
    with open_index(own.library) as index:
        (root,) = index.store.roots()
        assert len(index.store.mark_missing(root, "", [first["name"]])) == 1
    view = asked(own)
    assert view["listed"] == 11
    assert view["question"]["photo"]["id"] != first["id"]


def test_receipts_are_those_of_the_index_with_what_is_known_of_each(own):
    """Oracle: the receipts and verdicts of the index, read beside the server."""
    assert own.get("/api/v1/receipts") == {"receipts": [], "together": "nothing was promised"}
    view = asked(own)
    while view["statement"] is None:
        view = asked(own, "answer", photo=view["question"]["photo"]["id"], answer="yes")
    shown = own.get("/api/v1/receipts")
    with open_index(own.library) as index:
        verified = verify_lists(index)
    assert shown["together"] == str(verified.together)
    assert [one["number"] for one in shown["receipts"]] == [1]
    for one, (receipt, verdict) in zip(shown["receipts"][::-1], verified.lists, strict=True):
        assert (one["text"], one["told"]) == (str(receipt.promise), str(verdict))
        assert (one["photos"], one["verdict"]) == (receipt.photos, verdict.verdict)
        assert (one["who"], one["method"]) == ("page", receipt.promise.test)
    asked(own, "undo")
    first = own.get("/api/v1/receipts")["receipts"][0]
    assert (first["withdrawn"], first["told"]) == (True, "an answer it rests on was taken back")
