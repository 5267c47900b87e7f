"""Write evidence/survey.md from the results of `labelwise papers run survey`.

    python benchmarks/survey.py FOLDER     keep these results in benchmarks/survey, write the page
    python benchmarks/survey.py            write the page from the results that are kept
    python benchmarks/survey.py --check    fail if the page is another one, or a sentence is wrong

The page is survey/page.md, the sentences of survey/sentences.toml with what their tests found, and
the tables. A sentence that the results do not bear out stops the program.
"""

import shutil
import sys
import tomllib
from pathlib import Path

from labelwise.papers.survey import SurveyCell
from labelwise.papers.survey_page import Sentence, complete, diagram, page

KEPT = Path(__file__).with_name("survey")
EVIDENCE = Path(__file__).parents[1] / "evidence"


def made() -> dict[Path, str]:
    """Return the page and its diagram, by file."""
    cells = complete([SurveyCell.load(file) for file in sorted(KEPT.glob("*.json"))])
    stated = tomllib.loads((KEPT / "sentences.toml").read_text(encoding="utf-8"))["sentence"]
    sentences = [Sentence(**{**one, "against": tuple(one["against"])}) for one in stated]
    text = page(cells, sentences, (KEPT / "page.md").read_text(encoding="utf-8"))
    return {EVIDENCE / "survey.md": text, EVIDENCE / "survey.svg": diagram(cells)}


def main(arguments: list[str]) -> None:
    for folder in (Path(one) for one in arguments if not one.startswith("--")):
        for file in folder.glob("*.*.json"):
            shutil.copy(file, KEPT / file.name)
    for file, text in made().items():
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{file} differs from its results; run python benchmarks/survey.py")


if __name__ == "__main__":
    main(sys.argv[1:])
