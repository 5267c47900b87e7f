"""LIBRARY: readers of photo libraries: side-cars, index folders, queries, answers, keywords.

Side-cars are read a second time with ElementTree, tables with csv; an index that answers must give
the probabilities it was made with; a query means what Python's own ``and``, ``or`` and ``not`` say
of each set of labels.
"""

import csv
import io
import itertools
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np
from fuzz_inputs import Files, damage
from fuzz_readers import Target, drawn, of_file, same
from made_index import made_index
from search_setup import LABELS, save_model

from labelwise.photos import Index
from labelwise.photos.index import IndexFacts
from labelwise.photos.prevalence import read_answers
from labelwise.photos.xmp import Keyword, entries, noted, tagged, untagged
from labelwise.retrieval import Query
from labelwise.retrieval.expression import AllOf, Has, Not, Nothing
from labelwise.types import LabelSpace

RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
SUBJECT = "{http://purl.org/dc/elements/1.1/}subject"
OURS = {"dc": frozenset({"x"}), "lr": frozenset({"x"})}


def sidecar() -> bytes:
    mine = tagged(None, [keyword("grandma")]).replace(b"labelwise", b"other")
    return tagged(mine, [keyword("x", "animal")])


def keyword(label: str, *parents: str) -> Keyword:
    return Keyword(label, 0.5, "m", "2020-01-01", parents)


def read_sidecar(folder: Path) -> Any:
    data = (folder / "a.xmp").read_bytes()
    return entries(data), noted(data), untagged(data, OURS), tagged(data, [keyword("new")])


def keywords_by_hand(data: bytes) -> list[str]:
    root = ElementTree.fromstring(data)
    return [
        (item.text or "").strip()
        for subject in root.iter(SUBJECT)
        for bag in subject
        for item in bag.iter(f"{RDF}li")
    ]


def same_keywords(read: Any, folder: Path) -> bool:
    found, _, without, more = read
    data = (folder / "a.xmp").read_bytes()
    before = keywords_by_hand(data)
    if len(found["dc"]) > len(set(before)):
        raise AssertionError(f"{found['dc']} are not all in {before}")
    after = keywords_by_hand(without)
    lost = [word for word in set(before) - set(after) if word != "x"]
    assert not lost, f"{lost} of another program were removed"
    assert set(before) - set(keywords_by_hand(more)) <= {"x"}, "tagging removed a keyword"
    assert "new" in keywords_by_hand(more), "the keyword was not written"
    return True


def index_files() -> Files:
    """Return the files of a small index that no picture was read for, and its model."""
    if not _INDEX:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            model = save_model(place / "model")
            logits = np.random.default_rng(0).normal(size=(6, len(LABELS)))
            with Index(made_index(place / "i.index", model, logits)) as index:
                index.store.checksums.put_missing()
            for file in sorted(place.rglob("*")):
                if file.is_file():
                    _INDEX[file.relative_to(place).as_posix()] = file.read_bytes()
    return {name: content for name, content in _INDEX.items() if name.startswith("i.index/")}


_INDEX: Files = {}


def read_index(folder: Path) -> Any:
    with Index(folder / "i.index") as index:
        return [index.odds(label).log_p[: len(index)].tolist() for label in range(len(index.space))]


def same_logits(read: Any, folder: Path) -> bool:
    """Whatever was damaged, an index that answers gives the probabilities it was made with."""
    logits = np.random.default_rng(0).normal(size=(6, len(LABELS))).astype(np.float32)
    truth = -np.log1p(np.exp(-logits)).T
    assert np.allclose(np.array(read), truth, atol=1e-5), "a probability changed"
    return True


SPACE = LabelSpace(("dog", "cat", "beach"))


def drawn_query(rng: Random, depth: int = 0) -> tuple[str, str]:
    """Return a query and the Python expression that means the same."""
    kind = rng.randrange(4 if depth < 3 else 1)
    if kind == 0:
        name = rng.choice(SPACE.names)
        return rng.choice((name, f'"{name}"')), f"({name!r} in there)"
    if kind == 1:
        text, meaning = drawn_query(rng, depth + 1)
        return f"-({text})", f"(not {meaning})"
    parts = [drawn_query(rng, depth + 1) for _ in range(rng.randint(2, 3))]
    mark, word = (", ", " and ") if kind == 2 else (" | ", " or ")
    return f"({mark.join(p[0] for p in parts)})", f"({word.join(p[1] for p in parts)})"


def query_files(rng: Random) -> Files:
    text, meaning = drawn_query(rng)
    files = {"q.txt": text.encode(), "meaning.txt": meaning.encode()}
    if rng.random() < 0.5:
        files = {"q.txt": damage(rng, text.encode())}
    elif rng.random() < 0.05:
        depth = rng.choice((50, 2000))
        files = {"q.txt": b"(" * depth + text.encode() + b")" * depth}
    return files


def read_query(folder: Path) -> Query:
    text = (folder / "q.txt").read_bytes().decode("utf-8", "replace")
    return Query.parse(text, SPACE)


def holds(expression: Any, there: tuple[str, ...]) -> bool:
    if isinstance(expression, Has):
        return expression.name in there
    if isinstance(expression, Not):
        return not holds(expression.part, there)
    if isinstance(expression, Nothing):
        return not there
    answers = [holds(part, there) for part in expression.parts]
    return all(answers) if isinstance(expression, AllOf) else any(answers)


def means_it(query: Query, folder: Path) -> bool:
    """A query asks what it says, also when its own words are read again."""
    again = Query.parse(str(query), SPACE)
    assert again == query, f"{query} became {again}"
    place = folder / "meaning.txt"
    if not place.exists():
        return False
    meaning = compile(place.read_text(), "meaning", "eval")
    for size in range(4):
        for there in itertools.combinations(SPACE.names, size):
            assert holds(query.expression, there) == eval(meaning, {"there": there})
    return True


def same_index_facts(read: IndexFacts, folder: Path) -> bool:
    same(read.model_dump(), json.loads((folder / "index.json").read_bytes()))
    return True


def same_answers(read: dict[str, str], folder: Path) -> bool:
    text = (folder / "a.csv").read_bytes().decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for row in rows:
        word = (row["answer"] or "").strip().lower()
        if word in ("yes", "no"):
            assert read[row["path"]] == word
        elif not word:
            assert row["path"] not in read or len(rows) > len(read)
    return True


FACTS = b'{"format": 1, "model": "m", "held_out": "test", "decode": "cpu"}'
ANSWERS = b"path,question,answer\na.jpg,is it?,yes\nb.jpg,is it?,no\n"
LIBRARY = (
    Target("sidecar", {"a.xmp": sidecar()}, read_sidecar, same_keywords),
    of_file("index.json", "index.json", FACTS, IndexFacts.load, check=same_index_facts),
    Target("index", index_files, read_index, same_logits),
    drawn("query", query_files, read_query, means_it),
    of_file("answers", "a.csv", ANSWERS, read_answers, check=same_answers),
)
