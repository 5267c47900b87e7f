"""Oracles: the bytes that were there before, and xml.etree, which reads what we wrote."""

import random
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import DataError
from labelwise.search.xmp import EMPTY, RDF, Keyword, tagged, untagged
from labelwise.search.xmp import OURS as LABELWISE

DC = "http://purl.org/dc/elements/1.1/"
LR = "http://ns.adobe.com/lightroom/1.0/"
DIGIKAM = "http://www.digikam.org/ns/1.0/"
OTHERS = ("beach", "café", "Tom & Jerry", "a<b", "2 > 1", '"quoted"', "日本", "people|Anna")


def keyword(label, *parents):
    return Keyword(label, 0.93, "0123abcd", "2026-05-01T12:00:00", parents)


OURS = (keyword("dog", "animal"), keyword("beach"), keyword("salt & pepper <1>"))


def subjects(data, space=DC, name="subject"):
    """Read a list of keywords with another parser."""
    root = ET.fromstring(data.decode("utf-8-sig"))
    return [
        item.text for one in root.iter(f"{{{space}}}{name}") for item in one.iter(f"{{{RDF}}}li")
    ]


def keywords_in(data):
    """Read every list of keywords."""
    lists = ((DC, "subject"), (LR, "hierarchicalSubject"), (DIGIKAM, "TagsList"))
    return {name: subjects(data, space, name) for space, name in lists}


def noted_labels(data):
    """Read the labels that are noted as ours."""
    root = ET.fromstring(data.decode("utf-8-sig"))
    return [one.text for one in root.iter(f"{{{LABELWISE}}}label")]


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def sidecar(style, lists, draw):
    """Write a side-car as one of the programs people use does."""
    newline = "\r\n" if draw.random() < 0.2 else "\n"
    quote = "'" if style == "exiftool" else '"'
    indent = {"darktable": " ", "digikam": " ", "lightroom": "  ", "exiftool": " "}[style]
    spaces = {"dc": DC, "lr": LR, "digiKam": DIGIKAM}
    container = "Seq" if style == "darktable" else "Bag"
    lines = []
    for (prefix, name), items in lists.items():
        if not items and draw.random() < 0.5:
            lines.append(f"<{prefix}:{name}>{newline}<rdf:{container}/>{newline}</{prefix}:{name}>")
            continue
        inner = newline.join(f"{indent * 5}<rdf:li>{escaped(one)}</rdf:li>" for one in items)
        lines += [
            f"{indent * 3}<{prefix}:{name}>",
            f"{indent * 4}<rdf:{container}>",
            *([inner] if inner else []),
            f"{indent * 4}</rdf:{container}>",
            f"{indent * 3}</{prefix}:{name}>",
        ]
    history = (
        f"{indent * 3}<darktable:history><rdf:Seq><rdf:li darktable:num={quote}0{quote} "
        f"darktable:params={quote}gz02eJxj>YGBgkGAAgRNODGE{quote}/></rdf:Seq></darktable:history>"
    )
    if style == "darktable":
        lines.append(history)
    declared = "".join(f"{newline}    xmlns:{p}={quote}{u}{quote}" for p, u in spaces.items())
    declared += f"{newline}    xmlns:darktable={quote}http://darktable.sf.net/{quote}"
    rating = f" xmp:Rating={quote}5{quote} xmlns:xmp={quote}http://ns.adobe.com/xap/1.0/{quote}"
    text = newline.join(
        [
            f"<x:xmpmeta xmlns:x={quote}adobe:ns:meta/{quote} x:xmptk={quote}{style} 1.0{quote}>",
            f"{indent}<rdf:RDF xmlns:rdf={quote}{RDF}{quote}>",
            f"{indent * 2}<rdf:Description rdf:about={quote}{quote}{rating}{declared}>",
            *lines,
            f"{indent * 2}</rdf:Description>",
            f"{indent}</rdf:RDF>",
            "</x:xmpmeta>",
        ]
    )
    if style in ("lightroom", "exiftool", "digikam"):
        text = f"<?xpacket begin={quote}\ufeff{quote} id={quote}W5M0{quote}?>{newline}{text}"
        text += newline + " " * draw.randrange(40) + newline + f"<?xpacket end={quote}w{quote}?>"
    else:
        text = f'<?xml version="1.0" encoding="UTF-8"?>{newline}{text}{newline}'
    if draw.random() < 0.1:
        text = text.replace("rdf:", "r:").replace("xmlns:rdf", "xmlns:r")
    return (b"\xef\xbb\xbf" if draw.random() < 0.1 else b"") + text.encode()


