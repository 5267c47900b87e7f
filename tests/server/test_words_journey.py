"""From a folder of photos and two words to side-cars with a guarantee, by the commands and by a
person who answers. Oracles: the colour that each photo was painted with, the label table and the
side-cars on the disk, and the table's own column ``split``.
"""

import os
import re
import signal
from pathlib import Path
from xml.etree import ElementTree

from patience import wait_until
from typed import must_run, refused
from web_setup import Client
from words_setup import SIDE, save_photos, save_words_model

from labelwise.models.spec import NOT_CALIBRATED
from labelwise.tables import load

WORDS, PHOTOS, SET_ASIDE_ON_A_PAGE = ("red", "green"), 90, 4
SUBJECTS = "{http://purl.org/dc/elements/1.1/}subject"
LISTED = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"


def said(*arguments):
    return " ".join(must_run(*arguments).output.split())


def test_from_words_through_answers_to_a_promise(tmp_path, warm_commands):
    photos, words, model, index = (tmp_path / name for name in ("photos", "w.txt", "run", "idx"))
    answers, colours = tmp_path / "answers.csv", save_photos(photos, PHOTOS)
    words.write_text("\n".join(WORDS) + "\n")
    start = ["train", photos, "--words", words, "-m", save_words_model(tmp_path / "model")]
    start += ["-o", model, "--image-size", SIDE]

    assert NOT_CALIBRATED in said(*start)
    assert "labelwise train PHOTOS --words WORDS --answers TABLE" in NOT_CALIBRATED
    told = ["label", "--page", photos, "--words", words, "--guide", model, "-o", answers]
    with warm_commands.running([*told, "--port", "0"], tmp_path) as process:
        found = re.search(r"at http://\S+:(\d+)/", process.line())
        answer_everything(Client(int(found[1])), colours, answers)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait().returncode in (0, 130)

    table = load(str(answers))
    labels, observed = table.targets()
    assert observed is None or observed.all()
    shown = [colours[Path(str(photo)).name] for photo in table.ids]
    assert labels.tolist() == [[one == word for word in table.space.names] for one in shown]
    aside = list(table.split).count("test")
    assert 0 < aside < len(table.ids) == PHOTOS

    learnt = said(*start, "--answers", answers)
    assert NOT_CALIBRATED not in learnt
    assert f"calibrated on {PHOTOS - aside} answered photos" in learnt
    assert f"{aside} answered photos were set aside: guarantees are made on them" in learnt
    said("index", photos, "-m", model, "-o", index)
    more = refused("tag", index, "--xmp", "--wrong-at-most", 0.01)
    assert "without a single error 299 that count would be needed" in more  # .99 ** 299 < .05
    assert "tags of which 0.01 may be wrong cannot be promised" in more
    assert not list(photos.glob("*.xmp"))

    promised = said("tag", index, "--xmp", "--wrong-at-most", 0.5)
    assert "at least 50.0% of all chosen labels together are right" in promised
    written = {
        place.name.removesuffix(".xmp"): [one.text for one in subjects.iter(LISTED)]
        for place in photos.glob("*.xmp")
        for subjects in ElementTree.parse(place).iter(SUBJECTS)
    }
    right = [colours[name] == tag for name, tags in written.items() for tag in tags]
    assert sum(right) >= 0.5 * len(right) > 0


def answer_everything(page, colours, answers):
    """Answer as a person who sees the colours; the guide learns meanwhile."""
    taught = []
    while not {True, False} <= {*taught}:  # a fit needs a yes and a no of photos not set aside
        shown = answer_page(page, colours, "red")
        assert shown["learnt_from"] == 0
        names = [one["name"] for one in shown["photos"]]
        wait_until(lambda names=names: answers.exists() and {*names} <= splits_of(answers).keys())
        splits = splits_of(answers)
        assert [splits[name] for name in names].count("test") == SET_ASIDE_ON_A_PAGE
        taught += [colours[name] == "red" for name in names if splits[name] == "train"]
    wait_until(lambda: asked(page, "red")["learnt_from"] == len(taught))
    answer_page(page, colours, "green")
    wait_until(lambda: asked(page, "green")["learnt_from"] > len(taught))
    guessed = []
    while photos := answer_page(page, colours, "green")["photos"]:  # the surest come last
        guessed += [one["name"] for one in photos if one["guess"]]
    wait_until(lambda: {*guessed} <= splits_of(answers).keys())
    splits = splits_of(answers)
    assert {splits[name] for name in guessed} == {"train"}  # photos set aside have no guess
    assert sum(colours[name] == "green" for name in guessed) >= 0.9 * len(guessed)
    while answer_page(page, colours, "red")["photos"]:
        pass


def asked(page, word):
    return page.get(f"/api/v1/questions?label={word}&who=ada&guesses=true")


def answer_page(page, colours, word):
    """Answer about the photos that are asked about now; return the questions."""
    questions = asked(page, word)
    shown = {one["id"]: colours[one["name"]] == word for one in questions["photos"]}
    states = {photo: "present" if there else "absent" for photo, there in shown.items()}
    given = {"label": word, "who": "ada", "states": states}
    assert not states or page.put("/api/v1/answers", given)[0] == 200
    return questions


def splits_of(answers):
    """Return the split of each photo that the table on the disk holds, by its name."""
    table = load(str(answers))
    return {Path(str(one)).name: own for one, own in zip(table.ids, table.split, strict=True)}
