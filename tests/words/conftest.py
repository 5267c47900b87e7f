import pytest
from words_setup import save_words_model


@pytest.fixture(scope="session")
def words_model(tmp_path_factory):
    return save_words_model(tmp_path_factory.mktemp("words-model"))
