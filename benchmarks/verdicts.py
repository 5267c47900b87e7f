"""Write the tables of evidence/reproduction.md: the papers' claims, our runs, and the verdicts.

    python benchmarks/verdicts.py            write them
    python benchmarks/verdicts.py --check    fail if the page has others
    python benchmarks/verdicts.py --take runs/002-margin c-head.002-margin "labelwise reproduce ..."
                                             keep the figures that this command wrote there

Claims stand in claims.yaml beside this file, figures there or in results/; the rule is that of
labelwise.papers.protocols.
"""

import json
import re
import sys
from pathlib import Path

from labelwise.papers.protocols import RunResults, claims_table, read_claims

CLAIMS = Path(__file__).with_name("claims.yaml")
RESULTS = Path(__file__).parent / "results" / "papers"
COSTS = ("seconds", "host MB", "GPU MB")
PAGE = Path(__file__).parents[1] / "evidence" / "reproduction.md"


def kept_results() -> dict[str, RunResults]:
    """Return the results of all files that are kept, by name."""
    return {file.stem: RunResults.load(file) for file in sorted(RESULTS.glob("*.json"))}


def take(folder: Path, name: str, command: str) -> None:
    """Keep the figures that `labelwise reproduce` wrote into a folder, without what runs cost."""
    written = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    figures = {
        row: [
            {
                column: float(f"{value:.6g}")
                for column, value in run.items()
                if column not in COSTS and isinstance(value, float)
            }
            for run in runs
        ]
        for row, runs in written.items()
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    RunResults(command, figures).save(RESULTS / f"{name}.json")


def with_tables(page: str, claims: str) -> str:
    """Return the page with the table of each paper under its heading made anew."""
    for paper, found in read_claims(claims, kept_results()).items():
        section = re.compile(rf"(^## {paper}:.*?)^\| claim .*?\n(?!\|)", re.DOTALL | re.MULTILINE)
        table = claims_table(found)
        page, count = section.subn(lambda match, table=table: match[1] + table, page, count=1)
        if count != 1:
            raise SystemExit(f"{PAGE}: no table of claims below the heading of paper {paper}")
    return page


def main() -> None:
    if "--take" in sys.argv:
        folder, name, command = sys.argv[sys.argv.index("--take") + 1 :]
        take(Path(folder), name, command)
        return
    page = PAGE.read_text(encoding="utf-8")
    made = with_tables(page, CLAIMS.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        raise SystemExit(f"{PAGE} has other tables; run python benchmarks/verdicts.py")


if __name__ == "__main__":
    main()
