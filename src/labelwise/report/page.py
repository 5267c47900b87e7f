"""The report of one evaluation: its parts, in the order in which they are read."""

from collections.abc import Sequence

from labelwise.evaluate import Evaluation
from labelwise.report.document import document
from labelwise.report.examples import ExampleGroup
from labelwise.report.sections.calibration import calibration
from labelwise.report.sections.decisions import decisions
from labelwise.report.sections.examples import examples as show_examples
from labelwise.report.sections.glance import glance
from labelwise.report.sections.how import facts, how
from labelwise.report.sections.labels import labels
from labelwise.report.sections.search import search
from labelwise.report.sections.training import History, training
from labelwise.report.sections.zero_label import zero_label

__all__ = ["page"]


def page(
    evaluation: Evaluation,
    *,
    title: str,
    examples: Sequence[ExampleGroup] = (),
    history: History | None = None,
) -> str:
    """Return the whole page as text."""
    return document(
        title,
        facts(evaluation),
        [
            ("glance", "At a glance", glance(evaluation)),
            ("calibration", "Calibration", calibration(evaluation)),
            ("decisions", "Decisions", decisions(evaluation)),
            ("zero-label", "Nothing here", zero_label(evaluation)),
            ("search", "Search", search(evaluation)),
            ("labels", "Labels", labels(evaluation)),
            ("examples", "Examples", show_examples(examples)),
            ("training", "Training", training(history)),
            ("how", "How", how(evaluation)),
        ],
    )
