"""Keywords in side-cars, in photos, and written into them.

Oracles: the bytes before, pixels as Pillow decodes them, an independent reading of what was written
(ElementTree in sidecar_samples, exiftool where it is installed).
"""

import json
import os
import random
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_indexes import open_index
from PIL import Image, PngImagePlugin, TiffImagePlugin
from sidecar_samples import DC, DIGIKAM, LR, drawn_sidecar, keywords_in, subjects
from typed import run

from labelwise.decide import Threshold
from labelwise.errors import DataError
from labelwise.photos import tagging
from labelwise.photos.metadata import read_photo_metadata, sidecar_of
from labelwise.photos.tagging import (
    WrittenFiles,
    apply_patch,
    embed_tags,
    make_patch,
    promised_rule,
    raw_partners,
    tags_of,
    undo_embedded,
    undo_sidecar,
    write_sidecar,
)
from labelwise.photos.xmp import EMPTY, RDF, Keyword, noted, tagged, untagged
from labelwise.photos.xmp import OURS as LABELWISE


@pytest.fixture
def store(folder):
    return open_index(folder).store


@pytest.mark.parametrize("seed", range(3))
def test_undo_puts_back_every_byte(store, tmp_path, seed):
    path = tmp_path / "a.jpg.xmp"
    before = drawn_sidecar(seed)
    path.write_bytes(before)
    path.chmod(0o640)
    assert write_sidecar(store, str(path), DOG).state == "written"
    assert "dog" in subjects(path.read_bytes())
    assert path.stat().st_mode & 0o777 == 0o640
    assert write_sidecar(store, str(path), DOG).state == "unchanged"
    first = path.read_bytes()
    assert undo_sidecar(store, str(path)).state == "undone"
    assert path.read_bytes() == before
    write_sidecar(store, str(path), DOG)
    assert path.read_bytes() == first


