"""``labelwise audit TAGS``: its tables, sessions, commands. Oracle: what the photos really show."""

import csv
import json
import re
import shlex
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from audit_setup import NAMES, as_responses, tagged_photos, truthful
from browser_setup import launched
from patience import PATIENCE
from playwright.sync_api import expect
from search_setup import picture
from sidecar_samples import drawn_sidecar, subjects
from typer.testing import CliRunner
from web_setup import served

from labelwise.answers import session as sessions
from labelwise.answers.audit_session import (
    AuditSession,
    AuditSettings,
    corrected,
    precisions,
    recalls,
    statement,
)
from labelwise.answers.log import AnswerLog
from labelwise.answers.session import EACH_TAG
from labelwise.cli.app import app
from labelwise.contrib.tag_sources import tags_to_audit
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions
from labelwise.report.audit import page, write_audit
from labelwise.server import ServeSettings, create_audit_app
from labelwise.tables import load
from labelwise.tables.tags import TagTable, read_tags, tags_of_text

expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(command, status=0, **options):
    done = CliRunner().invoke(app, shlex.split(command), **options)
    assert done.exit_code == status, (done.output, done.exception)
    return done.output + str(done.exception or "")


def by_spreadsheet(folder, truth, command):
    """Write questions and answer them until none is left; return what was said last."""
    questions = folder / f"q{len(list(folder.glob('q*.csv')))}.csv"
    output = typed(f"{command} --csv {questions}")
    for _ in range(30):
        if not questions.exists():
            return output
        truthful(questions, truth)
        answered, questions = questions, questions.with_stem(f"{questions.stem}0")
        output = typed(f"{command} --answers {answered} --csv {questions}")
    raise AssertionError("too many questions")


def test_a_spreadsheet_brings_a_guarantee_that_holds(folder):
    truth, tagged = tagged_photos(folder)
    output = by_spreadsheet(folder, truth, "audit tags.csv --photos photos")
    assert "Next: labelwise train tags.audit/train.parquet" in output
    receipt = json.loads((folder / "tags.audit/receipt.json").read_text())
    uses = [(p, tag) for p, own in tagged.items() for tag in own & set(receipt["kept"])]
    assert f"at least 90 % of these {len(uses)} uses together are right" in receipt["statement"]
    assert sum(tag in truth[photo] for photo, tag in uses) >= 0.9 * len(uses)
    page = (folder / "tags.audit/audit.html").read_text()
    assert receipt["statement"] in page
    with (folder / "tags.audit/tags.csv").open() as stream:
        rows = {row["tag"]: row for row in csv.DictReader(stream)}
    assert {tag for tag, row in rows.items() if row["kept"] == "yes"} == set(receipt["kept"])
    for tag, row in rows.items():
        own = [photo for photo, tags in tagged.items() if tag in tags]
        right = sum(tag in truth[photo] for photo in own) / len(own)
        assert float(row["right_low"]) <= right <= float(row["right_high"])
    table = load(folder / "tags.audit/kept.csv")  # and its photos are found
    assert set(table.space.names) == set(receipt["kept"])
    assert len(table) == len(truth)
    keywords_come_and_go(folder, table)

    again = by_spreadsheet(folder, truth, "audit --again tags.audit/receipt.json")
    assert "Confirmed: at least 90 % of these" in again
    shown = {path: {"none"} for path in truth}  # a second person who sees none of it
    denied = by_spreadsheet(folder, shown, "audit --again tags.audit/receipt.json -o denied")
    assert "Contradicted: at most" in denied
    (folder / "tags.audit/kept.csv").write_text("path,labels\n")
    for command in ("audit --again tags.audit/receipt.json", "tag tags.audit --xmp"):
        assert "not as it was written" in typed(command, 1)


