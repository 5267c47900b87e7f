"""Words, and text-image models.

Oracles: lines as they are written, the encoder's table itself, timm's own network, the formula.
"""

import re
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import words_setup
from huggingface_hub import constants
from safetensors.torch import load_file
from scipy.special import logit, softmax
from stub_hub import SHA, running_hub
from timm.data.imagenet_info import ImageNetInfo
from tokenizers import Tokenizer, models
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from words_setup import ARCHITECTURE, CLASSES, COLOURS, SIDE, VOCABULARY, photo, word_vectors

from labelwise.answers.agreement import write_table
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.photos.words import (
    ClassesAndWords,
    SentenceEncoder,
    Word,
    WordList,
    open_scorer,
    scorers,
)
from labelwise.photos.words.classes import (
    TEMPERATURE,
    CaptionMaps,
    Kinds,
    caption_maps,
    imagenet_kinds,
    imagenet_names,
)
from labelwise.tables import load
from labelwise.tables.words import MEANINGS, PATH_HEADERS

LINES = """# animals
pet
dog: a dog, a puppy; pet

cat; pet
red bicycle
"""


def test_lines_are_read_as_the_help_says(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text(LINES, encoding="utf-8")
    words = WordList.read(file)
    assert words.words == (
        Word("pet", ("a photo of a pet", "pet")),
        Word("dog", ("a dog", "a puppy"), "pet"),
        Word("cat", ("a photo of a cat", "cat"), "pet"),
        Word("red bicycle", ("a photo of a red bicycle", "red bicycle")),
    )
    assert words.taxonomy is not None
    assert dict(words.taxonomy.parents) == {"dog": "pet", "cat": "pet"}
    again = tmp_path / "again.txt"
    again.write_text(words.text(), encoding="utf-8")
    assert WordList.read(again).words == words.words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there are no words; write one per line"),
        ("# only a comment\n", "there are no words"),
        ("Dog\ndog\n", "'dog' and 'Dog' are the same word"),
        ("dog; pet\n", "'dog' is a kind of 'pet', which is not one of the words"),
        ("dog:\n", "line 1: after the colon of 'dog'"),
        ("cat\ndog;\n", "line 2: after the semicolon must come one word"),
        (": a dog\n", "line 1: a line must start with a word"),
        ("dog; cat\ncat; dog\n", "dog"),
        ("cat\ndog, car, sea\n", "line 2: a word must have no comma, got 'dog, car, sea'; write"),
        ("cat\n" + "x" * 201, "line 2: a word may have 200 letters, got 201 ('xxx"),
        ("dog\ta dog\n", r"line 1: a line must have no tabs or control characters"),
        ("dog: a\x00b\n", r"got 'dog: a\\x00b'; write one word per line"),
        ('"red dog"\n', "line 1: a word must have no quotation marks, got '\"red dog\"'"),
        ("cafe\u0301\ncaf\u00e9\n", "are the same word"),  # an accent by itself, and within
        ("dog\ngroup\n", "'group' already means something as a column of the tables that answers"),
        ("\n".join(f"word{n}" for n in range(1001)), "may have 1,000 words, got 1,001"),
    ],
)
def test_wrong_lists_are_refused_with_the_way_out(tmp_path, text, sentence):
    file = tmp_path / "words.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(sentence)):
        WordList.read(file)


def test_lists_of_windows_and_other_scripts_are_read_and_others_not(tmp_path):
    file = tmp_path / "words.txt"
    file.write_bytes(b"\xef\xbb\xbfdog\r\n\r\ncat:\ta cat\t\r\n")
    dog, cat = WordList.read(file).words
    assert (dog.name, cat) == ("dog", Word("cat", ("a cat",)))
    joined = "می‌خواهم"  # two parts of a Persian word, which a sign without width keeps apart
    file.write_text(f"{joined}\n犬\n", encoding="utf-8")
    assert WordList.read(file).names == (joined, "犬")
    file.write_bytes(b"d\xfcrr\n")
    for path, why in (
        (file, "in UTF-8, and byte 2 is not; save it as UTF-8"),
        (tmp_path, "cannot be read"),
        (tmp_path / "none.txt", "there is no such file"),
    ):
        with pytest.raises(DataError, match=why):
            WordList.read(path)


