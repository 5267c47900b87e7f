"""The labelling page. Oracle: the label table on the disk, as labelwise reads it."""

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from browser_setup import CONTRAST, assert_fits, assert_no_finding
from labelling_setup import labelling
from patience import PATIENCE, wait_until
from playwright.sync_api import expect
from search_setup import picture
from typed import run
from web_setup import TOKEN, encoded

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.errors import DataError
from labelwise.photos.words import QuestionGuide
from labelwise.tables import load

expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture
def folder(tmp_path):
    for number in range(25):
        picture(tmp_path / "photos" / f"{number:02d}.png", number)
    return tmp_path


def ids(asked):
    return [one["id"] for one in asked["photos"]]


def states_of(folder):
    """Return {name: {label: state}} of the table on the disk."""
    table = load(str(folder / "answers.csv"))
    labels, observed = table.targets()
    observed = np.ones_like(labels) if observed is None else observed
    rows = zip(table.ids, labels.tolist(), observed.tolist(), strict=True)
    return {
        Path(photo).name: {
            n: bool(y) for n, y, known in zip(table.space.names, *own, strict=True) if known
        }
        for photo, *own in rows
    }


def test_questions_are_shared_out_and_answers_last(folder):
    with labelling(folder) as server:
        ada = server.get("/api/v1/questions?label=dog&who=ada&count=10")
        ben = server.get("/api/v1/questions?label=dog&who=ben&count=10")
        assert len({*ids(ada), *ids(ben)}) == 20
        assert ids(server.get("/api/v1/questions?label=dog&who=ada&count=10")) == ids(ada)
        fresh = server.get("/api/v1/questions?label=dog&who=ada&count=5&fresh=true")
        assert not {*ids(fresh)} & {*ids(ada), *ids(ben)}
        states = {one: "present" if at == 0 else "absent" for at, one in enumerate(ids(ada))}
        answer = server.put("/api/v1/answers", {"label": "dog", "who": "ada", "states": states})
        assert answer[0] == 200, answer
        tally = {"label": "dog", "yes": 1, "no": 9, "unsure": 0, "disagreed": 0}
        assert json.loads(answer[2])["words"][0] == tally
    first = ada["photos"][0]["name"]
    assert states_of(folder)[first] == {"dog": True}
    assert sum(own == {"dog": False} for own in states_of(folder).values()) == 9
    with labelling(folder) as server:  # once more, later
        left = server.get("/api/v1/questions?label=dog&who=ada&count=100")
        assert left["left"] == 15
        assert not {*ids(left)} & {*ids(ada)}


def test_a_guide_orders_questions_and_the_table_says_which_were_set_aside(folder):
    with labelling(folder, guide=guide_of(folder)) as server:
        order = server.get("/api/v1/labelling")["order"]
        assert "four are those that the model learns most from" in order
        asked = server.get("/api/v1/questions?label=dog&who=ada&count=5")
        names = [one["name"] for one in asked["photos"]]
        assert names[0] in {f"{n:02d}.png" for n in range(5)}
        assert names[1:] == ["24.png", "23.png", "22.png", "21.png"]
        assert [one["guess"] for one in asked["photos"]] == [None] * 5  # hidden unless asked for
        told = server.get("/api/v1/questions?label=dog&who=ada&count=5&guesses=true")
        assert [one["guess"] for one in told["photos"]] == [None, True, False, False, False]
        states = dict.fromkeys(ids(asked), "absent")
        server.put("/api/v1/answers", {"label": "dog", "who": "ada", "states": states})
    table = load(str(folder / "answers.csv"))
    splits = dict(zip([Path(str(one)).name for one in table.ids], table.split, strict=True))
    assert splits == {name: "test" if name == names[0] else "train" for name in names}


def guide_of(folder, learnt_from=0):
    photos = tuple(str(path) for path in sorted((folder / "photos").iterdir()))
    probs = np.linspace(0.1, 0.5, 25)[:, None]  # the later ones are less sure
    return QuestionGuide(frozenset(photos[:5]), photos, ("dog",), probs, learnt_from)


def test_guesses_are_shown_where_they_are_asked_for(folder, visit):
    with labelling(folder, guide=guide_of(folder, learnt_from=3)) as server:
        page = visit(server)
        guessed = page.locator("#grid button[data-state=present]")
        expect(page.locator("#progress")).to_contain_text("learnt from 3 answered")
        expect(guessed).to_have_count(0)
        page.get_by_label("Show guesses").check()
        expect(page.locator("#lead")).to_contain_text("The guesses are selected")
        expect(guessed).to_have_count(1)
        expect(guessed).to_have_attribute("aria-label", re.compile("24.png"))