def keywords_come_and_go(folder, table):
    """The kept tags are written beside the photos that are there, and --undo takes them out."""
    photos = folder / "photos"
    (photos / "000.png.xmp").write_bytes(before := drawn_sidecar(3))
    (photos / "001.png").rename(folder / "away.png")
    assert "does not apply" in typed("tag tags.audit --xmp --wrong-at-most 0.1", 1)
    typed("tag tags.audit --xmp --dry-run")
    assert list(photos.glob("*.xmp")) == [photos / "000.png.xmp"]
    typed("tag tags.audit --xmp")
    for row in range(len(table)):
        sidecar = photos / f"{row:03d}.png.xmp"
        names = {table.space.names[k] for k in table.present.row(row)}
        if row == 1 or not (names or row == 0):
            assert not sidecar.exists()
        else:
            assert names <= set(subjects(sidecar.read_bytes()))
    assert "undone" in typed("tag tags.audit --undo")
    assert list(photos.glob("*.xmp")) == [photos / "000.png.xmp"]
    assert (photos / "000.png.xmp").read_bytes() == before
    (folder / "away.png").rename(photos / "001.png")


def test_answers_in_the_terminal_of_a_language_models_tags(folder):
    truth, tagged = tagged_photos(folder)
    as_responses(folder / "model.jsonl", tagged)
    table = read_tags(folder / "model.jsonl")
    session = session_of(folder, "other.jsonl", AuditSettings(), table)
    keys = ["n", "undo"]  # of the first question
    while (question := session.ask("ada")).label != EACH_TAG:
        word = "yes" if question.label in truth[question.photo] else "no"
        record(session, question, word, "ada")
        keys.append(word[0])
    keys += ["unicorn", "dog, -beach", "stop"]
    command = "audit model.jsonl --photos photos -o out --who ada"
    output = typed(command, input="\n".join(keys) + "\n")
    assert "are kept" in output
    assert "'unicorn' is not a listed tag" in output
    assert len(AnswerLog(folder / "out/answers.jsonl").notes("shown")) == 1
    answers = sum(key in "yn" for key in keys) - 1
    assert json.loads((folder / "out/receipt.json").read_text())["answers"] == answers


def test_names_do_nothing_to_the_terminal(folder):
    name = "\x1b]0;owned\x07.png"
    tagged_photos(folder, 1)
    (folder / "photos/000.png").rename(folder / "photos" / name)
    (folder / "tags.csv").write_text(f"photo,tag\n{name},dog\n")
    output = typed("audit tags.csv --photos photos", input="y\nstop\n")
    assert "owned" in output
    assert not {"\x1b", "\x07"} & {*output}


def test_nothing_is_overwritten_that_labelwise_did_not_make(folder, monkeypatch):
    monkeypatch.delenv("LABELWISE_OVERWRITE", raising=False)
    tagged_photos(folder, 40)
    (folder / "mine").mkdir()
    (folder / "mine/notes.txt").write_text("mine")
    command = "audit tags.csv --photos photos"
    assert "did not make" in typed(f"{command} -o mine --csv q.csv", 1)
    (folder / "q.csv").write_text("mine")
    assert "would be overwritten" in typed(f"{command} -o out --csv q.csv", 1)
    typed(f"{command} -o out", input="y\ny\nstop\n")
    (folder / "out/tags.csv").write_text("edited")
    assert "is not overwritten" in typed(f"{command} -o out", 1, input="stop\n").replace("\n", " ")
    assert (folder / "out/tags.csv").read_text() == "edited"
    assert (folder / "q.csv").read_text() == "mine"
    (folder / "out/tags.csv").unlink()
    typed(f"{command} -o out", input="y\nstop\n")
    assert json.loads((folder / "out/receipt.json").read_text())["answers"] == 3


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("audit tags.csv", "--photos"),
        ("audit nothing.csv --photos photos", "there is no file"),
        ("audit tags.csv --photos .", "none of its photos is in"),
        ("audit tags.csv --photos photos --right-at-least 90", "between 0 and 1"),
        ("audit tags.csv --photos photos --wrong-at-most 0.1", "does not apply"),
        ("audit tags.csv --photos photos --page --csv q.csv", "--csv does not apply"),
        ("audit tags.csv --photos photos --answers bad.csv", "line 3: '001.png' does not carry"),
        ("audit tags.csv --photos photos --answers odd.csv", "yes, no or unsure, got perhaps"),
        ("audit --again tags.csv", "not JSON"),
        ("audit --again odd.json", "is not a receipt"),
    ],
)
def test_mistakes_are_named_and_nothing_is_logged(folder, command, words):
    tagged = tagged_photos(folder, 40)[1]
    tag = min(tagged["000.png"])
    (folder / "bad.csv").write_text(f"path,tag,answer\n000.png,{tag},yes\n001.png,unicorn,yes\n")
    (folder / "odd.csv").write_text(f"path,tag,answer\n000.png,{tag},perhaps\n")
    (folder / "odd.json").write_text("{}")
    assert words in " ".join(typed(command, 1).split())
    log = folder / "tags.audit/answers.jsonl"
    assert not log.exists() or len(AnswerLog(log).lines()) == 1


