"""A library is compared by embeddings too. Oracle: how photos were made; logits tell nothing."""

import numpy as np
import pytest
import torch
from PIL import Image
from search_setup import LABELS

from labelwise.decide import Threshold
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.networks.backbones import create_backbone
from labelwise.photos import Index, likeness_of, update_index
from labelwise.photos.shift import PICTURES_FILE, HeldOutPictures
from labelwise.predictions import Predictions
from labelwise.system.progress import Silent
from labelwise.types import LabelSpace

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
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a model whose head says the same of all photos."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    backbone = create_backbone("small-cnn", image_size=16)
    spec = HeadSpec("linear", {})
    head = spec.make(backbone.channels, len(LABELS))
    for values in head.parameters():
        torch.nn.init.zeros_(values)
    model = Model(backbone, head).eval()
    Predictor(model, spec, LabelSpace(LABELS), Sigmoid(), Threshold(0.5), "bce").save(
        folder / "run"
    )
    lines = ["path,labels,split"]
    for row in range(TRAIN + TEST):
        photo(folder / "own" / f"{row}.png", row)
        lines.append(f"{row}.png,{LABELS[row % 4]},{'train' if row < TRAIN else 'test'}")
    (folder / "own" / "t.csv").write_text("\n".join(lines) + "\n")
    (folder / "run" / "settings.yaml").write_text(f"data: {folder / 'own' / 't.csv'}\n")
    random = np.random.default_rng(0)
    for split, rows in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        labels = torch.from_numpy((random.random((len(rows), 4)) < 0.5).astype("f4"))
        ids = [f"{row}.png" for row in rows]
        Predictions(ids, torch.zeros(len(rows), 4), labels, None, LABELS, split, Sigmoid()).save(
            folder / "run" / "predictions" / f"{split}.parquet"
        )
    return folder / "run"


def indexed(folder, run, photos):
    update_index(folder, [photos], model=run, watch=Silent())
    with Index(folder) as index:
        return likeness_of(index)


def test_pictures_of_the_same_kind_are_alike_and_copies_are_said(tmp_path, run):
    photos = tmp_path / "photos"
    for row in range(LIBRARY):
        photo(photos / f"{row}.png", 1000 + row)
    for row in (TRAIN, TRAIN + 1):  # held-out photos in another size
        with Image.open(run.parent / "own" / f"{row}.png") as own:
            own.resize((64, 64)).save(photos / f"copy-{row}.png")
    found = indexed(tmp_path / "index", run, photos)
    assert (found.likeness.outcome, found.embedded, found.copies) == ("alike", TEST, 2)
    assert "2 of 62 photos are near copies of held-out ones (70 compared)" in found.sentence()


def test_other_pictures_differ_though_the_model_says_the_same_of_them(tmp_path, run):
    photos = tmp_path / "photos"
    for row in range(LIBRARY):
        photo(photos / f"{row}.png", 2000 + row, stripes=True)
    found = indexed(tmp_path / "index", run, photos)
    assert found.likeness.outcome == "pictures differ"
    assert found.copies == 0
    with Index(tmp_path / "index") as index:
        (index.folder / "likeness.json").unlink()
        (index.folder / PICTURES_FILE).unlink()
        index.__dict__.pop("held_out_pictures", None)
        assert likeness_of(index).likeness.outcome == "alike"  # by logits alone


def test_photos_that_were_fitted_set_the_projection(tmp_path, run):
    """Neither side of the comparison does; the map is that of the fitted photos' features."""
    from labelwise.photos.embeddings import Projection

    photo(tmp_path / "photos" / "a.png", 5)
    indexed(tmp_path / "index", run, tmp_path / "photos")
    kept = HeldOutPictures.load(run / PICTURES_FILE)
    assert sorted(kept.rows.tolist()) == list(range(TEST))
    assert kept.fitted.shape == (TRAIN, kept.features.shape[1])
    with Index(tmp_path / "index") as index:
        expected = Projection.fitted(kept.fitted.astype(np.float32))
        np.testing.assert_array_equal(index.embeddings.projection.numbers, expected.numbers)


def test_what_is_kept_is_not_made_again_and_damage_is_noticed(tmp_path, run):
    folder, predictor = RunFolder(run), Predictor.load(run)
    weights = folder.spec.weights_sha256
    made = HeldOutPictures.of_run(folder, weights, predictor, Silent())
    kept = HeldOutPictures.of_run(folder, weights, None, Silent())
    assert kept.rows.tolist() == made.rows.tolist()
    made.save(tmp_path / "kept")
    whole = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert HeldOutPictures.load(tmp_path / "kept") is None
    assert HeldOutPictures.load(tmp_path / "nothing") is None


def test_a_run_whose_photos_are_gone_is_compared_by_its_logits(tmp_path, run):
    import shutil

    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    (moved / PICTURES_FILE).unlink(missing_ok=True)
    (moved / "settings.yaml").write_text("data: /nowhere/t.csv\n")
    for row in range(LIBRARY):
        photo(tmp_path / "photos" / f"{row}.png", 3000 + row, stripes=True)
    found = indexed(tmp_path / "index", moved, tmp_path / "photos")
    assert (found.likeness.outcome, found.embedded) == ("alike", 0)
