"""Text-image models. Oracles: the encoder's table itself, timm's own network, the formula."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
import words_setup
from tokenizers import Tokenizer, models
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from words_setup import ARCHITECTURE, CLASSES, COLOURS, SIDE, VOCABULARY, photo, word_vectors

from labelwise.errors import SettingsError
from labelwise.photos.words import ClassesAndWords, SentenceEncoder, WordList
from labelwise.photos.words.classes import TEMPERATURE
from labelwise.photos.words.text_image import Word


def unit(vector):
    return vector / np.linalg.norm(vector)


def mean_vector(text):
    places = [VOCABULARY.index(word if word in VOCABULARY else "[UNK]") for word in text.split()]
    return unit(word_vectors()[places].mean(0))


def test_a_text_is_the_unit_mean_of_its_tokens(words_model):
    encoder = SentenceEncoder(words_model)
    found = encoder.encode(["a photo of a red", "justice"])
    expected = np.stack([mean_vector("a photo of a red"), mean_vector("justice")])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    both = encoder.describe(["red", "a photo of a red"])
    np.testing.assert_allclose(
        both, unit((mean_vector("red") + mean_vector("a photo of a red")) / 2), atol=1e-6
    )


def test_scores_are_those_of_the_formula_on_timms_own_logits(words_model):
    from safetensors.torch import load_file

    network = timm.create_model(ARCHITECTURE, num_classes=len(CLASSES)).eval()
    network.load_state_dict(load_file(words_model / "model.safetensors"))
    model = ClassesAndWords(words_model, image_size=SIDE)
    images = [photo(colour, seed) for seed in range(4) for colour in CLASSES]
    pixels = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in images])
    inputs = model.backbone.transform.inputs(pixels)
    with torch.inference_mode():
        logits = network(inputs).double()
        features = model.backbone(inputs).mean(dim=(2, 3)).double()
    texts = ["a photo of a crimson", "crimson"]
    word = unit(np.mean([mean_vector(text) for text in texts], axis=0))
    names = [unit((mean_vector(f"a photo of a {c}") + mean_vector(c)) / 2) for c in CLASSES]
    shares = torch.tensor(np.array([word @ name for name in names]) / TEMPERATURE).softmax(0)
    expected = (logits - logits.mean(dim=0)) @ shares.double()
    head = model.head([texts], features.mean(dim=0))
    np.testing.assert_allclose(head.scores(features)[:, 0], expected, atol=1e-4)
    red = [seed % 3 == CLASSES.index("red") for seed in range(len(images))]
    assert min(expected[red]) > max(expected[[not one for one in red]])


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


def test_words_that_lean_on_the_same_classes_are_named(words_model):
    """Their meanings may differ: no class tells them apart. Oracle: the scores of photos."""
    model = ClassesAndWords(words_model, image_size=SIDE)
    words = WordList((Word("red", ("red",)), Word("flag", ("red justice",)), Word("sky", ("sky",))))
    one, other = (model.encoder.describe(word.texts) for word in words.words[:2])
    assert one @ other < 0.8
    (doubt,) = model.doubts(words)
    assert doubt.startswith("'red' and 'flag' get nearly the same first scores")
    features = torch.randn(50, model.weight.shape[1], generator=torch.Generator().manual_seed(0))
    head = model.head([word.texts for word in words.words], features.mean(dim=0))
    likeness = np.corrcoef(head.scores(features.double()).T.numpy())
    assert likeness[0, 1] > 0.95 > likeness[0, 2]


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


def test_a_text_is_encoded_once(words_model, monkeypatch):
    encoder, runs = SentenceEncoder(words_model), []
    asked = encoder.session.run
    monkeypatch.setattr(
        encoder, "session", SimpleNamespace(run=lambda *given: runs.append(1) or asked(*given))
    )
    first = encoder.encode(["red", "green"])
    first[:] = 0  # what a caller does with it stays with the caller
    again = encoder.encode(["green", "red", "a red"])
    assert len(runs) == 3
    np.testing.assert_allclose(again[1], mean_vector("red"), atol=1e-6)


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
    folder = tmp_path / "model"
    shutil.copytree(words_model, folder)
    change(folder)
    from labelwise.errors import LabelwiseError

    with pytest.raises(LabelwiseError) as error:
        ClassesAndWords(folder, image_size=SIDE)
    assert sentence in str(error.value)


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="is not a folder"):
        ClassesAndWords(tmp_path / "none")


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
