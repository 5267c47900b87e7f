"""The fixture that dataset folders are written with."""

import pytest
from pictures import Folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)
