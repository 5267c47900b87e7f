"""Tags in what language models say: the text of a response, and the list in the text."""

import json
import re
from typing import Any

TAG_LISTS = ("tags", "labels", "keywords", "objects")
TAG_NAMES, SCORE_NAMES = ("tag", "label", "name", "keyword"), ("score", "confidence", "probability")
RESPONSES = ("response", "message", "choices", "output", "content", "text", "body")
NOTHING = (["none"], ["n/a"], ["nothing"])
LONGEST_TAG, MOST_WORDS = 60, 6  # beyond, it is a sentence
FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+")


def text_of(value: Any) -> Any:
    """Return what a model said, from a response of Ollama or OpenAI; None if there is nothing."""
    for _ in range(12):  # levels
        if isinstance(value, list):
            if not value or not isinstance(value[0], dict):
                return value
            texts = [one for one in value if any(key in one for key in RESPONSES)]
            if not texts:
                return value
            value = texts[-1]
        elif isinstance(value, dict):
            key = next((one for one in RESPONSES if value.get(one) is not None), None)
            if key is None:
                return value if any(one in value for one in TAG_LISTS) else None
            value = value[key]
        else:
            return value if isinstance(value, str) else None
    return None


def tags_of_text(said: Any) -> list[tuple[str, float | None]] | None:
    """Return the tags that a model listed, with scores where it gave some; None if it is prose.

    >>> tags_of_text("Tags: Dog, beach.")
    [('dog', None), ('beach', None)]
    >>> tags_of_text('```json\\n{"tags": [{"tag": "dog", "score": 0.9}]}\\n```')
    [('dog', 0.9)]
    """
    value = said
    if isinstance(said, str):
        fenced = FENCE.search(said)
        text = (fenced[1] if fenced else said).strip()
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = _split(text)
    if isinstance(value, dict):
        inside = next((value[key] for key in TAG_LISTS if key in value), value)
        if isinstance(inside, dict):
            inside = [{"tag": tag, "score": score} for tag, score in inside.items()]
        value = inside
    if not isinstance(value, list):
        return None
    tags = [_tag(one) for one in value]
    return None if any(tag is None for tag in tags) else [tag for tag in tags if tag is not None]


def _split(text: str) -> list[str]:
    head, colon, tail = text.partition(":")
    if colon and head.strip().lower() in TAG_LISTS:
        text = tail
    pieces = (BULLET.sub("", one.strip()) for one in re.split(r"[,;\n]", text))
    found = [one for one in (piece.strip(" .\"'`*#-") for piece in pieces) if one]
    return [] if [one.lower() for one in found] in NOTHING else found


def _tag(value: Any) -> tuple[str, float | None] | None:
    score = None
    if isinstance(value, dict):
        given = next((value[key] for key in SCORE_NAMES if key in value), None)
        if given is not None:
            if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
                return None
            score = float(given)
        value = next((value[key] for key in TAG_NAMES if key in value), None)
    if not isinstance(value, str) or len(value) > LONGEST_TAG or len(value.split()) > MOST_WORDS:
        return None
    return value.strip().casefold(), score
