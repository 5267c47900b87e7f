"""What ``labelwise search`` prints: counts, paths, JSON, tables."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelwise.photos.answering import Found, Hit
    from labelwise.photos.receipts import Receipt


def counted_numbers(
    found: "Found", receipt: "Receipt | None", caution: str | None
) -> dict[str, Any]:
    """Return what is known of an answer as plain data, with what must stand beside it, if any."""
    count, (lower, upper) = found.count, found.interval or (None, None)
    promise, bounded = found.promised, found.bounded
    return {
        "query": found.query,
        "photos": found.photos,
        "expected": count.expected,
        "lower": lower,
        "upper": upper,
        "confidence": None if lower is None else count.confidence,
        "untested": found.untested or None,
        "above": found.above,
        "promise": None if promise is None else {**promise.spec(), "text": str(promise)},
        "receipt": None if receipt is None else receipt.number,
        "refused": found.refused or None,
        "bounded": None if bounded is None else {**asdict(bounded), "text": str(bounded)},
        "likeness": None
        if found.likeness is None
        else {"outcome": found.likeness.likeness.outcome, "text": found.likeness.sentence()},
        "near_copies": None if found.copies is None else found.copies.copies,
        **_beside(caution),
    }


def _beside(caution: str | None) -> dict[str, str]:
    return {} if caution is None else {"caution": caution}


def say_counted(found: "Found", receipt: "Receipt | None") -> None:
    """Say how many photos match, what is promised, and whether what this supposes was seen."""
    from labelwise.cli.text import say

    say(found.sentence())
    for sentence in (found.copies_sentence, found.likeness_sentence):
        if sentence:
            say(sentence)
    if receipt is not None:
        say(f"receipt {receipt.number}: labelwise verify holds the promise to answers")
    elif found.promised is not None:
        say("no receipt is kept of this promise, since the index may only be read")


def _show_paths(paths: "Sequence[str]", null: bool) -> None:
    """Print paths, ended by lines or null bytes: as their bytes are, to a terminal made safe."""
    from labelwise.cli.text import say

    if sys.stdout.isatty() and not null:
        for path in paths:
            say(path)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(
        b"".join(os.fsencode(path) + (b"\0" if null else b"\n") for path in paths)
    )
    sys.stdout.buffer.flush()


def show_hits(
    hits: "Sequence[Hit]", caution: str | None, as_json: bool, paths_only: bool, null: bool
) -> None:
    """Print the photos of an answer; as JSON with what must stand beside their probabilities."""
    from labelwise.cli.text import say, show_table

    if paths_only:
        _show_paths([hit.paths[0] for hit in hits], null)
        return
    if as_json:
        for hit in hits:
            facts: dict[str, Any] = {"path": hit.paths[0], "probability": hit.probability}
            facts |= {"labels": hit.reasons, "taken": hit.taken, "copies": list(hit.paths[1:])}
            say(json.dumps(facts | _beside(caution)))
        return
    several = any(hit.why for hit in hits)
    rows = []
    for hit in hits:
        why = ", ".join(f"{name} {chance:.2f}" for name, chance in hit.why.items())
        labels = [why] if several else []
        rows.append((f"{hit.probability:.3f}", hit.paths[0], *labels, (hit.taken or "")[:10]))
    labels = ["labels by themselves"] if several else []
    show_table(("probability", "photo", *labels, "taken"), rows)


def show_similar(
    copies: "Sequence[Hit]",
    similar: "Sequence[Hit]",
    as_json: bool,
    paths_only: bool,
    null: bool,
) -> None:
    """Show files that are equal to the byte first, and then those that look alike."""
    from labelwise.cli.text import say, show_table

    hits = [*copies, *similar]
    if paths_only:
        _show_paths([hit.paths[0] for hit in hits], null)
        return
    if as_json:
        for number, hit in enumerate(hits):
            facts = {"path": hit.paths[0], "likeness": hit.probability}
            equal = {"equal": number < len(copies)}
            say(json.dumps(facts | equal | {"taken": hit.taken, "copies": list(hit.paths[1:])}))
        return
    words = ["equal"] * len(copies) + [f"{hit.probability:.3f}" for hit in similar]
    rows = [
        (word, hit.paths[0], (hit.taken or "")[:10]) for word, hit in zip(words, hits, strict=True)
    ]
    show_table(("likeness", "photo", "taken"), rows)
