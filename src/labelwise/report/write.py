"""Writing the report: whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from labelwise.evaluate import Evaluation
from labelwise.files import replacing
from labelwise.report.examples import ExampleGroup
from labelwise.report.page import page
from labelwise.report.sections.training import History

__all__ = ["write_report"]


def write_report(
    evaluation: Evaluation,
    path: str | Path,
    *,
    title: str = "How well it works",
    examples: Sequence[ExampleGroup] = (),
    history: History | None = None,
) -> Path:
    """Write the report to ``path`` and return it.

    ``history`` holds the records of ``metrics.jsonl``; ``examples`` comes from
    :func:`choose_examples`.
    """
    text = page(evaluation, title=title, examples=examples or (), history=history)
    with replacing(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
