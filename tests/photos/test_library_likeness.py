"""What an index says of its library, where labels moved and where held-out photos come in groups.

Oracles: libraries drawn like the held-out photos or not; each held-out photo once, against eight
copies of each in a group.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_index import made_index
from open_indexes import open_index
from PIL import Image
from scipy.special import expit, logit
from search_setup import LABELS, picture, save_model
from typed import run

from labelwise.base.progress import Silent
from labelwise.errors import DataError
from labelwise.learn.methods import link_to_spec
from labelwise.learn.predictor import Predictor
from labelwise.links import Sigmoid, Softmax
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, answer, likeness_of, shift, topk, update_index
from labelwise.photos.database import CHUNK, CacheFiles
from labelwise.photos.embeddings import Projection, farthest_rows
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.query import Asked
from labelwise.photos.shift import PICTURES_FILE, HeldOutPictures, sealed
from labelwise.photos.tagging import promised_rule
from labelwise.photos.topk import LabelOdds, ranking_of
from labelwise.predictions import Predictions
from labelwise.queries import Query, bind
from labelwise.types import LabelSpace


def logits_of(seed, count, mean=-1.0):
    """Return logits drawn as those of the held-out photos are, unless their mean is another."""
    return np.random.default_rng(seed).normal(mean, 2, (count, 4))


def likeness(folder):
    with Index(folder) as index:
        return likeness_of(index)


def test_other_pictures_are_noticed_and_the_far_ones_named(tmp_path, model):
    logits = logits_of(2, 300, 4.0)
    logits[17] = 60.0
    found = likeness(made_index(tmp_path / "index", model, logits))
    assert found.likeness.outcome == "pictures differ"
    assert found.far_rows[0] == 17
    assert f"{found.far:,} of 300 photos are far from every held-out one" in found.sentence()
    said = run("count", tmp_path / "index", "dog").output
    assert "These photos do not look like the held-out ones" in said


def test_photos_of_validation_are_not_called_held_out(tmp_path, model):
    """They fitted the link. Oracle: the name of the split."""
    for count, mean in ((20, -1.0), (300, 4.0)):
        folder = made_index(tmp_path / f"{count}.index", model, logits_of(1, count, mean))
        with Index(folder) as index:
            facts = index.facts.model_copy(update={"held_out": "val"})
            with index.store.database.rewriting("index.json"):
                facts.save(folder / "index.json")
        for verb in (("search", str(folder), "dog", "-n", "1"), ("count", str(folder), "dog")):
            said = " ".join(run(*verb).output.split())
            assert "the validation ones" in said
            assert "held-out" not in said


def test_the_comparison_is_kept_until_it_or_the_library_or_the_model_changes(tmp_path, model):
    folder = made_index(tmp_path / "index", model, logits_of(1, 400))
    found, path = likeness(folder), folder / "likeness.json"
    assert (found.likeness.outcome, found.far < 25) == ("alike", True)
    assert [one.label for one in found.likeness.shares] == ["beach", "cat", "dog", "row"]
    whole = path.read_text()
    path.write_text(json.dumps(sealed(replace(found, far=333))))
    assert likeness(folder).far == 333  # read, not computed
    grown = json.dumps(sealed(replace(found, far=333, rows=300)))
    for changed in (grown, whole.replace(f'"far": {found.far}', '"far": 333'), "{"):
        path.write_text(changed)
        assert likeness(folder) == found
        assert path.read_text() == whole
    with Index(folder) as index:
        index.use(index.spec, index.held_out)
        assert not path.exists()


@pytest.mark.parametrize("count", [1, 49])
def test_a_small_library_tells_nothing(tmp_path, model, count):
    found = likeness(made_index(tmp_path / "index", model, logits_of(1, count)))
    assert found.likeness.outcome == "unknown"
    assert (found.likeness.held_out, found.likeness.photos, found.rows) == (400, count, count)
    assert f"and there {'are' if count > 1 else 'is'} {count}" in found.sentence()


def test_without_held_out_photos_nothing_can_be_known(tmp_path):
    model = save_model(tmp_path / "model")
    (model / "predictions" / "test.parquet").unlink()
    found = likeness(made_index(tmp_path / "index", model, logits_of(1, 100)))
    assert found.sentence() == (
        "Whether these photos are like the held-out ones cannot be known: "
        "the model has no predictions of held-out photos."
    )


DOG, COLUMN = Query.parse("dog"), 2


def shifted(random, share, photos=500):
    """Return logits and truth of photos that look as the model thinks, with another share."""
    truth = random.random(photos) < share
    logits = random.normal(-1, 2, (photos, 4))
    # Scores two apart and of spread one have the log ratio 2 x - 2; at a share of 0.3 it is exact.
    logits[:, COLUMN] = 2 * random.normal(np.where(truth, 2.0, 0.0)) - 2 + logit(0.3)
    return logits, truth


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """A model folder whose held-out photos are exact, with a share of dogs of 0.3."""
    folder = save_model(tmp_path_factory.mktemp("held-out") / "run")
    logits, truth = shifted(np.random.default_rng(1), 0.3, 1000)
    labels = np.random.default_rng(2).random((1000, 4)) < expit(logits)
    labels[:, COLUMN] = truth
    arrays = (torch.from_numpy(logits).float(), torch.from_numpy(labels).float())
    made = Predictions([f"{row}" for row in range(1000)], *arrays, None, LABELS, "test", Sigmoid())
    made.save(folder / "predictions" / "test.parquet")
    return folder


def test_the_count_holds_where_the_label_is_three_times_as_frequent(held_out, tmp_path):
    logits, truth = shifted(np.random.default_rng(10), 0.8)
    found = answer(open_index(made_index(tmp_path / "index", held_out, logits)), DOG)
    said = found.likeness.likeness
    assert (said.outcome, said.moved[0].label) == ("shares differ", "dog")
    assert said.moved[0].now == pytest.approx(truth.mean(), abs=0.08)
    low, high = found.interval
    assert low <= truth.sum() <= high < 0.95 * 500


def test_no_tag_is_guaranteed_where_photos_differ_or_were_not_compared(held_out, tmp_path, index):
    assert promised_rule(index, 0.4, 0.95).promises
    for name, logits, why in (
        ("other", logits_of(2, 300, 4.0), "do not look like the held-out ones"),
        ("few", logits_of(1, 49), "it takes 50 photos, and there are 49"),
        ("dogs", shifted(np.random.default_rng(10), 0.8)[0], "Labels are more or less frequent"),
    ):
        folder = made_index(tmp_path / name, held_out, logits)
        with Index(folder) as index, pytest.raises(DataError, match=why):
            promised_rule(index, 0.4, 0.95)


@pytest.mark.parametrize(
    ("photos", "mean", "why"),
    [
        (400, 4.0, "no interval: these photos differ from the held-out ones"),
        (40, 0.0, "no interval: these photos were not compared with the held-out ones"),
    ],
)
def test_no_interval_where_held_out_photos_do_not_speak_for_these(
    held_out, tmp_path, photos, mean, why
):
    """A folder inside a larger library, too: only its own photos are compared."""
    odd = np.random.default_rng(5).normal(mean, 2, (photos, 4))
    folder = made_index(tmp_path / "odd.index", held_out, odd)
    assert why in " ".join(run("count", str(folder), "dog").output.split())
    found = json.loads(run("search", str(folder), "dog", "--count", "--json").stdout)
    assert (found["low"], found["high"], found["untested"]) == (None, None, why)
    usual, _ = shifted(np.random.default_rng(6), 0.3, 300)
    folders = ["usual"] * len(usual) + ["odd"] * len(odd)
    everything = np.concatenate([usual, odd])
    index = open_index(made_index(tmp_path / "all.index", held_out, everything, folders))
    assert answer(index, DOG, photos=PhotoFilter("odd")).untested == why
    assert answer(index, DOG, photos=PhotoFilter("usual")).interval is not None


def test_photos_of_a_filter_are_compared_once_until_the_model_changes(
    held_out, tmp_path, monkeypatch
):
    """A page asks again for each fifty photos. Oracle: how often photos are compared."""
    logits, _ = shifted(np.random.default_rng(6), 0.3, 300)
    folders = ["a", "b"] * 150
    index = open_index(made_index(tmp_path / "index", held_out, logits, folders))
    compare, seen = shift.compare_photos, []
    monkeypatch.setattr(shift, "compare_photos", lambda *a, **k: seen.append(0) or compare(*a, **k))
    first = answer(index, DOG, photos=PhotoFilter("a"))
    assert answer(index, DOG, top=5, photos=PhotoFilter("a")).likeness == first.likeness
    answer(index, DOG, photos=PhotoFilter("b"))
    assert len(seen) == 2
    index.use(index.spec, index.held_out)
    answer(index, DOG, photos=PhotoFilter("a"))
    assert len(seen) == 3


COPIES = 8
LOGITS = np.random.default_rng(5).normal(-1, 2, (600, 4))


@pytest.fixture(scope="module")
def copies(tmp_path_factory, model):
    """A model whose held-out photos are copies in groups."""
    other = tmp_path_factory.mktemp("grouped") / "copies"
    shutil.copytree(model, other)
    once = RunFolder(model).predictions("test")
    place = np.repeat(np.arange(len(once)), COPIES)
    ids = [f"{row}-{number}" for number, row in enumerate(place)]
    many = replace(once.take(place), ids=ids, group=[str(row) for row in place])
    many.save(other / "predictions" / "test.parquet")
    return other


def test_copies_of_held_out_photos_prove_no_more(tmp_path, model, copies):
    """One photo of each group judges a list, and neither interval nor guarantee is narrower."""
    named = (("once.index", model), ("many.index", copies))
    pair = [open_index(made_index(tmp_path / name, folder, LOGITS)) for name, folder in named]
    splits = [Asked(index, DOG).splits for index in pair]
    assert {sum(len(half.scores) for half in one) for one in splits} == {400}
    found = [answer(index, DOG, wrong_about=0.3) for index in pair]
    assert found[0].statement == found[1].statement
    once, many = (answer(index, DOG).count for index in pair)
    assert once.expected == pytest.approx(many.expected, rel=0.02)
    assert many.upper - many.lower > 0.95 * (once.upper - once.lower)
    made = promised_rule(pair[1], 0.4, 0.95)
    assert made.promises[0].groups <= 400
    assert made.promises[0].design_effect == pytest.approx(COPIES, rel=0.1)


def test_a_library_of_bursts_is_compared_folder_by_folder(tmp_path, copies):
    """Oracle: one photo of each of 60 groups drawn like the held-out photos; 20 copies of each."""
    leaders = np.random.default_rng(6).normal(-1, 2, (60, 4))
    bursts, group = np.repeat(leaders, 20, axis=0), np.repeat(np.arange(60), 20)
    said = {}
    for name, folders in (("apart", [f"burst {one}" for one in group]), ("together", None)):
        said[name] = likeness(made_index(tmp_path / f"{name}.index", copies, bursts, folders))
    assert said["together"].likeness.outcome == "pictures differ"
    assert "may look different by chance" in said["together"].sentence()
    assert said["apart"].likeness.outcome == "alike"
    assert said["apart"].sentence().endswith("Of each of 60 folders one photo was compared.")
    logits = np.repeat(np.random.default_rng(7).normal(4, 2, (60, 4)), 5, axis=0)
    folders = [f"burst {row // 5}" for row in range(300)]
    found = likeness(made_index(tmp_path / "other.index", copies, logits, folders))
    assert (found.likeness.outcome, found.folders) == ("pictures differ", 60)


TRAIN, TEST, LIBRARY = 60, 70, 60


def photo(path, seed, *, stripes=False):
    """Write a smooth picture, or one of stripes."""
    random = np.random.default_rng(seed)
    if stripes:
        lines = np.repeat(random.integers(0, 2, 16) * 255, 2).astype(np.uint8)
        picture = Image.fromarray(np.tile(lines[:, None, None], (1, 32, 3)))
    else:
        small = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        picture = small.resize((32, 32), Image.Resampling.BICUBIC)
    picture.save(path)


@pytest.fixture(scope="module")
def pictured_run(tmp_path_factory):
    """A run of a model whose head says the same of all photos."""
    folder = tmp_path_factory.mktemp("made")
    home, lines = save_model(folder / "run", spread=0), ["path,labels,split"]
    (folder / "own").mkdir()
    for row in range(TRAIN + TEST):
        photo(folder / "own" / f"{row}.png", row)
        lines.append(f"{row}.png,{LABELS[row % 4]},{'train' if row < TRAIN else 'test'}")
    (folder / "own" / "t.csv").write_text("\n".join(lines) + "\n")
    (home / "settings.yaml").write_text(f"data: {folder / 'own' / 't.csv'}\n")
    random = np.random.default_rng(0)
    for split, rows in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        labels = torch.from_numpy((random.random((len(rows), 4)) < 0.5).astype("f4"))
        facts = (torch.zeros(len(rows), 4), labels, None, LABELS, split, Sigmoid())
        path = home / "predictions" / f"{split}.parquet"
        Predictions([f"{row}.png" for row in rows], *facts).save(path)
    return home


def indexed(home, run, seed, **options):
    """Return what is said of sixty photos beside those that are there, and the notes."""
    (home / "photos").mkdir(exist_ok=True)
    for row in range(LIBRARY):
        photo(home / "photos" / f"{row}.png", seed + row, **options)
    changes = update_index(home / "index", [home / "photos"], model=run, watch=Silent())
    return likeness(home / "index"), " ".join(changes.notes)


def test_pictures_of_the_same_kind_are_alike_and_copies_are_said(tmp_path, pictured_run):
    (tmp_path / "photos").mkdir()
    for row in (TRAIN, TRAIN + 1):  # held-out photos in another size
        with Image.open(pictured_run.parent / "own" / f"{row}.png") as own:
            own.resize((64, 64)).save(tmp_path / "photos" / f"copy-{row}.png")
    for row in range(3):  # training photos, byte for byte
        shutil.copy(
            pictured_run.parent / "own" / f"{row}.png", tmp_path / "photos" / f"own-{row}.png"
        )
    found, _ = indexed(tmp_path, pictured_run, 1000)
    assert (found.likeness.outcome, found.embedded, found.copies) == ("alike", TEST, 2)
    assert (
        "2 of 65 photos are held-out ones or near copies of them (70 compared)" in found.sentence()
    )
    assert "3 of 65 photos are ones that the model was trained on" in found.sentence()


def test_other_pictures_differ_though_the_model_says_the_same_of_them(tmp_path, pictured_run):
    found, notes = indexed(tmp_path, pictured_run, 2000, stripes=True)
    assert "do not look like the held-out ones" in notes
    assert (found.likeness.outcome, found.copies) == ("pictures differ", 0)
    kept = HeldOutPictures.load(pictured_run / PICTURES_FILE)
    assert sorted(kept.rows.tolist()) == list(range(TEST))
    assert kept.fitted.shape == (TRAIN, kept.features.shape[1])
    with Index(tmp_path / "index") as index:  # neither side of the comparison sets the projection
        expected = Projection.fitted(kept.fitted.astype(np.float32))
        np.testing.assert_array_equal(index.embeddings.projection.numbers, expected.numbers)
        (index.folder / "likeness.json").unlink()
        (index.folder / PICTURES_FILE).unlink()
        assert likeness_of(index).likeness.outcome == "alike"  # by logits alone


def test_what_is_kept_is_not_made_again_and_damage_is_noticed(tmp_path, pictured_run):
    folder, predictor = RunFolder(pictured_run), Predictor.load(pictured_run)
    weights = folder.spec.weights_sha256
    made = HeldOutPictures.of_run(folder, weights, predictor, Silent())
    kept = HeldOutPictures.of_run(folder, weights, None, Silent())
    assert kept.rows.tolist() == made.rows.tolist()
    made.save(tmp_path / "kept")
    whole = (tmp_path / "kept").read_bytes()
    at = len(whole) // 2
    (tmp_path / "kept").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert HeldOutPictures.load(tmp_path / "kept") is None
    assert HeldOutPictures.load(tmp_path / "nothing") is None


def test_a_run_whose_photos_are_gone_is_compared_by_its_logits(tmp_path, pictured_run):
    moved = shutil.copytree(pictured_run, tmp_path / "pictured_run")
    (moved / PICTURES_FILE).unlink(missing_ok=True)
    (moved / "settings.yaml").write_text("data: /nowhere/t.csv\n")
    found, _ = indexed(tmp_path, moved, 3000, stripes=True)
    assert (found.likeness.outcome, found.embedded) == ("alike", 0)


# Oracle: the score of every row by logarithms in 64 bits, and a full stable sort of it. What an
# index keeps in its cache has the same numbers computed in memory for an oracle; a damaged, short
# or forbidden file the index without a cache.

SPACE = LabelSpace(("a", "b", "c", "d"))
QUERIES = (
    "(a | b), -c",
    "a | b | -d",
    "a>0.4, b",
    "a<0.6, (b | c)",
    "(a | b), (a | c), -d",
    "-(a, b), (c | -d)",
    "none",
    "none | (a, b)",
)


def label_odds(random, rows, spread):
    """Few levels, so that there are many ties, some answers that are certain, and tiny ones."""
    logits = spread * random.integers(-12, 12, rows) / 4.0
    log_p, log_q = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)
    certain = random.random(rows)
    log_p[certain < 0.05], log_q[certain < 0.05] = 0.0, -np.inf
    log_p[certain > 0.95], log_q[certain > 0.95] = -np.inf, 0.0
    return LabelOdds(log_p.astype(np.float32), log_q.astype(np.float32))


def exact_scores(query, columns, gone):
    log_p = np.stack([one.log_p for one in columns], 1).astype(np.float64)
    log_q = np.stack([one.log_q for one in columns], 1).astype(np.float64)
    likely = log_p > log_q  # the smaller one has more digits
    log_p[likely] = np.log1p(-np.exp(log_q[likely]))
    log_q[~likely] = np.log1p(-np.exp(log_p[~likely]))
    scores = query.log_scores(log_p, log_q).astype(np.float32)
    scores[gone] = -np.inf
    return scores


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from((*QUERIES, "a", "a, -b", "a, -b, -c")),
    st.integers(1, 300),
    st.integers(0, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from((1.0, 4.0, 40.0)),
)
def test_any_query_finds_what_a_full_sort_finds(text, rows, count, seed, spread):
    random = np.random.default_rng(seed)
    query = bind(Query.parse(text), SPACE)
    gone = np.flatnonzero(random.random(rows) < 0.1)
    columns = [label_odds(random, rows, spread) for _ in query.columns]
    odds_of = dict(zip(query.columns, columns, strict=True)).__getitem__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "ROWS_AT_ONCE", 64)
        ranking = ranking_of(query, odds_of, gone)
    if text in QUERIES:
        scores = exact_scores(query, columns, gone)
    else:  # a sum of 32 bits
        sides = zip(columns, ("log_p", "log_q", "log_q"), strict=False)
        scores = sum(getattr(column, side) for column, side in sides)
        scores[gone] = -np.inf
    found, values = ranking.best(count)
    listed = np.flatnonzero(scores > -np.inf)
    expected = listed[np.lexsort((listed, -scores[listed]))][:count]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(values, scores[expected])
    for least in (-60.0, -3.0, float(scores[seed % rows]), 0.0):
        if least > -np.inf:
            above = scores[scores >= np.float32(least)]
            assert ranking.count_at_least(least) == len(above)
            np.testing.assert_array_equal(ranking.scores_at_least(least), np.sort(above)[::-1])


def test_the_nearest_are_those_of_a_full_sort_by_cosines():
    random = np.random.default_rng(0)
    vectors = Projection.fitted(random.normal(size=(200, 300)).astype(np.float32))(
        random.normal(size=(3_000, 300)).astype(np.float32)
    )
    excluded = np.array([7, 11])
    rows, cosines = farthest_rows(vectors[7].astype(np.float64), vectors, 20, excluded)
    target = vectors[7].astype(np.float64) / np.linalg.norm(vectors[7].astype(np.float64))
    exact = vectors.astype(np.float64) @ target
    exact[excluded] = -2
    np.testing.assert_array_equal(rows, np.argsort(-exact)[:20])
    np.testing.assert_allclose(cosines, exact[rows], atol=1e-6)


LARGE = "labelwise.photos.index.KEPT_FROM"
FLOAT = np.dtype(np.float32)


def both_sides(folder):
    with Index(folder) as index:
        odds = [index.odds(label) for label in range(len(LABELS))]
        return np.stack([part for one in odds for part in (one.log_p, one.log_q)])


@pytest.mark.parametrize("link", [Sigmoid(), Softmax()])
def test_kept_probabilities_are_the_computed_ones(folder, monkeypatch, link):
    """And photos whose labels are known are the predictions under the link of the model."""
    with Index(folder) as index:
        index.use(index.spec.model_copy(update={"link": link_to_spec(link)}), None)
    expected = both_sides(folder)
    monkeypatch.setattr(LARGE, 1)
    for _ in range(2):  # written or computed, then mapped
        np.testing.assert_array_equal(both_sides(folder), expected)
        with Index(folder) as index:
            known, held_out = index.held_out_photos, index.held_out.with_link(link)
            log_p, log_q = link.log_probs(held_out.logits.astype(np.float64))
            np.testing.assert_array_equal(known.log_p, log_p)
            np.testing.assert_array_equal(known.log_q, log_q)
            np.testing.assert_array_equal(known.probs, held_out.decision_probs())
            np.testing.assert_array_equal(known.stored.majority, held_out.majority)
            assert [*known.stored.ids] == [*held_out.ids]
    names = {path.name[:7] for path in (folder / "cache").glob("[pq]-*.bin")}
    assert names == {f"{side}-{label + 1:05d}" for side in "pq" for label in range(len(LABELS))}


def test_an_update_prepares_searches_and_appends_new_photos(update, photos, monkeypatch):
    monkeypatch.setattr(LARGE, 1)
    update()
    kept = sorted((update.folder / "cache").glob("[pq]-*.bin"))
    assert len(kept) == 2 * len(LABELS)
    before = {path: path.read_bytes() for path in kept}
    picture(photos / "new.png", 99)
    update()
    for path, data in before.items():
        assert (path.read_bytes()[: len(data)], path.stat().st_size) == (data, len(data) + 4)
    found = both_sides(update.folder)
    with monkeypatch.context() as patch:
        patch.setattr(LARGE, 1 << 16)
        np.testing.assert_array_equal(found, both_sides(update.folder))
    with Index(update.folder) as index:
        index.use(index.spec.model_copy(update={"link": link_to_spec(Softmax())}), None)
    np.testing.assert_allclose(np.exp(both_sides(update.folder)[::2]).sum(0), 1, rtol=1e-5)
    assert not any(path.exists() for path in kept)


def test_a_file_grows_and_a_damaged_one_is_made_anew(tmp_path):
    values = np.random.default_rng(0).normal(size=(CHUNK // 4 + 3, 1)).astype(np.float32)
    for rows in (5, CHUNK // 4 + 1, len(values)):

        def parts(done, rows):
            return np.array_split(values[done:rows], 3)

        found = CacheFiles(tmp_path).grown("a.bin", FLOAT, (rows, 1), parts)
        np.testing.assert_array_equal(found, values[:rows])
    path = tmp_path / "cache" / "a.bin"
    for place in (0, CHUNK - 1, CHUNK, 4 * len(values) - 1):
        data = bytearray(path.read_bytes())
        data[place] ^= 4
        path.write_bytes(data)
        made = []

        def again(done, rows, made=made):
            made.append(done)
            return [values[done:rows]]

        found = CacheFiles(tmp_path).grown("a.bin", FLOAT, values.shape, again)
        np.testing.assert_array_equal(found, values)
        assert made == [0]
