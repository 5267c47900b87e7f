"""AuditSession: people answer the questions of an audit, and every answer is in the log.

The questions follow from the table, the seed and the answers (:class:`labelwise.decide.Audit`), so
a killed session resumes where it was. While one person looks at a photo, others are asked what
would follow a yes. Missing photos and answers that disagree count as unsure.

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
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, floor
from pathlib import Path
from typing import Any, get_args

import numpy as np

from labelwise import __version__
from labelwise.answers.agreement import require_own
from labelwise.answers.log import Answer, AnswerLog, Line, Note, answered, now
from labelwise.answers.tag_tables import TagTable
from labelwise.base.files import sha256_of, summed, without_sum, write_error
from labelwise.base.table_files import write_csv
from labelwise.base.text import counted
from labelwise.decide.audits import Audit, AuditVerdict, Precision, Use
from labelwise.decide.estimate import Recall, percent, recall_of
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.sources import FileImages
from labelwise.tables.export import export
from labelwise.tables.rows import from_rows, is_file, read_json
from labelwise.tables.table import LabelTable
from labelwise.types import nearest

WHY, SHOWN, BEGUN = "audit", "shown", "audit"  # of answers; kinds of notes
RANDOM_PHOTOS = 30
LISTED = 30  # tags that a random photo is asked about
HELD_SECONDS = 120.0  # that a question waits for the person who has it
EACH_TAG = "*"
WORDS: tuple[Answer, ...] = get_args(Answer)


@dataclass(frozen=True)
class TagQuestion:
    """A photo and a tag; or a photo and all ``listed`` tags, of which it carries ``tagged``."""

    photo: str
    tag: str
    tagged: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.photo, self.tag


@dataclass(frozen=True)
class AuditSettings:
    """What an audit is to show. ``again``: one set of tags that was kept before, tested afresh."""

    right_at_least: float = 0.9
    confidence: float = 0.95
    per_tag: bool = False
    seed: int = 0
    random_photos: int = RANDOM_PHOTOS
    again: bool = False


class AuditSession:
    """One audit of a table by any number of people; threads must take turns."""

    def __init__(
        self, table: TagTable, folder: Path, log: AnswerLog, settings: AuditSettings
    ) -> None:
        self.table, self.folder, self.log, self.settings = table, folder, log, settings
        self._start = np.cumsum([0, *map(len, table.uses)])
        self.rows = {photo: row for row, photo in enumerate(table.photos)}
        self.tags = {tag: k for k, tag in enumerate(table.tags)}
        most = sorted(range(len(table.tags)), key=lambda k: (-len(table.uses[k]), table.tags[k]))
        self.listed = tuple(sorted(table.tags[k] for k in most[:LISTED]))
        order = np.random.default_rng((settings.seed, 3)).permutation(len(table.photos))
        self._random = [table.photos[row] for row in order.tolist()]
        self._held: dict[tuple[str, str], tuple[str, float]] = {}
        self.unreadable: set[str] = set()  # photos that are taken for missing
        self.missing = 0  # answers that the last verdict did without
        self._read: list[Any] | None = None
        facts = {"table": table.digest(), **vars(settings)}
        facts.pop("random_photos")
        begun = log.notes(BEGUN)
        if not begun:
            log.append([Note(BEGUN, {**facts, "source": table.source, "when": now()})])
        elif other := [name for name in facts if begun[0].get(name) != facts[name]]:
            what = "the tags have changed" if other == ["table"] else f"{other[0]} was different"
            raise SettingsError(
                f"{log.path.parent} holds another audit: {what}; name another folder with -o"
            )
        self.refresh()

    def use_of(self, tag: int, place: int) -> Use:
        """Return how the audit numbers a use: its tag, and its place among the tag's uses."""
        return (0, int(self._start[tag]) + place) if self.settings.again else (tag, place)

    def found(self, photo: str, tag: str) -> Use | None:
        row, k = self.rows.get(photo), self.tags.get(tag)
        if row is None or k is None:
            return None
        own = self.table.uses[k]
        number = int(np.searchsorted(own, row))
        return self.use_of(k, number) if number < len(own) and own[number] == row else None

    def _of(self, use: Use) -> tuple[str, str]:
        tag, number = use
        if self.settings.again:
            tag = int(np.searchsorted(self._start, number, "right")) - 1
            number -= int(self._start[tag])
        return self.table.photos[int(self.table.uses[tag][number])], self.table.tags[tag]

    def _fresh(self) -> Audit:
        own, sizes, scores = self.settings, [*map(len, self.table.uses)], self.table.scores
        level: dict[str, Any] = {"right_at_least": own.right_at_least, "confidence": own.confidence}
        if own.again:
            return Audit([sum(sizes)], seed=own.seed, per_tag=True, most=sum(sizes), **level)
        return Audit(sizes, scores=scores, seed=own.seed, per_tag=own.per_tag, **level)

    def refresh(self) -> None:
        lines = self.log.lines()
        if lines is not self._read:
            self._read, self._taken = lines, 0
            self._said: dict[tuple[str, str], dict[str, Answer]] = {}
            self.shown: dict[str, Mapping[str, Any]] = {}
            self._last: dict[str, list[tuple[str, str]]] = {}  # what each person answered, in order
            known = ((self.found(*key), word) for key, word in self.table.known.items())
            self.answers: dict[Use, Answer] = {use: word for use, word in known if use is not None}
            self.audit = self._fresh()
        changed = False
        for line in lines[self._taken :]:
            changed |= self._take(line)
        self._taken = len(lines)
        if changed:
            self.audit = self._fresh()
        self.audit.resume(self.answers)

    def _take(self, line: Line) -> bool:
        """Take in a line; return whether it changes an answer that was there."""
        if isinstance(line, Note):
            if line.kind == SHOWN:
                photo, who = line.facts["photo"], line.facts["who"]
                own = self._last.setdefault(who, [])
                if line.facts.get("undo"):
                    self.shown.pop(photo, None)
                    own[:] = [key for key in own if key != (photo, EACH_TAG)]
                else:
                    self.shown[photo] = line.facts
                    own.append((photo, EACH_TAG))
            return False
        key = (line.photo, line.label)
        use = self.found(*key) if line.why == WHY else None
        if use is None:
            return False
        people, own = self._said.setdefault(key, {}), self._last.setdefault(line.who, [])
        own[:] = [other for other in own if other != key]
        people.pop(line.who, None)
        if line.answer != "undo":
            people[line.who] = line.answer
            own.append(key)
        words = set(people.values())
        before = self.answers.pop(use, None)
        if words:
            self.answers[use] = next(iter(words)) if len(words) == 1 else "unsure"
        elif key in self.table.known:
            self.answers[use] = self.table.known[key]
        return before is not None and before != self.answers.get(use)

    def question(self, who: str) -> TagQuestion | None:
        """Return what to ask a person now, and hold it for them; None if nothing is left."""
        self.refresh()
        question = next(self._ahead(who), None)
        held = {key: holder for key, holder in self._held.items() if holder[0] != who}
        self._held = held if question is None else {**held, question.key: (who, time.monotonic())}
        return question

    def upcoming(self, who: str, after: TagQuestion) -> list[TagQuestion]:
        """Return what may follow a question, by the answer, to load photos ahead."""
        words: tuple[Answer | None, ...] = ("yes", "no") if after.tag != EACH_TAG else (None,)
        questions = [next(self._ahead(who, {after.key: word}), None) for word in words]
        return [question for question in dict.fromkeys(questions) if question is not None]

    def batch(self, count: int) -> list[TagQuestion]:
        return list(islice(self._ahead(""), count))

    def _ahead(
        self, who: str, assumed: Mapping[tuple[str, str], Answer | None] | None = None
    ) -> Iterator[TagQuestion]:
        """Yield what a person can be asked, and what follows if each answer is yes."""
        limit, taken = time.monotonic() - HELD_SECONDS, dict(assumed or {})
        for key, (holder, since) in self._held.items():
            if holder != who and since > limit:
                taken.setdefault(key, "yes")
        audit = deepcopy(self.audit)
        while (use := audit.question) is not None:
            photo, tag = self._of(use)
            word = self.answers.get(use) or taken.get((photo, tag))
            if word is None and self._is_there(photo):
                yield TagQuestion(photo, tag)
                word = "yes"
            audit.answer(word or "unsure")
        room = self.settings.random_photos - len(self.shown)
        if self.settings.again:
            return
        for photo in self._random:
            if room <= 0:
                return
            if photo in self.shown or not self._is_there(photo):
                continue
            room -= 1
            if (photo, EACH_TAG) not in taken:
                yield TagQuestion(photo, EACH_TAG, self.tagged(photo), self.listed)

    def _is_there(self, photo: str) -> bool:
        return photo not in self.unreadable and is_file(self.folder / photo)

    def tagged(self, photo: str) -> tuple[str, ...]:
        return tuple(tag for tag in self.listed if self.found(photo, tag) is not None)

    def line(self, photo: str, tag: str, word: str, who: str) -> Line | None:
        """Return what to log of a tag on a photo; None if the person has said so already."""
        if self.found(photo, tag) is None:
            raise DataError(f"{photo!r:.200} does not carry the tag {tag!r:.100} in the table")
        _require_answer(word)
        if self._said.get((photo, tag), {}).get(who) == word:
            return None
        return answered(photo, tag, word, who, WHY)

    def shown_line(self, photo: str, shown: Mapping[str, str], who: str) -> Line | None:
        """Return what to log of a random photo: yes, no or unsure by tag; others are as tagged."""
        if photo not in self.rows:
            raise DataError(f"{photo!r:.200} is not a photo of the table")
        for tag, word in shown.items():
            if tag not in self.listed:
                raise DataError(f"{tag!r:.100} is not a listed tag{nearest(tag, self.listed)}")
            _require_answer(word)
        said = {word: {tag for tag, own in shown.items() if own == word} for word in WORDS}
        own = set(self.tagged(photo))
        sets = {"also": said["yes"] - own, "wrong": said["no"] & own, "unsure": said["unsure"]}
        facts = {name: sorted(tags) for name, tags in sets.items()}
        before = self.shown.get(photo, {})
        if facts == {name: before.get(name) for name in facts}:
            return None
        return Note(SHOWN, {"photo": photo, "who": who, "when": now(), **facts})

    def record(self, lines: Iterable[Line | None]) -> None:
        self.log.append([line for line in lines if line is not None])
        self.refresh()

    def undo(self, who: str) -> TagQuestion | None:
        """Take back what a person answered last; return it, held for them again."""
        self.refresh()
        if not self._last.get(who):
            return None
        photo, tag = self._last[who][-1]
        self._held[photo, tag] = (who, time.monotonic())
        if tag == EACH_TAG:
            self.record([Note(SHOWN, {"photo": photo, "who": who, "undo": True})])
            return TagQuestion(photo, tag, self.tagged(photo), self.listed)
        self.record([answered(photo, tag, "undo", who, WHY)])
        return TagQuestion(photo, tag)

    def known(self) -> Audit:
        """Return the audit with all answers that follow from each other.

        A question that another person has, or whose photo is missing, counts as unsure, which no
        guarantee profits from, if there are answers to later ones.
        """
        audit, words, last = deepcopy(self.audit), list[Answer](), 0
        missing = [0]  # answers, up to each
        while (use := audit.question) is not None:
            word, key = self.answers.get(use), self._of(use)
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
        return replace(verdict, answers=verdict.answers - self.missing)

    def denied(self) -> list[tuple[str, str]]:
        return [self._of(use) for use, word in self.answers.items() if word == "no"]

    @property
    def people(self) -> list[str]:
        return sorted(who for who, own in self._last.items() if own)


def _require_answer(word: str) -> None:
    if word not in WORDS:
        raise DataError(f"an answer is yes, no or unsure, got {word!r:.60}")


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
    missed = []
    for tag, found in recalls(session).items():
        if found.least_missing and tag in kept:
            words = f"About {found.missing:,.0f} photos with {tag} were missed"
            ends = f"({found.least_missing:,} to {found.most_missing:,})"
            missed.append((-found.missing, f"{words} {ends}."))
    return " ".join((verdict.sentence(), *(words for _, words in sorted(missed)[:NAMED])))


def progress(session: AuditSession) -> str:
    """Return in words how far the audit is."""
    audit, verdict = session.known(), session.verdict()
    answers = counted(verdict.answers, "answer")
    if verdict.guaranteed and verdict.finished:
        return f"{answers}, the tags are guaranteed"
    if audit.test is None and not audit.per_tag:
        return f"{answers}, choosing the tags to keep"
    return f"{answers}, testing {counted(len(verdict.kept) or verdict.tags, 'tag')}"


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
