"""``labelwise audit TAGS``, typed as a person does. Oracle: what the photos really show."""

import csv
import json
import re
import shlex
from contextlib import contextmanager

import pytest
from audit_setup import as_responses, tagged_photos, truthful
from browser_setup import launched
from patience import PATIENCE
from playwright.sync_api import expect
from sidecar_samples import drawn_sidecar, subjects
from typer.testing import CliRunner
from web_setup import served

from labelwise.answers.audit_session import EACH_TAG, AuditSession, AuditSettings
from labelwise.answers.log import AnswerLog
from labelwise.answers.tag_tables import read_tags
from labelwise.cli.app import app
from labelwise.data import load
from labelwise.report.audit import write_audit
from labelwise.server import ServeSettings, create_audit_app

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
    assert f"at least 90 % of their {len(uses)} uses are right" in receipt["statement"]
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
    table, log = read_tags(folder / "model.jsonl"), AnswerLog(folder / "other.jsonl")
    session = AuditSession(table, folder / "photos", log, AuditSettings())
    keys = ["n", "undo"]  # of the first question
    while (question := session.question("ada")).tag != EACH_TAG:
        word = "yes" if question.tag in truth[question.photo] else "no"
        session.record([session.line(question.photo, question.tag, word, "ada")])
        keys.append(word[0])
    keys += ["unicorn", "dog, -beach", "stop"]
    command = "audit model.jsonl --photos photos -o out --who ada"
    output = typed(command, input="\n".join(keys) + "\n")
    assert "can be trusted" in output
    assert "'unicorn' is not a listed tag" in output
    log = AnswerLog(folder / "out/answers.jsonl")
    assert len(log.notes("shown")) == 1
    answers = sum(key in "yn" for key in keys) - 1
    assert json.loads((folder / "out/receipt.json").read_text())["answers"] == answers


def test_names_do_nothing_to_the_terminal(folder):
    name = "\x1b]0;owned\x07.png"
    tagged_photos(folder, 1)
    (folder / "photos/000.png").rename(folder / "photos" / name)
    (folder / "tags.csv").write_text(f"photo,tag\n{name},dog\n")
    output = typed("audit tags.csv --photos photos", input="y\nstop\n")
    assert "owned" in output
    assert "\x1b" not in output
    assert "\x07" not in output


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
        ("audit tags.csv --photos photos --answers odd.csv", "yes, no or unsure, got 'perhaps'"),
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
    log, table = AnswerLog(folder / "out/answers.jsonl"), read_tags(folder / "tags.csv")
    session = AuditSession(table, folder / "photos", log, wanted)
    settings = ServeSettings(decoders=0, rate=0, port=0)
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
        assert "can be trusted" in state["statement"]
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
                    page.keyboard.press("z")
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
