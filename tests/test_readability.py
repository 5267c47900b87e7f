"""Docs are easy to read; run as a program, it prints the table of evidence/readability.md."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WORDS_A_SENTENCE, LONG_SENTENCES, FIGURES = 15, 4, 1.5  # means; percent; per 100 words
MOST_WORDS = {"README.md": 600}


class Reading(NamedTuple):
    words: int  # all of the page, without code
    mean: float
    long: float
    figures: float

    def row(self, name: str) -> str:
        return (
            f"| {name} | {self.words} | {self.mean:.1f} | {self.long:.1f} % | {self.figures:.1f} |"
        )


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence: running text and list items, no code and no tables."""
    text = re.sub(r"^[ ]*```.*?^[ ]*```$", "", text, flags=re.M | re.S)
    text = re.sub(r"!\[.*?\]\(.*?\)", "", text, flags=re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(#|\||<|!!!|---)", line)]
    blocks = re.split(r"\n\s*\n|\n\s*(?=[*-] |\d+\. )", "\n".join(lines))
    ends = (re.split(r"(?<=[.!?])[\"”*)]*\s+", " ".join(block.split())) for block in blocks)
    found = (re.findall(r"[^\W_][\w'’.,%-]*", sentence) for block in ends for sentence in block)
    return [words for words in found if len(words) > 1]


def read(text: str) -> Reading:
    found = sentences(text)
    words = [word for sentence in found for word in sentence]
    shown = re.sub(r"^[ ]*```.*?^[ ]*```$", "", text, flags=re.M | re.S)
    count = max(len(words), 1)
    return Reading(
        len(re.findall(r"[^\W_][\w'’-]*", shown)),
        count / max(len(found), 1),
        100 * sum(len(sentence) > 30 for sentence in found) / max(len(found), 1),
        100 * sum(word[0].isdigit() for word in words) / count,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_easy_to_read(page):
    found = read(page.read_text(encoding="utf-8"))
    assert found.words <= MOST_WORDS.get(page.name, 1600)
    assert found.mean <= WORDS_A_SENTENCE
    assert found.long <= LONG_SENTENCES
    assert found.figures <= FIGURES


if __name__ == "__main__":
    print("| page | words | words a sentence | over 30 words | figures per 100 words |")
    print("|---|---|---|---|---|")
    for page in PAGES:
        print(read(page.read_text(encoding="utf-8")).row(page.name))
