"""From photos and words to a run. Oracle: the colours that the photos were painted in."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import save_model
from typed import must_run, refused
from typed import run as run_verb
from web_setup import running
from words_setup import CLASSES, SIDE, photo, save_photos

from labelwise.base.progress import Silent
from labelwise.decide import Threshold
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.models.loading import load_model
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, answer, embeddings, update_index
from labelwise.photos.embeddings import farthest_rows
from labelwise.photos.lists import receipts_of
from labelwise.photos.query import not_answered, photos_like_album
from labelwise.photos.shift import evidence_of
from labelwise.photos.tagging import tags_of
from labelwise.photos.words import ClassesAndWords, FreeText, WordList
from labelwise.photos.words.start import KeptAnswers, start
from labelwise.pictures import PictureImages
from labelwise.queries import Query
from labelwise.server.mcp import PhotoTools
from labelwise.tables import load
from labelwise.tables.score_files import read_raw

KINDS = ("csv", "jsonl", "parquet")
NOT_CALIBRATED = "not calibrated: no answers yet"
UNTESTED = "not calibrated, so nobody can tell how many match: no answers yet"


@pytest.fixture(scope="session")
def model(words_model):
    return ClassesAndWords(words_model, image_size=SIDE)


@pytest.fixture(scope="session")
def painted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("painted")
    return folder, save_photos(folder / "photos", 60)


def images_of(folder):
    return PictureImages(sorted(folder.glob("*.png")))


def answer_table(path, folder, colours, *, wanted, names=CLASSES):
    """Write what a person would say of the first photos."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", *names])
        for name in sorted(colours)[:wanted]:
            said = [int(colours[name] == colour) for colour in names]
            writer.writerow([folder / "photos" / name, *said])
    return path


def test_words_alone_find_the_colours_and_say_that_nobody_answered(model, painted, tmp_path):
    """And photos are read once, wherever they lie."""
    folder, colours = painted
    words, run, moved = WordList.of("crimson", "grass", "sky"), tmp_path / "run", tmp_path / "moved"
    images = images_of(folder / "photos")
    done = start(images, words, model, run)
    assert (done.photos, done.computed, done.failures, done.fitted_on) == (60, 60, (), 0)
    predictor = load_model(run)
    assert RunFolder(run).spec.answers == 0
    assert RunFolder(run).spec.caution.startswith(NOT_CALIBRATED)
    best = predictor.predict(images).logits.argmax(axis=1).tolist()
    assert [CLASSES[place] for place in best] == [colours[name] for name in sorted(colours)]
    assert RunFolder(run).held_out() is None
    shutil.copytree(folder / "photos", moved)
    photo("red", 999).save(moved / "new.png")
    shutil.copy(moved / "new.png", moved / "copy.png")
    again = start(images_of(moved), words, model, run)
    assert (again.photos, again.computed) == (62, 1)


def test_what_was_computed_before_an_interruption_is_kept(model, painted, tmp_path):
    class Stopping(Silent):
        def advance(self, images):
            raise KeyboardInterrupt

    folder, _ = painted
    images, words = images_of(folder / "photos"), WordList.of("red")
    with pytest.raises(KeyboardInterrupt):
        start(images, words, model, tmp_path, batch_size=16, watch=Stopping())
    done = start(images, words, model, tmp_path, batch_size=16)
    assert done.computed == 60 - 16
    part = min((tmp_path / "embeddings").glob("*/*.npz"))
    part.write_bytes(part.read_bytes()[:100])
    assert start(images, words, model, tmp_path).computed == 16


def test_unreadable_photos_are_named_and_the_others_go_on(model, tmp_path):
    place = tmp_path / "photos"
    save_photos(place, 6)
    (place / "000.png").write_bytes(b"no picture")
    images = images_of(place)
    (place / "001.png").unlink()  # vanished after it was listed
    done = start(images, WordList.of("red"), model, tmp_path / "run")
    assert done.photos == 4
    failed = sorted(failure.id.rpartition("/")[2] for failure in done.failures)
    assert failed == ["000.png", "001.png"]
    for name in place.iterdir():
        name.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"of 6 photos none could be read: .*png: the image"):
        start(images, WordList.of("red"), model, tmp_path / "other")


