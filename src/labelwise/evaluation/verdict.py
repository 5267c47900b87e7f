"""What an evaluation means for someone who wants to use the model: one sentence, one word, a hint.

The word compares with the best answer that ignores the photo: the same labels for every photo,
chosen by how frequent they are. Skill is the share of the way from that baseline to perfection.
"""

from dataclasses import dataclass
from typing import Literal

from labelwise.evaluation.evaluation import Evaluation, LabelRow
from labelwise.system.text import counted

Word = Literal["useless", "weak", "usable", "good", "excellent"]
WORDS: dict[float, Word] = {0.85: "excellent", 0.65: "good", 0.4: "usable", 0.15: "weak"}
TRUSTED, ROUGH = 0.02, 0.05  # mean distance of probabilities from the truth
FEW = 50  # photos below which a test says little, positives below which a label needs more photos


@dataclass(frozen=True)
class Verdict:
    """How good a model is, in words; ``skill`` is 0 for the baseline and 1 for perfection."""

    word: Word
    skill: float
    tags: str
    trust: str
    hint: str

    def __str__(self) -> str:
        return f"{self.tags} {self.trust}\nVerdict: {self.word}. {self.hint}"


def verdict(evaluation: Evaluation) -> Verdict:
    """Return how good a model is, compared with always answering by frequency."""
    rows = [row for row in evaluation.rows if row.known]
    skills = []
    shares = [row.present / row.known for row in rows if row.ap is not None]
    chance = sum(shares) / len(shares) if shares else 0.0  # mean AP of a ranking at random
    mean_ap = evaluation.ranking.map_class
    if mean_ap is not None and chance < 1:
        skills.append((mean_ap - chance) / (1 - chance))
    rates, how = _precision_recall(evaluation, rows), ""
    if mean_ap is not None:
        how = f" (mAP {mean_ap:.0%})".replace("%", " %")
    tags = f"It ranks labels and gives no tags{how}."
    if rates is not None:
        precision, recall = rates
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        # Pooled F1 of the best constant answer: the most frequent labels, for every photo.
        total, right, given, baseline = sum(row.present for row in rows), 0, 0, 0.0
        for row in sorted(rows, key=lambda row: row.present / row.known, reverse=True):
            right, given = right + row.present, given + row.known
            baseline = max(baseline, 2 * right / (given + total) if given + total else 0.0)
        skills.append((f1 - baseline) / (1 - baseline) if baseline < 1 else 0.0)
        tags = (
            f"Of 100 tags it gives, {round(100 * precision)} are right; it finds "
            f"{round(100 * recall)} of 100."
        )
        empty = evaluation.zero_label
        if empty is not None and empty.false_alarms is not None and empty.false_alarms >= 0.5:
            tags += f" It tags {round(100 * empty.false_alarms)} of 100 photos that show nothing."
    error = None if evaluation.final is None else evaluation.final.pooled.ece
    trust = "It has no probabilities yet."
    if error is not None:
        how = "can be trusted" if error <= TRUSTED else "are rough" if error <= ROUGH else "mislead"
        trust = f"Its probabilities {how}: they are off by {100 * error:.1f} points on average."
    skill = sum(skills) / len(skills) if skills else 0.0
    word: Word = next((word for least, word in WORDS.items() if skill >= least), "useless")
    return Verdict(word, skill, tags, trust, _hint(rows, word, error))


def _precision_recall(evaluation: Evaluation, rows: list[LabelRow]) -> tuple[float, float] | None:
    """Precision and recall pooled over all labels; None for a model that gives no tags."""
    sets, present = evaluation.sets, sum(row.present for row in rows)
    if sets is None or sets.micro_f1 is None or not present:
        return None
    right = sum((row.recall or 0.0) * row.present for row in rows)
    if not right or not sets.micro_f1:
        return 0.0, 0.0
    given = 2 * right / sets.micro_f1 - present  # F1 = 2 right / (given + present)
    return min(1.0, right / given), right / present


def _hint(rows: list[LabelRow], word: Word, error: float | None) -> str:
    """Return what would help most: calibration, photos of a rare label, effort, or label errors."""
    ranked = sorted((row for row in rows if row.ap is not None), key=lambda row: row.ap or 0.0)
    tested = max((row.known for row in rows), default=0)
    if tested < FEW:
        return f"Only {counted(tested, 'photo')} tested it: more would help most."
    if word == "excellent" and (error is None or error <= TRUSTED):
        return "Use it; audit its tags now and then."
    if error is not None and error > ROUGH:
        return "Calibrating it on more labelled photos would help most."
    if ranked and ranked[0].present < FEW and (ranked[0].ap or 0.0) < 0.8:
        return f"More photos of `{ranked[0].name}` would help most: {ranked[0].present} are here."
    if word in ("useless", "weak", "usable"):
        return "Training with `--effort good`, or on more labelled photos, would help most."
    return "Looking for label errors (`labelwise data review`) would help most."
