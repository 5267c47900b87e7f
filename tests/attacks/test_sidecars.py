"""Side-cars that a stranger wrote: read in linear time, never waited for, never believed.

Held to processor time at n and 16 n bytes, to memory, and to xml.etree, which reads what is left.
"""

import gc
import os
import random
import time

import pytest
from sidecar_samples import DC, drawn_sidecar, sidecar, subjects

from labelwise.errors import DataError
from labelwise.photos.store import Store
from labelwise.photos.tagging import undo_sidecar, write_sidecar
from labelwise.photos.xmp import RDF, Keyword, noted, tagged, untagged

DOG = [Keyword("dog", 0.9, "m", "2026-01-01")]
NOTE = (
    '<rdf:Description rdf:about="" xmlns:lw="urn:labelwise:xmp:1.0:"><lw:tags><rdf:Bag>%s'
    "</rdf:Bag></lw:tags></rdf:Description>"
)


@pytest.fixture
def store(tmp_path):
    made = Store.create(tmp_path / "photos.index", ("cat", "dog"))
    yield made
    made.close()


def around(inner, keywords="", description=""):
    """Return a side-car with something strange in it."""
    return (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}">'
        f'<rdf:Description rdf:about="" xmlns:dc="{DC}"><dc:subject><rdf:Bag>{keywords}</rdf:Bag>'
        f"</dc:subject><dc:title>{inner}</dc:title></rdf:Description>{description}"
        "</rdf:RDF></x:xmpmeta>"
    ).encode()


def notes(count):
    """Return so many notes of ours, of keywords that are all there."""
    names = [f"keyword {n}" for n in range(count)]
    items = "".join(f"<rdf:li>{name}</rdf:li>" for name in names)
    claims = "".join(f'<rdf:li lw:label="{name}" lw:dc="{name}"/>' for name in names)
    return around("", items, NOTE % claims)


STRANGE = {
    "newlines": lambda n: around("\n" * n),
    "entities": lambda n: around("&amp;" * (n // 5)),
    "empty elements": lambda n: around(("<a/>" + 12 * " ") * (n // 16)),
    "empty keywords": lambda n: around("", ("<rdf:li/>" + 18 * " ") * (n // 27)),
    "long tags": lambda n: around(f'<a b="{">" * n}"/>'),
    "attributes": lambda n: around("<a " + " ".join(f'b{i}=""' for i in range(n // 8)) + "/>"),
    "white space": lambda n: around("", (" " * 99 + "<rdf:li>x</rdf:li>") * (n // 117)),
    "notes": lambda n: notes(n // 100),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_reading_takes_time_linear_in_the_size(kind):
    def seconds(data):
        gc.disable()  # which looks at what other tests hold, too
        began = time.process_time()
        after = tagged(data, DOG, noted(data))
        untagged(after, noted(after))
        taken = time.process_time() - began
        gc.enable()
        return taken

    # Sixteen times the bytes: sixteen times the work, where a quadratic reader has 256 times.
    small, large = STRANGE[kind](15_625), STRANGE[kind](250_000)
    most = 64 * min(seconds(small) for _ in range(4)) + 0.1
    assert any(seconds(large) < most for _ in range(3))  # once is enough


def test_a_pipe_or_a_device_named_like_a_sidecar_is_left_alone(store, tmp_path):
    os.mkfifo(tmp_path / "a.jpg.xmp")
    (tmp_path / "b.jpg.xmp").symlink_to("/dev/zero")
    (tmp_path / "c.jpg.xmp").mkdir()
    for name, reason in (("a", "device, pipe"), ("b", "device, pipe"), ("c", "irectory|device")):
        path = str(tmp_path / f"{name}.jpg.xmp")
        for outcome in (write_sidecar(store, path, DOG), undo_sidecar(store, path)):
            assert outcome.state == "left alone"
            assert any(part in outcome.reason for part in reason.split("|")), outcome.reason
    assert (tmp_path / "b.jpg.xmp").is_symlink()


def test_gigabytes_and_billions_of_laughs_are_refused(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    with path.open("wb") as stream:
        stream.truncate(8 << 30)
    outcome = write_sidecar(store, str(path), DOG)
    assert outcome.state == "left alone"
    assert "at most 4,194,304 bytes, got 8,589,934,592" in outcome.reason
    bomb = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + around("&b;")
    with pytest.raises(DataError, match="document type"):
        tagged(bomb, DOG)


def forged(data, *labels):
    """Return a side-car with a note that calls another person's keywords ours."""
    lists = "".join(
        f'<rdf:li lw:label="{one}" lw:dc="{one}" lw:lr="{one}" lw:digiKam="{one}"/>'
        for one in labels
    )
    return data.replace(b"</rdf:RDF>", (NOTE % lists).encode() + b"</rdf:RDF>")


@pytest.mark.parametrize("tagged_before", [False, True])
def test_a_forged_note_deletes_no_keyword(store, tmp_path, tagged_before):
    path = tmp_path / "a.jpg.xmp"
    path.write_bytes(sidecar("lightroom", {("dc", "subject"): ["grandma"]}, random.Random(0)))
    if tagged_before:
        assert write_sidecar(store, str(path), DOG).state == "written"
    path.write_bytes(forged(path.read_bytes(), "grandma"))
    assert write_sidecar(store, str(path), [Keyword("cat", 0.9, "m", "2026")]).state == "written"
    assert subjects(path.read_bytes()) == ["grandma", "cat"]
    path.write_bytes(forged(path.read_bytes(), "grandma"))
    assert undo_sidecar(store, str(path)).state == "undone"
    assert subjects(path.read_bytes()) == ["grandma"]


def test_keywords_of_another_index_go_only_where_they_are_adopted(store, tmp_path):
    path, before = tmp_path / "a.jpg.xmp", subjects(drawn_sidecar(3))
    for adopt, other in ((False, ["dog"]), (True, [])):
        path.write_bytes(tagged(drawn_sidecar(3), DOG))
        write_sidecar(store, str(path), [Keyword("cat", 0.9, "m", "2026")], adopt=adopt)
        assert subjects(path.read_bytes()) == [*before, *other, "cat"]
        undo_sidecar(store, str(path))