def test_answers_calibrate_and_stay_when_words_are_added(model, painted, tmp_path):
    folder, colours = painted
    run, images = tmp_path / "run", images_of(folder / "photos")
    table = answer_table(tmp_path / "answers.csv", folder, colours, wanted=45, names=("red",))
    words = WordList.of("red")
    done = start(images, words, model, run, answers=load(str(table)), set_aside=0.25)
    assert done.fitted_on + done.aside == 45
    assert 3 <= done.aside <= 20
    counted = (done.fitted_on, done.aside)
    spec = RunFolder(run).spec
    assert (spec.answers, spec.caution) == (done.fitted_on, None)
    probs = load_model(run).predict(images).probs[:, 0]
    truth = np.array([colours[name] == "red" for name in sorted(colours)])
    assert probs[truth].min() > probs[~truth].max()
    assert abs(float(probs.mean()) - truth.mean()) < 0.1
    held_out = RunFolder(run).held_out()
    aside = set(held_out.predictions.ids)
    assert (held_out.may_promise, len(held_out.predictions)) == (True, done.aside)
    assert not aside & set(RunFolder(run).predictions("train").ids)

    written = load(str(run / "answers.csv"))  # a label table that keeps photos aside
    assert {str(written.ids[row]) for row in np.flatnonzero(written.split == "test")} == aside
    expected = [colours[Path(str(one)).name] == "red" for one in written.ids]
    assert written.targets()[0][:, 0].tolist() == expected
    # given once more, chosen and set aside stay what they are, whatever share is asked for
    two = start(images, words, model, tmp_path / "two", answers=written, set_aside=0.8)
    assert two.aside == done.aside

    more = start(images, WordList.of("sky", "red"), model, run)
    assert (more.fitted_on, more.aside, more.computed) == (*counted, 0)
    again = load_model(run).predict(images).probs
    assert again[truth, 1].min() > again[~truth, 1].max()
    # Nobody answered about the sky: it is ranked, and never chosen.
    assert load_model(run).rule(np.ones((1, 2))).tolist() == [[False, True]]
    assert again[:, 0].std() > 0
    # A word that left the list, or has another name now, keeps what was said of it.
    other = start(images, WordList.of("crimson"), model, run)
    assert other.fitted_on == 0
    assert other.notes[-1] == (
        "what was said about 'red' (45 answers) is kept, and counts when the list has it again; to "
        "describe a word otherwise, keep its name, as in 'red: another text'"
    )
    back = start(images, WordList.of("red"), model, run)
    assert (back.fitted_on, back.aside, back.notes) == (*counted, ())


def test_of_two_answers_the_newer_counts_and_asides_stay_aside(model, painted, tmp_path):
    folder, colours = painted
    digests = {0: b"\x00" * 32, 1: b"\xff" * 32}
    table = load(str(answer_table(tmp_path / "a.csv", folder, colours, wanted=2)))
    first = KeptAnswers.of(table, digests, 0.5)
    assert [one.aside for _, one in sorted(first.photos.items())] == [True, False]
    table = answer_table(tmp_path / "b.csv", folder, dict.fromkeys(colours, "blue"), wanted=2)
    newer = KeptAnswers.of(load(str(table)), digests, 0.0)
    log = tmp_path / "answers.jsonl"
    KeptAnswers({}).extended(log, first)
    both = KeptAnswers.load(log).extended(log, newer)
    size = log.stat().st_size
    kept = KeptAnswers.load(log)
    assert kept == both == first.merged(newer) == kept.extended(log, newer)
    assert log.stat().st_size == size  # what is known is not written again
    _, labels, known = kept.targets(("red", "green", "blue", "dog"), aside=True)
    np.testing.assert_array_equal(labels, [[0, 0, 1, 0]])
    np.testing.assert_array_equal(known, [[True, True, True, False]])


def test_parents_are_obeyed_and_of_many_words_a_few_sentences_are_said(model, painted, tmp_path):
    images, file = images_of(painted[0] / "photos"), tmp_path / "words.txt"
    ideas = "\n".join(f"justice {number}" for number in range(28))
    file.write_text(f"colour: red, green\nred; colour\n{ideas}\n")
    done = start(images, WordList.read(file), model, tmp_path / "run")
    probs = load_model(tmp_path / "run").predict(images).probs
    assert (probs[:, 1] <= probs[:, 0] + 1e-12).all()
    assert (probs.shape, len(done.notes)) == ((60, 30), 21)
    assert done.notes[-1].startswith("and ")
    assert done.notes[-1].endswith(" more doubts about words: start with fewer of them")