def test_new_photos_come_in_when_the_page_is_opened_which_does_not_wait_for_them(folder):
    photos, go = folder / "photos", threading.Event()

    def find():
        go.wait(PATIENCE)
        return sorted(photos.iterdir())

    with labelling(folder, find=find) as server:
        picture(photos / "new.png", 99)
        assert server.get("/api/v1/labelling")["photos"] == 25
        assert server.get("/api/v1/questions?label=dog&who=ada&count=100")["left"] == 25
        go.set()
        wait_until(lambda: server.get("/api/v1/labelling")["photos"] == 26)
        asked = server.get("/api/v1/questions?label=dog&who=ada&count=100")
        (new,) = [one["id"] for one in asked["photos"] if one["name"] == "new.png"]
        assert server.send("GET", f"/api/v1/photos/{new}/thumbnail")[0] == 200
        (photos / "new.png").unlink()  # what is gone is still known: answers about it may come
        assert server.get("/api/v1/labelling")["photos"] == 26


def test_a_photo_that_was_away_or_broken_is_asked_about_when_it_is_another_file(folder):
    query = "/api/v1/questions?label=dog&who=ada&count=100"
    with labelling(folder) as server:
        asked = server.get(query)["photos"][0]
        photo = folder / "photos" / asked["name"]

        def fails():
            gone = server.send("GET", f"/api/v1/photos/{asked['id']}/thumbnail")
            assert "cannot be shown" in server.problem(gone, 404)
            return asked["id"] not in ids(server.get(query))

        photo.rename(folder / "away.png")
        assert fails()
        (folder / "away.png").rename(photo)
        assert asked["id"] in ids(server.get(query))
        photo.write_bytes(b"broken")
        assert fails()
        photo.write_bytes(encoded())
        assert asked["id"] in ids(server.get(query))


def test_a_label_table_that_is_there_is_never_overwritten(folder):
    (folder / "answers.csv").write_text("path,dog\nmine.jpg,1\n")
    with pytest.raises(DataError, match=r"answers\.csv exists.*such as .*answers-answers\.csv"):
        labelling(folder).__enter__()
    assert (folder / "answers.csv").read_text() == "path,dog\nmine.jpg,1\n"
    (folder / "answers.csv").unlink()
    with labelling(folder) as server:
        (one,) = ids(server.get("/api/v1/questions?label=dog&who=ada&count=1"))
        (folder / "answers.csv").write_text("another program's\n")  # while people answer
        given = {"label": "dog", "who": "ada", "states": {one: "present"}}
        assert server.put("/api/v1/answers", given)[0] == 200
    assert (folder / "answers.csv").read_text() == "another program's\n"
    assert len(LabelAnswers(AnswerLog(folder / "answers.jsonl")).agreed) == 1


def test_after_a_kill_the_table_is_brought_up_to_date(folder):
    with labelling(folder) as server:
        asked = server.get("/api/v1/questions?label=dog&who=ada&count=1")["photos"][0]
        given = {"label": "dog", "who": "ada", "states": {asked["id"]: "present"}}
        server.put("/api/v1/answers", given)
    (folder / "answers.csv").unlink()
    LabelAnswers(AnswerLog(folder / "answers.jsonl")).add("dog", {"b.png": "no"}, "ben")
    with labelling(folder):
        wait_until((folder / "answers.csv").exists)
    lines = (folder / "answers.csv").read_text().splitlines()
    assert lines == ["path,dog,cat", f"{folder / 'photos' / asked['name']},1,", "b.png,0,"]


