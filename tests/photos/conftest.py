"""A model with held-out predictions; twelve photos with their index; an index of chosen logits."""

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import picture, save_model

from labelwise.photos import update_index
from labelwise.system.progress import Silent


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def photos(tmp_path):
    """Twelve photos in three folders."""
    root = tmp_path / "photos"
    for number in range(12):
        picture(root / ("", "2023", "2024/may")[number % 3] / f"{number}.png", number)
    return root


@pytest.fixture
def update(tmp_path, photos, model):
    """Bring the index up to date, with the photos unless told otherwise."""

    def call(*roots, **options):
        chosen = {"model": model, "watch": Silent(), **options}
        return update_index(tmp_path / "photos.index", roots or [photos], **chosen)

    call.folder = tmp_path / "photos.index"
    return call


@pytest.fixture
def folder(model, tmp_path):
    """The folder of an index of 600 photos, none of which was ever a picture."""
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    return made_index(tmp_path / "photos.index", model, logits)


@pytest.fixture
def index(folder):
    """That index, open until the test ends."""
    return open_index(folder)