def test_the_run_of_a_training_is_not_written_over(model, painted, tmp_path):
    run = save_model(tmp_path / "run")
    before = (run / "model.json").read_bytes()
    with pytest.raises(SettingsError, match="holds a run that was trained"):
        start(images_of(painted[0] / "photos"), WordList.of("red"), model, run)
    assert (run / "model.json").read_bytes() == before


def test_few_answers_and_those_to_other_words_are_kept_or_refused(model, painted, tmp_path):
    folder, colours = painted
    images, run = images_of(folder / "photos"), tmp_path / "run"
    table = load(str(answer_table(tmp_path / "answers.csv", folder, colours, wanted=5)))
    with pytest.raises(DataError, match="has none of the labels asked for"):
        start(images, WordList.of("grass"), model, run, answers=table)
    done = start(images, WordList.of("red"), model, run, answers=table, set_aside=0)
    assert (done.fitted_on, done.computed) == (0, 0)  # what was computed was kept
    assert "5 answered photos kept; they count from 10 on" in done.notes[-1]
    assert "a yes and a no among the answers" in done.notes[-1]
    assert len(KeptAnswers.load(run / "answers.jsonl").photos) == 5


def test_every_verb_takes_the_run_and_says_that_nobody_answered(words_model, painted, tmp_path):
    folder, colours = painted
    (tmp_path / "words.txt").write_text("red\ngreen\nblue\n")
    run, index, onnx = tmp_path / "run", tmp_path / "index", tmp_path / "model.onnx"
    save_photos(few := tmp_path / "few", 3)
    given = ("--words", tmp_path / "words.txt", "-m", words_model, "-o", run, "--image-size", SIDE)
    made = " ".join(must_run("train", folder / "photos", *given).output.split())
    way = f"{folder / 'photos'} --words {tmp_path / 'words.txt'} --guide {run}"
    for words in (NOT_CALIBRATED, "nearest class", "as in 'Hund: a dog'", f"label --page {way}"):
        assert words in made
    for verb in (
        ("index", few, "-m", run, "-o", index),
        ("search", index, "red", "--json", "-n", "20"),
        ("export", run, "-o", onnx, "--data", few),
        ("predict", run, folder / "photos" / "000.png"),
        ("predict", onnx, few, "-o", tmp_path / "onnx.csv"),
        ("predict", run, few, "-o", f"{tmp_path}/shards/"),
        *(("predict", run, few, "-o", tmp_path / f"a.{kind}") for kind in KINDS),
    ):
        assert NOT_CALIBRATED in must_run(*verb).stderr, verb
    _require_caution_in_files(run, index, tmp_path)
    _require_no_interval(index, tmp_path)
    with running(run, index, decoders=0) as server:
        assert server.get("/api/v1/model")["caution"].startswith(NOT_CALIBRATED)
        content = (folder / "photos" / "000.png").read_bytes()
        assert NOT_CALIBRATED in json.loads(server.upload(("a.png", content))[2])["caution"]
        answer = server.get("/api/v1/search?q=red&top=1")
        assert (answer["low"], answer["high"], answer["untested"]) == (None, None, UNTESTED)
    with Index(index) as opened, pytest.raises(LabelwiseError, match="--set-aside"):
        evidence_of(opened)
    table = answer_table(tmp_path / "answers.csv", folder, colours, wanted=60)
    answered = must_run("train", folder / "photos", *given, "--answers", table).output
    plain = r"calibrated on \d+ answered photos: probabilities are estimated to be 0\.\d+ too high"
    plain += " or too low .* answered photos in all would halve that"
    assert re.search(plain, " ".join(answered.split()))
    assert "suppose that the answered photos were drawn at random" in answered
    rebuilt = must_run("index", few, "-m", run, "-o", index, "--rebuild")
    assert NOT_CALIBRATED not in answered + rebuilt.output + rebuilt.stderr
    with Index(index) as opened:
        assert set(evidence_of(opened).ids) == set(RunFolder(run).predictions("test").ids)


