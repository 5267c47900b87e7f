"""Keywords of a library. Oracles: what exiftool wrote; the table as ``load`` reads it back."""

import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from typed import must_run, refused

from labelwise.errors import DataError
from labelwise.photos.metadata import photo_keywords, read_keywords
from labelwise.photos.xmp import Keyword, tagged
from labelwise.tables import load
from labelwise.taxonomy import Taxonomy

needs_exiftool = pytest.mark.skipif(
    shutil.which("exiftool") is None, reason="exiftool is not installed"
)


def picture(path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    return path


def exiftool(path, *arguments):
    command = ["exiftool", "-q", "-overwrite_original", "-codedcharacterset=utf8", *arguments]
    subprocess.run([*command, str(path)], check=True, capture_output=True)


@needs_exiftool
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_embedded_xmp_of_every_format_is_read(tmp_path, suffix):
    path = picture(tmp_path / f"a{suffix}")
    exiftool(path, "-XMP-dc:Subject=dog", "-XMP-dc:Subject=Straße, nass")
    assert photo_keywords(path) == ({("dog",), ("Straße, nass",)}, [])


@needs_exiftool
def test_iptc_is_read_in_both_alphabets(tmp_path):
    modern, old = picture(tmp_path / "a.jpg"), picture(tmp_path / "b.jpg")
    exiftool(modern, "-IPTC:Keywords=Zürich", "-IPTC:Keywords=dog")
    assert photo_keywords(modern) == ({("Zürich",), ("dog",)}, [])
    command = ["exiftool", "-q", "-overwrite_original", "-charset", "iptc=Latin1"]
    subprocess.run([*command, "-IPTC:Keywords=Zürich", str(old)], check=True)
    assert "Zürich".encode() not in old.read_bytes()
    assert photo_keywords(old) == ({("Zürich",)}, [])


@needs_exiftool
def test_the_verb_writes_a_table_in_which_untagged_is_unknown(tmp_path):
    library = tmp_path / "library"
    (library / "2024").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg", "2024/c.jpg"):
        picture(library / name)
    lightroom = ("-XMP-dc:Subject=dog", "-XMP-lr:HierarchicalSubject=animal|dog")
    exiftool(library / "a.jpg", *lightroom, "-IPTC:Keywords=beach")
    own = "-XMP-digiKam:TagsList=_Digikam_Internal_Tags_/Color Label None"
    sidecar = f"{library / '2024' / 'c.jpg'}.xmp"
    digikam = ["exiftool", "-q", "-XMP-digiKam:TagsList=animal/cat", own, "-XMP-dc:Subject=cat"]
    subprocess.run([*digikam, sidecar], check=True, capture_output=True)
    out, kinds = tmp_path / "table.csv", tmp_path / "kinds.csv"
    done = must_run("data", "import", library, "-o", out, "--taxonomy-out", kinds)
    assert "3 photos, 4 labels; 2 with a keyword, all else is unknown" in done.output
    table = load(str(out))
    names = {table.ids[row].rpartition("/")[2]: row for row in range(3)}
    present, unknown = table.present.dense(), table.unknown.dense()
    said = {
        name: {table.space.names[column] for column in np.flatnonzero(present[row])}
        for name, row in names.items()
    }
    assert said["a.jpg"] == {"animal", "beach", "dog"}
    assert (said["b.jpg"], said["c.jpg"]) == (set(), {"animal", "cat"})
    assert (present ^ unknown).all()  # nothing is absent
    assert Taxonomy.read(kinds).parents == {"dog": "animal", "cat": "animal"}


def sidecar(path, subjects="", more=""):
    lines = "".join(f"<rdf:li>{one}</rdf:li>" for one in subjects.split())
    path.write_text(
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        'xmlns:dc="http://purl.org/dc/elements/1.1/" '
        'xmlns:lr="http://ns.adobe.com/lightroom/1.0/">'
        f"<dc:subject><rdf:Bag>{lines}</rdf:Bag></dc:subject>{more}"
        "</rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    return path


def test_what_labelwise_wrote_is_not_taken_for_a_persons_word(tmp_path):
    path = picture(tmp_path / "a.jpg")
    file = sidecar(tmp_path / "a.jpg.xmp", "beach")
    ours = Keyword("dog", 0.9, "m", "2026-01-01", ("animal",))
    file.write_bytes(tagged(file.read_bytes(), [ours]))
    assert b"dog" in file.read_bytes()
    assert photo_keywords(path) == ({("beach",)}, [])


def test_rare_keywords_are_left_out_and_broken_files_are_named(tmp_path):
    for number in range(5):
        picture(tmp_path / f"{number}.jpg")
    sidecar(tmp_path / "0.xmp", "dog beach")
    sidecar(tmp_path / "1.xmp", "dog")
    (tmp_path / "2.xmp").write_text("<x:xmpmeta")
    (tmp_path / "3.jpg").write_bytes(b"not a photo")
    found = read_keywords(tmp_path, least=2)
    assert found.table.space.names == ("dog",)
    assert found.tagged == 2
    notes = " / ".join(found.table.notes)
    assert "left out 1 keyword on fewer than 2 photos" in notes
    assert "not read: 2.xmp (" in notes
    assert "3.jpg (" in notes


def test_a_keyword_under_two_parents_has_none_and_is_named(tmp_path):
    for number, levels in enumerate(["animal|turkey", "country|turkey", "a|b", "b|a"]):
        picture(tmp_path / f"{number}.jpg")
        bag = f"<rdf:Bag><rdf:li>{levels}</rdf:li></rdf:Bag>"
        more = f"<lr:hierarchicalSubject>{bag}</lr:hierarchicalSubject>"
        sidecar(tmp_path / f"{number}.xmp", "", more)
    found = read_keywords(tmp_path)
    assert found.taxonomy.parents == {"a": "b"}
    assert any("turkey" in note for note in found.table.notes)


def test_a_folder_without_keywords_is_refused_in_one_sentence(tmp_path):
    def refuses(told, path=tmp_path, **options):
        with pytest.raises(DataError, match=told):
            read_keywords(path, **options)

    refuses("must be a folder of photos", tmp_path / "missing")
    refuses("holds no photos")
    picture(tmp_path / "a.jpg")
    refuses("1 photo without a keyword")
    sidecar(tmp_path / "a.xmp", "dog")
    refuses("that 2 photos share; lower --least", least=2)
    arguments = ("data", "import", tmp_path, "-o", tmp_path / "t.csv", "--taxonomy-out")
    told = {"kinds.txt": "must end in .csv", "kinds.csv": "no keyword is under another"}
    for name, sentence in told.items():
        assert sentence in refused(*arguments, tmp_path / name)
    assert not (tmp_path / "t.csv").exists()