def test_the_same_keywords_of_another_day_leave_the_sidecar_as_it_is(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    write_sidecar(store, str(path), DOG)
    later = [replace(one, date="2031-01-01T00:00:00+00:00") for one in DOG]
    assert write_sidecar(store, str(path), later).state == "unchanged"
    assert b"2031" not in path.read_bytes()
    surer = [replace(one, probability=0.99) for one in later]
    assert write_sidecar(store, str(path), surer).state == "written"
    assert b"2031" in path.read_bytes()


def test_a_sidecar_that_was_not_there_is_removed_again(store, tmp_path):
    path = str(tmp_path / "a.jpg.xmp")
    assert write_sidecar(store, path, DOG, dry_run=True).state == "written"
    assert not os.path.exists(path)
    write_sidecar(store, path, DOG)
    assert WrittenFiles(store, "sidecars").paths() == [path]
    undo_sidecar(store, path)
    assert not os.path.exists(path)
    assert WrittenFiles(store, "sidecars").paths() == []


def test_what_others_changed_since_stays(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    write_sidecar(store, str(path), DOG)
    path.write_bytes(path.read_bytes().replace(b"<rdf:li>dog", b"<rdf:li>Anna</rdf:li><rdf:li>dog"))
    assert undo_sidecar(store, str(path)).state == "undone"
    assert subjects(path.read_bytes()) == ["Anna"]


def test_what_cannot_be_edited_is_left_alone_and_named(store, tmp_path):
    path = tmp_path / "a.jpg.xmp"
    path.write_bytes(b"<x:xmpmeta broken")
    outcome = write_sidecar(store, str(path), DOG)
    assert (outcome.state, "well-formed" in outcome.reason) == ("left alone", True)
    assert path.read_bytes() == b"<x:xmpmeta broken"


def test_a_sidecar_that_changes_while_it_is_edited_is_left_alone(store, tmp_path, monkeypatch):
    path, real = tmp_path / "a.jpg.xmp", tagging.tagged
    path.write_bytes(drawn_sidecar(1))

    def slow(data, keywords, ours):
        path.write_bytes(drawn_sidecar(2))
        return real(data, keywords, ours)

    monkeypatch.setattr(tagging, "tagged", slow)
    outcome = write_sidecar(store, str(path), DOG)
    assert (outcome.state, "just now" in outcome.reason) == ("left alone", True)
    assert path.read_bytes() == drawn_sidecar(2)


def test_the_raw_file_of_a_pair_is_its_partner(tmp_path):
    for name in ("d.JPG", "d.CR2"):
        (tmp_path / name).touch()
    assert raw_partners(str(tmp_path / "d.JPG")) == [str(tmp_path / "d.CR2")]
    assert raw_partners(str(tmp_path / "d.CR2")) == []


def test_tags_are_the_sets_of_the_rule(index):
    with index.store.transaction():
        index.store.mark_missing(1, "", ["5.jpg"])
    index.correct(3, {"dog": "present", "beach": "absent"})
    sets, tags = index.sets(slice(None), Threshold(0.4)), dict(tags_of(index, Threshold(0.4)))
    assert [*tags] == [row for row in range(600) if row != 5]
    for row, keywords in tags.items():
        names = [name for name, given in zip(index.space.names, sets[row], strict=True) if given]
        assert sorted(one.label for one in keywords) == sorted(names)
        chances = [one.probability for one in keywords]
        assert chances == sorted(chances, reverse=True)
    assert tags[3][0].label == "dog"
    assert "beach" not in [one.label for one in tags[3]]


def test_tags_can_be_promised_of_each_label_and_others_are_not_given(index):
    made = promised_rule(index, 0.4, 0.8, per_label=True)
    names, photos = index.space.names, index.held_out
    promised = {name for promise in made.promises for name in promise.labels}
    sets, present = made.rule(photos.link.decision_probs(photos.logits)), photos.labels == 1
    given = {name for name, column in zip(names, sets.T, strict=True) if column.any()}
    assert set() < given <= promised
    for promise in made.promises:
        columns = [names.index(name) for name in promise.labels]
        chosen = sets[:, columns]
        assert (chosen & present[:, columns]).sum() >= 0.6 * chosen.sum()
    with pytest.raises(DataError, match="cannot be promised"):
        promised_rule(index, 0.001, 0.999, per_label=True)


@pytest.mark.parametrize(
    ("names", "photo", "expected"),
    [
        (["a.jpg"], "a.jpg", "a.jpg.xmp"),
        (["b.jpg", "B.XMP"], "b.jpg", "B.XMP"),
        (["c.jpg", "c.jpg.xmp", "c.xmp"], "c.jpg", "c.jpg.xmp"),
        (["a.jpg", "A.JPG.XMP"], "a.jpg", "A.JPG.XMP"),
        (["IMG.JPG", "img.xmp"], "IMG.JPG", "img.xmp"),
        (["a.jpg", "A.jpg", "A.jpg.xmp"], "a.jpg", "a.jpg.xmp"),
        (["a.jpg", "A.jpg", "A.jpg.xmp"], "A.jpg", "A.jpg.xmp"),
        (["a.jpg", "A.png", "A.xmp"], "a.jpg", "a.jpg.xmp"),
        (["a.jpg", "a.jpg.xmp", "A.JPG.xmp"], "a.jpg", "a.jpg.xmp"),
        (["a.jpg", "a.cr2", "a.xmp"], "a.jpg", "a.xmp"),
    ],
)
def test_a_photo_finds_its_own_sidecar_whatever_the_case_of_its_name(
    tmp_path, names, photo, expected
):
    for name in names:
        (tmp_path / name).touch()
    assert sidecar_of(str(tmp_path / photo)) == str(tmp_path / expected)


def test_ctrl_c_says_how_to_go_on_and_what_was_written_can_be_undone(update, photos, monkeypatch):
    update()
    writing, before = write_sidecar, sorted(photos.rglob("*"))

    def until_the_third(*given, **options):
        if len(list(photos.rglob("*.xmp"))) == 2:
            raise KeyboardInterrupt
        return writing(*given, **options)

    monkeypatch.setattr("labelwise.photos.tagging.write_sidecar", until_the_third)
    words = ["tag", str(update.folder), "--xmp"]
    stopped = run(*words)
    assert stopped.exit_code == 130
    said = f"stopped; run the same command again to go on, {update.folder} keeps what is done"
    assert said in " ".join(stopped.output.split())
    monkeypatch.setattr("labelwise.photos.tagging.write_sidecar", writing)
    assert "2 unchanged" in run(*words).output
    run("tag", update.folder, "--undo")
    assert sorted(photos.rglob("*")) == before


DOG = [Keyword("dog", 0.9, "m", "2026-01-01", ("animal",))]
CAT = [Keyword("cat", 0.8, "m", "2026-01-01")]
PACKET = tagged(None, [Keyword("grandma", 1.0, "m", "")]).replace(b"labelwise", b"othertool")
needs_exiftool = pytest.mark.skipif(
    shutil.which("exiftool") is None, reason="exiftool is not installed"
)


def pixels():
    return np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)


def photo(path, packet=PACKET):
    """Write a picture with an XMP packet in it, or without one."""
    options = {}
    if packet is not None and path.suffix == ".jpg":
        options["xmp"] = packet
    elif packet is not None and path.suffix == ".png":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", packet.decode())
    elif packet is not None:
        options["tiffinfo"] = facts = TiffImagePlugin.ImageFileDirectory_v2()
        facts[700], facts.tagtype[700] = packet, 1
    Image.fromarray(pixels()).save(path, **options)
    return path


def with_iptc(path, words):
    """Put IPTC keywords into a JPEG as Photoshop does: 8BIM resource 0x0404 in APP13."""
    records = b"\x1c\x01\x5a\x00\x03\x1b%G"
    for raw in map(str.encode, words):
        records += b"\x1c\x02\x19" + struct.pack(">H", len(raw)) + raw
    block = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(records)) + records
    body = b"Photoshop 3.0\0" + block + b"\0" * (len(block) % 2)
    content = path.read_bytes()
    segment = b"\xff\xed" + struct.pack(">H", len(body) + 2) + body
    path.write_bytes(content[:2] + segment + content[2:])


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif"])
def test_a_new_sidecar_takes_over_what_the_photo_holds(store, tmp_path, name):
    """Programs for which the side-car counts find grandma in it; undo removes it again."""
    place, kept = photo(tmp_path / name), tmp_path / f"{name}.xmp"
    before, path = place.read_bytes(), sidecar_of(str(place))
    assert write_sidecar(store, path, DOG, photo=str(place)).state == "written"
    first = kept.read_bytes()
    found = keywords_in(first)
    assert set(found["subject"]) == {"grandma", "dog"}
    assert set(found["hierarchicalSubject"]) == {"grandma", "animal|dog"}
    assert write_sidecar(store, path, CAT, photo=str(place)).state == "written"
    assert set(subjects(kept.read_bytes())) == {"grandma", "cat"}
    undo_sidecar(store, path)
    assert (place.read_bytes(), kept.exists()) == (before, False)
    write_sidecar(store, path, DOG, photo=str(place))
    assert kept.read_bytes() == first