def _require_no_interval(index, out):
    """No answer stands behind the count of a run that nobody answered, wherever it is shown."""
    said = must_run("search", index, "red", "-n", "1")
    assert NOT_CALIBRATED in said.stderr
    assert f"3 photos, those most like red first; {UNTESTED}" in " ".join(said.output.split())
    assert not re.search("95%|It holds if", said.output)
    for verb, *rest in (("search", "red, -green"), ("search", "red", "--count"), ("count", "red")):
        refused = run_verb(verb, index, *rest)
        name = rest[0].rpartition("-")[2]
        assert refused.exit_code == 1, verb
        assert "its probabilities are a guess" in " ".join(refused.output.split()), verb
        assert f"Next: labelwise count {index} {name} --ask 30" in refused.output, verb
    must_run("count", index, name, "--ask", "30", "-o", out / "questions.csv")
    must_run("count", index, name, "--ask", "30", input="s\n")  # as it is printed
    page = (out / "page.html").read_text()
    assert f"those most like red first; {UNTESTED}" in page
    assert not re.search("95% interval|are calibrated for this query", page)
    with Index(index) as opened:
        count = PhotoTools(opened).count_photos("red")
        assert count.expected is count.low is count.high is count.confidence is None
        assert count.in_words.endswith(UNTESTED)
        assert "It holds if" not in count.holds_if
        # Once thirty photos are answered, the word counts and excludes.
        for row in range(3):
            opened.correct(row, {"green": "absent"})
        assert not_answered(opened, ["red", "green"]) == ["red", "green"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("labelwise.photos.query.FEWEST_ANSWERED", 3)
            assert not_answered(opened, ["red", "green"]) == ["red"]
            answer(opened, Query.parse("red, -green"))


def _require_caution_in_files(run, index, out):
    """What is written must say it too: a file outlives the words on the terminal."""
    texts = [(out / name).read_text().splitlines() for name in ("a.csv", "onnx.csv")]
    tables = [list(csv.DictReader(lines)) for lines in texts]
    assert list(tables[0][0])[2:5] == ["error", "caution", "red"]
    tables.append([json.loads(line) for line in (out / "a.jsonl").read_text().splitlines()])
    for name in ("a.parquet", "shards/part-00000.parquet"):
        tables.append(pq.read_table(out / name).to_pylist())
    assert all(row["caution"].startswith(NOT_CALIBRATED) for table in tables for row in table)
    for kind in KINDS:  # the caution is no label
        assert read_raw(out / f"a.{kind}").names == ("red", "green", "blue")
    found = run_verb("search", index, "red", "--json", "-n", "3")
    assert NOT_CALIBRATED in json.loads(found.stdout.splitlines()[0])["caution"]
    run_verb("search", index, "red", "--html", out / "page.html")
    assert "Not calibrated: no answers yet" in (out / "page.html").read_text()
    with Index(index) as opened, pytest.raises(LabelwiseError, match="none is written as a tag"):
        next(tags_of(opened, Threshold(0.0)))


def test_a_start_that_fails_before_a_photo_was_read_leaves_no_folder(words_model, tmp_path):
    (tmp_path / "words.txt").write_text("red\n")
    (tmp_path / "text.png").write_text("no picture")
    run = tmp_path / "run"
    given = ("--words", tmp_path / "words.txt", "--image-size", SIDE, "-o", run)
    for photos, folder, why in (
        (tmp_path / "wrong", words_model, f"there is no file or folder {tmp_path / 'wrong'}"),
        (tmp_path / "text.png", tmp_path / "wrong", "is not a folder"),
        (tmp_path / "text.png", words_model, "of 1 photo none could be read"),
    ):
        failed = run_verb("train", photos, *given, "-m", folder)
        assert why in str(failed.exception), failed.output
        assert not run.exists(), why


def test_answers_of_photos_that_vanished_are_left_out_and_counted(words_model, tmp_path):
    (tmp_path / "words.txt").write_text("red\njustice\n")
    colours = save_photos(photos := tmp_path / "photos", 30)
    table = answer_table(tmp_path / "answers.csv", tmp_path, colours, wanted=30)
    for name in ("000.png", "001.png"):
        (photos / name).unlink()
    given = ("--words", tmp_path / "words.txt", "-m", words_model, "--image-size", SIDE)
    done = must_run("train", photos, *given, "-o", tmp_path / "run", "--answers", table).output
    assert "2 of 30 images are missing" in " ".join(done.split())
    assert re.search(r"red +\d+\.\d\d%", done)
    assert re.search(r"justice +no answers yet", done)
    for said in (done, must_run("predict", tmp_path / "run", photos / "002.png").output):
        assert "not calibrated for 'justice': no answers yet" in " ".join(said.split())
    assert len(KeptAnswers.load(tmp_path / "run" / "answers.jsonl").photos) == 28


# Photos ranked by a text. Oracles: the painted colours, and all cosines computed by NumPy.


@pytest.fixture(scope="module")
def library(words_model, tmp_path_factory):
    """A run of words and the index of its photos, with the colour of each photo."""
    folder = tmp_path_factory.mktemp("free-text")
    colours = save_photos(folder / "photos", 30)
    model = ClassesAndWords(words_model, image_size=SIDE)
    photos = PictureImages(sorted((folder / "photos").iterdir()))
    start(photos, WordList.of("red", "green"), model, folder / "run")
    update_index(folder / "index", [folder / "photos"], model=folder / "run", watch=Silent())
    return folder, colours


def colours_of(hits, colours):
    return [colours[hit.paths[0].rpartition("/")[2]] for hit in hits]


@pytest.mark.parametrize("photos", [40_000, 70_001])  # one thread, several
def test_every_row_is_measured(photos):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(photos, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    direction, gone = random.normal(size=16), np.array([3, 7])
    expected = vectors.astype(np.float64) @ direction / np.linalg.norm(direction)
    expected[gone] = -2
    rows, cosines = farthest_rows(direction, vectors, 5, gone)
    order = np.argsort(-expected)
    assert rows.tolist() == order[:5].tolist()
    everything = farthest_rows(direction, vectors, photos + 5, gone)[0]
    assert sorted(everything) == [row for row in range(photos) if row not in (3, 7)]
    np.testing.assert_allclose(cosines, expected[order[:5]], atol=1e-6)
    among = np.array([9, 3, 30_000, 12])
    rows, _ = farthest_rows(direction, vectors, 9, gone, among)
    assert rows.tolist() == sorted([9, 30_000, 12], key=lambda row: -expected[row])
    assert len(farthest_rows(direction, vectors, 5, gone, among[:0])[0]) == 0


def test_an_album_finds_the_rest_of_its_kind(library, tmp_path):
    (folder, colours), photos = library, tmp_path / "photos"
    shutil.copytree(folder / "photos", photos)
    album, index, answers = photos / "album", tmp_path / "index", tmp_path / "answers.csv"
    album.mkdir()
    reds = [name for name, colour in colours.items() if colour == "red"]
    for name in reds[:4]:
        (photos / name).rename(album / name)
    update_index(index, [photos], model=folder / "run", watch=Silent())
    query = ("search", index, "-n", 6, "--paths-only", "--like")
    found = run_verb(*query, album).stdout.split()
    assert {line.rpartition("/")[2] for line in found} == set(reds[4:])
    answers.write_text("path,answer\n" + "".join(f"{path},yes\n" for path in found))
    options = ("--top", 6, "--answers", answers, "--wrong-at-most", 0.3)
    checked = run_verb("audit", index, "--like", album, *options)
    assert "at least 70 % of these 6 photos match album" in " ".join(checked.stdout.split())
    assert "receipt 1, album" in run_verb("audit", index).stdout
    for other, why in ((tmp_path, "lies below"), ("keyword:holiday", "in the album")):
        assert why in str(run_verb(*query, other).exception)


def test_an_album_is_compared_where_photos_meet_captions(library, tmp_path, monkeypatch):
    shutil.copytree(library[0], tmp_path / "own")
    run = tmp_path / "own" / "run"
    update_index(tmp_path / "index", [library[0] / "photos"], model=run, watch=Silent())
    index, random = open_index(tmp_path / "index"), np.random.default_rng(0)
    numbers, vectors = index.embeddings.projection.numbers, index.store.embeddings()
    image = random.normal(size=(3, numbers.shape[1])).astype(np.float16)
    deviation = random.uniform(0.5, 2, numbers.shape[1]).astype(np.float16)
    np.savez(tmp_path / "maps.npz", image=image, deviation=deviation)
    monkeypatch.setattr(embeddings, "MAPS_FILE", tmp_path / "maps.npz")
    features = vectors.astype(np.float64) @ numbers[1:]  # of each photo, up to its length
    seen = (features / deviation) @ image.T.astype(np.float64)
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    covariance = np.cov(seen.T, bias=True)
    covariance += embeddings.ALBUM_RIDGE * np.trace(covariance) / 3 * np.eye(3)
    along = np.linalg.inv(covariance) @ (seen[:4].mean(0) - seen.mean(0))
    cosines = seen @ along / np.linalg.norm(along)
    hashes = dict(index.store.database.execute("SELECT row, hash FROM contents", ()))
    album = "photos:" + ",".join(hashes[row].hex()[:16] for row in range(4))
    plain = photos_like_album(index, album, 5)
    facts = json.loads((run / "words.json").read_text())
    assert facts["captions"] is False  # the maps belong to another network
    (run / "words.json").write_text(json.dumps({**facts, "captions": True}))
    hits = photos_like_album(index, album, 5)
    assert [hit.row for hit in hits] == (4 + np.argsort(-cosines[4:])[:5]).tolist()
    np.testing.assert_allclose(
        [hit.probability for hit in hits], np.sort(cosines[4:])[::-1][:5], atol=1e-3
    )
    assert hits != plain
    for damaged in ("[]", "{", json.dumps(facts)):
        (run / "words.json").write_text(damaged)
        assert photos_like_album(index, album, 5) == plain


def test_a_text_that_is_not_among_the_words_finds_its_photos(library):
    folder, colours = library
    index = open_index(folder / "index")
    texts = FreeText.of(index)
    for text, colour in (("sky", "blue"), ("a photo of the crimson", "red")):
        assert colours_of(texts.photos(index, text, 10), colours) == [colour] * 10
    without = Query.parse("-red", index.space)
    found = texts.photos(index, "crimson", 30, query=without, at_least=0.5)
    probs = np.exp(index.odds(0).log_q)
    assert len(found) == (probs >= 0.5).sum()
    assert all(probs[hit.row] >= 0.5 for hit in found)
    assert texts.doubt("sky") is None
    assert "far from everything" in texts.doubt("justice")
    for text in (" ", "sky " * 300):
        with pytest.raises(LabelwiseError, match="must have 1 to 1,000 characters"):
            texts.direction(text)


def test_the_verb_ranks_and_gives_no_probability(library):
    folder, colours = library
    search = ("search", folder / "index", "--text")
    rows = [*map(json.loads, must_run(*search, "sky", "-n", 10, "--json").stdout.splitlines())]
    assert [colours[row["path"].rpartition("/")[2]] for row in rows] == ["blue"] * 10
    assert all("probability" not in row and "likeness" in row for row in rows)
    shown = must_run(*search, "justice", "-n", 3)
    assert "a likeness is not a probability" in shown.stdout
    assert "'justice' is far from everything" in shown.stderr
    mixed = must_run(*search, "sky", "--at-least", 0.99, "red, green").stderr
    assert "0 photos with a probability of at least 0.99" in mixed
    assert "not calibrated" in mixed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--text", "sky", "--wrong-about", "0.1"), "--wrong-about does not apply"),
        (("--text", "sky", "--like", "x.png"), "give a query such as"),
        (("red", "--encoder", "."), "only --text is encoded"),
        (("--text", "sky", "--encoder", "/nowhere"), "name its folder with --encoder"),
    ],
)
def test_options_that_do_not_apply_are_refused(library, options, sentence):
    assert sentence in refused("search", library[0] / "index", *options)


