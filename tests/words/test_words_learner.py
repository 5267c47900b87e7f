"""A guide that learns while people answer. Oracles: the run that ``start`` makes of the same
answers, the painted colours, the order of events, and the random order of photos set aside.
"""

import asyncio
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from search_setup import save_model
from typed import run as run_verb
from words_setup import SIDE, save_photos

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.base.progress import Silent
from labelwise.errors import SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.photos.words import (
    ClassesAndWords,
    QuestionGuide,
    WordList,
    WordsLearner,
    asking_order,
)
from labelwise.photos.words.start import (
    TEXT_HEAD_FILE,
    KeptAnswers,
    is_set_aside,
    start,
)
from labelwise.pictures import PictureImages
from labelwise.server.labelling import Background
from labelwise.tables import load

WORDS = WordList.of("red", "green")


@pytest.fixture(scope="module")
def made(words_model, tmp_path_factory):
    """A run before any answer, its photos, and what is true of them."""
    folder = tmp_path_factory.mktemp("learner")
    colours = save_photos(folder / "photos", 60)
    photos = sorted((folder / "photos").iterdir())
    model = ClassesAndWords(words_model, image_size=SIDE)
    start(PictureImages(photos), WORDS, model, folder / "run")
    truth = {
        str(path): {word: colours[path.name] == word for word in WORDS.names} for path in photos
    }
    return folder, photos, truth, model


def test_it_learns_what_start_learns_of_the_same_answers(made, tmp_path):
    folder, photos, truth, model = made
    learner = WordsLearner(folder / "run", photos, watch=Silent())
    assert learner.guide.learnt_from == 0
    said = dict(list(truth.items())[:40])
    guide = learner.learnt(said)
    log = LabelAnswers(AnswerLog(tmp_path / "answers.jsonl"), guide.aside)
    for word in WORDS.names:
        log.add(word, {photo: "yes" if own[word] else "no" for photo, own in said.items()}, "ada")
    log.export(tmp_path / "answers.csv", WORDS.names)
    answers = load(str(tmp_path / "answers.csv"))
    done = start(PictureImages(photos), WORDS, model, tmp_path / "run", answers=answers)
    probs = done.predictor.predict(PictureImages(photos)).probs
    np.testing.assert_allclose(guide.probs, probs, atol=1e-4)
    assert guide.learnt_from == done.fitted_on == sum(one not in guide.aside for one in said)
    # another time it starts from the answers that the run has kept
    later = WordsLearner(tmp_path / "run", photos, watch=Silent())
    np.testing.assert_allclose(later.learnt({}).probs, guide.probs, atol=1e-4)


def test_photos_set_aside_teach_nothing_and_too_few_answers_neither(made):
    folder, photos, truth, _ = made
    learner = WordsLearner(folder / "run", photos, watch=Silent())
    said = dict(list(truth.items())[:40])
    before = learner.learnt(said)
    aside = said.keys() & before.aside
    wrong = {one: {word: not value for word, value in said[one].items()} for one in aside}
    assert wrong
    np.testing.assert_array_equal(learner.learnt(said | wrong).probs, before.probs)
    only_yes = {photo: {"red": True} for photo, own in truth.items() if own["red"]}
    for few in (dict([*truth.items()][:5]), {"/elsewhere.png": {"red": True}}, only_yes):
        assert learner.learnt(few) is learner.guide


def test_a_word_without_answers_has_its_likeliest_photos_first_and_no_guesses(made):
    """Oracles: the paint, and a person who says yes of every photo but one about another word,
    after which photos that show nothing of the word have the probabilities nearest to one half."""
    folder, photos, truth, _ = made
    learner = WordsLearner(folder / "run", photos, watch=Silent())
    drawn = [photo for photo in truth if photo not in learner.guide.aside]
    said = {photo: {"red": number > 0} for number, photo in enumerate(drawn[:30])}
    guide = learner.learnt(said)
    assert guide.unanswered == {"green"}
    green = sum(truth[photo]["green"] for photo in drawn)
    first = [photo for photo in guide.order("green", drawn) if photo not in guide.aside][:green]
    assert all(truth[photo]["green"] for photo in first)
    assert {guide.guess("green", photo) for photo in drawn} == {None}
    assert {guide.guess("red", photo) for photo in drawn} <= {True, False}
    asked = {**said, first[0]: {"green": True}, drawn[0]: {"green": False}}
    assert learner.learnt(asked).unanswered == frozenset()