def test_the_other_places_of_keywords_are_taken_over_too(store, tmp_path):
    place, windows, exif = photo(tmp_path / "a.jpg"), tmp_path / "b.jpg", Image.Exif()
    with_iptc(place, ["grandma", "Zürich <3"])
    exif[0x9C9E] = "beach;sun & sea".encode("utf-16-le") + b"\0\0"
    Image.fromarray(pixels()).save(windows, exif=exif)
    assert read_photo_metadata(place).words == ("grandma", "Zürich <3")
    for one in (place, windows):
        write_sidecar(store, sidecar_of(str(one)), DOG, photo=str(one))
    assert subjects((tmp_path / "a.jpg.xmp").read_bytes()) == ["grandma", "Zürich <3", "dog"]
    assert subjects((tmp_path / "b.jpg.xmp").read_bytes()) == ["beach", "sun & sea", "dog"]


@pytest.mark.parametrize("packet", [b"<x:xmpmeta broken", b"<a/>", b"\xff\xfe<"])
def test_a_packet_that_cannot_be_read_is_not_taken_over(store, tmp_path, packet):
    place = photo(tmp_path / "a.jpg", packet)
    assert write_sidecar(store, sidecar_of(str(place)), DOG, photo=str(place)).state == "written"
    assert subjects((tmp_path / "a.jpg.xmp").read_bytes()) == ["dog"]


def test_a_sidecar_is_begun_for_tags_alone_and_not_anew(store, tmp_path):
    place, path = photo(tmp_path / "a.jpg"), tmp_path / "a.jpg.xmp"
    assert write_sidecar(store, str(path), [], photo=str(place)).state == "unchanged"
    assert not path.exists()
    path.write_bytes(before := drawn_sidecar(3))
    write_sidecar(store, str(path), DOG, photo=str(place))
    assert sorted(subjects(path.read_bytes())) == sorted([*subjects(before), "dog"])


