"""AuditSession: people answer the questions of an audit, and every answer is in the log.

The questions follow from the table, the seed and the answers (:class:`labelwise.decide.Audit`).
While one person looks at a photo, others are asked what would follow a yes. Missing photos and
answers that disagree count as unsure. The questions of a sheet are fixed when it is written, so all
of its answers count.

Answers belong to the tags. So another level can be tested on the answers that are there: the audit
is run again from the log. Each level that was tested may err with its own chance, so with levels of
95 % and 95 % both sentences hold with a confidence of 90 %, and that is what is said.

Once the tags are settled, random photos are asked about as a whole: which of the most used tags do
they show? That gives what was missed. The outcome is

    kept.csv      the table with the tags that can be trusted, as people corrected it
    train.parquet the same for training: tags that nobody answered carry their probability
    tags.csv      the share of right uses of each tag, and what was missed, with intervals
    audit.html    the same to look at (:mod:`labelwise.report.audit`)
    receipt.json  what was found, so that a second person can test it again

A file that labelwise did not write from this audit's log is never overwritten.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, floor
from pathlib import Path
from typing import Any, get_args

import numpy as np

from labelwise import __version__
from labelwise.answers.agreement import require_own
from labelwise.answers.log import Answer, AnswerLog, Facts, Line, LoggedAnswer, Note, answered, now
from labelwise.answers.session import EACH_TAG, Assumed, Key, Session, UseQuestion, Word, as_answer
from labelwise.base.files import sha256_of, summed, without_sum, write_error
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.decide.audits import HOPELESS, Audit, AuditVerdict, Precision, Use
from labelwise.decide.estimate import Recall, percent, recall_of
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.sources import FileImages
from labelwise.tables.export import export
from labelwise.tables.rows import from_rows, is_file, read_json
from labelwise.tables.table import LabelTable
from labelwise.tables.tags import TagTable
from labelwise.types import nearest

WHY, SHOWN, BEGUN, LEVEL, SHEET = "audit", "shown", "audit", "level", "sheet"  # of lines
RANDOM_PHOTOS = 30
LISTED = 30  # tags that a random photo is asked about
SAID = ("also", "wrong", "unsure")  # of a random photo


@dataclass(frozen=True)
class AuditSettings:
    """What an audit is to show. ``again``: one set of tags that was kept before, tested afresh."""

    right_at_least: float = 0.9
    confidence: float = 0.95
    per_tag: bool = False
    seed: int = 0
    random_photos: int = RANDOM_PHOTOS
    again: bool = False

    @property
    def level(self) -> list[float | bool]:
        return [self.right_at_least, self.confidence, self.per_tag]


@dataclass(frozen=True)
class SheetCount:
    """What became of the answers of a sheet."""

    answered: int
    used: int
    dropped: int  # about tags that are not tested any more
    waiting: int  # for answers to questions before them

    def sentence(self) -> str:
        parts = [f"{self.answered:,} answered: {self.used:,} used"]
        if self.dropped:
            parts.append(f"{self.dropped:,} about tags that were dropped meanwhile")
        if self.waiting:
            parts.append(f"{self.waiting:,} wait for questions before them that have no answer")
        return ", ".join(parts)


class AuditSession(Session):
    """One audit of a table by any number of people; threads must take turns."""

    why = WHY

    def __init__(
        self, table: TagTable, folder: Path, log: AnswerLog, settings: AuditSettings
    ) -> None:
        self.table, self.folder, self.settings = table, folder, settings
        self._start = np.cumsum([0, *map(len, table.uses)])
        self.rows = {photo: row for row, photo in enumerate(table.photos)}
        self.tags = {tag: k for k, tag in enumerate(table.tags)}
        most = sorted(range(len(table.tags)), key=lambda k: (-len(table.uses[k]), table.tags[k]))
        self.listed = tuple(sorted(table.tags[k] for k in most[:LISTED]))
        order = np.random.default_rng((settings.seed, 3)).permutation(len(table.photos))
        self._random = [table.photos[row] for row in order.tolist()]
        self.unreadable: set[str] = set()  # photos that are taken for missing
        self.missing = 0  # answers that the last verdict did without
        self._begin(log)
        super().__init__(log)

    def _begin(self, log: AnswerLog) -> None:
        """Note the audit and its level, or find that the log is of another audit."""
        require_whole(log)
        settings, begun = self.settings, log.notes(BEGUN)
        audit = {"table": self.table.digest(), "seed": settings.seed, "again": settings.again}
        level = dict(zip(LEVELS, settings.level, strict=True))
        if not begun:
            log.append(
                [Note(BEGUN, {**audit, **level, "source": self.table.source, "when": now()})]
            )
        elif other := [name for name in audit if begun[0].get(name) != audit[name]]:
            what = "the tags have changed" if other == ["table"] else f"{other[0]} was different"
            raise SettingsError(
                f"{log.path.parent} holds another audit: {what}; name another folder with -o"
            )
        if noted_level(log) != settings.level:
            log.append([Note(LEVEL, {**level, "when": now()})])
        self.spent = sum(1 - tested[1] for tested in levels_tested(log))
        if self.spent >= MOST_SPENT:
            raise SettingsError(
                f"{log.path.parent}: levels were tested on these answers so often that less than "
                f"{percent(1 - MOST_SPENT)} confidence would be left; start again with -o"
            )

    def use_of(self, tag: int, place: int) -> Use:
        """Return how the audit numbers a use: its tag, and its place among the tag's uses."""
        return (0, int(self._start[tag]) + place) if self.settings.again else (tag, place)

    def found(self, photo: str, tag: str) -> Use | None:
        row, k = self.rows.get(photo), self.tags.get(tag)
        if row is None or k is None:
            return None
        rows = self.table.uses[k]
        place = int(np.searchsorted(rows, row))
        return self.use_of(k, place) if place < len(rows) and rows[place] == row else None

    def key_of(self, use: Use) -> Key:
        """Return the photo and the tag of a use."""
        tag, number = use
        if self.settings.again:
            tag = int(np.searchsorted(self._start, number, "right")) - 1
            number -= int(self._start[tag])
        return self.table.photos[int(self.table.uses[tag][number])], self.table.tags[tag]

    def _fresh(self) -> Audit:
        settings, sizes = self.settings, [*map(len, self.table.uses)]
        notes = [note for note in self.log.notes(SHEET) if note.get("level") == settings.level]
        again = settings.again
        return Audit(
            [sum(sizes)] if again else sizes,
            scores=None if again else self.table.scores,
            seed=settings.seed,
            right_at_least=settings.right_at_least,
            confidence=settings.confidence,
            per_tag=again or settings.per_tag,
            most=sum(sizes) if again else HOPELESS,
            sheets={} if again else dict(map(_ends_of_sheet, notes)),
        )

    def restart(self) -> None:
        self.shown: dict[str, Mapping[str, Any]] = {}
        known = ((self.found(*key), word) for key, word in self.table.known.items())
        self.answers: dict[Use, Answer] = {use: word for use, word in known if use is not None}
        self._is_stale = True

    def resume(self) -> None:
        if self._is_stale:
            self.audit, self._is_stale = self._fresh(), False
        self.audit.resume(self.answers)

    def covers(self, line: LoggedAnswer) -> bool:
        return line.why == WHY and self.found(line.photo, line.label) is not None

    def told(self, note: Note) -> tuple[Key, str, Word | None] | None:
        facts = note.facts
        if note.kind == SHEET and min(_ends_of_sheet(facts)) < 0:
            raise self.log.damaged("a note of a sheet")
        if note.kind != SHOWN:
            return None
        photo, who = facts.get("photo"), facts.get("who")
        lists = [] if facts.get("undo") else [facts.get(name) for name in SAID]
        is_text = all(isinstance(own, list) and {*map(type, own)} <= {str} for own in lists)
        if not (isinstance(photo, str) and isinstance(who, str) and is_text):
            raise self.log.damaged("a note of a random photo")
        if photo not in self.rows:
            return None
        return (photo, EACH_TAG), who, None if facts.get("undo") else facts

    def take(self, key: Key, line: Line) -> None:
        words = [said[-1] for said in self.said.get(key, {}).values()]
        if key[1] == EACH_TAG:
            self.shown.pop(key[0], None)
            if words and isinstance(words[-1], Mapping):
                self.shown[key[0]] = words[-1]
            return
        if (use := self.found(*key)) is None:
            return
        before = self.answers.pop(use, None)
        if words:
            self.answers[use] = (
                "unsure" if words.count(words[0]) < len(words) else as_answer(words[0])
            )
        elif key in self.table.known:
            self.answers[use] = self.table.known[key]
        self._is_stale |= before is not None and before != self.answers.get(use)

    def ahead(self, assumed: Assumed) -> Iterator[UseQuestion]:
        audit = deepcopy(self.audit)
        while (use := audit.question) is not None:
            key = self.key_of(use)
            word = self.answers.get(use) or assumed.get(key)
            if word is None and self._is_there(key[0]):
                yield UseQuestion(*key)
                word = "yes"
            audit.answer(as_answer(word or "unsure"))
        room = 0 if self.settings.again else self.settings.random_photos - len(self.shown)
        for photo in self._random:
            if room <= 0:
                return
            if photo not in self.shown and self._is_there(photo):
                room -= 1
                if (photo, EACH_TAG) not in assumed:
                    yield self.question_of((photo, EACH_TAG))

    def question_of(self, key: Key) -> UseQuestion:
        more = (self.tagged(key[0]), self.listed) if key[1] == EACH_TAG else ()
        return UseQuestion(*key, *more)

    def sheet(self, count: int) -> list[UseQuestion]:
        """Return the questions of a sheet. They are noted, and asked next whatever is answered."""
        self.refresh()
        audit = self.known()
        at, questions = audit.count, list[UseQuestion]()
        audit.lay_down(count + len(self.answers))
        for _ in range(1 + len(audit.sheet)):
            if (use := audit.question) is None or len(questions) == count:
                break
            key, word = self.key_of(use), self.answers.get(use)
            if word is None and self._is_there(key[0]):
                questions.append(UseQuestion(*key))
            audit.answer(word or ("yes" if self._is_there(key[0]) else "unsure"))
        if not questions:
            return self.batch(count)  # random photos
        note = {"at": at, "count": audit.count - at, "level": self.settings.level, "when": now()}
        self._is_stale = True
        self.record([Note(SHEET, note)])
        return questions

    def count_of_sheet(self, keys: Iterable[Key]) -> SheetCount:
        """Return how many of these answers the audit uses now."""
        keys, audit = [*keys], self.known()
        tested = audit.test.kept if audit.test is not None else None
        used, dropped = {self.key_of(use) for use in audit.used}, 0
        other = [key for key in keys if key[1] != EACH_TAG and key not in used]
        if tested is not None and not self.settings.again:
            dropped = sum(not tested[self.tags[tag]].any() for _, tag in other)
        return SheetCount(len(keys), len(keys) - len(other), dropped, len(other) - dropped)

    def _is_there(self, photo: str) -> bool:
        return photo not in self.unreadable and is_file(self.folder / photo)

    def tagged(self, photo: str) -> tuple[str, ...]:
        return tuple(tag for tag in self.listed if self.found(photo, tag) is not None)

    def answer(self, photo: str, label: str, said: str | Mapping[str, str], who: str) -> None:
        """Log what a person says of a tag on a photo, or of a photo as a whole."""
        self.record([self.line(photo, label, said, who)])

    def line(self, photo: str, label: str, said: str | Mapping[str, str], who: str) -> Line | None:
        """Return what to log of an answer; None if the person has said so already.

        Of a tag people say yes, no or unsure; of a photo as a whole (EACH_TAG) they say so by tag,
        and tags that are not named are as in the table.
        """
        if label == EACH_TAG and isinstance(said, Mapping):
            return self._line_of_photo(photo, said, who)
        if self.found(photo, label) is None:
            raise DataError(f"{photo!r:.200} does not carry the tag {label!r:.100} in the table")
        word = as_answer(said)
        if self.said.get((photo, label), {}).get(who) == (word,):
            return None
        return answered(photo, label, word, who, WHY)

    def _line_of_photo(self, photo: str, shown: Mapping[str, str], who: str) -> Line | None:
        if photo not in self.rows:
            raise DataError(f"{photo!r:.200} is not a photo of the table")
        tags: dict[str, set[str]] = {word: set() for word in get_args(Answer)}
        for tag, word in shown.items():
            if tag not in self.listed:
                raise DataError(f"{tag!r:.100} is not a listed tag{nearest(tag, self.listed)}")
            tags[as_answer(word)].add(tag)
        had = {*self.tagged(photo)}
        sets = (tags["yes"] - had, tags["no"] & had, tags["unsure"])
        facts = {name: sorted(found) for name, found in zip(SAID, sets, strict=True)}
        before = self.shown.get(photo, {})
        if facts == {name: before.get(name) for name in facts}:
            return None
        return Note(SHOWN, {"photo": photo, "who": who, "when": now(), **facts})

    def undoing(self, key: Key, who: str) -> Line:
        if key[1] == EACH_TAG:
            return Note(SHOWN, {"photo": key[0], "who": who, "undo": True})
        return super().undoing(key, who)

    def known(self) -> Audit:
        """Return the audit with all answers that follow from each other.

        A question that another person has, or whose photo is missing, counts as unsure, which no
        guarantee profits from, if there are answers to later ones.
        """
        audit, words, last = deepcopy(self.audit), list[Answer](), 0
        missing = [0]  # answers, up to each
        while (use := audit.question) is not None:
            word, key = self.answers.get(use), self.key_of(use)
            if word is None and key not in self._held and self._is_there(key[0]):
                break
            words.append(word or "unsure")
            audit.answer(words[-1])
            missing.append(missing[-1] + (word is None))
            last = len(words) if word is not None else last
        if last != len(words):
            audit = deepcopy(self.audit)
            for word in words[:last]:
                audit.answer(word)
        self.missing = missing[last]
        return audit

    def verdict(self) -> AuditVerdict:
        verdict = self.known().verdict()
        answers = verdict.answers - self.missing
        return replace(verdict, answers=answers, confidence=1 - self.spent)

    def denied(self) -> list[Key]:
        return [self.key_of(use) for use, word in self.answers.items() if word == "no"]


