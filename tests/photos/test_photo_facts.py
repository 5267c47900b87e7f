"""Camera and place of a photo. Oracle: what was written into the header of the file."""

import io

import pytest
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational

from labelwise.photos.metadata import PhotoFacts, read_facts


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
    return {
        gps.GPSLatitudeRef: side,
        gps.GPSLatitude: north,
        gps.GPSLongitudeRef: other,
        gps.GPSLongitude: east,
    }


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_camera_and_place_are_those_of_the_header(kind):
    found = read_facts(photo(kind, "FUJIFILM", "X-T5", place()))
    assert found == PhotoFacts("FUJIFILM X-T5", 52.51, 13.375)


def test_south_and_west_are_negative_and_a_make_is_not_said_twice():
    found = read_facts(photo("JPEG", "Canon", "Canon EOS R6\0", place(side="S", other="W")))
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
    found = read_facts(photo("JPEG", model="X-T5", gps=gps))
    assert found == PhotoFacts("X-T5")


def test_headers_that_say_nothing_or_cannot_be_read():
    assert read_facts(photo()) == PhotoFacts()
    assert read_facts(b"no picture") == PhotoFacts()
    assert read_facts(photo(make="A" * 30_000)).camera == "A" * 100
    assert read_facts(photo(model="a\x1b[31mb")).camera == "a[31mb"
