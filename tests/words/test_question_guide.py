"""Questions by value. Oracles: the random order of photos set aside, which no model moves; p (1-p);
the label table, and the answers that a run keeps of it."""

import numpy as np
import pytest
from typer.testing import CliRunner
from words_setup import SIDE, save_photos

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.cli.app import app
from labelwise.data import load
from labelwise.errors import SettingsError
from labelwise.models import Predictor
from labelwise.photos.words import ClassesAndWords, QuestionGuide, WordList, WordsLearner
from labelwise.photos.words.start import KeptAnswers, asking_order, is_set_aside, start
from labelwise.pictures import PictureImages
from labelwise.system.progress import Silent

PHOTOS = tuple(f"/photos/{number:03d}.png" for number in range(60))
ASIDE = frozenset(PHOTOS[::6])


def guide(probs):
    return QuestionGuide(ASIDE, PHOTOS, ("red",), np.asarray(probs)[:, None])


def test_one_of_five_questions_is_set_aside_and_the_others_come_by_value():
    probs = np.random.default_rng(0).random(60)
    values = probs * (1 - probs)
    order = guide(probs).order("red", asking_order("red", PHOTOS))
    assert sorted(order) == list(PHOTOS)
    assert [photo in ASIDE for photo in order[:20]] == [True, False, False, False, False] * 4
    chosen = [values[PHOTOS.index(photo)] for photo in order if photo not in ASIDE]
    assert chosen == sorted(chosen, reverse=True)
    # a word that the run does not have: in its random order
    drawn = asking_order("blue", PHOTOS)
    unknown = [photo for photo in guide(probs).order("blue", drawn) if photo not in ASIDE]
    assert unknown == [photo for photo in drawn if photo not in ASIDE]


def test_one_of_five_stays_set_aside_when_a_newer_guide_orders_what_is_left():
    drawn, answered = asking_order("red", PHOTOS), set()
    for seed in (1, 2):
        probs = np.random.default_rng(seed).random(60)
        order = guide(probs).order("red", drawn, answered)
        page = [photo for photo in order if photo not in answered][:20]
        assert [photo in ASIDE for photo in page] == [True, False, False, False, False] * 4
        left = [photo for photo in order if photo not in ASIDE | answered]
        values = [probs[PHOTOS.index(photo)] * (1 - probs[PHOTOS.index(photo)]) for photo in left]
        assert values == sorted(values, reverse=True)
        answered |= {*page}
    aside = [photo for photo in drawn if photo in ASIDE]
    assert [photo for photo in order if photo in ASIDE] == aside
    # whoever skipped photos set aside is asked about them when it is their turn
    answered = {*aside[4:8], *left[:16]}
    order = guide(probs).order("red", drawn, answered)
    page = [photo for photo in order if photo not in answered]
    assert [photo in ASIDE for photo in page[:10]] == [True, False, False, False, False] * 2


def test_no_model_moves_the_photos_that_promises_rest_on():
    probs = np.random.default_rng(0).random(60)
    expected = [photo for photo in asking_order("red", PHOTOS) if photo in ASIDE]
    for other in (probs, 1 - probs, probs * 0, probs / 2):
        order = guide(other).order("red", asking_order("red", PHOTOS))
        assert [photo for photo in order if photo in ASIDE] == expected
        assert {guide(other).guess("red", photo) for photo in ASIDE} == {None}
    assert guide(probs).guess("red", PHOTOS[1]) == (probs[1] >= 0.5)
    assert guide(probs).guess("blue", PHOTOS[1]) is None


def test_chosen_photos_are_never_set_aside_whatever_share_is_asked_for(tmp_path):
    save_photos(tmp_path / "photos", 12)
    photos = sorted(map(str, (tmp_path / "photos").iterdir()))
    log = LabelAnswers(AnswerLog(tmp_path / "answers.jsonl"), frozenset(photos[:3]))
    log.add("red", dict.fromkeys(photos, "yes"), "ada")
    LabelAnswers(log.log).export(tmp_path / "answers.csv")  # the log itself knows
    table = load(str(tmp_path / "answers.csv"))
    digests = {row: bytes([row]) * 32 for row in range(12)}  # all of them below a share of .9
    kept = KeptAnswers.of(table, digests, 0.9)
    assert sorted(one.id for one in kept.photos.values() if one.aside) == photos[:3]


def test_a_run_guides_by_its_own_probabilities_and_content_sets_aside(words_model, tmp_path):
    save_photos(tmp_path / "photos", 20)
    photos = sorted((tmp_path / "photos").iterdir())
    model = ClassesAndWords(words_model, image_size=SIDE)
    run = tmp_path / "run"
    start(PictureImages(photos), WordList.of("red", "green"), model, run)
    found = WordsLearner(run, photos, watch=Silent()).guide
    predictor = Predictor.load(run)
    probs = predictor.predict(PictureImages(photos)).probs
    np.testing.assert_allclose(found.probs, probs, atol=1e-5)
    images = PictureImages(photos)
    expected = {
        str(path) for row, path in enumerate(photos) if is_set_aside(images.identity(row), 0.2)
    }
    assert found.aside == expected
    done = CliRunner().invoke(app, ["serve", str(run), "--guide", str(run)])
    assert done.exit_code == 2, "guides belong to the labelling page"


def test_a_trained_run_cannot_guide(tmp_path):
    from search_setup import save_model

    save_model(tmp_path / "model")
    with pytest.raises(SettingsError, match="did not begin with words"):
        WordsLearner(tmp_path / "model", [], watch=Silent())


def test_each_word_has_its_own_random_order():
    photos = [str(n) for n in range(200)]
    dog, cat = asking_order("dog", photos), asking_order("cat", photos)
    assert sorted(dog) == sorted(photos)
    assert dog == asking_order("dog", reversed(photos))
    assert dog not in (cat, photos)
    early = sum(int(one) < 100 for one in dog[:100])
    assert 30 < early < 70  # both halves of the names are asked about from the start