def test_an_encoder_that_moved_is_named_and_another_one_is_refused(library, words_model, tmp_path):
    index, moved = open_index(library[0] / "index"), tmp_path / "moved"
    shutil.copytree(words_model, moved)
    text = FreeText.of(index, moved).direction("sky")
    np.testing.assert_array_equal(text, FreeText.of(index).direction("sky"))
    graph = (moved / "encoder.onnx").read_bytes()
    (moved / "encoder.onnx").write_bytes(graph.replace(b"encoder", b"encoded", 1))
    with pytest.raises(LabelwiseError, match="holds another sentence encoder"):
        FreeText.of(index, moved)


def test_other_models_and_newer_runs_are_refused(library, words_model, tmp_path):
    trained = save_model(tmp_path / "trained")
    with pytest.raises(LabelwiseError, match="needs a model that began with words"):
        FreeText.of(open_index(made_index(tmp_path / "index", trained, np.zeros((1, 4)))))
    run, photos = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(library[0] / "run", run)
    save_photos(photos, 3)
    update_index(tmp_path / "words.index", [photos], model=run, watch=Silent())
    model = ClassesAndWords(words_model, image_size=SIDE)
    start(PictureImages(sorted(photos.iterdir())), WordList.of("blue", "sky"), model, run)
    with pytest.raises(LabelwiseError, match="was made again after"):
        FreeText.of(open_index(tmp_path / "words.index"))
    (run / "words.safetensors").unlink()
    with pytest.raises(LabelwiseError, match="run `labelwise train --words` again"):
        FreeText.load(run)


