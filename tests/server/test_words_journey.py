"""From a folder of photos and two words to side-cars with a guarantee, by
the commands, and by a person in a browser. Oracles: the colour that each photo was painted with,
the label table and the side-cars on the disk, and the table's own column ``split``.

With LABELWISE_DOCS_IMAGES=docs/images it also takes docs/images/label.png.
"""

import os
import re
import signal
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

from patience import PATIENCE, wait_until
from PIL import Image
from playwright.sync_api import expect
from typer.testing import CliRunner
from words_setup import SIDE, save_photos, save_words_model

from labelwise.cli.app import app
from labelwise.data import load
from labelwise.models.spec import NOT_CALIBRATED

expect.set_options(timeout=1000 * PATIENCE)
WORDS = ("red", "green")
PHOTOS, ON_A_PAGE, SET_ASIDE_ON_A_PAGE = 90, 20, 4
VIEWPORT = {"width": 900, "height": 1600}  # the whole page, without scrolling
CLICKS = {  # from one state to another
    ("absent", "absent"): 0,
    ("absent", "present"): 1,
    ("present", "absent"): 2,
    ("present", "present"): 0,
}
SEVERAL = 5  # guesses that a picture shows
SUBJECTS = "{http://purl.org/dc/elements/1.1/}subject"
LISTED = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"


def test_from_words_through_answers_to_a_promise(tmp_path, visit, warm_commands):
    photos, words, run, index = (tmp_path / name for name in ("photos", "words.txt", "run", "idx"))
    answers = tmp_path / "answers.csv"
    colours = save_photos(photos, PHOTOS)
    words.write_text("\n".join(WORDS) + "\n")
    model = save_words_model(tmp_path / "model")
    start = ("start", photos, "--words", words, "-m", model, "-o", run, "--image-size", SIDE)

    assert NOT_CALIBRATED in said(*start)
    said("index", photos, "-m", run, "-o", index)
    way = refused("tag", index, "--xmp", "--wrong-at-most", 0.5)
    assert "labelwise train PHOTOS --words WORDS --answers TABLE" in way

    told = ("--page", photos, "--words", words, "--guide", run, "-o", answers)
    with serving(warm_commands, tmp_path, *told) as place:
        answer_everything(visit(place, viewport=VIEWPORT), colours, answers)

    table = load(str(answers))
    labels, observed = table.targets()
    assert observed is None or observed.all()
    for row, photo in enumerate(table.ids):
        colour = colours[Path(str(photo)).name]
        assert labels[row].tolist() == [colour == word for word in table.space.names]
    aside = list(table.split).count("test")
    assert 0 < aside < len(table.ids) == PHOTOS

    learnt = said(*start, "--answers", answers)
    assert NOT_CALIBRATED not in learnt
    assert f"calibrated on {PHOTOS - aside} answered photos" in learnt
    assert f"{aside} answered photos were set aside: guarantees are made on them" in learnt
    said("index", photos, "-m", run, "-o", index, "--rebuild")
    more = refused("tag", index, "--xmp", "--wrong-at-most", 0.01)
    assert "without a single error 299 that count would be needed" in more  # .99 ** 299 < .05
    assert "tags of which 0.01 may be wrong cannot be promised" in more
    assert "use more photos, a larger share or less confidence" in more
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
    """Answer as a person who sees the colours, and look at what the page shows meanwhile."""
    tiles, word = page.locator("#grid button"), page.get_by_label("Word")
    guesses = page.get_by_label("Show guesses")
    expect(tiles).to_have_count(ON_A_PAGE)
    expect(guesses).to_be_visible()
    expect(guesses).not_to_be_checked()
    assert states_of(tiles) == ["absent"] * ON_A_PAGE  # guesses sway, so none is shown
    assert learnt_from(page) == 0

    taught = []
    while not {True, False} <= {*taught}:  # a fit needs a yes and a no of photos not set aside
        assert learnt_from(page) == 0
        shown = answer_page(page, colours, "red")
        splits = splits_of(answers)
        assert [splits[name] for name in shown].count("test") == SET_ASIDE_ON_A_PAGE
        taught += [colours[name] == "red" for name in shown if splits[name] == "train"]
    first = wait_for_learning(page, "red", since=0)
    assert first == len(taught)

    word.select_option("green")
    expect(page.locator("#ask")).to_have_text("Is there: green?")
    answer_page(page, colours, "green")
    assert wait_for_learning(page, "green", since=first) > first

    with page.expect_response(lambda one: "guesses=true" in one.url):
        guesses.check()
    expect(page.locator("#lead")).to_contain_text("The guesses are selected")
    guessed, pictured = [], False
    while tiles.count():  # the surest photos come last
        states = dict(zip(names_of(tiles), states_of(tiles), strict=True))
        guessed += [name for name, state in states.items() if state == "present"]
        if len(guessed) >= SEVERAL and not pictured:
            pictured = True
            take_picture(page, "label.png")
        answer_page(page, colours, "green")
    splits = splits_of(answers)
    assert pictured
    assert {splits[name] for name in guessed} == {"train"}  # photos set aside have no guess
    assert sum(colours[name] == "green" for name in guessed) >= 0.9 * len(guessed)

    expect(page.locator("#ask")).to_have_text("Every photo was answered for: green")
    word.select_option("red")
    expect(page.locator("#ask")).to_have_text("Is there: red?")
    while tiles.count():
        answer_page(page, colours, "red")
    expect(page.locator("#ask")).to_have_text("Every photo was answered for: red")
    assert page.heard == []


