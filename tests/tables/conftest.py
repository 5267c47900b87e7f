"""The fixture that dataset folders are written with."""

import pytest
from sample_pictures import Folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)