def test_the_server_ranks_by_texts_and_selected_photos_and_checks_suggestions(library, tmp_path):
    folder, colours = library
    shutil.copytree(folder / "index", tmp_path / "index")
    with running(folder / "run", tmp_path / "index", decoders=0) as server:
        found = server.get("/api/v1/text-search?text=sky&top=10")
        assert [colours[hit["name"]] for hit in found["hits"]] == ["blue"] * 10
        assert found["query"] is None
        both = server.get("/api/v1/text-search?text=sky&q=-red&at_least=0.4")
        assert (both["query"], both["at_least"]) == ("-red", 0.4)
        assert "far from" in server.get("/api/v1/text-search?text=justice")["doubt"]
        answer = server.send("GET", "/api/v1/text-search?text=sky&q=dog")
        assert "dog" in server.problem(answer, 422)
        reds = server.get("/api/v1/text-search?text=crimson&top=10")["hits"]
        album = "photos:" + ",".join(hit["id"][:16] for hit in reds[:4])
        found = server.get(f"/api/v1/album-search?album={album}&top=6")
        assert found["text"] == "the 4 photos you selected"
        rest = {hit["id"] for hit in reds[4:]}
        assert {hit["id"] for hit in found["hits"]} == rest
        asked = {"q": f"like:{album}", "wrong_at_most": 0.3, "top": 6}
        view = json.loads(server.post("/api/v1/check/list", asked)[2])
        assert (view["query"], view["listed"]) == ("the 4 photos you selected", 6)
        while view["statement"] is None:
            given = {"checked": asked, "photo": view["question"]["photo"]["id"], "answer": "yes"}
            view = json.loads(server.post("/api/v1/check/answer", given)[2])
        assert view["statement"]["kind"] == "guarantee"
        assert {photo["id"] for photo in view["photos"]} == rest
        for wrong in ("photos:xyz", "photos:" + 16 * "0", "keyword:holiday", "nowhere"):
            assert server.problem(server.send("GET", f"/api/v1/album-search?album={wrong}"), 422)