def test_a_run_of_an_earlier_version_guides_and_does_not_learn(made, tmp_path):
    folder, photos, truth, _ = made
    run = Path(shutil.copytree(folder / "run", tmp_path / "run"))
    (run / TEXT_HEAD_FILE).unlink()
    learner = WordsLearner(run, photos, watch=Silent())
    assert learner.learnt(truth) is learner.guide
    with pytest.raises(SettingsError, match="did not begin with words"):
        WordsLearner(save_model(tmp_path / "trained"), [], watch=Silent())


def test_answers_that_come_during_a_fit_are_learnt_next_and_not_one_by_one():
    asked, fitted, begun, may_end = [1], [], threading.Event(), threading.Event()

    def learn():
        fitted.append(len(asked))
        begun.set()
        may_end.wait()
        if len(asked) == 5:
            raise ValueError("a fit that fails")

    async def answering():
        refitting = Background("fit", learn)
        refitting.want()
        await asyncio.to_thread(begun.wait)
        for said in (2, 3, 4):  # while the first fit runs
            asked.append(said)
            refitting.want()
        may_end.set()
        await refitting._task
        assert fitted == [1, 4]
        asked.append(5)
        refitting.want()
        await refitting._task  # the fit failed: people go on by the guide there is
        await refitting.close()

    asyncio.run(answering())


PHOTOS = tuple(f"/photos/{number:03d}.png" for number in range(60))
ASIDE = frozenset(PHOTOS[::6])


def guide(probs):
    return QuestionGuide(ASIDE, PHOTOS, ("red",), np.asarray(probs)[:, None])


def test_one_of_five_questions_is_set_aside_and_the_others_come_by_value():
    probs = np.random.default_rng(0).random(60)
    values = probs * (1 - probs)
    drawn = asking_order("red", PHOTOS)
    order = guide(probs).order("red", drawn)
    assert sorted(order) == list(PHOTOS)
    assert [photo in ASIDE for photo in order[:20]] == [True, False, False, False, False] * 4
    chosen = [values[PHOTOS.index(photo)] for photo in order if photo not in ASIDE]
    assert chosen == sorted(chosen, reverse=True)
    # no model moves the photos that promises rest on, or guesses about them
    for other in (probs, 1 - probs, probs * 0):
        order = guide(other).order("red", drawn)
        assert [one for one in order if one in ASIDE] == [one for one in drawn if one in ASIDE]
        assert {guide(other).guess("red", photo) for photo in ASIDE} == {None}
    assert guide(probs).guess("red", PHOTOS[1]) == (probs[1] >= 0.5)
    assert guide(probs).guess("blue", PHOTOS[1]) is None
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


def test_a_run_guides_by_its_own_probabilities_and_content_sets_aside(made):
    folder, photos, _, _ = made
    run, images = folder / "run", PictureImages(photos)
    found = WordsLearner(run, photos, watch=Silent()).guide
    np.testing.assert_allclose(found.probs, Predictor.load(run).predict(images).probs, atol=1e-5)
    expected = {
        str(path) for row, path in enumerate(photos) if is_set_aside(images.identity(row), 0.2)
    }
    assert found.aside == expected
    assert run_verb("serve", run, "--guide", run).exit_code == 2  # for the labelling page alone
    dog, cat = asking_order("dog", PHOTOS), asking_order("cat", PHOTOS)
    assert dog == asking_order("dog", reversed(PHOTOS))
    assert dog not in (cat, list(PHOTOS))