@contextmanager
def audit_page(folder, random_photos):
    """Serve the page of an audit; yield the truth, the session and a client."""
    truth, _ = tagged_photos(folder)
    wanted = AuditSettings(random_photos=random_photos, right_at_least=0.8)
    session = session_of(folder, "out/answers.jsonl", wanted)
    settings = ServeSettings(decoders=0, port=0)
    with served(create_audit_app(session, folder / "out", settings), settings) as server:
        yield truth, session, server


def test_the_page_asks_one_tag_at_a_time_and_loads_ahead(folder):
    with audit_page(folder, 5) as (truth, session, server):
        assert server.get("/api/v1/labelling")["one_at_a_time"]
        state, ahead, last = server.get("/api/v1/question?who=ada"), set(), None
        while (asked := state["question"]) is not None:
            assert last is None or asked["id"] in ahead
            ahead, shows = set(state["ahead"]), truth[asked["name"]]
            said = {"photo": asked["id"], "who": "ada"}
            if asked["label"] is None:
                assert set(asked["tagged"]) <= set(asked["listed"])
                said["shown"] = {t: "yes" if t in shows else "no" for t in asked["listed"]}
            else:
                said |= {"label": asked["label"]}
                said["answer"] = "yes" if asked["label"] in shows else "no"
            state = server.told(server.put("/api/v1/answer", said))
            if last is None:  # taken back, it is asked again
                back = server.told(server.put("/api/v1/undo", {"who": "ada"}))
                assert back["question"] == asked
                state = server.told(server.put("/api/v1/answer", said))
            last = asked
        assert "are kept" in state["statement"]
        assert server.send("GET", f"/api/v1/photos/{last['id']}/thumbnail?side=640")[0] == 200
        server.problem(server.send("GET", f"/api/v1/photos/{'0' * 64}/thumbnail"), 404)
        server.problem(server.put("/api/v1/answer", {**said, "photo": "0a" * 32}), 404)
        wrong = {"photo": last["id"], "who": "ada", "label": "unicorn", "answer": "yes"}
        assert "does not carry" in server.problem(server.put("/api/v1/answer", wrong), 422)
    write_audit(session, folder / "out")
    assert (folder / "out/kept.csv").is_file()


def test_keys_answer_in_the_browser(folder):
    with audit_page(folder, 1) as (truth, session, server), launched() as browser:
        page = browser.new_page()
        page.goto(server.address)
        heading, picture = page.locator("#ask"), page.locator("#grid img")
        asked = []
        for turn in range(400):
            expect(picture).to_have_js_property("complete", True)
            words, name = heading.text_content(), picture.get_attribute("alt")
            if not words.startswith("Does it show: "):
                break
            tag = words.removeprefix("Does it show: ")[:-1]
            asked.append((name, tag))
            with page.expect_response("**/api/v1/answer"):
                page.keyboard.press("y" if tag in truth[name] else "n")
            expect(page.locator("#progress")).to_contain_text(f"{len(asked)} answer")
            if turn == 3:
                with page.expect_response("**/api/v1/undo"):
                    page.keyboard.press("u")
                expect(picture).to_have_attribute("alt", asked.pop()[0])
        assert len(set(asked)) == len(asked) == session.verdict().answers
        assert session.verdict().guaranteed
        own = set(session.tagged(name))
        expect(page.locator("#grid button[aria-pressed=true]")).to_have_count(len(own))
        for tag in own ^ (truth[name] & set(session.listed)):
            button = page.get_by_role("button", name=tag, exact=True)
            for _ in range(1 if tag in own else 2):  # yes, no, unsure, yes
                button.click()
                button = page.get_by_role("button", name=re.compile(rf"^{tag}( \?)?$"))
        page.keyboard.press("s")
        expect(heading).to_have_text("Nothing is left to ask")
    facts = session.shown[name]
    assert set(facts["also"]) == truth[name] - own
    assert set(facts["wrong"]) == own - truth[name]