LEVELS = ("right_at_least", "confidence", "per_tag")
MOST_SPENT = 0.3  # of all confidence, by the levels that were tested


def require_whole(log: AnswerLog) -> None:
    """Raise if a log lost lines since the receipt beside it was written."""
    receipt = log.path.parent / RECEIPT
    try:
        facts = without_sum(read_json(receipt)) or {}
        is_whole = log.holds(facts.get("log", (0, 0)))
    except (DataError, TypeError, ValueError, AttributeError):
        return  # not a receipt
    if not is_whole:
        raise DataError(
            f"{log.path} has lost answers since {receipt.name} was written; bring the file back "
            f"from a copy, or delete {receipt} to go on without them"
        )


def within(table: TagTable, folder: Path, root: Path | None = None) -> TagTable:
    """Leave out photos that are not below ``root`` (the folder) once links are resolved."""
    real, parents = os.path.realpath(root or folder).rstrip(os.sep) + os.sep, dict[str, str]()

    def is_inside(photo: str) -> bool:
        parent, name = os.path.split(os.path.join(folder, photo))
        try:
            if parent not in parents:
                parents[parent] = os.path.realpath(parent)
            path = os.path.join(parents[parent], name)
            path = os.path.realpath(path) if name == ".." or os.path.islink(path) else path
        except ValueError:  # a name that no file can have
            return True
        return path.startswith(real)

    inside = np.array([is_inside(photo) for photo in table.photos], bool)
    if inside.all():
        return table
    first, left_out = table.photos[int(np.argmin(inside))], counted(int((~inside).sum()), "photo")
    photos = [table.photos[row] for row in np.flatnonzero(inside)]
    uses = [
        (table.photos[row], tag, None if table.scores is None else float(table.scores[k][place]))
        for k, tag in enumerate(table.tags)
        for place, row in enumerate(table.uses[k].tolist())
        if inside[row]
    ]
    if not uses:
        raise DataError(f"{table.source}: no photo of it is below {root or folder}: {first!r:.200}")
    below = {*photos}
    known = {key: word for key, word in table.known.items() if key[0] in below}
    note = f"left out {left_out} that are not below {root or folder}, such as {first!r:.200}"
    return TagTable.of(table.source, uses, photos, known=known, notes=(*table.notes, note))


