"""A guide that learns while people answer. Oracles: the run that ``start`` makes of the same
answers, the painted colours, the order of events, and the random order of photos set aside.
"""

import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import softmax
from search_setup import save_model
from sklearn.metrics import average_precision_score
from torch.nn.functional import binary_cross_entropy_with_logits
from typed import run as run_verb
from words_setup import SIDE, save_photos

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.base.convex import CoinLoss
from labelwise.base.newton import Design, minimise
from labelwise.base.progress import Silent
from labelwise.calibration import few_labels
from labelwise.errors import SettingsError
from labelwise.models.loading import load_model
from labelwise.photos.words import (
    ClassesAndWords,
    QuestionGuide,
    WordList,
    WordsLearner,
    answered,
    asking_order,
)
from labelwise.photos.words.answered import APART, POWERS, _folds, answered_head
from labelwise.photos.words.start import (
    TEXT_HEAD_FILE,
    KeptAnswers,
    is_set_aside,
    start,
)
from labelwise.photos.words.text_image import TextHead
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
    probs = load_model(done.folder).predict(PictureImages(photos)).probs
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
    np.testing.assert_allclose(found.probs, load_model(run).predict(images).probs, atol=1e-5)
    expected = {
        str(path) for row, path in enumerate(photos) if is_set_aside(images.identity(row), 0.2)
    }
    assert found.aside == expected
    assert run_verb("serve", run, "--guide", run).exit_code == 2  # for the labelling page alone
    dog, cat = asking_order("dog", PHOTOS), asking_order("cat", PHOTOS)
    assert dog == asking_order("dog", reversed(PHOTOS))
    assert dog not in (cat, list(PHOTOS))


# A head with words as its prior. Oracles: autograd at the optimum, the text head, a plain head,
# and slow refits of every fold, label and strength by another optimiser.

FEATURES, LABELS = 60, 6


def draw(rows, seed, error=0.6, levels=-1.5):
    """Return features, labels of a linear truth, and a text head that is nearly right."""
    fixed = np.random.default_rng(7)
    truth = fixed.normal(size=(FEATURES, LABELS))
    wrong = fixed.normal(size=(FEATURES, LABELS))
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, FEATURES))
    logits = 3 * x @ truth / FEATURES**0.5 + levels
    y = random.random((rows, LABELS)) < 1 / (1 + np.exp(-logits))
    text = TextHead(truth + error * wrong, np.zeros(LABELS))
    return x, y.astype(np.float64), text


@pytest.mark.parametrize("free_bias", [True, False])
def test_the_penalty_is_on_the_distance_from_the_offset(free_bias):
    x, y, text = draw(40, seed=1)
    offset, l2 = text.scores(x), np.full((1, LABELS), 3.0)
    spread = x.std(0)
    spread = np.sqrt(spread * np.sqrt(np.mean(spread**2)))
    design = Design.of(x, free_bias=free_bias)
    loss = replace(CoinLoss.of(y), offset=offset)
    begin = np.zeros((design.rows.shape[1], LABELS))
    solved = minimise(design, loss, l2, begin, tolerance=1e-15)
    weight, bias = map(torch.from_numpy, design.linear(solved))
    x, y, offset, spread = map(torch.from_numpy, (x, y, offset, spread))
    scaled = (weight * spread[:, None]).requires_grad_()
    middle = (bias + x.mean(dim=0) @ weight).requires_grad_()  # the bias of centred features
    logits = offset + (x - x.mean(dim=0)) / spread @ scaled + middle
    value = binary_cross_entropy_with_logits(logits, y, reduction="sum")
    value = value + 1.5 * scaled.square().sum() + (0 if free_bias else 1.5) * middle.square().sum()
    for gradient in torch.autograd.grad(value, (scaled, middle)):
        assert gradient.abs().max() < 1e-5


def test_answers_never_rank_worse_than_words_alone():
    x, y, text = draw(40, seed=20)
    new_x, new_y, _ = draw(1000, seed=1000)
    head = answered_head(text, x, y, None, pool=new_x)
    own, words = (
        average_precision_score(new_y, scores)
        for scores in (head.head.scores(new_x), text.scores(new_x))
    )
    assert own > words
    probs = head.calibration.link(head.head.scores(new_x))
    assert abs(probs.mean(0) - new_y.mean(0)).mean() < 1.5 / 40**0.5