SETTINGS = AuditSettings(random_photos=20)


@pytest.fixture
def world(tmp_path):
    truth, tagged = tagged_photos(tmp_path)
    return tmp_path, truth, tagged


def session_of(folder, name="log.jsonl", settings=SETTINGS, table=None):
    table = table or read_tags(folder / "tags.csv")
    return AuditSession(table, folder / "photos", AnswerLog(folder / name), settings)


def record(session, question, word, who):
    session.answer(*question.key, word, who)


def told(question, truth):
    return "yes" if question.label in truth[question.photo] else "no"


def answer(session, truth, who="ada", most=1000):
    """Answer by the truth; return what was asked."""
    asked = []
    while len(asked) < most and (question := session.ask(who)) is not None:
        asked.append(question.key)
        if question.label == EACH_TAG:
            shown = {tag: told(replace(question, label=tag), truth) for tag in question.listed}
            session.answer(*question.key, shown, who)
        else:
            record(session, question, told(question, truth), who)
    return asked


def test_an_audit_ends_with_a_guarantee_that_is_true(world):
    folder, truth, tagged = world
    session = session_of(folder)
    asked = answer(session, truth, most=5)
    assert not any(one.kept for one in precisions(session))
    assert "not decided" in page(session)
    asked += answer(session, truth)
    assert any(one.kept for one in precisions(session))
    assert "not decided" not in page(session)
    assert len(set(asked)) == len(asked)
    verdict, kept = session.verdict(), {session.table.tags[k] for k in session.verdict().kept}
    assert verdict.guaranteed
    assert "night" not in kept
    labels, unknown = corrected(session)
    for photo, own in zip(session.table.photos, labels, strict=True):
        assert set(own) <= kept & (tagged[photo] | truth[photo])
    for photo, tag in asked:  # what a person answered is as they said
        row = session.table.photos.index(photo)
        for name in kept if tag == EACH_TAG else kept & {tag}:
            assert (name in labels[row]) == (name in truth[photo])
    assert not any(unknown)
    found = recalls(session)
    for tag in kept:
        missing = sum(tag in truth[p] and tag not in own for p, own in tagged.items())
        assert found[tag].least_missing <= missing <= found[tag].most_missing
    assert sum(tag == EACH_TAG for _, tag in asked) == 20


def test_a_session_goes_on_where_it_was_and_undo_leaves_no_trace(world):
    folder, truth, _ = world
    whole = session_of(folder, "whole.jsonl")
    asked = answer(whole, truth)
    first = session_of(folder)
    answer(first, truth, most=30)
    question = first.ask("ada")
    record(first, question, "no" if told(question, truth) == "yes" else "yes", "ada")
    assert first.undo("ada").photo == question.photo
    assert first.ask("ada") == question
    assert first.verdict().answers == 30
    again = session_of(folder)
    assert answer(again, truth) == asked[30:]
    assert again.verdict() == whole.verdict()
    assert corrected(again) == corrected(whole)
    for _ in range(3):
        again.undo("ada")
    assert again.ask("ada").key == asked[-3]
    assert again.undo("eve") is None


def test_two_people_are_not_asked_the_same_and_their_answers_add_up(world):
    folder, truth, _ = world
    alone = session_of(folder, "alone.jsonl")
    answer(alone, truth)
    both = session_of(folder)
    seen = {"ada": [], "ben": []}
    while any((held := {who: both.ask(who) for who in seen}).values()):
        if held["ada"] is not None and held["ben"] is not None:
            is_last = len(both.batch(2)) == 1  # which both are asked: the end is the end for all
            assert is_last or held["ada"].key != held["ben"].key
            assert both.ask("ada") == held["ada"]  # it stays theirs
        for who in sorted(seen, reverse=True):  # ben answers before ada does
            if held[who] is not None:
                seen[who] += answer(both, truth, who, most=1)
    assert not set(seen["ada"]) & set(seen["ben"])
    assert both.people == ["ada", "ben"]
    assert both.verdict() == alone.verdict()