def _ends_of_sheet(facts: Facts) -> tuple[int, int]:
    """Return after how many answers a sheet was written, and of how many; -1 of what is none."""
    at, count = (facts.get(name) for name in ("at", "count"))
    return (at, count) if isinstance(at, int) and isinstance(count, int) else (-1, -1)


def noted_seed(log: AnswerLog) -> int | None:
    """Return the seed that an audit began with; None of an empty log."""
    seed = log.notes(BEGUN)[0].get("seed") if log.notes(BEGUN) else None
    return seed if isinstance(seed, int) else None


def noted_level(log: AnswerLog) -> list[float | bool] | None:
    """Return the level that an audit's log was last asked for; None of an empty log."""
    notes = [*log.notes(BEGUN), *log.notes(LEVEL)]
    return _level_of(log, notes[-1]) if notes else None


def levels_tested(log: AnswerLog) -> list[list[float | bool]]:
    """Return the levels that answers were tested for: the last one, and others with answers."""
    levels, has_answers = list[list[float | bool]](), False
    for line in log.lines():
        if isinstance(line, Note) and line.kind in (BEGUN, LEVEL):
            level = _level_of(log, line.facts)
            levels = [*([one for one in levels if one != level] if has_answers else []), level]
        has_answers |= isinstance(line, LoggedAnswer)
    return levels