def drawn_sidecar(seed):
    draw = random.Random(seed)
    names = [("dc", "subject"), ("lr", "hierarchicalSubject"), ("digiKam", "TagsList")]
    lists = {
        name: draw.sample(OTHERS, draw.randrange(len(OTHERS)))
        for name in names
        if draw.random() < 0.6
    }
    style = draw.choice(["darktable", "digikam", "lightroom", "exiftool"])
    return sidecar(style, lists, draw)


def has_an_empty_list(data):
    return any(f"<{r}:{kind}/>".encode() in data for r in ("rdf", "r") for kind in ("Bag", "Seq"))


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 2**40))
def test_everything_that_is_not_ours_survives(seed):
    before = drawn_sidecar(seed)
    after = tagged(before, OURS)
    assert set(subjects(after)) == {*subjects(before), "dog", "beach", "salt & pepper <1>"}
    assert len(subjects(after)) == len(set(subjects(after)))
    assert "animal|dog" in subjects(after, LR, "hierarchicalSubject")
    assert "animal/dog" in subjects(after, DIGIKAM, "TagsList")
    assert noted_labels(after) == ["dog", "beach", "salt & pepper <1>"]
    assert tagged(after, OURS) == after
    undone = untagged(after)
    if has_an_empty_list(before):  # written <rdf:Bag></rdf:Bag> afterwards; the store has the bytes
        assert keywords_in(undone) == keywords_in(before)
    else:
        assert undone == before


def test_a_new_sidecar_is_one_that_others_can_read():
    data = tagged(None, OURS)
    assert subjects(data) == ["dog", "beach", "salt & pepper <1>"]
    assert untagged(data) == EMPTY


def test_other_keywords_of_ours_take_the_place_of_the_first():
    before = drawn_sidecar(3)
    once = tagged(before, OURS)
    again = tagged(once, [keyword("cat")])
    assert again == tagged(before, [keyword("cat")])
    assert untagged(again) == before


def test_a_label_the_owner_wrote_is_never_removed():
    before = sidecar("lightroom", {("dc", "subject"): ["dog"]}, random.Random(0))
    assert subjects(untagged(tagged(before, [keyword("dog")]))) == ["dog"]


def test_only_our_entries_go_where_another_program_merged_the_descriptions():
    """As exiv2 does: one description that holds everything, our note spelled with attributes."""
    merged = f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}">
 <rdf:Description rdf:about="" xmlns:dc="{DC}" xmlns:lw="urn:labelwise:xmp:1.0:"
   xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="3">
  <dc:subject><rdf:Bag><rdf:li>Anna</rdf:li><rdf:li>dog</rdf:li></rdf:Bag></dc:subject>
  <lw:tags><rdf:Bag><rdf:li lw:label="dog" lw:dc="dog" lw:probability="0.9"/></rdf:Bag></lw:tags>
 </rdf:Description></rdf:RDF></x:xmpmeta>""".encode()
    left = untagged(merged)
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
        (b"<a>" * 100 + b"</a>" * 100, "deep"),
        (
            f'<rdf:RDF xmlns:rdf="{RDF}"><rdf:Description xmlns:dc="{DC}">'
            "<dc:subject>dog</dc:subject></rdf:Description></rdf:RDF>".encode(),
            "list of keywords",
        ),
    ],
)
def test_what_cannot_be_edited_safely_is_refused(data, reason):
    with pytest.raises(DataError, match=reason):
        tagged(data, OURS)


def test_a_label_that_xml_cannot_write_is_refused():
    with pytest.raises(DataError, match="well-formed"):
        tagged(None, [keyword("bell\x07")])