def test_who_left_does_not_stop_the_others(world, monkeypatch):
    folder, truth, _ = world
    session = session_of(folder)
    left = session.ask("eve")
    answer(session, truth, most=25)
    assert session.verdict().answers >= 20  # eve's counts as unsure until someone answers it
    monkeypatch.setattr(sessions, "HELD_SECONDS", 0.0)
    assert session.ask("ada") == left


def test_people_who_disagree_cannot_tell(world):
    folder, _, _ = world
    session = session_of(folder)
    question = session.ask("ada")
    record(session, question, "yes", "ada")
    record(session, question, "no", "ben")
    known = precisions(session)[session.table.tags.index(question.label)]
    assert (known.answered, known.unsure) == (1, 1)
    session.undo("ben")
    assert precisions(session)[session.table.tags.index(question.label)].unsure == 0


def test_missing_photos_are_skipped_and_asked_about_once_they_are_back(world):
    folder, truth, _ = world
    session = session_of(folder)
    first = session.ask("ada")
    path = folder / "photos" / first.photo
    path.rename(folder / "away.png")
    asked = answer(session, truth, most=45)
    assert first.photo not in {photo for photo, _ in asked}
    verdict = session.verdict()
    assert verdict.answers == len(session.answers) > 30
    assert f"{verdict.answers} answers)" in statement(session)
    (folder / "away.png").rename(path)
    assert session.ask("ada") == first
    session.unreadable = {first.photo}
    assert session.ask("ada") != first


def test_trusted_answers_are_not_asked_for(world):
    folder, truth, tagged = world
    table = read_tags(folder / "tags.csv")
    uses = [(photo, tag) for photo, own in tagged.items() for tag in sorted(own)]
    known = {use: "yes" if use[1] in truth[use[0]] else "no" for use in uses}
    some = dict(list(known.items())[::2])
    session = session_of(folder, table=replace(table, known=some))
    asked = answer(session, truth)
    assert not set(asked) & set(some)
    assert session.verdict().guaranteed
    done = session_of(folder, "all.jsonl", table=replace(table, known=known))
    assert done.ask("ada").label == EACH_TAG  # nothing else is left


def test_another_table_and_answers_that_cannot_be_are_not_logged(world):
    folder, truth, tagged = world
    answer(session_of(folder), truth, most=2)
    with pytest.raises(SettingsError, match="seed was different"):
        session_of(folder, settings=replace(SETTINGS, seed=1))
    with pytest.raises(SettingsError, match="the tags have changed"):
        session_of(folder, table=TagTable.of("tags", [("000.png", "dog", None)]))
    session = session_of(folder)
    before = session.log.path.read_bytes()
    photo, use = next(p for p, own in tagged.items() if "dog" not in own), session.ask("ada")
    for given, words in (
        ((photo, "dog", "yes"), "does not carry"),
        ((photo, "\0", "yes"), "does not carry"),
        ((*use.key, "maybe"), "yes, no or unsure"),
        ((photo, EACH_TAG, {"dogs": "yes"}), "not a listed tag; did you mean 'dog'"),
        (("x", EACH_TAG, {}), "not a photo"),
    ):
        with pytest.raises(DataError, match=words):
            session.answer(*given, "ada")
    assert session.log.path.read_bytes() == before


def test_a_full_disk_loses_no_answer(world, monkeypatch):
    folder, truth, _ = world
    session = session_of(folder)
    answer(session, truth, most=3)
    question, before = session.ask("ada"), session.log.path.read_bytes()

    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(LabelwiseError, match="the disk is full"):
        record(session, question, "yes", "ada")
    assert session.log.path.read_bytes() == before
    assert session.ask("ada") == question


def used(table):
    return {
        (table.photos[row], tag)
        for tag, own in zip(table.tags, table.uses, strict=True)
        for row in own.tolist()
    }


def pairs(tagged):
    return {(photo, tag) for photo, own in tagged.items() for tag in own}


def scored(tagged, rng):
    return {pair: round(float(rng.uniform(0.6, 1)), 6) for pair in sorted(pairs(tagged))}


@pytest.fixture
def small(tmp_path):
    return tmp_path, tagged_photos(tmp_path, 40)[1]


def label_table(folder, tagged):
    return folder / "tags.csv", {}


def tags_column(folder, tagged):
    rows = [f"{photo},{'|'.join(own)}" for photo, own in tagged.items()]
    (folder / "own.csv").write_text("\n".join(["file_name,tags", *rows]))
    return folder / "own.csv", {}


