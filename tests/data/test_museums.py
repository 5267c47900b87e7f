"""Vocabularies and image services of museums, held to files written here and a server run here.

SKOS as N-Triples, RDF/XML and JSON-LD, in Getty AAT's terms; IIIF Presentation 2 and 3, Image API.
"""

import csv
import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image
from typer.testing import CliRunner

from labelwise.cli.app import app
from labelwise.data.iiif import fetch_pictures, services_of
from labelwise.errors import DataError
from labelwise.system.skos import read_skos
from labelwise.taxonomy import Taxonomy

AAT = "http://vocab.getty.edu/aat/"
SKOS = "http://www.w3.org/2004/02/skos/core#"


def triples(*lines):
    return "\n".join(lines) + "\n"


CONCEPTS = {  # number: names by language, broader
    "300046300": ({"en": "vessels (containers)"}, None),
    "300132254": ({"en": "vases", "nl": "vazen"}, "300046300"),
    "300198828": ({"nl": "amforen", "de": "Amphoren"}, "300132254"),
}


def as_n_triples():
    lines = ["# made"]
    for number, (names, above) in CONCEPTS.items():
        for tongue, name in names.items():
            lines.append(f'<{AAT}{number}> <{SKOS}prefLabel> "{name}"@{tongue} .')
        if above:
            lines.append(f"<{AAT}{number}> <{SKOS}broader> <{AAT}{above}> .")
    return triples(*lines)


def as_rdf():
    parts = []
    for number, (names, above) in CONCEPTS.items():
        words = "".join(
            f'<skos:prefLabel xml:lang="{t}">{n}</skos:prefLabel>' for t, n in names.items()
        )
        up = f'<skos:broader rdf:resource="{AAT}{above}"/>' if above else ""
        parts.append(f'<skos:Concept rdf:about="{AAT}{number}">{words}{up}</skos:Concept>')
    return (
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        f'xmlns:skos="{SKOS}">{"".join(parts)}</rdf:RDF>'
    )


def as_json_ld():
    graph = []
    for number, (names, above) in CONCEPTS.items():
        node = {
            "@id": f"{AAT}{number}",
            "skos:prefLabel": [{"@value": n, "@language": t} for t, n in names.items()],
        }
        graph.append(node | ({"skos:broader": {"@id": f"{AAT}{above}"}} if above else {}))
    return json.dumps({"@context": {"skos": SKOS}, "@graph": graph})


@pytest.mark.parametrize(
    ("name", "text"),
    [("aat.nt", as_n_triples()), ("aat.rdf", as_rdf()), ("aat.jsonld", as_json_ld())],
)
def test_a_vocabulary_is_a_taxonomy_with_addresses(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    taxonomy = Taxonomy.read(tmp_path / name)
    assert taxonomy.parents == {"vases": "vessels (containers)", "Amphoren": "vases"}
    assert taxonomy.uris["vases"] == f"{AAT}300132254"
    assert taxonomy.above("Amphoren") == ("vessels (containers)", "vases")


XL, GVP = "http://www.w3.org/2008/05/skos-xl#", "http://vocab.getty.edu/ontology#"


def dump():
    """Return the files of AAT's explicit dump: names stand with terms of their own addresses."""
    terms, relations = [], []
    for number, (names, above) in CONCEPTS.items():
        for place, (tongue, name) in enumerate(names.items()):
            term = f"{AAT}term/{number}{place}-{tongue}"
            terms.append(f"<{AAT}{number}> <{XL}prefLabel> <{term}> .")
            terms.append(f'<{term}> <{XL}literalForm> "{name}"@{tongue} .')
            terms.append(f"<{term}> <{GVP}contribPreferred> _:x{place} . # a node")
        terms.append(f"<{AAT}{number}> <{XL}altLabel> <{AAT}term/{number}9-en> .")
        terms.append(f'<{AAT}term/{number}9-en> <{XL}literalForm> "another\u00e9"@en .')
        if above:
            relations.append(f"<{AAT}{number}> <{GVP}broaderGeneric> <{AAT}{above}> .")
            relations.append(f"<{AAT}{number}> <{GVP}broaderPreferred> <{AAT}{above}> .")
    relations.append(f"<{AAT}300132254> <{GVP}broaderGeneric> <{AAT}300198828> .")
    return {"AATOut_2Terms.nt": terms, "AATOut_HierarchicalRels.nt": relations}


def test_the_dump_of_a_vocabulary_is_a_folder(tmp_path):
    """The layout of AAT's explicit.zip; one of its files alone names nothing, or says nothing."""
    for name, lines in dump().items():
        (tmp_path / name).write_text(triples(*lines))
    taxonomy = Taxonomy.read(tmp_path)
    assert taxonomy.parents == {"vases": "vessels (containers)", "Amphoren": "vases"}
    assert taxonomy.uris["vases"] == f"{AAT}300132254"
    with pytest.raises(DataError, match="says of nothing what it is a kind of"):
        Taxonomy.read(tmp_path / "AATOut_2Terms.nt")
    first = triples(*(line for line in dump()["AATOut_2Terms.nt"] if "literalForm" not in line))
    (tmp_path / "AATOut_2Terms.nt").write_text(first)
    with pytest.raises(DataError, match="name the folder with all files"):
        Taxonomy.read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"a folder of a vocabulary holds files of N-Triples"):
        Taxonomy.read(tmp_path / "empty")


