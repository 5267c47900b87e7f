"""Write the tables of docs/survey.md from the results of `labelwise reproduce survey`.

    python benchmarks/survey.py FOLDER ...   take the results of these folders, and write the page
    python benchmarks/survey.py              write the page from the results that are kept
    python benchmarks/survey.py --check      fail if the page has other tables

The results that are kept stand in survey.json beside this file.
"""

import sys
from functools import reduce
from pathlib import Path

from labelwise.experiments.survey_page import Survey

RESULTS = Path(__file__).with_name("survey.json")
PAGE = Path(__file__).parents[1] / "docs" / "survey.md"
MARK = "<!-- tables: python benchmarks/survey.py -->\n"


def with_tables(page: str, survey: Survey) -> str:
    """Return the page with the tables after the mark made anew."""
    before, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARK.strip()!r}")
    return f"{before}{mark}\n{survey.markdown()}"


def main(arguments: list[str]) -> None:
    folders = [Path(one) for one in arguments if one != "--check"]
    if folders:
        found = [Survey.load(folder / "survey.json") for folder in folders]
        RESULTS.write_text(reduce(Survey.joined, found).plain(), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    made = with_tables(page, Survey.load(RESULTS))
    if "--check" not in arguments:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        raise SystemExit(f"{PAGE} has other tables; run python benchmarks/survey.py")


if __name__ == "__main__":
    main(sys.argv[1:])
