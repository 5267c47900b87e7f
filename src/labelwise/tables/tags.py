"""TagTable: who tagged what, however it was written down. A use is one tag on one photo.

    label tables            path, labels; or one column per label; COCO, VOC and all that load reads
    one use per row         photo, tag and, if there is one, score
    language models         JSON Lines of Ollama and OpenAI: tags as JSON or with commas
    COCO results            a list of image_id, category_id and score, and the instances file
    several annotators      photo, label, worker, answer, and the name of the one you trust

A line of a language model must name its photo: ``path`` (or photo, image, file, file_name,
custom_id, id) beside the response. Scores only steer which uses are asked about.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.text import counted
from labelwise.errors import DataError, SettingsError
from labelwise.tables.load import load
from labelwise.tables.rows import is_file, read_json, require_file
from labelwise.tables.table import LabelTable
from labelwise.tables.tabular import TABULAR, TabularFile, json_objects, open_tabular
from labelwise.tables.votes import ANSWERS, YES, Votes, vote_columns
from labelwise.tables.words import LIKELY_LABELS, LONG_SHARE, folded
from labelwise.types import nearest

TAG_LISTS = ("tags", "labels", "keywords", "objects")
TAG_NAMES, SCORE_NAMES = ("tag", "label", "name", "keyword"), ("score", "confidence", "probability")
SCORE_HEADERS = LONG_SHARE | {"konfidenz", "wahrscheinlichkeit", "confiance", "confianza"}
RESPONSES = ("response", "message", "choices", "output", "content", "text", "body")
NOTHING = (["none"], ["n/a"], ["nothing"], ["no tags"], ["no objects"])
LONGEST_TAG, MOST_WORDS = 60, 6  # beyond, it is a sentence
LONGEST_NAME, MOST_SCORE = 1000, 1e300
FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
PREAMBLE = re.compile(
    r"^[^,;:]*\b(?:tags|labels|keywords|objects)\b[^,;:\n]*:|^[^:\n]*:(?=[^:]*$)(?!\s*[\d.])",
    re.IGNORECASE,
)
BETWEEN = re.compile(r"[,;|\n]|\s#")
BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+")
SCORED = re.compile(r"^(.+?)\s*[:=(]\s*([01]?\.\d+)\)?$")  # dog: 0.9, dog (0.9)
SENTENCE = re.compile(  # how answers begin that are not a list of tags
    r"^(?:i|i['’]m|sorry|unable|unknown|unsure|as an ai|there (?:is|are)|"
    r"(?:the|this) (?:image|photo|picture))\b",
    re.IGNORECASE,
)


def text_of(value: object) -> object:
    """Return what a model said, from a response of Ollama or OpenAI; None if there is nothing."""
    for _ in range(12):  # levels
        if isinstance(value, list):
            listed = value if value and isinstance(value[0], dict) else []
            texts = [text for text in listed if any(key in text for key in RESPONSES)]
            if not texts:
                return value
            value = texts[-1]
        elif isinstance(value, dict):
            said = [value[name] for name in RESPONSES if value.get(name) is not None]
            if not said:
                return value if any(name in value for name in TAG_LISTS) else None
            value = said[0]
        else:
            return value if isinstance(value, str) else None
    return None


def tags_of_text(said: object) -> list[tuple[str, float | None]] | None:
    """Return the tags that a model listed, with scores where it gave some; None if it is prose.

    >>> tags_of_text("Tags: Dog, beach.")
    [('dog', None), ('beach', None)]
    >>> tags_of_text('```json\\n{"tags": [{"tag": "dog", "score": 0.9}]}\\n```')
    [('dog', 0.9)]
    """
    value = said
    if isinstance(said, str):
        said = THINKING.sub("", said)
        fenced = FENCE.search(said)
        text = (fenced[1] if fenced else said).strip()
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            listed = PREAMBLE.sub("", text).strip(" []{}\n")
            if text and not listed:
                return None  # "Sure! Here are the tags:", and nothing behind it
            lines = (line.strip() for line in BETWEEN.split(listed))
            pieces = (BULLET.sub("", line) for line in lines if not line.endswith((":", "!")))
            names = [tag for tag in (piece.strip(" .\"'`*#-") for piece in pieces) if tag]
            if any(SENTENCE.match(name) for name in names):
                return None
            named = [(name, SCORED.match(name)) for name in names]
            value = [
                {"tag": scored[1], "score": float(scored[2])} if scored else name
                for name, scored in named
            ]
            value = [] if [name.lower() for name in names] in NOTHING else value
    if isinstance(value, dict):
        inside = next((value[key] for key in TAG_LISTS if key in value), value)
        if isinstance(inside, dict):
            inside = [{"tag": tag, "score": score} for tag, score in inside.items()]
        value = inside
    if not isinstance(value, list):
        return None
    tags = [tag for item in value if (tag := _tag(item)) is not None]
    return tags if len(tags) == len(value) else None


def _tag(value: object) -> tuple[str, float | None] | None:
    score = None
    if isinstance(value, dict):
        given = next((value[key] for key in SCORE_NAMES if key in value), None)
        if given is not None:
            number = isinstance(given, int | float) and not isinstance(given, bool)
            if not number or not abs(given) < MOST_SCORE:  # NaN neither
                return None
            score = float(given)
        value = next((value[key] for key in TAG_NAMES if key in value), None)
    if not isinstance(value, str) or len(value) > LONGEST_TAG or len(value.split()) > MOST_WORDS:
        return None
    return value.strip().casefold(), score


Answer = Literal["yes", "no", "unsure"]  # as ``labelwise.answers`` keeps it
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FoundUse = tuple[str, str, float | None]  # photo, tag, score
PHOTO_KEYS = ("path", "photo", "image", "file", "file_name", "filename", "custom_id", "id")
BY_MODELS = {"response", "message", "choices", "output", "body", "tags", "keywords", "objects"}
LOOKED_FOR = 200  # photos, before the first question


@dataclass(frozen=True, eq=False)
class TagTable:
    """Photos, tags, and per tag the rows of its photos, scores, and what a trusted person said."""

    source: str
    photos: tuple[str, ...]
    tags: tuple[str, ...]
    uses: tuple[Ints, ...]
    scores: tuple[Floats, ...] | None = None
    known: Mapping[tuple[str, str], Answer] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        source: str,
        found: Iterable[FoundUse],
        photos: Iterable[str] = (),
        *,
        known: Mapping[tuple[str, str], Answer] | None = None,
        notes: Sequence[str] = (),
    ) -> "TagTable":
        """Return the table of uses; ``photos`` are those without one. The highest score counts."""
        rows = {photo: row for row, photo in enumerate(dict.fromkeys(photos))}
        tags: dict[str, dict[int, float]] = {}  # NaN without a score
        strange: dict[str, int] = {}
        for photo, text, score in found:
            tag = " ".join(text.split())
            if not _can_be_shown(tag):
                strange[tag] = strange.get(tag, 0) + 1
                continue
            row, own = rows.setdefault(photo, len(rows)), tags.setdefault(tag, {})
            own[row] = np.nan if score is None else max(score, own.get(row, score))
        if not tags:
            raise DataError(f"{source}: there is no tag in it")
        ordered = {name: dict(sorted(tags[name].items())) for name in sorted(tags)}
        uses = tuple(np.array(list(own), np.int64) for own in ordered.values())
        values = tuple(np.array(list(own.values()), np.float64) for own in ordered.values())
        scores = None if np.isnan(np.concatenate(values)).any() else values
        said = (*notes, *_left_out(len(strange), sum(strange.values())))
        return cls(source, tuple(rows), tuple(ordered), uses, scores, known or {}, said)

    @classmethod
    def of_labels(cls, table: LabelTable) -> "TagTable":
        """Return the present labels of a label table; labels that no photo carries are left out."""
        present = table.present.plain()
        row, column = np.divmod(present.keys(), max(present.width, 1))
        order = np.argsort(column, kind="stable")
        parts = np.split(row[order], np.cumsum(np.bincount(column, minlength=present.width))[:-1])
        tagged = [k for k, own in enumerate(parts) if len(own)]
        used = [k for k in tagged if _can_be_shown(table.space.names[k])]
        if not used:
            raise DataError(f"{table.name}: there is no tag in it")
        names = tuple(table.space.names[k] for k in used)
        uses = tuple(np.asarray(parts[k], np.int64) for k in used)
        strange = [len(parts[k]) for k in tagged if k not in {*used}]
        notes = (*table.notes, *_left_out(len(strange), sum(strange)))
        return cls(table.name, tuple(table.ids), names, uses, notes=notes)

    @classmethod
    def of_scores(
        cls,
        source: str,
        photos: Sequence[str],
        names: Sequence[str],
        probs: Floats,
        sets: NDArray[np.bool_],
    ) -> "TagTable":
        rows_of = {k: np.flatnonzero(sets[:, k]) for k in np.flatnonzero(sets.any(0)).tolist()}
        if not rows_of:
            raise DataError(f"{source}: no photo has a tag; lower --at-least")
        uses, tags = tuple(rows_of.values()), tuple(names[k] for k in rows_of)
        scores = tuple(probs[rows, k] for k, rows in rows_of.items())
        notes = () if np.isfinite(np.concatenate(scores)).all() else ("scores are not finite",)
        return cls(source, tuple(photos), tags, uses, None if notes else scores, {}, notes)

    def __len__(self) -> int:
        return sum(map(len, self.uses))

    def digest(self) -> str:
        names = "\n".join((*self.photos, "", *self.tags))
        digest = hashlib.sha256(names.encode("utf-8", "replace"))
        for numbers in (*self.uses, *(self.scores or ())):
            digest.update(np.ascontiguousarray(numbers).tobytes())
        return digest.hexdigest()

    def require_usable(self, folder: Path) -> None:
        for tag in self.tags:
            if "|" in tag or tag == "*":
                words = "cannot be in a label table, where | parts tags and * means every tag"
                raise DataError(f"{self.source}: the tag {tag!r:.100} {words}; rename it")
        rows = np.random.default_rng(0).permutation(len(self.photos))[:LOOKED_FOR]
        if not any(is_file(folder / self.photos[row]) for row in rows.tolist()):
            words = f"none of its photos is in {folder}, such as {self.photos[0]!r:.200}"
            raise DataError(f"{self.source}: {words}; name the folder of its paths with --photos")


def _can_be_shown(tag: str) -> bool:
    return 0 < len(tag) <= LONGEST_NAME and tag.isprintable()


def _left_out(tags: int, uses: int) -> list[str]:
    counts = f"{counted(tags, 'tag')} ({counted(uses, 'use')})"
    return [f"left out {counts} without a name that can be shown"] if tags else []


def read_tags(
    path: Path, *, trust: str | None = None, images: Path | None = None, at_least: float = 0.5
) -> TagTable:
    """Return the tags of a file or folder that holds no scores of labelwise's own forms.

    ``trust`` names the annotator whose answers count; ``images`` is the instances file of COCO
    results, which count from the score ``at_least``.
    """
    suffix = path.suffix.lower()
    if trust is not None:
        return _trusted(path, trust)
    stream = open_tabular(require_file(path)) if suffix in TABULAR and suffix != ".json" else None
    header = list(stream.header) if stream is not None else []
    if suffix in (".jsonl", ".ndjson") and "labels" not in header and BY_MODELS & {*header}:
        return _language_model(path)
    if suffix == ".json" and require_file(path):
        content = read_json(path)
        first = content[0] if isinstance(content, list) and content else None
        if isinstance(first, dict) and "image_id" in first and "category_id" in first:
            return _coco_results(path, content, images, at_least)
    columns = vote_columns(header)
    photo, label, answer = (columns.get(name) for name in ("photo", "label", "answer"))
    score = next((name for name in header if folded(name) in SCORE_HEADERS), None)
    if score is not None:  # a word for labels beside it means that each row is one tag
        label = label or next((name for name in header if folded(name) in LIKELY_LABELS), None)
    if stream and photo and label and "labels" not in header:
        if answer is not None and _are_answers(stream, answer):
            raise SettingsError(
                f"{path.name}: its column {answer!r} says yes or no of each tag; name the person "
                "whose answers count with --trust, or keep the rows that say yes without it"
            )
        if "worker" not in columns:
            return _use_rows(path, stream, photo, label, score)
    return TagTable.of_labels(load(path, check_files=False, duplicates="drop"))


def _are_answers(stream: TabularFile, answer: str) -> bool:
    cells = (batch.column(0).to_pylist() for batch in stream.batches([answer]))
    words = {str(cell).strip().casefold() for cell in chain.from_iterable(cells)}
    return words <= {*ANSWERS, "", "none"}


def _use_rows(
    path: Path, stream: TabularFile, photo: str, label: str, score: str | None
) -> TagTable:
    headers = [photo, label, *([] if score is None else [score])]

    def uses() -> Iterator[FoundUse]:
        rows = (
            zip(*(batch.column(name).to_pylist() for name in headers), strict=True)
            for batch in stream.batches(headers)
        )
        for number, row in enumerate(chain.from_iterable(rows), 1):
            where = f"{path.name}, row {number}"
            if row[0] in (None, "") or row[1] is None:
                raise DataError(f"{where}: it names no photo, or no tag")
            yield str(row[0]), str(row[1]), None if score is None else score_of(row[2], where)

    return TagTable.of(path.name, uses(), notes=stream.notes)


def score_of(value: object, where: str) -> float:
    """Return a score, or raise a DataError that names its place."""
    try:
        number = float(str(value).replace(",", "."))
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number) or isinstance(value, bool):
        raise DataError(f"{where}: a score must be a number, got {value!r:.60}")
    return number


def _trusted(path: Path, trust: str) -> TagTable:
    votes = Votes.read(path)
    if trust not in votes.workers:
        hint = nearest(trust, votes.workers)
        raise SettingsError(f"{path.name}: no answer is by {trust!r}{hint}")
    own, said = votes.worker == votes.workers.index(trust), votes.answered()
    other = said.worker != votes.workers.index(trust)
    entries, entry_of = np.unique(said.entry[other], return_inverse=True)
    share = np.bincount(entry_of, said.answer[other] == YES) / np.bincount(entry_of)
    yes = entries[share > 0.5]
    photos, labels, width = list(votes.photos), votes.labels, len(votes.labels)
    words: dict[int, Answer] = {1: "yes", 0: "no", -1: "unsure"}
    trusted = zip(votes.photo[own], votes.label[own], votes.answer[own], strict=True)
    known = {(photos[row], labels[k]): words[int(answer)] for row, k, answer in trusted}
    uses = ((photos[entry // width], labels[entry % width], None) for entry in yes.tolist())
    note = f"tags are what most of {counted(len(votes.workers) - 1, 'annotator')} say; {trust} is"
    note += f" trusted, and has answered {len(known):,} times"
    return TagTable.of(path.name, uses, photos, known=known, notes=[note])


def _coco_results(
    path: Path, found: Sequence[object], images: Path | None, at_least: float
) -> TagTable:
    if images is None:
        words = "holds COCO results; name their images and categories with --data instances.json"
        raise SettingsError(f"{path.name} {words}")
    named = read_json(images)
    try:
        photos = {record["id"]: str(record["file_name"]) for record in named["images"]}
        tags = {record["id"]: str(record["name"]) for record in named["categories"]}
    except (TypeError, KeyError):
        raise DataError(
            f"{images}: must have 'images' with id and file_name, and 'categories' with id and name"
        ) from None

    def uses() -> Iterator[FoundUse]:
        for number, result in enumerate(found, 1):
            where = f"{path.name}, result {number}"
            facts = result if isinstance(result, dict) else {}
            photo, tag = facts.get("image_id"), facts.get("category_id")
            if not isinstance(photo, int | str) or not isinstance(tag, int | str):
                raise DataError(f"{where}: must have image_id and category_id")
            if photo not in photos or tag not in tags:
                raise DataError(f"{where}: {images.name} has no image {photo} or category {tag}")
            score = score_of(facts.get("score"), where)
            if score >= at_least:
                yield photos[photo], tags[tag], score

    note = f"results with a score of at least {at_least:g} are tags (--at-least)"
    return TagTable.of(path.name, uses(), photos.values(), notes=[note])


def _language_model(path: Path) -> TagTable:
    uses: list[FoundUse] = []
    photos: list[str] = []
    failed, prose = 0, list[int]()
    for number, line in json_objects(path):
        photo = next((line[key] for key in PHOTO_KEYS if isinstance(line.get(key), str)), None)
        if not photo:
            words = 'it must say which photo it is about, as {"path": "a.jpg", "response": ...}'
            raise DataError(f"{path.name}, line {number}: {words}")
        text = None if line.get("error") else text_of(line)
        if text is None:
            failed += 1
        elif (tags := tags_of_text(text)) is None:
            prose.append(number)
        else:
            photos.append(photo)
            uses += [(photo, tag, score) for tag, score in tags]
    notes = [f"left out {counted(failed, 'photo')} without a response"] if failed else []
    if prose:
        lines = f"{counted(len(prose), 'response')}, first line {prose[0]}"
        notes.append(f"left out what is not a list of tags: {lines}")
    if not uses:
        raise DataError(f"{path.name}: there is no tag in it; {'; '.join(notes) or 'it is empty'}")
    return TagTable.of(path.name, uses, photos, notes=notes)
