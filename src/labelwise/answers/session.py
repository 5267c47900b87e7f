"""Session: people answer questions, and every answer is in the log.

    session.ask(who)        what this person is asked now, and holds for a while
    session.record(lines)   what was answered, in the log before it counts
    session.undo(who)       takes back what the person answered last; it is asked again
    session.batch(count)    the next questions, for a spreadsheet

A session is read from its log alone, so a killed one resumes where it was, and several processes
can work on one. What is asked about - the tags of an audit, a list, a random sample, words - is a
subclass, which says which lines are its answers, what follows from them, and what to ask next.
The last answer of each person about a photo and label counts. Where ``repeats`` is set, a question
may be asked again, and all answers to it stay.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import get_args

from labelwise.answers.log import Answer, AnswerLog, Line, LoggedAnswer, Note, answered
from labelwise.errors import DataError

HELD_SECONDS = 120.0  # that a question waits for the person who has it
EACH_TAG = "*"  # in place of a label: the photo is asked about as a whole
Key = tuple[str, str]  # photo, label
Word = str | Mapping[str, object]  # an answer; of a photo as a whole, what was said of it
Assumed = Mapping[Key, str | None]  # answers that questions ahead are asked as if they were known


@dataclass(frozen=True)
class UseQuestion:
    """A photo and a label; or a photo and all ``listed`` tags, of which it carries ``tagged``.

    ``repeated`` questions were answered before.
    """

    photo: str
    label: str
    tagged: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    repeated: bool = False

    @property
    def key(self) -> Key:
        return self.photo, self.label


class Session(ABC):
    """The answers to some questions by any number of people; threads must take turns."""

    why = ""  # of the lines that are its answers
    repeats = False  # whether all answers of a person to a question stay, not the last one alone

    def __init__(self, log: AnswerLog) -> None:
        self.log = log
        self._held: dict[Key, tuple[str, float]] = {}
        self._read: list[Line] | None = None
        self.refresh()

    @abstractmethod
    def restart(self) -> None:
        """Forget all answers."""

    @abstractmethod
    def take(self, key: Key, line: Line) -> None:
        """Take in a line about a photo and label; ``self.said`` holds what people say now."""

    def ahead(self, assumed: Assumed) -> Iterator[UseQuestion]:
        """Yield what can be asked now, and then what follows if each answer is yes."""
        return iter(())

    def resume(self) -> None:  # noqa: B027
        """Go on after answers were taken in."""

    def covers(self, line: LoggedAnswer) -> bool:
        """Return whether an answer belongs to this session."""
        return line.why == self.why

    def told(self, note: Note) -> tuple[Key, str, Word | None] | None:
        """Return what a note answers: photo and label, who, and the answer; None if nothing."""
        return None

    def refresh(self) -> None:
        """Take in what was appended to the log since, by this process or another."""
        lines = self.log.lines()
        if lines is not self._read:
            self._read, self._taken = lines, 0
            self.said: dict[Key, dict[str, tuple[Word, ...]]] = {}  # by person, the latest last
            self._last: dict[str, list[Key]] = {}  # what each person answered, in order
            self.restart()
        for line in lines[self._taken :]:
            self._take(line)
        self._taken = len(lines)
        self.resume()

    def _take(self, line: Line) -> None:
        if isinstance(line, Note):
            told = self.told(line)
        elif self.covers(line):
            told = (
                (line.photo, line.label),
                line.who,
                None if line.answer == "undo" else line.answer,
            )
        else:
            return
        if told is None:
            return
        key, who, word = told
        # A copy, for other threads may read the old one.
        people, last = {**self.said.get(key, {})}, self._last.setdefault(who, [])
        words = people.pop(who, ())
        if not self.repeats:
            words, last[:] = (), [other for other in last if other != key]
        if word is not None:
            words = (*words, word)
            last.append(key)
        elif key in last:
            words = words[:-1]
            del last[len(last) - 1 - last[::-1].index(key)]
        if words:
            people[who] = words
        if people:
            self.said[key] = people
        else:
            self.said.pop(key, None)
        self.take(key, line)

    def ask(self, who: str) -> UseQuestion | None:
        """Return what to ask a person now, and hold it for them; None if nothing is left.

        What another person holds is asked as well before it is said that nothing is left.
        """
        self.refresh()
        question = next(self.ahead(self._others(who)), None) or next(self.ahead({}), None)
        self._held = {key: held for key, held in self._held.items() if held[0] != who}
        if question is not None:
            self._held.setdefault(question.key, (who, time.monotonic()))
        return question

    def _others(self, who: str) -> Assumed:
        """Return what other people hold, taken for yes."""
        limit = time.monotonic() - HELD_SECONDS
        held = self._held.items()
        return {key: "yes" for key, (holder, at) in held if holder != who and at > limit}

    def upcoming(self, who: str, after: UseQuestion) -> list[UseQuestion]:
        """Return what may follow a question, by the answer, to load photos ahead."""
        words = ("yes", "no") if after.label != EACH_TAG else (None,)
        others = self._others(who)
        questions = [next(self.ahead({**others, after.key: word}), None) for word in words]
        return [question for question in dict.fromkeys(questions) if question is not None]

    def batch(self, count: int) -> list[UseQuestion]:
        """Return the next questions if each answer is yes."""
        self.refresh()
        return list(islice(self.ahead({}), count))

    def record(self, lines: Iterable[Line | None]) -> None:
        """Log answers; None is one that changes nothing."""
        self.log.append([line for line in lines if line is not None])
        self.refresh()

    def undoing(self, key: Key, who: str) -> Line:
        """Return the line that takes back what a person said."""
        return answered(*key, "undo", who, self.why)

    def question_of(self, key: Key) -> UseQuestion:
        """Return the question about a photo and label."""
        return UseQuestion(*key)

    def undo(self, who: str) -> UseQuestion | None:
        """Take back what a person answered last; return it, held for them again."""
        self.refresh()
        if not self._last.get(who):
            return None
        key = self._last[who][-1]
        self._held[key] = (who, time.monotonic())
        self.record([self.undoing(key, who)])
        return self.question_of(key)

    @property
    def people(self) -> list[str]:
        return sorted(who for who, last in self._last.items() if last)


def as_answer(word: Word) -> Answer:
    """Return a word as an answer; raise if it is none."""
    words: tuple[Answer, ...] = get_args(Answer)
    for answer in words:
        if word == answer:
            return answer
    raise DataError(f"an answer is yes, no or unsure, got {word!r:.60}")