def test_a_checked_list_of_a_text_carries_a_promise(library, tmp_path):
    folder, colours = library
    place, answers, listed = (tmp_path / name for name in ("index", "answers.csv", "list.txt"))
    shutil.copytree(folder / "index", place)
    index = open_index(place)
    best = FreeText.of(index).photos(index, "sky", 10)
    answers.write_text("path,answer\n" + "".join(f"{hit.paths[0]},yes\n" for hit in best))
    common = ("audit", place, "--text", "sky", "--answers", answers)
    done = must_run(*common, "--top", 10, "--wrong-at-most", 0.3, "-o", listed, "--who", "ada")
    said = " ".join(done.stdout.split())
    for words in (
        "does each photo match sky? The list has 10 photos",
        'at least 70 % of these 10 photos match text "sky"',
        "0 wrong or unsure",
    ):
        assert words in said
    assert {colours[line.rpartition("/")[2]] for line in listed.read_text().split()} == {"blue"}
    # nothing is learnt of the labels of the model, and the receipt names the text
    assert index.store.corrections() == []
    assert [one.query for one in receipts_of(index)] == ['text "sky"']
    assert 'text "sky"' in must_run("audit", place).output
    for options, reason in (((), "end its list with --top"), (("red", "--top", 5), "and not both")):
        assert reason in refused(*common, *options)