def use_rows(folder, tagged):
    rows = [f"{photo},{tag}" for photo, tag in sorted(pairs(tagged))]
    (folder / "long.csv").write_text("\n".join(["photo,tag", *rows]))
    return folder / "long.csv", {}


def responses(folder, tagged):
    as_responses(folder / "model.jsonl", tagged)
    return folder / "model.jsonl", {}


def label_studio(folder, tagged):
    tasks = []
    for photo, own in tagged.items():
        said = {"result": [{"type": "choices", "value": {"choices": sorted(own)}}]} if own else {}
        task = {"data": {"image": f"/data/local-files/?d={photo}"}, "predictions": [said]}
        tasks.append(task | {"annotations": [{"result": []}]})
    (folder / "tasks.json").write_text(json.dumps(tasks))
    return folder / "tasks.json", {}


def annotators(folder, tagged):
    lines = ["photo,label,worker,answer"]
    for photo, own in tagged.items():
        for tag in NAMES:
            said = "yes" if tag in own else "no"
            lines += [f"{photo},{tag},{who},{said}" for who in ("ann", "bob")]
            lines.append(f"{photo},{tag},cat,{'no' if said == 'yes' else 'yes'}")
    lines.append("000.png,beach,eva,no")
    (folder / "votes.csv").write_text("\n".join(lines) + "\n")
    return folder / "votes.csv", {"trust": "eva"}


FORMS = (label_table, tags_column, use_rows, responses, label_studio, annotators)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_tags_are_the_same_in_every_form(small, form):
    folder, tagged = small
    path, options = form(folder, tagged)
    table, photos = tags_to_audit(path, folder / "photos", **options)
    assert used(table) == pairs(tagged)
    assert photos == folder / "photos"
    if form is not use_rows:  # which cannot say that a photo has no tag
        assert set(table.photos) == set(tagged)
    assert dict(table.known) == ({("000.png", "beach"): "no"} if form is annotators else {})


def coco(folder, chances):
    photos = sorted({photo for photo, _ in chances})
    ids = ("image_id", "category_id", "score")
    rows = [(photos.index(p) + 7, NAMES.index(t) + 3, s) for (p, t), s in chances.items()]
    found = [dict(zip(ids, row, strict=True)) for row in rows]
    found += [{**found[0], "score": 0.55}, {**found[0], "category_id": 8, "score": 0.01}]
    images = [{"id": n + 7, "file_name": photo} for n, photo in enumerate(photos)]
    names = [{"id": n + 3, "name": name} for n, name in enumerate(NAMES)]
    (folder / "instances.json").write_text(json.dumps({"images": images, "categories": names}))
    (folder / "results.json").write_text(json.dumps(found))
    return folder / "results.json", {"data": str(folder / "instances.json")}


def long_scores(folder, chances):
    rows = [f"{photo},{tag},{score}" for (photo, tag), score in chances.items()]
    (folder / "long.csv").write_text("\n".join(["image,label,confidence", *rows]) + "\n")
    return folder / "long.csv", {}


def score_columns(folder, chances):
    rows = [[photo, *probs] for photo, probs in zip(*dense(chances), strict=True)]
    head = ["id", *(f"score:{name}" for name in NAMES)]
    (folder / "scores.csv").write_text("\n".join(",".join(map(str, r)) for r in [head, *rows]))
    return folder / "scores.csv", {"kind": "probs"}


def dense(chances):
    photos = sorted({photo for photo, _ in chances})
    return photos, [[chances.get((photo, name), 0.2) for name in NAMES] for photo in photos]


def predictions(folder, chances):
    photos, probs = dense(chances)
    logits = np.log(probs) - np.log1p(-np.array(probs))
    own = Predictions(photos, logits, np.zeros(logits.shape), None, NAMES, "test", Sigmoid())
    own.save(folder / "predictions.parquet")
    return folder / "predictions.parquet", {}


@pytest.mark.parametrize("form", [coco, long_scores, score_columns, predictions])
def test_scores_go_with_their_uses(small, form):
    folder, tagged = small
    chances = scored(tagged, np.random.default_rng(1))
    path, options = form(folder, chances)
    table, _ = tags_to_audit(path, folder / "photos", **options)
    found = {
        (table.photos[row], tag): score
        for tag, own, scores in zip(table.tags, table.uses, table.scores, strict=True)
        for row, score in zip(own.tolist(), scores.tolist(), strict=True)
    }
    assert found == pytest.approx(chances, abs=1e-6)


