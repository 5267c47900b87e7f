"""Oracle: the score of every row by logarithms in 64 bits, and a full stable sort of it.

What an index keeps in its cache has the same numbers computed in memory for an oracle; a damaged,
short or forbidden file the index without a cache.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_setup import LABELS, picture

from labelwise.learn.methods import link_to_spec
from labelwise.links import Sigmoid, Softmax
from labelwise.photos import Index, topk
from labelwise.photos.database import CHUNK, CacheFiles
from labelwise.photos.embeddings import Projection, farthest_rows
from labelwise.photos.topk import LabelOdds, ranking_of
from labelwise.queries import Query, bind
from labelwise.types import LabelSpace

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