@pytest.mark.parametrize("name", [*MEANINGS, *PATH_HEADERS, "Path", "GROUP", "Id", "=dog", "a, b"])
def test_a_word_is_refused_unless_the_table_of_its_answers_comes_back(tmp_path, name):
    table = tmp_path / "answers.csv"
    said = {f"{number}.png": {name: number > 1, "red": True} for number in range(3)}
    for picture in said:
        (tmp_path / picture).write_bytes(b"")
    for aside in (None, {"1.png"}):
        write_table(table, (name, "red"), said, aside)
        try:
            read = load(str(table))
            comes_back = read.space.names == (name, "red")
            comes_back = comes_back and read.targets()[0][:, 0].tolist() == [0, 0, 1]
        except DataError:
            comes_back = False
        if comes_back:
            assert WordList.of(name, "red").names == (name, "red")
        else:
            with pytest.raises(DataError, match="name the word otherwise"):
                WordList.of(name, "red")


def unit(vector):
    return vector / np.linalg.norm(vector)


def mean_vector(text):
    places = [VOCABULARY.index(word if word in VOCABULARY else "[UNK]") for word in text.split()]
    return unit(word_vectors()[places].mean(0))


def test_a_text_is_the_unit_mean_of_its_tokens(words_model):
    encoder = SentenceEncoder(words_model)
    texts = ["a photo of a red", "justice"]
    expected = np.stack([mean_vector(text) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.describe(texts), unit(expected.mean(0)), atol=1e-6)


def inputs_of(model, count):
    """Return what the network sees of this many photos of each class, which take turns."""
    images = [photo(colour, seed) for seed in range(count) for colour in CLASSES]
    pixels = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in images])
    return model.network.transform.inputs(pixels)


def test_scores_are_those_of_the_formula_on_timms_own_logits(words_model):

    network = timm.create_model(ARCHITECTURE, num_classes=len(CLASSES)).eval()
    network.load_state_dict(load_file(words_model / "model.safetensors"))
    model = ClassesAndWords(words_model, image_size=SIDE)
    inputs = inputs_of(model, 4)
    with torch.inference_mode():
        logits = network(inputs).double()
        features = model.network(inputs).mean(dim=(2, 3)).double().numpy()
    texts = ["a photo of a crimson", "crimson"]
    word = unit(np.mean([mean_vector(text) for text in texts], axis=0))
    names = [unit((mean_vector(f"a photo of a {c}") + mean_vector(c)) / 2) for c in CLASSES]
    shares = torch.tensor(np.array([word @ name for name in names]) / TEMPERATURE).softmax(0)
    expected = (logits - logits.mean(dim=0)) @ shares.double()
    head = model.head([texts], features.mean(0))
    np.testing.assert_allclose(head.scores(features)[:, 0], expected, atol=1e-4)
    red = torch.arange(12) % 3 == CLASSES.index("red")
    assert expected[red].min() > expected[~red].max()


def test_class_names_are_encoded_once(words_model, tmp_path, monkeypatch):
    first = ClassesAndWords(words_model, image_size=SIDE, cache=tmp_path).class_vectors
    again = ClassesAndWords(words_model, image_size=SIDE, cache=tmp_path)
    monkeypatch.setattr(again.encoder, "describe", lambda texts: pytest.fail("encoded again"))
    np.testing.assert_array_equal(again.class_vectors, first)


def test_words_that_cannot_be_scored_well_are_named(words_model):
    model = ClassesAndWords(words_model, image_size=SIDE)
    doubts = model.doubts(WordList.of("red", "justice", "crimson", "Hund"))
    assert len(doubts) == 3
    assert "'justice' is far from everything the classifier knows" in doubts[0]
    assert "does not know all of 'a photo of a Hund'" in doubts[1]
    assert "'red' and 'crimson' get nearly the same" in doubts[2]
    assert model.doubts(WordList.of(*COLOURS)) == []
    assert model.nearest_classes(WordList.of("crimson", "grass")) == ["red", "green"]


def test_words_that_the_encoder_spells_out_are_named(words_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(words_model, folder)
    pieces = ["с", *(f"##{letter}" for letter in "обак"), "gi", "##raf", "##fe", "t", "##g", "##v"]
    words = {piece: number for number, piece in enumerate((*VOCABULARY, *pieces))}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = ClassesAndWords(folder, image_size=SIDE).texts
    doubt = texts.doubt("dog", ("a photo of a red", "a photo of a собака"))
    assert doubt.startswith("the encoder takes 'собака' letter by letter and hardly knows it")
    assert texts.doubt("red", ("a photo of a red", "red")) is None
    spelled = {text: texts.encoder.spelled(text) for text in ("giraffe", "a TGV", "с", "justice")}
    assert spelled == {"giraffe": None, "a TGV": "TGV", "с": None, "justice": None}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "must hold tokenizer.json"),
        (lambda folder: (folder / "encoder.onnx").unlink(), "must hold one .onnx file, got none"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "encoder.onnx").write_bytes(b"x"), "cannot be run"),
        (lambda folder: (folder / "classes.txt").write_text("red\n"), "name the 3 classes"),
        (lambda folder: (folder / "classes.txt").unlink(), "has 3 classes and ImageNet 1,000"),
    ],
)
def test_incomplete_folders_are_refused(words_model, tmp_path, change, sentence):
    folder = Path(shutil.copytree(words_model, tmp_path / "model"))
    change(folder)
    with pytest.raises(LabelwiseError, match=re.escape(sentence)):
        ClassesAndWords(folder, image_size=SIDE)