def test_nine_of_ten_intervals_of_shares_are_meant_to_hold_the_truth():
    """Oracle: the labels of the whole pool. Without what the first fit leaves open, 7 of 10 do."""
    held, narrow = [], []
    for seed in range(3):
        x, y, text = draw(600, seed=seed, error=1.0, levels=np.linspace(-4, 0.5, LABELS))
        head = answered_head(text, x[:60], y[:60], None, pool=x)
        truth = y.mean(0)
        for found, into in ((head.shares, held), (head.calibration.shares, narrow)):
            into.append((found[:, 1] <= truth) & (truth <= found[:, 2]))
    assert np.mean(narrow) < 0.75 < 0.82 < np.mean(held)


def test_words_answered_on_different_photos_get_the_heads_of_one_design(monkeypatch):
    """Oracle: the design that all words share. A word without answers stays as it is."""
    x, y, text = draw(90, seed=3, error=1.0)
    observed = np.random.default_rng(0).random(y.shape) < 0.2
    observed[:, 4] = False
    own = answered_head(text, x, y, observed)
    monkeypatch.setattr(answered, "SPARSE", len(x) + 1)
    shared = answered_head(text, x, y, observed)
    assert abs(own.head.scores(x) - text.scores(x))[:, :4].max() > 0.3
    for found, expected in ((own.head.scores(x), shared.head.scores(x)), (own.l2, shared.l2)):
        np.testing.assert_allclose(found, expected, atol=3e-3, rtol=1e-2)
    assert abs(own.left_out - shared.left_out)[observed].max() < 0.02
    order = np.corrcoef(own.head.scores(x)[:, 4], text.scores(x)[:, 4])[0, 1]
    assert order == pytest.approx(1.0, abs=1e-9)


def test_left_out_logits_are_those_of_slow_refits():
    x, y, text = draw(45, seed=0, error=1.0)
    y, text = y[:, :3], TextHead(text.weight[:, :3], text.bias[:3])
    pool, _, _ = draw(300, seed=4)
    observed = np.random.default_rng(0).random(y.shape) < 0.9
    found = answered_head(text, x, y, observed, pool=pool)
    tried = slow_left_out(text, x, y, observed, pool)
    losses = np.logaddexp(0, tried) - y * tried
    by_label = (losses * observed).sum(1)
    places = np.array([POWERS[0] + 0.5, *POWERS])
    common = by_label.sum(1).argmin()
    prior = -(((places - places[common]) / APART) ** 2) / 2
    shares = softmax(prior[:, None] - by_label, axis=0)
    expected = np.einsum("pk,pnk->nk", shares, tried)
    assert abs(found.left_out - expected).max() < 0.03
    assert abs(tried[0] - expected).max() > 0.3  # the answers do move something


def slow_left_out(text, x, y, observed, pool):
    """Return logits (P + 1, n, K), each fold, label and strength fitted by itself."""
    tried = np.zeros((len(POWERS) + 1, *y.shape))
    parts = _folds(len(x))
    words = text.scores(x) / text.scores(pool).std(0, ddof=1)  # of all words, for each of them
    words *= (0.3 * FEATURES / words.var(0).sum()) ** 0.5
    seen = np.hstack([x / pool.std(0), words])
    seen, scores = seen - seen.mean(0), text.scores(x)
    for fold in range(int(parts.max()) + 1):
        out, rest = parts == fold, parts != fold
        few = few_labels(scores[rest], y[rest], None, observed[rest], pool=text.scores(pool))
        start = (scores - few.centre) / few.scale * np.exp(few.mean[:, 0]) + few.mean[:, 1]
        tried[0][out] = start[out]
        for place, power in enumerate(POWERS, 1):
            for k in range(y.shape[1]):
                used = rest & observed[:, k]
                l2 = 10**power * int(rest.sum())
                moved = slow_move(seen[used], y[used, k], start[used, k], l2)
                logits = start[:, k] + seen @ moved[:-1] + moved[-1]
                tried[place][out, k] = logits[out]
    return tried


def slow_move(rows, labels, start, l2):
    rows = np.hstack([rows, np.ones((len(rows), 1))])

    def value(move):
        z = start + rows @ move
        residual = 1 / (1 + np.exp(-z)) - labels
        loss = (np.logaddexp(0, z) - labels * z).sum() + l2 / 2 * move @ move
        return loss, rows.T @ residual + l2 * move

    return minimize(value, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B").x
