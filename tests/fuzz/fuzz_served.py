"""SERVED: lists of words, and what an index keeps.

Words are read a second time with ``str.split``. A damaged ``likeness.json`` is made anew,
so its outcome must be the undamaged one's.
"""

import tempfile
from pathlib import Path

import numpy as np
from fuzz_inputs import Files, damage_json
from fuzz_readers import Target, one, saved
from made_index import made_index
from search_setup import LABELS, save_model

from labelwise.photos import Index
from labelwise.photos.shift import likeness_of
from labelwise.photos.words import WordList

WORDS = b"dog\ncat: a photo of a cat, a kitten\n# a comment\nsparrow; bird\nbird\n"


def same_words(read: WordList, folder: Path) -> bool:
    text = (folder / "words.txt").read_text(encoding="utf-8-sig")
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    assert len(read.words) == len(lines), "a line is one word"
    again = folder / "again.txt"
    again.write_text(read.text(), encoding="utf-8")
    assert [word.name for word in WordList.read(again).words] == [w.name for w in read.words]
    return True


def make_library(place: Path) -> None:
    model = save_model(place.parent / "model")
    logits = np.random.default_rng(0).normal(size=(60, len(LABELS)))
    with Index(made_index(place, model, logits)) as index:
        likeness_of(index)
        index.store.checksums.put_missing()


_WHOLE: Files = {}


def library_files() -> Files:
    """Return what an index keeps beside its photos; the rest of it stays whole."""
    if not _WHOLE:
        _WHOLE.update(saved(make_library, "i.index")())
    return {name: content for name, content in _WHOLE.items() if name.endswith("likeness.json")}


def read_likeness(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        for name, content in _WHOLE.items():
            given = folder / name
            place = Path(temporary) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(given.read_bytes() if given.is_file() else content)
        (place,) = (one.parent for one in Path(temporary).rglob("likeness.json"))
        with Index(place) as index:
            return likeness_of(index).sentence()


_TRUTH: list[str] = []


def same_likeness(read: str, folder: Path) -> bool:
    if not _TRUTH:
        with tempfile.TemporaryDirectory() as temporary:
            _TRUTH.append(read_likeness(Path(temporary)))
    assert read == _TRUTH[0], f"{read!r:.200} is not {_TRUTH[0]!r:.200}"
    return True


SERVED = (
    Target(
        "words",
        one("words.txt", WORDS),
        lambda folder: WordList.read(folder / "words.txt"),
        {},
        same_words,
    ),
    Target("likeness.json", library_files, read_likeness, {".json": damage_json}, same_likeness),
)