def _level_of(log: AnswerLog, facts: Facts) -> list[float | bool]:
    level = [value for name in LEVELS if isinstance(value := facts.get(name), int | float)]
    if len(level) != len(LEVELS):
        raise log.damaged("a note of a level")
    return level


KEPT, TAGS, PAGE, RECEIPT = "kept.csv", "tags.csv", "audit.html", "receipt.json"
TRAIN = "train.parquet"
NAMED = 3  # tags whose missed photos the verdict names
HEAD = (
    *("tag", "kept", "uses", "answered", "wrong", "unsure", "right", "right_low", "right_high"),
    *("tagged_share", "tagged_low", "tagged_high", "missed", "missed_low", "missed_high"),
)


def statement(session: AuditSession) -> str:
    """Return the verdict in words."""
    verdict = session.verdict()
    if session.settings.again:
        known, answers = precisions(session)[0], counted(verdict.answers, "new answer")
        level, of = percent(verdict.right_at_least), f"of these {known.uses:,} uses are right"
        if verdict.guaranteed:
            sure = f"{percent(verdict.confidence)} confidence"
            sure = "known, not estimated" if verdict.certain else sure
            return f"Confirmed: at least {level} {of} ({sure}, {answers})."
        if known.high < verdict.right_at_least:
            return f"Contradicted: at most {percent(known.high)} {of}, not {level} ({answers})."
        ends = f"{percent(known.low)} to {percent(known.high)}"
        return f"Not confirmed yet: {ends} {of} ({answers})."
    kept = {session.table.tags[k] for k in verdict.kept}
    parts = [verdict.sentence()]
    if verdict.guaranteed and not verdict.per_tag and len(kept) > 1:
        parts.append(_singly(session, verdict))
    if len(tested := levels_tested(session.log)) > 1:
        each = ", ".join(percent(confidence) for _, confidence, _ in tested)
        parts.append(
            f"{len(tested)} levels were tested on these answers ({each}), so together they hold "
            f"with {percent(verdict.confidence)} confidence."
        )
    missed = []
    for tag, found in recalls(session).items():
        if found.least_missing and tag in kept:
            words = f"About {found.missing:,.0f} photos with {tag} were missed"
            ends = f"({found.least_missing:,} to {found.most_missing:,})"
            missed.append((-found.missing, f"{words} {ends}."))
    return " ".join((*parts, *(words for _, words in sorted(missed)[:NAMED])))


