"""Write the table of evidence/links.md: what the optimum of every method reads as.

python benchmarks/links.py            write it (two minutes on one core)
python benchmarks/links.py --check    fail if the page has another
"""

import sys
from pathlib import Path

from labelwise.papers.readings import readings_table

PAGE = Path(__file__).parents[1] / "evidence" / "links.md"
MARK = "<!-- table: python benchmarks/links.py -->\n"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARK.strip()!r}")
    made = f"{before}{mark}\n{readings_table()}"
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        raise SystemExit(f"{PAGE} has another table; run python benchmarks/links.py")


if __name__ == "__main__":
    main()