def test_a_patch_gives_back_the_bytes_before():
    """Bytes put in, taken out and moved; that of something put in is small."""
    draw = random.Random(0)
    for size in (0, 1, 5000, 300_000):
        before = draw.randbytes(size)
        for now in (before, before[1:], before + b"x", before[size // 3 :] + before, b"", b"aaa"):
            assert apply_patch(now, make_patch(now, before)) == before
        inserted = before[:100] + b"new" * 500 + before[100:]
        assert len(make_patch(inserted, before)) < 200


def listed(path):
    """Return the keywords of a file as exiftool lists them."""
    words = ["exiftool", "-j", "-Subject", "-HierarchicalSubject", str(path)]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]
    return {key: found[key] if isinstance(found[key], list) else [found[key]] for key in found}


@needs_exiftool
@pytest.mark.parametrize(
    ("name", "packet"), [("a.jpg", None), ("a.jpg", PACKET), ("a.png", PACKET), ("a.tif", PACKET)]
)
def test_keywords_are_written_into_photos_and_taken_out_to_the_byte(store, tmp_path, name, packet):
    place = photo(tmp_path / name, packet)
    place.chmod(0o640)
    before = place.read_bytes()
    with Image.open(place) as image:
        decoded = np.asarray(image)
    mine = ["grandma"] if packet else []
    assert embed_tags(store, str(place), DOG, dry_run=True).state == "written"
    assert place.read_bytes() == before
    assert embed_tags(store, str(place), DOG).state == "written"
    first, shown = place.read_bytes(), listed(place)
    assert shown["Subject"] == [*mine, "dog"]
    assert shown["HierarchicalSubject"] == [*mine, "animal|dog"]
    with Image.open(place) as image:
        assert np.array_equal(np.asarray(image), decoded)
    assert place.stat().st_mode & 0o777 == 0o640
    assert embed_tags(store, str(place), DOG).state == "unchanged"
    assert embed_tags(store, str(place), CAT).state == "written"
    assert listed(place)["Subject"] == [*mine, "cat"]
    assert WrittenFiles(store, "embedded").paths() == [str(place)]
    assert undo_embedded(store, str(place)).state == "undone"
    assert place.read_bytes() == before
    assert WrittenFiles(store, "embedded").paths() == []
    assert undo_embedded(store, str(place)).reason == "not ours"
    embed_tags(store, str(place), DOG)
    assert place.read_bytes() == first


@needs_exiftool
def test_only_our_keywords_leave_a_photo_that_others_changed_since(store, tmp_path):
    place = photo(tmp_path / "a.jpg")
    embed_tags(store, str(place), DOG)
    words = ["exiftool", "-q", "-overwrite_original", "-XMP-dc:Subject+=Anna", str(place)]
    subprocess.run(words, check=True)
    assert undo_embedded(store, str(place)).state == "undone"
    assert listed(place)["Subject"] == ["grandma", "Anna"]


def test_keywords_inside_a_heic_photo_are_taken_over(tmp_path, warm_commands):
    """In a process of its own, as ``labelwise tag`` is: nothing has opened a HEIC photo before."""
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(Image.fromarray(pixels())).save(tmp_path / "a.heic", xmp=PACKET)
    (tmp_path / "read.py").write_text(
        "import sys; from pathlib import Path; "
        "from labelwise.photos.metadata import read_photo_metadata as read; "
        "found = read(Path(sys.argv[1])); print(found.format, b'grandma' in found.packet)"
    )
    done = warm_commands.run([str(tmp_path / "a.heic")], tmp_path, tmp_path / "read.py")
    assert done.stdout.split() == ["HEIF", "True"]


@needs_exiftool
def test_what_cannot_be_written_is_left_alone_and_named(store, tmp_path):
    webp, broken = tmp_path / "a.webp", tmp_path / "b.jpg"
    Image.fromarray(pixels()).save(webp)
    broken.write_bytes(b"\xff\xd8 not a photo")
    for place, word in ((webp, "WEBP"), (broken, "as a picture"), (tmp_path / "c.jpg", "read")):
        outcome = embed_tags(store, str(place), DOG)
        assert (outcome.state, word in outcome.reason) == ("left alone", True), outcome
    assert WrittenFiles(store, "embedded").paths() == []


def test_embed_without_exiftool_says_what_to_install(folder, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for options, words in (
        (["--embed"], "exiftool, which is not installed; install it, or use --xmp"),
        (["--xmp", "--embed"], "say where the labels go"),
        ([], "say where the labels go"),
    ):
        assert words in str(run("tag", folder, *options).exception)


# Oracles: the tree that was there before, and xml.etree, which reads what we wrote.


def keyword(label, *parents):
    return Keyword(label, 0.93, "0123abcd", "2026-05-01T12:00:00", parents)


OURS = (keyword("dog", "animal"), keyword("beach"), keyword("salt & pepper <1>"))


def noted_labels(data):
    """Read the labels that are noted as ours."""
    root = ET.fromstring(data.decode("utf-8-sig"))
    return [one.text for one in root.iter(f"{{{LABELWISE}}}label")]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**40))
