"""Photos ranked by a text. Oracles: the painted colours, and all cosines computed by NumPy."""

import json
import shutil

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import save_model
from typed import must_run, refused
from typed import run as run_verb
from web_setup import running
from words_setup import SIDE, save_photos

from labelwise.base.progress import Silent
from labelwise.errors import LabelwiseError
from labelwise.photos import embeddings, update_index
from labelwise.photos.embeddings import farthest_rows
from labelwise.photos.lists import receipts_of
from labelwise.photos.query import photos_like_album
from labelwise.photos.words import ClassesAndWords, FreeText, WordList
from labelwise.photos.words.start import start
from labelwise.pictures import PictureImages
from labelwise.queries import Query


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
