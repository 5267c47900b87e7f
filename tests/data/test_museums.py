"""Vocabularies (SKOS, Getty AAT) and IIIF, held to files written and a server run here."""

import json
import re

import pytest

from labelwise.contrib.skos import read_skos
from labelwise.errors import DataError
from labelwise.taxonomy import Taxonomy

AAT = "http://vocab.getty.edu/aat/"
SKOS = "http://www.w3.org/2004/02/skos/core#"


def statement(child, what, other):
    return f"<{AAT}{child}> <{what}> <{AAT}{other}> .\n"


CONCEPTS = {  # number: names by language, broader
    "300046300": ({"en": "vessels (containers)"}, None),
    "300132254": ({"en": "vases", "nl": "vazen"}, "300046300"),
    "300198828": ({"nl": "amforen", "de": "Amphoren"}, "300132254"),
}


def as_n_triples():
    text = "# made\n"
    for number, (names, above) in CONCEPTS.items():
        for tongue, name in names.items():
            text += f'<{AAT}{number}> <{SKOS}prefLabel> "{name}"@{tongue} .\n'
        text += statement(number, f"{SKOS}broader", above) if above else ""
    return text


def as_rdf():
    text = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    text += f'xmlns:skos="{SKOS}">'
    for number, (names, above) in CONCEPTS.items():
        text += f'<skos:Concept rdf:about="{AAT}{number}">'
        for tongue, name in names.items():
            text += f'<skos:prefLabel xml:lang="{tongue}">{name}</skos:prefLabel>'
        text += f'<skos:broader rdf:resource="{AAT}{above}"/>' if above else ""
        text += "</skos:Concept>"
    return text + "</rdf:RDF>"


def as_json_ld():
    graph = []
    for number, (names, above) in CONCEPTS.items():
        node = {"skos:broader": {"@id": f"{AAT}{above}"}} if above else {}
        said = [{"@value": name, "@language": tongue} for tongue, name in names.items()]
        graph.append(node | {"@id": f"{AAT}{number}", "skos:prefLabel": said})
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


XL, GVP = "http://www.w3.org/2008/05/skos-xl#", "http://vocab.getty.edu/ontology#"


def dump():
    """Return the files of AAT's explicit dump: names stand with terms of their own addresses."""
    terms, relations = [], []
    for number, (names, above) in CONCEPTS.items():
        for place, (tongue, name) in enumerate(names.items()):
            term = f"{AAT}term/{number}{place}-{tongue}"
            terms.append(f"<{AAT}{number}> <{XL}prefLabel> <{term}> .\n")
            terms.append(f'<{term}> <{XL}literalForm> "{name}"@{tongue} .\n')
            terms.append(f"<{term}> <{GVP}contribPreferred> _:x{place} . # a node\n")
        terms.append(f"<{AAT}{number}> <{XL}altLabel> <{AAT}term/{number}9-en> .\n")
        terms.append(f'<{AAT}term/{number}9-en> <{XL}literalForm> "another\u00e9"@en .\n')
        if above:
            kinds = ("broaderGeneric", "broaderPreferred")
            relations += [statement(number, f"{GVP}{kind}", above) for kind in kinds]
    relations.append(statement(300132254, f"{GVP}broaderGeneric", 300198828))
    return {"AATOut_2Terms.nt": terms, "AATOut_HierarchicalRels.nt": relations}


def test_the_dump_of_a_vocabulary_is_a_folder(tmp_path):
    """The layout of AAT's explicit.zip; one of its files alone names nothing, or says nothing."""
    for name, lines in dump().items():
        (tmp_path / name).write_text("".join(lines))
    parents = {"vases": "vessels (containers)", "Amphoren": "vases"}
    assert Taxonomy.read(tmp_path).parents == parents
    with pytest.raises(DataError, match="says of nothing what it is a kind of"):
        Taxonomy.read(tmp_path / "AATOut_2Terms.nt")
    first = (line for line in dump()["AATOut_2Terms.nt"] if "literalForm" not in line)
    (tmp_path / "AATOut_2Terms.nt").write_text("".join(first))
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


def test_a_parent_may_name_its_children_instead(tmp_path):
    """skos:narrower is the inverse of skos:broader; a file that mixes them lost parents."""
    whole = as_n_triples()
    turned = re.sub(f"<([^>]*)> <{SKOS}broader> <([^>]*)>", rf"<\2> <{SKOS}narrower> <\1>", whole)
    assert "broader>" not in turned
    graph = [
        {"@id": "u:a", "skos:prefLabel": "vessels", "skos:narrower": [{"@id": "u:b"}]},
        {"@id": "u:b", "skos:prefLabel": "vases"},
    ]
    content = json.dumps({"@context": {"skos": SKOS}, "@graph": graph})
    read = []
    for name, text in {"a.nt": whole, "b.nt": turned, "c.jsonld": content}.items():
        (tmp_path / name).write_text(text)
        read.append(read_skos(tmp_path / name))
    assert read[0] == read[1]
    assert read[2].parents == {"vases": "vessels"}


def test_a_circle_is_one_sentence(tmp_path):
    text = as_n_triples() + statement("300046300", f"{SKOS}broader", "300198828")
    (tmp_path / "aat.nt").write_text(text)
    with pytest.raises(DataError, match=r"aat\.nt: a taxonomy must not turn in circles") as caught:
        Taxonomy.read(tmp_path / "aat.nt")
    assert "\n" not in str(caught.value)


def test_the_preferred_parent_is_taken_and_two_others_are_not(tmp_path):
    other = f'<{AAT}1> <{SKOS}prefLabel> "tableware"@en .\n'
    second = statement("300198828", f"{SKOS}broader", "1")
    (tmp_path / "aat.nt").write_text(as_n_triples() + other + second)
    with pytest.raises(DataError, match=r"'Amphoren' .* has two parents, 'tableware' and 'vases'"):
        Taxonomy.read(tmp_path / "aat.nt")
    chosen = statement("300198828", f"{GVP}broaderPreferred", "1")
    (tmp_path / "aat.nt").write_text(as_n_triples() + other + second + chosen)
    assert Taxonomy.read(tmp_path / "aat.nt").parents["Amphoren"] == "tableware"


def test_concepts_of_one_name_are_told_apart_by_their_addresses(tmp_path):
    own = f'<{AAT}2> <{SKOS}prefLabel> "vases"@en .\n'
    own += statement("2", f"{SKOS}broader", "300046300")
    (tmp_path / "aat.nt").write_text(as_n_triples() + own)
    parents = Taxonomy.read(tmp_path / "aat.nt").parents
    assert (parents["Amphoren"], parents[f"{AAT}2"]) == (f"{AAT}300132254", "vessels (containers)")


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
