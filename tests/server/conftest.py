"""A small model, a library of small photos, and real servers on the loopback address."""

import pytest
from browser_setup import launched
from patience import PATIENCE
from search_setup import picture, save_model
from web_setup import TOKEN, running

from labelwise.base.progress import Silent
from labelwise.photos import update_index


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a model with held-out predictions."""
    return save_model(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="session")
def library(tmp_path_factory, run):
    """An index that tests only read."""
    home = tmp_path_factory.mktemp("library")
    for number in range(24):
        picture(home / "photos" / ("", "2023")[number % 2] / f"{number}.png", number)
    update_index(home / "photos.index", [home / "photos"], model=run, watch=Silent())
    return home / "photos.index"


@pytest.fixture
def own_library(tmp_path, run):
    """An index of twelve photos that a test may change; its photos lie beside it."""
    for number in range(12):
        picture(tmp_path / "photos" / f"{number}.png", 100 + number)
    folder = tmp_path / "photos.index"
    update_index(folder, [tmp_path / "photos"], model=run, watch=Silent())
    return folder


@pytest.fixture(scope="module")
def server(run, library):
    """A server with an index, for tests that leave it as it is."""
    with running(run, library) as client:
        yield client


@pytest.fixture(scope="module")
def bare(run):
    """A server without an index that opens pictures in threads, takes little and wants a token."""
    options = {"decoders": 0, "token": TOKEN, "max_body": 100_000, "max_files": 3}
    with running(run, **options) as client:
        yield client


@pytest.fixture
def own(run, own_library):
    """A server with an index that a test may change."""
    with running(run, own_library, decoders=0) as client:
        client.library = own_library
        yield client


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser):
    """Return a function that opens the page of a server; what it complains of is kept."""
    contexts = []

    def open_page(server, path="/", **options):
        context = browser.new_context(**{"reduced_motion": "reduce", **options})
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.heard = []
        own = (server.address, "blob:")
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("dialog", lambda dialog: page.heard.append(dialog.message))
        page.on("request", lambda r: r.url.startswith(own) or page.heard.append(r.url))
        page.goto(server.address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