def test_a_word_for_an_idea_is_doubted_unless_photos_show_its_like(
    words_model, tmp_path, monkeypatch
):
    """Oracle: the encoder's own table. Glory lies between red, a class, and freedom, an idea."""
    table = dict(zip(words_setup.VOCABULARY, words_setup.word_vectors(), strict=True))
    random = np.random.default_rng(8)
    table["freedom"], table["food"] = random.normal(size=(2, words_setup.LENGTH))
    table["glory"] = 0.8 * table["red"] + table["freedom"]
    table["dress"] = table["red"] + 0.8 * table["freedom"]
    table["feast"] = 0.8 * table["red"] + 0.9 * table["freedom"] + table["food"]
    vectors = np.stack(list(table.values())).astype(np.float32)
    monkeypatch.setattr(words_setup, "VOCABULARY", tuple(table))
    monkeypatch.setattr(words_setup, "word_vectors", lambda: vectors)
    folder = tmp_path / "model"
    shutil.copytree(words_model, folder)
    words_setup.save_encoder(folder)
    model = ClassesAndWords(folder, image_size=words_setup.SIDE)
    glory, dress, feast = (
        model.doubt(word.name, word.texts) for word in WordList.of("glory", "dress", "feast").words
    )
    assert glory.startswith("'glory' is nearer to the idea of freedom than to anything that photos")
    assert "lean on 'red'" in glory
    assert dress is None  # the class is nearer than the idea
    assert feast is None  # and here a thing is
    assert glory in model.doubts(WordList.of("glory", "dress"))


def test_kinds_follow_wordnet():
    kinds, dogs = imagenet_kinds(), tuple(range(151, 269))  # Chihuahua to Mexican hairless
    birds = (*range(7, 25), *range(80, 101), *range(127, 147))
    for text in ("dog", "Dogs", "a photo of a dog", "the domestic dog"):
        assert kinds.of([text]) == dogs
    assert kinds.of(["dog", "bird"]) == tuple(sorted((*dogs, *birds)))
    assert set(dogs) < set(kinds.of(["animal"]))
    assert kinds.of(["apple"]) == (948,)  # Granny Smith
    assert kinds.of(["buses"]) == kinds.of(["bus"]) != ()
    assert kinds.of(["fire hydrant"]) == kinds.of(["a dog on a beach"]) == ()
    imagenet = ImageNetInfo()
    names = [imagenet.index_to_description(number) for number in range(1000)]
    assert imagenet_names() == tuple(names)
    assert [kinds.are_of(some) for some in (names, names[::-1], names[:999])] == [
        True,
        False,
        False,
    ]


def test_the_maps_of_the_package_belong_to_one_network_and_one_encoder():
    maps = caption_maps()
    assert maps.image.shape == (256, 1280)
    assert maps.text.shape == (256, 384)
    np.testing.assert_allclose(maps.weights.sum(1), 1, atol=1e-3)
    weight, probe = np.stack([maps.row, -maps.row]), maps.probe
    assert maps.fit(weight, lambda text: probe)
    for other in (weight[::-1], weight[:, :9]):
        assert not maps.fit(other, lambda text: probe)
    for other in (-probe, probe[:9]):
        assert not maps.fit(weight, lambda text, vector=other: vector)


def small_maps(features, texts, seed=0):
    rng = np.random.default_rng(seed)
    return CaptionMaps(
        rng.standard_normal((4, features)).astype(np.float32),
        rng.standard_normal((4, texts)).astype(np.float32),
        rng.uniform(0.5, 2, features).astype(np.float32),
        np.zeros(texts, np.float32),
        np.array([[0.2, 0.0, 0.8], [0.2, 0.4, 0.4]]),
        np.ones(features, np.float32),
        np.ones(texts, np.float32),
    )