def test_terms_of_skos_xl_in_json_ld(tmp_path):
    """As Getty answers for one concept; and names by language, of which Indonesian is "id"."""
    graph = [
        {"@id": "u:1", f"{XL}prefLabel": [{"@id": "u:term/1"}], f"{SKOS}broader": [{"@id": "u:2"}]},
        {"@id": "u:term/1", f"{XL}literalForm": [{"@value": "vases", "@language": "en"}]},
        {"@id": "u:2", "prefLabel": {"id": "wadah", "nl": "vaten"}},
    ]
    (tmp_path / "v.jsonld").write_text(json.dumps(graph))
    assert Taxonomy.read(tmp_path / "v.jsonld").parents == {"vases": "wadah"}


def statement(child, what, other):
    return f"<{AAT}{child}> <{what}> <{AAT}{other}> ."


def test_a_parent_may_name_its_children_instead(tmp_path):
    """skos:narrower is the inverse of skos:broader; a file that mixes them lost parents."""
    whole = as_n_triples()
    turned = re.sub(f"<([^>]*)> <{SKOS}broader> <([^>]*)>", rf"<\2> <{SKOS}narrower> <\1>", whole)
    assert "narrower" in turned
    assert "broader>" not in turned
    for name, text in (("a.nt", whole), ("b.nt", turned)):
        (tmp_path / name).write_text(text)
    graph = [
        {"@id": "u:a", "skos:prefLabel": "vessels", "skos:narrower": [{"@id": "u:b"}]},
        {"@id": "u:b", "skos:prefLabel": "vases"},
    ]
    (tmp_path / "c.jsonld").write_text(json.dumps({"@context": {"skos": SKOS}, "@graph": graph}))
    first, second, third = (read_skos(tmp_path / name) for name in ("a.nt", "b.nt", "c.jsonld"))
    assert second == first
    assert third.parents == {"vases": "vessels"}


def test_a_circle_is_one_sentence(tmp_path):
    text = as_n_triples() + statement("300046300", f"{SKOS}broader", "300198828") + "\n"
    (tmp_path / "aat.nt").write_text(text)
    with pytest.raises(DataError, match=r"aat\.nt: a taxonomy must not turn in circles") as caught:
        Taxonomy.read(tmp_path / "aat.nt")
    assert "\n" not in str(caught.value)


def test_the_preferred_parent_is_taken_and_two_others_are_not(tmp_path):
    other = f'<{AAT}1> <{SKOS}prefLabel> "tableware"@en .\n'
    second = statement("300198828", f"{SKOS}broader", "1") + "\n"
    (tmp_path / "aat.nt").write_text(as_n_triples() + other + second)
    with pytest.raises(DataError, match=r"'Amphoren' .* has two parents, 'tableware' and 'vases'"):
        Taxonomy.read(tmp_path / "aat.nt")
    preferred = "http://vocab.getty.edu/ontology#broaderPreferred"
    chosen = statement("300198828", preferred, "1") + "\n"
    (tmp_path / "aat.nt").write_text(as_n_triples() + other + second + chosen)
    assert Taxonomy.read(tmp_path / "aat.nt").parents["Amphoren"] == "tableware"


def test_concepts_of_one_name_are_told_apart_by_their_addresses(tmp_path):
    twin = f'<{AAT}2> <{SKOS}prefLabel> "vases"@en .\n' + statement(
        "2", f"{SKOS}broader", "300046300"
    )
    (tmp_path / "aat.nt").write_text(as_n_triples() + twin + "\n")
    parents = Taxonomy.read(tmp_path / "aat.nt").parents
    assert parents["Amphoren"] == f"{AAT}300132254"
    assert parents[f"{AAT}2"] == "vessels (containers)"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.ttl", "@prefix x: <y> .", "Turtle is not read"),
        ("a.nt", "nonsense\n", "line 1: not a statement of N-Triples"),
        ("a.rdf", "<rdf", "not XML"),
        ("a.rdf", '<!DOCTYPE a [<!ENTITY b "c">]><a/>', "entities are not allowed"),
        ("a.jsonld", "{", "not JSON"),
        ("a.jsonld", "{}", "no concept has a skos:prefLabel"),
        ("a.nt", f'<{AAT}1> <{SKOS}prefLabel> "a\\u00e9"@en .\n', "says of nothing what it is"),
    ],
)
def test_vocabularies_that_cannot_be_meant(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=sentence):
        Taxonomy.read(tmp_path / name)


ASKED: list[str] = []