def test_keywords_of_photos_are_tags(tmp_path):
    picture(tmp_path / "a.jpg", 1)
    (tmp_path / "a.jpg.xmp").write_text(
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag><rdf:li>dog</rdf:li>'
        "</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    picture(tmp_path / "b.jpg", 2)
    table, folder = tags_to_audit(tmp_path, None)
    assert (used(table), len(table.photos), folder) == ({("a.jpg", "dog")}, 2, tmp_path)


@pytest.mark.parametrize(
    ("said", "tags"),
    [
        ("dog, Beach.", ["dog", "beach"]),
        ('["dog"]', ["dog"]),
        ('{"dog": 0.9, "cat": 0.2}', ["dog", "cat"]),
        ("1. dog\n2) big  cat", ["dog", "big  cat"]),
        ("", []),
        ("None.", []),
        ("The photo shows a dog on a beach, and the sky is blue and wide above it.", None),
        ("Sure! Here are the tags:", None),
        ("Here are the tags:\ndog, beach", ["dog", "beach"]),
        ("Sure!\nThe tags of this photo: dog\nCat", ["dog", "cat"]),
        ("Tags: dog, st. bernard, a. m. radio", ["dog", "st. bernard", "a. m. radio"]),
        ("**Tags:** #dog #black cat | owl", ["dog", "black cat", "owl"]),
        ("Sure, here you go: ['dog', 'cat']", ["dog", "cat"]),
        ("Dog (0.9), cat: .8, route: 66", ["dog", "cat", "route: 66"]),
        ("<think>a dog, or a cat</think>dog", ["dog"]),
        ("I'm sorry, I can't help with that.", None),
        ("The image shows a dog, a cat", None),
        ("unknown", None),
        ('{"dog": "yes"}', None),
        ('[["dog"]]', None),
        ("3", None),
        ("[" * 100_000, None),
    ],
)
def test_lists_of_language_models(said, tags):
    found = tags_of_text(said)
    assert (None if found is None else [tag for tag, _ in found]) == tags


def test_what_failed_or_cannot_be_shown_is_left_out_and_said(tmp_path):
    path = tmp_path / "model.jsonl"
    lines = [
        {"path": "a.png", "response": "dog, cat"},
        {"path": "b.png", "response": None, "error": "timeout"},
        {"path": "c.png", "response": "I am sorry, but I cannot help with that request today."},
        {"path": "d.png", "response": "dog\0, \x1b[2J, cat"},
        {"path": "e.png", "response": ""},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = read_tags(path)
    assert used(table) == {("a.png", "dog"), ("a.png", "cat"), ("d.png", "cat")}
    assert set(table.photos) == {"a.png", "d.png", "e.png"}
    assert table.notes == (
        "left out 1 photo without a response",
        "left out what is not a list of tags: 1 response, first line 3",
        "left out 2 tags (2 uses) without a name that can be shown",
    )
    odd = ("do\x07g", "\x1b[31mred", "\u202egod", "x" * 1001)
    rows = tmp_path / "rows.csv"
    rows.write_text("photo,tag\n" + "".join(f"a.png,{tag}\n" for tag in (*odd, "dog")))
    lists = tmp_path / "lists.csv"
    lists.write_text(f"path,labels\na.png,{'|'.join((*odd, 'dog'))}\n")
    for table in (read_tags(rows), read_tags(lists)):
        note = "left out 4 tags (4 uses) without a name that can be shown"
        assert (table.tags, table.notes) == (("dog",), (note,))
    said = '[{"tag": "dog", "score": %s}]'
    bad = ("NaN", "1e400", "-Infinity", "1" + "0" * 400, "true")
    assert [tags_of_text(said % one) for one in bad] == [None] * 5
    assert tags_of_text(said % "0.5") == [("dog", 0.5)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"path": "a", "response": "dog"}\n{"path": ', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"response": "dog"}\n', "line 1: it must say which photo"),
        ("a.jsonl", '{"path": "a", "response": ""}\n', "there is no tag in it"),
        ("a.csv", "photo,tag,score\na,dog,high\n", "row 1: a score must be a number, got 'high'"),
        ("a.csv", "photo,tag\n,dog\n", "row 1: it names no photo"),
        ("a.csv", "photo,tag\0\na,dog\n", "save the table as UTF-8|must be UTF-8 text"),
        ("a.csv", "path,labels\na,\n", "the table has no labels"),
        ("a.json", '[{"image_id": 1, "category_id": 1}]', "--data instances.json"),
        ("a.json", '[{"data": {}, "predictions": [1]}]', "'data' must name an 'image'"),
        ("a.json", '[{"data": {"image": "a"}, "predictions": [1]}]', "there is no tag in it"),
        ("a.json", "[" * 9999, "not JSON"),
        ("a.txt", "", "is empty"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises((DataError, SettingsError), match=words):
        tags_to_audit(tmp_path / name, tmp_path)


def test_rows_that_deny_a_tag_are_no_uses(tmp_path):
    """Each photo was asked about once, so nothing but the answers says that half are no."""
    lines = [f"{n}.jpg;Hund;Eva;{'ja' if n % 2 else 'nein'}" for n in range(6)]
    text = "\n".join(["Foto;Label;Bearbeiter;Antwort", *lines])
    (tmp_path / "v.csv").write_text(text)
    with pytest.raises(SettingsError, match=r"'Antwort' says yes or no of each tag; .* --trust"):
        read_tags(tmp_path / "v.csv")
    (tmp_path / "w.csv").write_text(text.replace("Bearbeiter", "Notiz"))
    with pytest.raises(SettingsError, match="'Antwort' says yes or no"):
        read_tags(tmp_path / "w.csv")
    with pytest.raises(DataError, match="whether it has the label in 'Label'"):
        load(tmp_path / "v.csv", check_files=False)
    sure = "Bild;Klasse;Konfidenz\na.jpg;Hund;0,75\na.jpg;Katze;0,5\n"
    (tmp_path / "s.csv").write_text(sure)
    table = read_tags(tmp_path / "s.csv")
    assert used(table) == {("a.jpg", "Hund"), ("a.jpg", "Katze")}
    assert [own.tolist() for own in table.scores] == [[0.75], [0.5]]


def test_strangers_in_coco_results_and_annotators_are_named(small):
    folder, tagged = small
    _, options = coco(folder, scored(tagged, np.random.default_rng(1)))
    (folder / "more.json").write_text('[{"image_id": 1, "category_id": 3, "score": 1}]')
    with pytest.raises(DataError, match=r"result 1: instances.json has no image 1"):
        tags_to_audit(folder / "more.json", folder, **options)
    with pytest.raises(SettingsError, match="no answer is by 'evan'; did you mean 'eva'"):
        tags_to_audit(annotators(folder, tagged)[0], folder, trust="evan")
    with pytest.raises(SettingsError, match="--photos"):
        tags_to_audit(folder / "tags.csv", None)


def test_broken_lines_of_a_language_model_are_left_out_and_counted(folder):
    """Oracle: the same audit of a file without them, whose log is taken over."""
    _, tagged = tagged_photos(folder)
    as_responses(folder / "whole.jsonl", tagged)
    lines = (folder / "whole.jsonl").read_text().splitlines(keepends=True)
    broken = [*lines[:3], '{"path": "photos/1.png", "resp\n', "\n", "[1]\n", *lines[3:]]
    (folder / "broken.jsonl").write_text("".join(broken))
    command = "audit broken.jsonl --photos photos -o out --csv q.csv"
    assert "line 4: not JSON" in (stopped := typed(command, 1))
    assert "leave it out with --skip-broken" in stopped
    output = typed(f"{command} --skip-broken")
    assert "left out 2 broken lines, first line 4" in output
    assert "--skip-broken --answers q.csv" in " ".join(output.split())  # the next step works too
    typed("audit whole.jsonl --photos photos -o other --csv other.csv")
    assert (folder / "q.csv").read_text() == (folder / "other.csv").read_text()
    (folder / "tags.csv").write_text("path,labels\n")
    refused = typed("audit tags.csv --photos photos --skip-broken -o third", 1)
    assert "tags.csv holds none" in refused
