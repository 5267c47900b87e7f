"""Write the tables of the survey's pages from the results of `labelwise reproduce survey`.

    python benchmarks/survey.py FOLDER ...           take these results, write evidence/survey.md
    python benchmarks/survey.py --missing FOLDER ... the same for evidence/survey-missing-labels.md
    python benchmarks/survey.py                      write the pages from the results that are kept
    python benchmarks/survey.py --check              fail if a page has other tables

The results that are kept stand in survey.json and survey_missing_labels.json beside this file.
"""

import sys
from functools import reduce
from pathlib import Path

from labelwise.papers.survey import Survey

HERE = Path(__file__).parent
EVIDENCE = HERE.parent / "evidence"
PAGES = {
    EVIDENCE / "survey.md": HERE / "survey.json",
    EVIDENCE / "survey-missing-labels.md": HERE / "survey_missing_labels.json",
}
MARK = "<!-- tables: python benchmarks/survey.py -->\n"


def with_tables(page: str, survey: Survey) -> str:
    """Return the page with the tables after the mark made anew."""
    before, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"the page has no line {MARK.strip()!r}")
    return f"{before}{mark}\n{survey.markdown()}"


def main(arguments: list[str]) -> None:
    folders = [Path(one) for one in arguments if not one.startswith("--")]
    if folders:
        found = [Survey.load(folder / "survey.json") for folder in folders]
        page = "survey-missing-labels.md" if "--missing" in arguments else "survey.md"
        results = PAGES[EVIDENCE / page]
        results.write_text(reduce(Survey.joined, found).plain(), encoding="utf-8")
    for path, results in PAGES.items():
        page = path.read_text(encoding="utf-8")
        made = with_tables(page, Survey.load(results))
        if "--check" not in arguments:
            path.write_text(made, encoding="utf-8")
        elif made != page:
            raise SystemExit(f"{path} has other tables; run python benchmarks/survey.py")


if __name__ == "__main__":
    main(sys.argv[1:])
