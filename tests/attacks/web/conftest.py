"""A small model behind real servers on the loopback address, to be attacked."""

import pytest
from search_setup import picture, save_model
from web_setup import TOKEN, running

from labelwise.photos import update_index
from labelwise.system.progress import Silent


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("attacked") / "tiny")


@pytest.fixture(scope="session")
def library(tmp_path_factory, run):
    root = tmp_path_factory.mktemp("attacked_library")
    for number in range(8):
        picture(root / "photos" / f"{number}.png", number)
    update_index(root / "photos.index", [root / "photos"], model=run, watch=Silent())
    return root / "photos.index"


@pytest.fixture(scope="module")
def protected(run):
    """A server that wants a token, attacked by those who have none."""
    with running(run, decoders=0, token=TOKEN) as client:
        yield client


@pytest.fixture(scope="module")
def server(run, library):
    with running(run, library) as client:
        yield client