class Service(BaseHTTPRequestHandler):
    """Image services of pictures 100 x 60, level 1 and, where static, level 0; a page is none."""

    def do_GET(self):
        ASKED.append(self.path)
        _, _, name, *rest = self.path.split("/")
        if name == "broken":
            self.send_error(404)
            return
        if rest == ["info.json"]:
            version = 2 if name == "static2" else 3
            info = {"width": 100, "height": 60, "profile": "level1"}
            if name.startswith("static"):
                sizes = [{"width": 25, "height": 15}, {"width": 50, "height": 30}]
                context = f"http://iiif.io/api/image/{version}/context.json"
                info |= {"@context": context, "profile": "level0", "sizes": sizes}
            body = json.dumps(info).encode()
            if name == "page":
                body = b'{"title": "no picture"}'
        else:
            width, _, height = rest[1].partition(",")
            fixed = {"static2": ("25,", "50,"), "static3": ("25,15", "50,30")}
            if rest[1] not in fixed.get(name, (f"{width},",)) or not width.isdecimal():
                self.send_error(400)
                return
            stream = io.BytesIO()
            size = (int(width), int(height or int(width) * 60 // 100))
            Image.new("RGB", size, "red").save(stream, "JPEG")
            body = stream.getvalue()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        return


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}/iiif"
        found.shutdown()
        thread.join()


def manifest(server, version):
    service = {"id": f"{server}/vase", "type": "ImageService3", "profile": "level2"}
    body = {"id": f"{server}/vase/full/max/0/default.jpg", "type": "Image", "service": [service]}
    if version == 3:
        canvas = {
            "type": "Canvas",
            "label": {"en": ["Amphora"]},
            "items": [{"items": [{"body": body}]}],
            "thumbnail": [{"service": [{"id": f"{server}/small", "type": "ImageService3"}]}],
        }
        return {"type": "Manifest", "label": {"en": ["Vases"]}, "items": [canvas]}
    old = {"@id": f"{server}/vase", "profile": "http://iiif.io/api/image/2/level1.json"}
    canvas = {
        "@type": "sc:Canvas",
        "label": "Amphora",
        "images": [{"resource": {"@id": "x", "service": old}}],
    }
    return {"@type": "sc:Manifest", "sequences": [{"canvases": [canvas]}]}


@pytest.mark.parametrize("version", [2, 3])
def test_a_manifest_names_its_services(tmp_path, server, version):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest(server, version)))
    assert services_of(str(path)) == [(f"{server}/vase", "Amphora")]


def test_pictures_are_fetched_once_with_their_addresses(tmp_path, server):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest(server, 3)))
    out = tmp_path / "photos"
    result = CliRunner().invoke(app, ["data", "iiif", str(path), "-o", str(out), "--size", "50"])
    assert result.exit_code == 0, result.exception
    with (out / "photos.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["uri"], row["label"]) == (f"{server}/vase", "Amphora")
    with Image.open(out / row["path"]) as picture:
        assert picture.size == (50, 30)
    before = len(ASKED)
    again = fetch_pictures(str(path), out, 50)
    assert (again.there, again.fetched, len(ASKED)) == (1, 0, before)


def test_a_service_is_never_asked_to_enlarge(tmp_path, server):
    (tmp_path / "list.txt").write_text(f"{server}/vase/info.json\n")
    fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "photos", 4000)
    assert ASKED[-1] == "/iiif/vase/full/100,/0/default.jpg"


@pytest.mark.parametrize("version", [2, 3])
def test_a_static_service_is_asked_for_a_size_that_it_has(tmp_path, server, version):
    (tmp_path / "list.txt").write_text(f"{server}/static{version}\n")
    found = fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "photos", 49)
    assert (found.fetched, found.failed) == (1, ())
    (path,) = (tmp_path / "photos").glob("*.jpg")
    with Image.open(path) as picture:
        assert picture.size == (25, 15)
    with pytest.raises(DataError, match=r"25 x 15, 50 x 30\), none of at most 20 pixels"):
        fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "small", 20)


def test_what_is_not_a_picture_is_left_out_by_name(tmp_path, server):
    (tmp_path / "list.txt").write_text(f"{server}/vase\n{server}/page\n{server}/broken\n")
    found = fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "photos", 20)
    assert found.there == 1
    assert "page: it is not a IIIF image service" in found.failed[0]
    assert "broken/info.json: it cannot be fetched" in found.failed[1]
    (tmp_path / "none.txt").write_text(f"{server}/broken\n")
    with pytest.raises(DataError, match="no picture could be fetched"):
        fetch_pictures(str(tmp_path / "none.txt"), tmp_path / "none", 20)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x/y", "vase"])
def test_only_http_is_opened(tmp_path, address):
    (tmp_path / "list.txt").write_text(f"{address}\n")
    with pytest.raises(DataError, match="must be an http address"):
        fetch_pictures(str(tmp_path / "list.txt"), tmp_path / "photos", 20)
