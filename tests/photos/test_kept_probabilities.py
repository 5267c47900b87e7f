"""What an index keeps in its cache, held to the same numbers computed in memory.

The oracle of a damaged, short or forbidden file is the index without a cache; that of the largest
values a full stable sort.
"""

import numpy as np
import pytest
from search_setup import LABELS, picture

from labelwise.links import Sigmoid, Softmax
from labelwise.methods import link_to_spec
from labelwise.photos import Index
from labelwise.photos.database import CHUNK, CacheFiles

LARGE = "labelwise.photos.index.KEPT_FROM"
FLOAT = np.dtype(np.float32)


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(LARGE, 1)


def both_sides(folder):
    with Index(folder) as index:
        odds = [index.odds(label) for label in range(len(LABELS))]
        return np.stack([part for one in odds for part in (one.log_p, one.log_q)])


@pytest.mark.parametrize("link", [Sigmoid(), Softmax()])
def test_kept_probabilities_are_the_computed_ones(update, monkeypatch, link):
    update()
    with Index(update.folder) as index:
        index.use(index.spec.model_copy(update={"link": link_to_spec(link)}), None)
    expected = both_sides(update.folder)
    monkeypatch.setattr(LARGE, 1)
    for _ in range(2):  # written, then mapped
        np.testing.assert_array_equal(both_sides(update.folder), expected)
    names = {path.name[:7] for path in (update.folder / "cache").glob("[pq]-*.bin")}
    assert names == {f"{side}-{label + 1:05d}" for side in "pq" for label in range(len(LABELS))}


def test_an_update_prepares_searches_and_appends_new_photos(update, photos, large, monkeypatch):
    update()
    kept = sorted((update.folder / "cache").glob("[pq]-*.bin"))
    assert len(kept) == 2 * len(LABELS)
    before = {path: path.read_bytes() for path in kept}
    picture(photos / "new.png", 99)
    update()
    for path, data in before.items():
        assert path.read_bytes()[: len(data)] == data
        assert path.stat().st_size == len(data) + 4
    found = both_sides(update.folder)
    monkeypatch.setattr(LARGE, 1 << 16)
    np.testing.assert_array_equal(found, both_sides(update.folder))


def test_a_small_index_keeps_all_labels_in_one_file_that_grows(update, photos, monkeypatch):
    update()
    (kept,) = (update.folder / "cache").glob("labels-*.bin")
    before = kept.read_bytes()
    picture(photos / "new.png", 99)
    update()
    after = kept.read_bytes()
    assert after.startswith(before)
    assert len(after) == len(before) + 4 * 2 * len(LABELS)
    found = both_sides(update.folder)
    monkeypatch.setattr("labelwise.photos.index.ONE_FILE", 0)  # computed anew
    np.testing.assert_array_equal(found, both_sides(update.folder))
    with Index(update.folder) as index:
        index.use(index.spec.model_copy(update={"link": link_to_spec(Softmax())}), None)
    monkeypatch.undo()
    np.testing.assert_allclose(np.exp(both_sides(update.folder)[::2]).sum(0), 1, rtol=1e-5)
    assert not kept.exists()


@pytest.mark.parametrize("link", [Sigmoid(), Softmax()])
def test_known_photos_are_the_predictions_under_the_link_of_the_model(update, link):
    update()
    with Index(update.folder) as index:
        index.use(index.spec.model_copy(update={"link": link_to_spec(link)}), None)
    for _ in range(2):  # computed, then mapped
        with Index(update.folder) as index:
            known, held_out = index.held_out_photos, index.held_out.with_link(link)
            log_p, log_q = link.log_probs(held_out.logits.astype(np.float64))
            np.testing.assert_array_equal(known.log_p, log_p)
            np.testing.assert_array_equal(known.log_q, log_q)
            np.testing.assert_array_equal(known.probs, held_out.decision_probs())
            np.testing.assert_array_equal(known.stored.majority, held_out.majority)
            assert [*known.stored.ids] == [*held_out.ids]
    assert len([*(update.folder / "cache").glob("held-out-*.bin")]) == 1


def parts_of(values):
    def parts(done, rows):
        for row in range(done, rows):
            yield values[row : row + 1]

    return parts


def test_a_file_grows_and_a_damaged_one_is_made_anew(tmp_path):
    values = np.random.default_rng(0).normal(size=(CHUNK // 4 + 3, 1)).astype(np.float32)
    for rows in (5, CHUNK // 4 + 1, len(values)):
        files = CacheFiles(tmp_path)
        parts = parts_of(values) if rows == 5 else lambda done, rows: [values[done:rows]]
        found = files.grown("a.bin", FLOAT, (rows, 1), parts)
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


def test_a_file_may_be_made_of_another(tmp_path):
    files, values = CacheFiles(tmp_path), np.arange(6, dtype=np.float32)[:, None]

    def doubled(done, rows):
        yield 2 * files.grown("a.bin", FLOAT, (6, 1), parts_of(values))[done:rows]

    np.testing.assert_array_equal(files.grown("b.bin", FLOAT, (6, 1), doubled), 2 * values)
