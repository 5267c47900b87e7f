"""A guide that learns while people answer. Oracles: the run that ``start`` makes of the same
answers, the painted colours, and the order of events, which the test itself decides."""

import threading

import numpy as np
import pytest
from words_setup import SIDE, save_photos

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.data import load
from labelwise.photos.words import ClassesAndWords, WordList, WordsLearner
from labelwise.photos.words.start import TEXT_HEAD_FILE, start
from labelwise.pictures import PictureImages
from labelwise.system.progress import Silent

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
    wrong = {
        photo: {word: not value for word, value in own.items()} if photo in before.aside else own
        for photo, own in said.items()
    }
    assert any(photo in before.aside for photo in said)
    np.testing.assert_array_equal(learner.learnt(wrong).probs, before.probs)
    assert learner.learnt(dict(list(truth.items())[:5])) is learner.guide
    assert learner.learnt({"/elsewhere.png": {"red": True}}) is learner.guide
    only_yes = {photo: {"red": True} for photo, own in truth.items() if own["red"]}
    assert len(only_yes) == 20
    assert learner.learnt(only_yes) is learner.guide


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
    kept = (folder / "run" / TEXT_HEAD_FILE).read_bytes()
    (folder / "run" / TEXT_HEAD_FILE).unlink()
    try:
        learner = WordsLearner(folder / "run", photos, watch=Silent())
    finally:
        (folder / "run" / TEXT_HEAD_FILE).write_bytes(kept)
    assert learner.learnt(truth) is learner.guide


def test_answers_that_come_during_a_fit_are_learnt_next_and_not_one_by_one(tmp_path):
    import asyncio
    from types import SimpleNamespace

    from labelwise.photos.words import QuestionGuide
    from labelwise.server.labelling import Background

    asking = SimpleNamespace(guide=None, agreed={})
    begun, may_end, fitted = threading.Event(), threading.Event(), []

    def learn():
        agreed = asking.agreed
        fitted.append(len(agreed))
        begun.set()
        may_end.wait()
        if len(agreed) == 3:
            raise ValueError("a fit that fails")
        asking.guide = QuestionGuide(frozenset(), (), (), np.empty((0, 0)), len(agreed))

    async def answering():
        refitting = Background("fit", learn)
        asking.agreed = dict.fromkeys("a")
        refitting.want()
        await asyncio.to_thread(begun.wait)
        for said in ("ab", "abc", "abcd"):  # while the first fit runs
            asking.agreed = dict.fromkeys(said)
            refitting.want()
        may_end.set()
        await refitting._task
        assert fitted == [1, 4]
        assert asking.guide.learnt_from == 4
        asking.agreed = dict.fromkeys("abc")
        refitting.want()
        await refitting._task
        assert asking.guide.learnt_from == 4  # the fit failed: people go on by the guide there is
        await refitting.close()

    asyncio.run(answering())
