"""Oracles: the tree that was there before, and xml.etree, which reads what we wrote."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sidecar_samples import DC, DIGIKAM, LR, drawn_sidecar, subjects

from labelwise.errors import DataError
from labelwise.photos.xmp import EMPTY, RDF, Keyword, noted, tagged, untagged
from labelwise.photos.xmp import OURS as LABELWISE


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