def test_everything_that_is_not_ours_survives(seed):
    before = drawn_sidecar(seed)
    after = tagged(before, OURS)
    assert set(subjects(after)) == {*subjects(before), "dog", "beach", "salt & pepper <1>"}
    assert len(subjects(after)) == len(set(subjects(after)))
    assert "animal|dog" in subjects(after, LR, "hierarchicalSubject")
    assert "animal/dog" in subjects(after, DIGIKAM, "TagsList")
    assert noted_labels(after) == ["dog", "beach", "salt & pepper <1>"]
    assert tagged(after, OURS, noted(after)) == after
    undone = untagged(after, noted(after))
    assert canonical(undone) == canonical(before)
    assert untagged(before, noted(after)) == before  # to the byte, where nothing is ours
    again = tagged(after, [keyword("cat")], noted(after))  # takes the place of the first
    assert canonical(again) == canonical(tagged(before, [keyword("cat")]))


def canonical(data):
    """Return the same text for the same tree, white space and attributes included."""
    return ET.canonicalize(data.decode("utf-8-sig"))


def test_line_breaks_in_attributes_stay_line_breaks():
    before = EMPTY.replace(b"x:xmpmeta xml", b'x:xmpmeta x:a="1&#10;2&#9;3&#13;4 &lt;&quot;" xml')
    assert canonical(untagged(tagged(before, OURS), noted(tagged(before, OURS)))) == canonical(
        before
    )
    assert b"1&#10;2&#9;3&#13;4" in tagged(before, OURS)


def test_a_new_sidecar_is_one_that_others_can_read():
    data = tagged(None, OURS)
    assert subjects(data) == ["dog", "beach", "salt & pepper <1>"]
    assert untagged(data, noted(data)) == EMPTY
    with pytest.raises(DataError, match="well-formed"):
        tagged(None, [keyword("bell\x07")])


def test_only_our_entries_go_where_another_program_merged_the_descriptions():
    """As exiv2 does: one description that holds everything, our note spelled with attributes."""
    merged = f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}">
 <rdf:Description rdf:about="" xmlns:dc="{DC}" xmlns:lw="urn:labelwise:xmp:1.0:"
   xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="3">
  <dc:subject><rdf:Bag><rdf:li>Anna</rdf:li><rdf:li>dog</rdf:li></rdf:Bag></dc:subject>
  <lw:tags><rdf:Bag><rdf:li lw:label="dog" lw:dc="dog" lw:probability="0.9"/></rdf:Bag></lw:tags>
 </rdf:Description></rdf:RDF></x:xmpmeta>""".encode()
    left = untagged(merged, noted(merged))
    assert subjects(left) == ["Anna"]
    assert b'xmp:Rating="3"' in left
    assert b"lw:tags" not in left


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<x:xmpmeta", "well-formed"),
        (b"", "well-formed"),
        (b"\xff\xfe<\x00x\x00", "UTF-8"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "document type"),
        (b"<a/>", "rdf:RDF"),
        (EMPTY.replace(b"</rdf", b"<a>" * 3000 + b"</a>" * 3000 + b"</rdf"), "hundreds deep"),
        (b"<x>" + b"<a/>" * 9_000 + b"</x>", "at most 9,000 tags"),
        (EMPTY.replace(b"adobe", b"with a blank"), "well-formed"),
        (
            f'<rdf:RDF xmlns:rdf="{RDF}"><rdf:Description xmlns:dc="{DC}">'
            "<dc:subject>dog</dc:subject></rdf:Description></rdf:RDF>".encode(),
            "list of keywords",
        ),
    ],
)
def test_what_cannot_be_edited_safely_is_refused(data, reason, monkeypatch):
    monkeypatch.setattr("labelwise.photos.xmp.MOST_TAGS", 9_000)
    with pytest.raises(DataError, match=reason):
        tagged(data, OURS)
