"""Write the tables of docs/reproduction.md: the papers' claims, our runs, and the verdicts.

    python benchmarks/verdicts.py            write them
    python benchmarks/verdicts.py --check    fail if the page has others

Claims and figures stand in claims.yaml beside this file; the rule is that of
labelwise.experiments.verdicts.
"""

import re
import sys
from pathlib import Path

from labelwise.experiments.verdicts import claims_table, read_claims

CLAIMS = Path(__file__).with_name("claims.yaml")
PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"


def with_tables(page: str, claims: str) -> str:
    """Return the page with the table of each paper under its heading made anew."""
    for paper, found in read_claims(claims).items():
        section = re.compile(rf"(^## {paper}:.*?)^\| claim .*?\n(?!\|)", re.DOTALL | re.MULTILINE)
        table = claims_table(found)
        page, count = section.subn(lambda match, table=table: match[1] + table, page, count=1)
        if count != 1:
            raise SystemExit(f"{PAGE}: no table of claims below the heading of paper {paper}")
    return page


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = with_tables(page, CLAIMS.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        raise SystemExit(f"{PAGE} has other tables; run python benchmarks/verdicts.py")


if __name__ == "__main__":
    main()
