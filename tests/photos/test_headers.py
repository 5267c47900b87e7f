"""Camera, place, rating and keywords of photos. Oracle: what was written into files."""

import io
import os

import pytest
from open_indexes import open_index
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational
from search_setup import picture

from labelwise.base.progress import Silent
from labelwise.photos import answer, update_index
from labelwise.photos import metadata as headers
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.metadata import PhotoFacts, read_facts
from labelwise.queries import Query

XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:dc="http://purl.org/dc/elements/1.1/"
 xmlns:lr="http://ns.adobe.com/lightroom/1.0/"{attribute}>{element}
<dc:subject><rdf:Bag>{subjects}</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"""


def sidecar(path, rating=None, words=(), element=False):
    said = "" if rating is None else f' xmp:Rating="{rating}"'
    inside = f"<xmp:Rating>{rating}</xmp:Rating>" if element else ""
    subjects = "".join(f"<rdf:li>{word}</rdf:li>" for word in words)
    filled = XMP.format(attribute="" if element else said, element=inside, subjects=subjects)
    path.with_name(f"{path.name}.xmp").write_text(filled)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number in range(6):
        picture(folder / f"{number}.png", number)
    for number, model in ((6, "X-T5"), (7, "X-T5"), (8, "EOS R6")):
        exif = Image.Exif()
        exif[ExifTags.Base.Model] = model
        Image.new("RGB", (32, 24), (number * 20, 90, 10)).save(folder / f"{number}.jpg", exif=exif)
    sidecar(folder / "0.png", 5, ("Grandma", "beach"))
    sidecar(folder / "1.png", 3, ("grandma",), element=True)
    sidecar(folder / "6.jpg", 4)
    sidecar(folder / "7.jpg", -1, ("garden",))
    return folder


@pytest.fixture
def index(photos, tmp_path, model):
    update_index(tmp_path / "photos.index", [photos], model=model, watch=Silent())
    return open_index(tmp_path / "photos.index")


def names(index, **options):
    found = answer(index, Query.parse("dog"), top=50, photos=PhotoFilter(**options))
    assert found.photos == len(found.hits)
    return sorted(os.path.basename(hit.paths[0])[0] for hit in found.hits)


def test_a_search_by_camera_rating_and_keywords(index, photos):
    """A damaged side-car says nothing and stops nothing."""
    (photos / "3.png.xmp").write_text("<x:xmpmeta")
    for options, expected in (
        ({"camera": "x-t5"}, ["6", "7"]),
        ({"rating": 4}, ["0", "6"]),
        ({"rating": 1}, ["0", "1", "6"]),
        ({"keywords": ("GRANDMA",)}, ["0", "1"]),
        ({"keywords": ("grandma", "beach")}, ["0"]),
        ({"camera": "X-T5", "rating": 1}, ["6"]),
        ({"camera": "Leica"}, []),
    ):
        assert names(index, **options) == expected, options
    assert len(index.store.database.read("photo_headers")) == 9
    found = answer(index, Query.parse("dog"), photos=PhotoFilter(camera="X-T5", keywords=("a",)))
    assert "0 photos by a camera named X-T5, with the keyword a match dog" in found.counted


def test_headers_are_kept_until_a_file_or_its_side_car_changes(index, photos, monkeypatch):
    asked, read = [], headers._read_header
    assert names(index, keywords=("grandma",)) == ["0", "1"]
    monkeypatch.setattr(headers, "_read_header", lambda files: asked.append(files) or read(files))
    assert names(index, keywords=("grandma",)) == ["0", "1"]
    assert asked == []
    sidecar(photos / "2.png", 2, ("grandma",))
    (photos / "0.png.xmp").unlink()
    assert names(index, keywords=("grandma",)) == ["1", "2"]
    assert sorted(asked) == [[str(photos / "0.png")], [str(photos / "2.png")]]


def photo(kind="JPEG", make=None, model=None, gps=None):
    exif = Image.Exif()
    for tag, value in ((ExifTags.Base.Make, make), (ExifTags.Base.Model, model)):
        if value is not None:
            exif[tag] = value
    if gps is not None:
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(gps)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6)).save(buffer, kind, exif=exif)
    return buffer.getvalue()


def place(north=(52, 30, 36.0), side="N", east=(13, 22, 30.0), other="E"):
    gps = ExifTags.GPS
    tags = (gps.GPSLatitudeRef, gps.GPSLatitude, gps.GPSLongitudeRef, gps.GPSLongitude)
    return dict(zip(tags, (side, north, other, east), strict=True))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_camera_and_place_are_those_of_the_header(kind):
    """South and west are negative, and a make is not said twice."""
    found = read_facts(photo(kind, "FUJIFILM", "X-T5", place()))
    assert found == PhotoFacts("FUJIFILM X-T5", 52.51, 13.375)
    found = read_facts(photo(kind, "Canon", "Canon EOS R6\0", place(side="S", other="W")))
    assert found == PhotoFacts("Canon EOS R6", -52.51, -13.375)


@pytest.mark.parametrize(
    "gps",
    [
        place(north=(95, 0, 0.0)),
        place(east=(181, 0, 0.0)),
        {ExifTags.GPS.GPSLatitudeRef: "N", ExifTags.GPS.GPSLatitude: (52, 0, 0)},
        place(north=(IFDRational(52, 0), 0, 0)),
    ],
)
def test_what_is_no_place_is_none(gps):
    assert read_facts(photo("JPEG", model="X-T5", gps=gps)) == PhotoFacts("X-T5")


def test_headers_that_say_nothing_or_cannot_be_read():
    assert read_facts(photo()) == PhotoFacts()
    assert read_facts(b"no picture") == PhotoFacts()
    assert read_facts(photo(make="A" * 30_000)).camera == "A" * 100
    assert read_facts(photo(model="a\x1b[31mb")).camera == "a[31mb"
