"""What an index says of its library, against libraries drawn like the held-out photos or not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from search_setup import save_model
from typed import run

from labelwise.errors import DataError
from labelwise.links import Sigmoid
from labelwise.photos import Index, likeness_of
from labelwise.photos.shift import evidence_of, sealed
from labelwise.photos.tagging import promised_rule


def logits_of(seed, count, mean=-1.0):
    """Return logits drawn as those of the held-out photos are, unless their mean is another."""
    return np.random.default_rng(seed).normal(mean, 2, (count, 4))


def with_more_dogs():
    """Return logits of photos kept so that dog is three times as frequent, and its share."""
    random, logits = np.random.default_rng(3), logits_of(3, 4000)
    truth = random.random(4000) < Sigmoid()(logits)[:, 2]
    kept = random.random(4000) < np.where(truth, 1.0, 0.12)
    return logits[kept], truth[kept].mean()


def likeness(folder):
    with Index(folder) as index:
        return likeness_of(index)


def test_a_library_drawn_like_the_held_out_photos_is_alike(tmp_path, model):
    found = likeness(made_index(tmp_path / "index", model, logits_of(1, 400)))
    assert found.likeness.outcome == "alike"
    assert found.far < 25
    assert [one.label for one in found.likeness.shares] == ["beach", "cat", "dog", "row"]


def test_other_pictures_are_noticed_and_the_far_ones_named(tmp_path, model):
    logits = logits_of(2, 300, 4.0)
    logits[17] = 60.0
    found = likeness(made_index(tmp_path / "index", model, logits))
    assert found.likeness.outcome == "pictures differ"
    assert found.far_rows[0] == 17
    assert f"{found.far:,} of 300 photos are far from every held-out one" in found.sentence()
    said = run("estimate", tmp_path / "index", "dog").output
    assert "These photos do not look like the held-out ones" in said


def test_more_of_a_label_is_told_from_other_pictures(tmp_path, model):
    logits, share = with_more_dogs()
    found = likeness(made_index(tmp_path / "index", model, logits)).likeness
    assert found.outcome == "shares differ"
    assert found.moved[0].label == "dog"
    assert found.moved[0].now == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize(("count", "mean"), [(20, -1.0), (300, 4.0)])
def test_photos_of_validation_are_not_called_held_out(tmp_path, model, count, mean):
    """They fitted the link. Oracle: the name of the split."""
    folder = made_index(tmp_path / "index", model, logits_of(1, count, mean))
    with Index(folder) as index:
        facts = index.facts.model_copy(update={"held_out": "val"})
        with index.store.database.rewriting("index.json"):
            facts.save(folder / "index.json")
    for verb in (("search", str(folder), "dog", "-n", "1"), ("estimate", str(folder), "dog")):
        said = " ".join(run(*verb).output.split())
        assert "the validation ones" in said
        assert "held-out" not in said


def test_the_comparison_is_kept_until_the_library_or_the_model_changes(tmp_path, model):
    folder = made_index(tmp_path / "index", model, logits_of(1, 400))
    found = likeness(folder)
    path = folder / "likeness.json"
    path.write_text(json.dumps(sealed(replace(found, far=333))))
    assert likeness(folder).far == 333  # read, not computed
    path.write_text(json.dumps(sealed(replace(found, far=333, rows=300))))
    assert likeness(folder) == found
    with Index(folder) as index:
        index.use(index.spec, index.held_out)
        assert not path.exists()


def test_a_damaged_comparison_is_made_anew(tmp_path, model):
    folder = made_index(tmp_path / "index", model, logits_of(1, 400))
    found = likeness(folder)
    path = folder / "likeness.json"
    whole = path.read_text()
    for damaged in (whole.replace(f'"far": {found.far}', '"far": 333'), "{"):
        assert damaged != whole
        path.write_text(damaged)
        assert likeness(folder) == found
        assert path.read_text() == whole


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


def test_indexing_says_that_photos_differ(update, photos):
    """Sixty photos of noise, and a model whose held-out logits come from elsewhere."""
    from search_setup import picture

    for number in range(12, 62):
        picture(photos / f"{number}.png", number)
    changes = update()
    with Index(update.folder) as index:
        assert likeness_of(index).likeness.outcome == "pictures differ"
    assert "do not look like the held-out ones" in " ".join(changes.notes)


def test_no_tag_is_guaranteed_where_photos_differ_or_were_not_compared(tmp_path, model):
    with Index(made_index(tmp_path / "alike", model, logits_of(1, 400))) as index:
        assert len(evidence_of(index).ids) == 400
        assert promised_rule(index, 0.4, 0.95).promises
    for name, logits, why in (
        ("other", logits_of(2, 300, 4.0), "do not look like the held-out ones"),
        ("few", logits_of(1, 49), "it takes 50 photos, and there are 49"),
        ("more dogs", with_more_dogs()[0], "Labels are more or less frequent"),
    ):
        folder = made_index(tmp_path / name, model, logits)
        with Index(folder) as index, pytest.raises(DataError, match=why):
            promised_rule(index, 0.4, 0.95)