def test_what_cannot_be_an_answer_is_refused(folder):
    with labelling(folder) as server:
        (one,) = ids(server.get("/api/v1/questions?label=dog&who=ada&count=1"))
        good = {"label": "dog", "who": "ada", "states": {one: "present"}}
        server.problem(server.put("/api/v1/answers", good | {"states": {"f" * 64: "present"}}), 404)
        for wrong in (
            {"label": "horse"},
            {"who": ""},
            {"states": {one: "perhaps"}},
            {"states": {}},
        ):
            server.problem(server.put("/api/v1/answers", good | wrong), 422)
        assert not (folder / "answers.csv").exists()
        server.problem(server.send("GET", "/api/v1/photos/" + "0" * 64 + "/thumbnail"), 404)
        foreign = {"Origin": "https://elsewhere.example"}
        server.problem(server.put("/api/v1/answers", good, **foreign), 403)
    with labelling(folder, token=TOKEN) as server:
        server.problem(server.send("GET", "/api/v1/labelling"), 401)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("label --page photos", "name the photos and the words to ask about"),
        ("serve --label photos", "No such option: --label"),
        ("label --page none --words words.txt", "there is no file or folder none"),
        ("label photos --words words.txt", "--words does not apply: it belongs to --page"),
        ("serve run --words words.txt", "No such option: --words"),
        ("serve", "name the folder of a run to serve"),
        ("label --page photos --max-batch 3", "No such option: --max-batch"),
        ("label --page photos --words none.txt", "there is no such file"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, monkeypatch, arguments, sentence):
    monkeypatch.chdir(folder)
    (folder / "words.txt").write_text("dog\n")
    done = run(*arguments.split())
    assert done.exit_code != 0
    assert sentence in " ".join(f"{done.exception} {done.output}".split())


def test_a_person_answers_undoes_and_comes_back(folder, visit):
    with labelling(folder) as server:
        page = visit(server)
        tiles = page.locator("#grid button")
        expect(tiles).to_have_count(20)
        expect(page.locator("#ask")).to_have_text("Is there: dog?")
        expect(tiles.nth(0)).to_be_focused()
        page.keyboard.press("y")
        page.keyboard.press("d")
        tiles.nth(4).click()
        expect(tiles.nth(4)).to_have_attribute("aria-pressed", "true")
        names = [tiles.nth(n).get_attribute("aria-label").partition(":")[0] for n in range(20)]
        expect(page.get_by_role("button", name="Save")).to_be_enabled()  # all photos are shown
        page.keyboard.press("s")
        expect(tiles).to_have_count(5)
        wait_until(lambda: (folder / "answers.csv").exists() and len(states_of(folder)) == 19)
        told = states_of(folder)
        assert [told[names[n]] for n in (0, 4, 5)] == [{"dog": True}, {"dog": True}, {"dog": False}]
        assert names[1] not in told  # nobody can tell
        assert sum(own["dog"] for own in told.values()) == 2

        page.keyboard.press("u")
        expect(tiles).to_have_count(20)
        expect(tiles.nth(0)).to_have_attribute("data-state", "present")
        wait_until(lambda: (folder / "answers.csv").read_text().split() == ["path,dog,cat"])
        page.get_by_role("button", name="Save").click()
        expect(tiles).to_have_count(5)
        page.reload()
        expect(tiles).to_have_count(5)
        page.get_by_label("Word").select_option("cat")
        expect(tiles).to_have_count(20)
        expect(page.get_by_role("row", name="dog")).to_contain_text("17")
        assert page.evaluate(CONTRAST)["text"] >= 4.5
        assert_fits(page)
        assert_no_finding(page, 390, "dark")
        assert page.heard == []
    assert states_of(folder) == told


def test_nothing_is_saved_unseen_and_the_next_photos_begin_at_the_top(tmp_path, visit):
    for number in range(45):
        picture(tmp_path / "photos" / f"{number:02d}.png", number)
    held = []
    with labelling(tmp_path) as server:
        page = visit(server, viewport={"width": 390, "height": 800})
        page.route("**/thumbnail*", lambda r: r.continue_() if held else held.append(r))
        page.reload()
        tiles, save = page.locator("#grid button"), page.get_by_role("button", name="Save")
        expect(tiles).to_have_count(20)
        wait_until(lambda: held)
        expect(save).to_be_disabled()

        def told_to_wait():
            page.keyboard.press("s")
            return "Some photos are still loading" in page.locator("#toast").inner_text()

        wait_until(told_to_wait)
        assert not (tmp_path / "answers.csv").exists()
        held[0].continue_()
        expect(save).to_be_enabled()

        first = tiles.nth(0).get_attribute("aria-label")
        tiles.nth(19).scroll_into_view_if_needed()
        expect(tiles.nth(0)).not_to_be_in_viewport()
        save.click()
        expect(tiles.nth(0)).not_to_have_attribute("aria-label", first)
        expect(tiles.nth(0)).to_be_in_viewport()
        wait_until((tmp_path / "answers.csv").exists)
        assert len(states_of(tmp_path)) == 20
        below = page.evaluate("getComputedStyle(document.getElementById('toast')).bottom")
        assert float(below.removesuffix("px")) > page.locator(".actions").bounding_box()["height"]
