"""What an evaluation means for someone who wants to use the model: no more than the photos tell.

The word compares with the best answer that ignores the photo: the same labels for every photo,
chosen by how frequent they are. Skill is the share of the way from that baseline to perfection; a
test of few photos gives a range of it, and so of words (:mod:`labelwise.evaluation.judge`).
"""

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from labelwise.base.text import counted, listed
from labelwise.evaluation.evaluation import Evaluation, Judgement, Trust
from labelwise.evaluation.judge import LEVEL, constant_f1

Word = Literal["useless", "weak", "usable", "good", "excellent"]
WORDS: tuple[Word, ...] = ("useless", "weak", "usable", "good", "excellent")
LINES = (0.15, 0.4, 0.65, 0.85)  # of skill, between the words
NAMED = 5  # labels in a sentence
MANY = 1.25  # labels that came over those that were expected

ADVICE = {  # by the kind of a cause
    "few test photos": "More test photos would help most.",
    "other photos": "The test photos are of another kind than the training photos: "
    "training on photos like them would help most.",
    "wrong labels": "About {amount:.0%} of the labels look wrong: checking them "
    "(`labelwise data review`) would help most.",
    "missing labels": "About {amount:.0%} of the labels look missing: adding them "
    "(`labelwise data review`) would help most.",
    "missing in training": "Test photos carry {amount:.1f} times the labels that it expects: "
    "checking the training photos for missing ones (`labelwise data review`) would help most.",
    "few of a label": "More photos of `{about}` would help most: training has {amount:.0f}.",
    "calibration": "Calibrating it again (`labelwise calibrate`) would help most.",
}


@dataclass(frozen=True)
class Verdict:
    """How good a model is: the words that its skill may be, why not one, and what else is said."""

    words: tuple[Word, ...]
    why: str
    tags: str
    trust: str
    untested: str
    hint: str
    without: str = ""

    @property
    def short(self) -> str:
        return _short(self.words)

    @property
    def sentences(self) -> str:
        parts = self.why, self.without, self.tags, self.trust, self.untested, self.hint
        return " ".join(filter(None, parts))

    def __str__(self) -> str:
        first = " ".join(filter(None, (self.tags, self.trust, self.untested)))
        second = " ".join(
            filter(None, (f"Verdict: {self.short}.", self.why, self.without, self.hint))
        )
        return f"{first}\n{second}"


def verdict(evaluation: Evaluation) -> Verdict:
    """Return how good a model is, compared with always answering by frequency."""
    judged = evaluation.judgement
    if judged is None:  # sums over shards: no photo is at hand
        word = WORDS[int(np.searchsorted(LINES, _skill(evaluation), side="right"))]
        return Verdict((word,), "One figure alone: a range needs all photos at once.", *[""] * 4)
    photos = counted(judged.photos, "group" if judged.grouped else "photo")
    if judged.low is None or judged.high is None:
        words, why = WORDS, f"None of {photos} is known to show a label."
    else:
        words = _words(judged.low, judged.high)
        why = "" if len(words) == 1 else f"{photos} cannot tell more."
    untested, total = judged.untested, len(evaluation.rows)
    unknown = ""
    if untested:
        which = f"{len(untested):,} of {counted(total, 'label')}"
        unknown = f"No test photo shows {which}, which cannot be judged: {listed(untested, NAMED)}."
    trust = _trust(judged.trust, photos) if evaluation.final else "It has no probabilities yet."
    without = ""
    if judged.copies and judged.copies == evaluation.data.rows:
        without = "Every test photo is a copy of a training photo: new photos were not tested."
    elif judged.low_without is not None and judged.high_without is not None:
        short = _short(_words(judged.low_without, judged.high_without))
        copies = "the copy" if judged.copies == 1 else f"the {judged.copies:,} copies"
        without = f"Without {copies} of training photos: {short}."
    return Verdict(words, why, _tags(judged, evaluation), trust, unknown, _hint(judged), without)


def _words(low: float, high: float) -> tuple[Word, ...]:
    first, last = np.searchsorted(LINES, (low, high), side="right").tolist()
    return WORDS[first : last + 1]


def _short(words: tuple[Word, ...]) -> str:
    if words == WORDS:
        return "cannot tell"
    return words[0] if len(words) == 1 else f"between {words[0]} and {words[-1]}"


def _skill(evaluation: Evaluation) -> float:
    """Return the skill that sums tell, without a range."""
    rows = [row for row in evaluation.rows if row.known]
    shares = [row.present / row.known for row in rows if row.ap is not None]
    chance, mean_ap = sum(shares) / max(len(shares), 1), evaluation.ranking.map_class
    skill = 0.0 if mean_ap is None or chance == 1 else (mean_ap - chance) / (1 - chance)
    if evaluation.sets is None or evaluation.sets.micro_f1 is None:
        return skill
    counts = [np.array([[getattr(row, side) for row in rows]]) for side in ("present", "known")]
    constant = float(constant_f1(*counts)[0])
    return (skill + (evaluation.sets.micro_f1 - constant) / max(1 - constant, 1e-9)) / 2


def _tags(judged: Judgement, evaluation: Evaluation) -> str:
    if judged.tags is None:
        mean_ap = evaluation.ranking.map_class
        return f"It ranks labels{'' if mean_ap is None else f' (mAP {100 * mean_ap:.0f} %)'}."
    if not judged.tags:
        return "It gives no tags."
    text = f"Of 100 tags it gives, {round(100 * judged.right / judged.tags)} are right"
    text += f"; it finds {round(100 * judged.right / max(judged.present, 1))} of 100."
    empty = evaluation.zero_label
    if empty is not None and empty.false_alarms is not None and empty.false_alarms >= 0.5:
        text += f" It tags {round(100 * empty.false_alarms)} of 100 photos that show nothing."
    return text


def _trust(trust: Trust | None, photos: str) -> str:
    if trust is None:
        return ""
    if not trust.wrong:
        least = _points(trust.shown)
        return (
            f"No error found in its probabilities; {photos} would show only errors above {least}."
        )
    if trust.p_value > LEVEL:
        return "Its probabilities are too high for some labels, or too low for others."
    size = f"by {_points(trust.size)} ({100 * trust.low:.1f} to {100 * trust.high:.1f})"
    way = "they are too sure" if trust.slope < 1 else "they are not sure enough"
    if not 1 / MANY < trust.came < MANY:
        way = f"{trust.came:.1f} times as many labels came as they say"
    return f"Its probabilities are off {size} on average: {way}."


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def _hint(judged: Judgement) -> str:
    if judged.cause is None:
        return ""
    return ADVICE[judged.cause.kind].format(**asdict(judged.cause))
