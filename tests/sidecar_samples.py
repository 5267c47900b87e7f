"""Side-cars as the programs people use write them, and their keywords by another parser."""

import random
import xml.etree.ElementTree as ET

from labelwise.photos.xmp import RDF

DC = "http://purl.org/dc/elements/1.1/"
LR = "http://ns.adobe.com/lightroom/1.0/"
DIGIKAM = "http://www.digikam.org/ns/1.0/"
OTHERS = ("beach", "café", "Tom & Jerry", "a<b", "2 > 1", '"quoted"', "日本", "people|Anna")


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
        lines += [f"{indent * 3}<{prefix}:{name}>", f"{indent * 4}<rdf:{container}>"]
        lines += [f"{indent * 5}<rdf:li>{escaped(one)}</rdf:li>" for one in items]
        lines += [f"{indent * 4}</rdf:{container}>", f"{indent * 3}</{prefix}:{name}>"]
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