def _singly(session: AuditSession, verdict: AuditVerdict) -> str:
    """Say which tags reach the level by themselves."""
    known = precisions(session)
    singly = [k for k in verdict.kept if known[k].low >= verdict.right_at_least]
    if not singly:
        return "This holds for all of them together, not for each tag."
    names = ", ".join(session.table.tags[k] for k in singly[:NAMED])
    more = f" and {len(singly) - NAMED:,} more" if len(singly) > NAMED else ""
    return f"This holds for all of them together; by themselves reach it: {names}{more}."


def progress(session: AuditSession) -> str:
    """Return in words how far the audit is."""
    audit, verdict = session.known(), session.verdict()
    answers = counted(verdict.answers, "answer")
    if verdict.guaranteed and verdict.finished:
        return f"{answers}, the tags are guaranteed"
    ahead = ""
    if verdict.finished:
        ahead = "; no guarantee can be reached"
    elif (more := audit.forecast()) is not None:
        ahead = f"; a guarantee is likely to take {more[0]:,} to {more[1]:,} more"
    elif np.isinf(audit.more()):
        ahead = "; no guarantee is in sight"
    if audit.test is None and not audit.per_tag:
        return f"{answers}, choosing the tags to keep{ahead}"
    return f"{answers}, testing {counted(len(verdict.kept) or verdict.tags, 'tag')}{ahead}"


