"""A model with held-out predictions; twelve photos with their index; an index of chosen logits."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from search_setup import save_model, twelve_photos

from labelwise.base.progress import Silent
from labelwise.photos import update_index


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def photos(tmp_path):
    return twelve_photos(tmp_path / "photos")


@pytest.fixture
def update(tmp_path, photos, model):
    """Bring the index up to date, with the photos unless told otherwise."""

    def call(*roots, **options):
        chosen = {"model": model, "watch": Silent(), **options}
        return update_index(tmp_path / "photos.index", roots or [photos], **chosen)

    call.folder = tmp_path / "photos.index"
    return call


@pytest.fixture(scope="session")
def made(model, tmp_path_factory):
    """Indexes that tests copy: of 600 photos that never were pictures, and of twelve that are."""
    home = tmp_path_factory.mktemp("made")
    made_index(home / "logits", model, np.random.default_rng(1).normal(-1, 2, (600, 4)))
    photos = twelve_photos(home / "twelve")
    update_index(home / "pictures", [photos], model=model, watch=Silent())
    return home


@pytest.fixture
def folder(made, tmp_path):
    """The folder of an index of 600 photos, none of which was ever a picture."""
    return Path(shutil.copytree(made / "logits", tmp_path / "photos.index"))


@pytest.fixture
def index(folder):
    """That index, open until the test ends."""
    return open_index(folder)


@pytest.fixture
def pictured(made, tmp_path):
    """An index of twelve photos that tests leave alone, open until the test ends."""
    return open_index(Path(shutil.copytree(made / "pictures", tmp_path / "pictures.index")))
