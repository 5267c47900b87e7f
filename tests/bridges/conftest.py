"""What bridges share: a model of random weights, eight photos and their index, which stay as they
are; and packages of others, without which tests are skipped."""

import pytest
from search_setup import picture, save_model

from labelwise.base.progress import Silent
from labelwise.photos import update_index


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    model = save_model(folder / "tiny")
    for number in range(8):
        picture(folder / "photos" / f"{number}.png", number)
    update_index(folder / "index", [str(folder / "photos")], model=model, watch=Silent())
    return folder


@pytest.fixture(scope="session")
def model(library):
    return library / "tiny"


@pytest.fixture(scope="session")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")