def precisions(session: AuditSession) -> list[Precision]:
    """Return the share of right uses of each tag, or of all together in a repeated audit."""
    audit = session.known()
    kept = audit.kept() & audit.verdict().guaranteed
    return [audit.precision(k, kept) for k in range(len(audit.sizes))]


def recalls(session: AuditSession) -> dict[str, Recall]:
    """Return how much of each listed tag was tagged, by the random photos."""
    by_tag, sure = dict[str, Recall](), session.settings.confidence
    for tag in session.listed if session.shown else ():
        own = [facts for photo, facts in session.shown.items() if session.found(photo, tag)]
        other = [facts for photo, facts in session.shown.items() if not session.found(photo, tag)]
        hits = sum(tag not in (*facts["wrong"], *facts["unsure"]) for facts in own)
        missed = sum(tag in facts["also"] for facts in other)
        unsure = sum(tag in facts["unsure"] for facts in other)
        sizes = len(session.table.photos), len(session.table.uses[session.tags[tag]])
        seen = (len(other), missed), (len(own), hits)
        by_tag[tag] = recall_of(*sizes, *seen, unsure=unsure, confidence=sure)
    return by_tag


def known_tags(session: AuditSession) -> list[tuple[str, Precision, Recall | None]]:
    """Return each tag with what is known of its uses, and of what was missed."""
    names = ["all kept tags"] if session.settings.again else session.table.tags
    missed, known = recalls(session), precisions(session)
    return [(name, own, missed.get(name)) for name, own in zip(names, known, strict=True)]


def corrected(session: AuditSession) -> tuple[list[list[str]], list[list[str]]]:
    """Return per photo the kept tags, as people corrected them, and those that are unknown."""
    audit, table = session.known(), session.table
    mask, kept, again = audit.kept(), set[str](), session.settings.again
    labels: list[set[str]] = [set() for _ in table.photos]
    unknown: list[set[str]] = [set() for _ in table.photos]
    for k, (tag, own) in enumerate(zip(table.tags, table.uses, strict=True)):
        if not again and not mask[k].any():
            continue
        kept.add(tag)
        for position, row in enumerate(own.tolist()):
            word = session.answers.get(session.use_of(k, position))
            inside = again or mask[k, audit.bins[k][position]]
            if word == "unsure" or (word is None and not inside):
                unknown[row].add(tag)
            elif word != "no":
                labels[row].add(tag)
    for photo, facts in session.shown.items():
        row = session.rows[photo]
        unknown[row] = (unknown[row] | kept.intersection(facts["unsure"])) - {*facts["wrong"]}
        labels[row] |= kept.intersection(facts["also"])
        labels[row] -= {*facts["wrong"], *unknown[row]}
    return [sorted(tags) for tags in labels], [sorted(tags) for tags in unknown]


def weighted(session: AuditSession) -> LabelTable:
    """Return the kept tags to train on: what nobody answered carries its probability.

    That is the share of right uses, or where a photo lacks the tag, of random photos that show it.
    """
    audit, own, recall = session.known(), session.table, recalls(session)
    labels, unknown = corrected(session)
    names = [own.tags[k] for k in session.verdict().kept]
    columns = {tag: column for column, tag in enumerate(names)}
    values, known = (np.zeros((len(own.photos), len(names)), np.float32) for _ in range(2))
    for row, (has, open_) in enumerate(zip(labels, unknown, strict=True)):
        values[row, [columns[tag] for tag in has]] = 1
        known[row] = 1
        known[row, [columns[tag] for tag in open_]] = 0
    right, seen = 1 - audit.unanswered_wrong(), np.isin(own.photos, list(session.shown))
    for tag, column in columns.items():
        k = session.tags[tag]
        listed, uses = seen & (tag in session.listed), own.uses[k]
        asked = [session.use_of(k, number) in session.answers for number in range(len(uses))]
        guess = np.zeros(len(own.photos), np.float32)
        if tag in recall:
            guess[:] = recall[tag].missing / max(len(own.photos) - len(uses), 1)
        guess[uses] = np.where(asked, values[uses, column], right[k, audit.bins[k]])
        values[:, column] = np.where(listed, values[:, column], guess)
    images = FileImages(session.folder.absolute(), own.photos)
    return LabelTable.from_arrays(names, images, values, known > 0, name="kept")


