"""A model with held-out predictions, twelve photos, and their index."""

import pytest
from search_setup import picture, save_model

from labelwise.search import update_index
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
