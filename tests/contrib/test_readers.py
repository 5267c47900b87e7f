"""Readers by entry point. Oracle: packages as pip would install them."""

import pytest

from labelwise.errors import DataError
from labelwise.tables import load
from labelwise.tables.load import readers

MODULE = """
from labelwise.tables import LabelTable, Reader, as_images

def read(path, *, shout: bool = False):
    words = path.read_text().split()
    names = [word.upper() if shout else word for word in sorted(set(words))]
    labels = [[word.lower() == name.lower() for name in names] for word in words]
    return LabelTable.from_arrays(names, as_images([b""] * len(words)), labels)

BIRDS = Reader("birds", read, "one word a line", (".birds",), ("*.birds",))
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with readers."""

    def install(points, module=MODULE):
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "birdwatch.py").write_text(module)
        info = tmp_path / "site" / "birdwatch-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: birdwatch\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[labelwise.readers]\n{points}\n")
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.delitem(__import__("sys").modules, "birdwatch", raising=False)
        readers.cache_clear()

    yield install
    readers.cache_clear()


def test_a_package_brings_a_reader(installed, tmp_path):
    installed("birds = birdwatch:BIRDS")
    (tmp_path / "list.birds").write_text("owl\njay\nowl\n")
    assert load(tmp_path / "list.birds").space.names == ("jay", "owl")
    assert load(f"birds:{tmp_path / 'list.birds'}", shout=True).space.names == ("JAY", "OWL")
    assert list(readers())[-2:] == ["birds", "folder"]
    before = readers()["coco"]  # no package takes the name of ours
    installed("coco = birdwatch:BIRDS\ncvat = birdwatch:BIRDS")
    assert readers()["coco"] == before
    assert readers()["cvat"].suffixes == (".xml",)


@pytest.mark.parametrize(
    ("points", "module", "reason"),
    [
        ("birds = birdwatch:GONE", MODULE, "has no attribute 'GONE'"),
        ("birds = birdwatch:BIRDS", "raise RuntimeError('no binoculars')", "no binoculars"),
        (
            "birds = birdwatch:read",
            MODULE,
            "it is a function, and must be a labelwise.tables.Reader",
        ),
    ],
)
def test_a_reader_that_cannot_be_loaded_disturbs_no_other(
    installed, tmp_path, points, module, reason
):
    installed(points, module)
    (tmp_path / "t.csv").write_text("path,labels\na.jpg,x\n")
    assert len(load(tmp_path / "t.csv", check_files=False)) == 1
    with pytest.raises(DataError, match=f"the reader 'birds' .* cannot be used: .*{reason}"):
        load(f"birds:{tmp_path / 't.csv'}")