def write_outcome(session: AuditSession, out: Path, page: str) -> None:
    """Write what the audit found into its folder; the kept tags only if they are guaranteed."""
    made = session.verdict().guaranteed and not session.settings.again
    names = [*([KEPT, TRAIN] if made else []), TAGS, PAGE, RECEIPT]
    for name in (KEPT, TRAIN, *names):
        require_own(session.log, out / name)
    for name in () if made else (KEPT, TRAIN):
        (out / name).unlink(missing_ok=True)
    mark = secrets.token_hex(4)
    written = {name: out / f".{mark}.{name}" for name in names}
    try:
        if made:
            labels, unknown = corrected(session)
            images = (session.folder.absolute(), session.table.photos)
            export(from_rows(images, labels, name="kept", unknown=unknown), written[KEPT])
            export(weighted(session), written[TRAIN])
        write_csv(written[TAGS], HEAD, _rows(session))
        written[PAGE].write_text(page, encoding="utf-8")
        facts = summed(_receipt(session, written.get(KEPT)))
        written[RECEIPT].write_text(json.dumps(facts, indent=1), encoding="utf-8")
        digests = map(sha256_of, written.values())
        session.log.append([Note("export", {"sha256": digest}) for digest in digests])
        for name, temporary in written.items():
            temporary.replace(out / name)
    except OSError as error:
        raise write_error(out, error) from None
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


def read_receipt(path: Path) -> dict[str, Any]:
    """Return what a receipt says, if its table is as it was."""
    content = read_json(path)
    facts = without_sum(content) if isinstance(content, dict) and content else None
    if facts is None or facts.get("format") != 1:
        raise DataError(f"{path} is not a receipt as `labelwise audit` wrote it")
    if facts["kept_sha256"] is None:
        raise DataError(f"{path}: nothing was guaranteed, so no tag was kept")
    kept = path.parent / KEPT
    if not kept.is_file() or sha256_of(kept) != facts["kept_sha256"]:
        raise DataError(f"{kept} must be the table of the receipt, and it is not as it was written")
    return facts


def _receipt(session: AuditSession, kept: Path | None) -> dict[str, object]:
    verdict, own = session.verdict(), session.table
    return {
        "labelwise": __version__,
        "format": 1,
        "when": now(),
        "source": own.source,
        "table": own.digest(),
        "photos": len(own.photos),
        "uses": len(own),
        **vars(session.settings),
        "kept": [] if session.settings.again else [own.tags[k] for k in verdict.kept],
        "kept_uses": verdict.uses,
        "guaranteed": verdict.guaranteed,
        "answers": verdict.answers,
        "people": session.people,
        "photos_below": os.path.relpath(session.folder, session.log.path.parent),
        "log": session.log.mark(),
        "statement": statement(session),
        "kept_sha256": None if kept is None else sha256_of(kept),
    }


def _rows(session: AuditSession) -> Iterator[list[object]]:
    for name, known, missed in known_tags(session):
        cells: list[object] = [name, "yes" if known.kept else "no", known.uses, known.answered]
        cells += [known.wrong - known.unsure, known.unsure]
        cells += _shares(known.estimate, known.low, known.high)
        cells += [""] * 6 if missed is None else _shares(missed.recall, missed.low, missed.high)
        if missed is not None:
            cells += [round(missed.missing), missed.least_missing, missed.most_missing]
        yield cells


def _shares(centre: float | None, low: float, high: float) -> list[str]:
    """Return a share and its interval, rounded outwards; nothing where it is not known."""
    if centre is None:
        return ["", "", ""]
    return [f"{centre:.4f}", f"{floor(1e4 * low) / 1e4:.4f}", f"{ceil(1e4 * high) / 1e4:.4f}"]