def answer_page(page, colours, word):
    """Select the photos of a word and no others, save, and return the names of all that were asked.

    It ends when other photos are shown.
    """
    tiles = page.locator("#grid button")
    names = names_of(tiles)
    wanted = ["present" if colours[name] == word else "absent" for name in names]
    for number, turn in enumerate(zip(states_of(tiles), wanted, strict=True)):
        for _ in range(CLICKS[turn]):
            tiles.nth(number).click()
    assert states_of(tiles) == wanted
    page.get_by_role("button", name="Save").click()
    expect(page.locator(f"#grid button[aria-label^='{names[0]}:']")).to_have_count(0)
    return names


def wait_for_learning(page, word, since):
    """Have the page ask anew until its guide has learnt from more photos, and return how many."""

    def has_learnt():
        with page.expect_response(lambda one: "/questions" in one.url):
            page.get_by_label("Word").select_option(word)
        return learnt_from(page) > since

    wait_until(has_learnt)
    return learnt_from(page)


def learnt_from(page):
    found = re.search(r"learnt from (\d+) answered", page.locator("#progress").inner_text())
    return 0 if found is None else int(found[1])


def names_of(tiles):
    return tiles.evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label').replace(/: [^:]*$/, ''))"
    )


def states_of(tiles):
    return tiles.evaluate_all("all => all.map(one => one.dataset.state)")


def splits_of(answers):
    """Return the split of each photo that the table on the disk holds, by its name."""
    table = load(str(answers))
    return {Path(str(one)).name: own for one, own in zip(table.ids, table.split, strict=True)}


def take_picture(page, name):
    folder = os.environ.get("LABELWISE_DOCS_IMAGES")
    if folder is not None:
        wait_until(lambda: page.evaluate("[...document.images].every((one) => one.complete)"))
        expect(page.locator("#toast")).to_be_hidden()
        drawn = Image.open(BytesIO(page.locator("main").screenshot())).convert("RGB")
        drawn.quantize(64, dither=Image.Dither.NONE).save(Path(folder) / name, optimize=True)


def said(*arguments):
    """Return what a command said that did as it was told."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, (done.output, done.exception)
    return " ".join(done.output.split())


def refused(*arguments):
    """Return the sentence by which a command was refused."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code != 0, done.output
    return str(done.exception)


@contextmanager
def serving(warm_commands, folder, *arguments):
    """Run ``labelwise label`` as a process and stop it as a person does."""
    words = ["label", *arguments, "--port", "0"]
    with warm_commands.running(words, folder) as process:
        found = re.search(r"at (http://\S+:\d+)/", process.line())
        yield SimpleNamespace(address=found[1])
        os.kill(process.pid, signal.SIGINT)
        assert process.wait().returncode in (0, 130)