def test_captions_score_photos_by_the_cosine():
    maps, rng = small_maps(6, 5), np.random.default_rng(1)
    photos, texts = rng.standard_normal((7, 6)), rng.standard_normal((3, 5))
    mapped = (photos - photos.mean(0)) / maps.deviation @ maps.image.T
    words = texts @ maps.text.T
    lengths = np.linalg.norm(mapped, axis=1)[:, None] * np.linalg.norm(words, axis=1)
    expected = mapped @ words.T / lengths
    np.testing.assert_allclose(maps.scores(photos, texts), expected, atol=1e-6)
    along = (photos - photos.mean(0)) @ maps.directions(texts)
    found = along / np.linalg.norm(mapped, axis=1)[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_head_gives_the_sum_of_the_routes_and_says_where_they_disagree(words_model):
    model = ClassesAndWords(words_model, image_size=SIDE)
    with torch.no_grad():
        features = model.network(inputs_of(model, 40)).mean(dim=(2, 3)).numpy()
    words = WordList.of("red", "green", "justice")
    texts, mean = [word.texts for word in words.words], features.mean(0)
    plain = model.head(texts, mean)
    # no maps: as ever
    np.testing.assert_array_equal(model.head(texts, mean, features).weight, plain.weight)
    assert model.disagreements(words, features) == []
    ones, own = np.ones(features.shape[1], np.float32), model.class_vectors
    maps = small_maps(len(ones), own.shape[1])
    maps = replace(maps, image=model.weight, text=own, deviation=ones)
    red, _, blue = (model.classes.index(colour) for colour in ("red", "green", "blue"))
    kinds = Kinds({"red": (red,), "green": (blue,)})  # a green of another sort
    model.texts.__dict__.update(maps=maps, kinds=kinds)
    routes, agree = model.routes(texts, features, maps)
    assert agree.tolist() == [True, False, False]
    chances = softmax((features @ model.weight.T + model.bias).astype(float), axis=1)[:, red]
    odds = logit(chances.clip(1e-9, 1 - 1e-9))
    expected = (odds - odds.mean()) / odds.std()
    np.testing.assert_allclose(routes[1, :, 0], expected, atol=1e-3)
    assert not routes[1, :, 1:].any()
    target = 0.2 * routes[0] + 0.8 * routes[2]
    target[:, 0] = (0.2 * routes[0] + 0.4 * routes[1] + 0.4 * routes[2])[:, 0]
    scores = model.head(texts, mean, features).scores(features)
    assert abs(scores.mean(0)).max() < 1e-3
    assert all(np.corrcoef(scores[:, k], target[:, k])[0, 1] > 0.95 for k in range(3))
    (told,) = model.disagreements(words, features)
    assert "'green' may mean two things: the classifier's 'blue' and what captions" in told


# The sentence encoder that is fetched where none is named. Oracle: a stub of the hub.

FILES = {"onnx/model_quantized.onnx": b"a model", "tokenizer.json": b"its tokens"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with running_hub() as server:
        server.files[scorers.ENCODER] = dict(FILES)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(scorers, "REVISION", SHA)
        hashes = {name: sha256(content).hexdigest() for name, content in FILES.items()}
        monkeypatch.setattr(scorers, "ENCODER_FILES", hashes)
        yield server


def test_it_is_fetched_once_and_its_hash_is_checked_each_time(hub):
    folder = scorers.usual_encoder()
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    asked = len(hub.requests)
    assert asked > 0
    assert scorers.usual_encoder() == folder
    assert len(hub.requests) == asked
    (folder / "tokenizer.json").resolve().write_bytes(b"changed")
    with pytest.raises(SettingsError, match=r"must have the SHA-256 .* delete it and try again"):
        scorers.usual_encoder()


def test_a_mirror_that_sends_another_file_is_noticed(hub):
    hub.files[scorers.ENCODER]["tokenizer.json"] = b"other tokens"
    with pytest.raises(SettingsError, match=r"must have the SHA-256 .*name it with --model"):
        scorers.usual_encoder()


def test_without_hub_or_network_one_sentence_says_what_to_copy(hub, monkeypatch):
    del hub.files[scorers.ENCODER]["tokenizer.json"]
    sentence = r"Set HF_ENDPOINT to another mirror, or copy onnx/model_quantized.* --model"
    with pytest.raises(SettingsError, match=rf"404.* {sentence}"):
        scorers.usual_encoder()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    with pytest.raises(SettingsError, match=sentence):
        scorers.usual_encoder()
    assert len(hub.requests) == asked


def test_a_folder_of_open_clip_says_which_folder_to_take(tmp_path):
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(SettingsError, match="take the transformers folder of this model"):
        open_scorer(str(tmp_path))
