"""Writing the pages: whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from labelwise.evaluate import Evaluation
from labelwise.experiments.comparison import Comparison
from labelwise.files import replacing
from labelwise.report.comparison import comparison_page
from labelwise.report.examples import ExampleGroup
from labelwise.report.page import page
from labelwise.report.sections.training import History

__all__ = ["write_comparison", "write_report"]


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
    return _written(
        page(evaluation, title=title, examples=examples or (), history=history), Path(path)
    )


def write_comparison(
    comparison: Comparison, path: str | Path, *, data: str = "", tries: int | None = None
) -> Path:
    """Write the page of a comparison to ``path`` and return it.

    ``data`` names what was compared on, ``tries`` is how many settings of each method were tried.
    """
    return _written(comparison_page(comparison, data=data, tries=tries), Path(path))


def _written(text: str, path: Path) -> Path:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
