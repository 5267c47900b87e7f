"""``labelwise search``: photos of an index by labels wanted and unwanted, or by likeness."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from labelwise.base.text import counted
from labelwise.cli.index import index_and_query
from labelwise.cli.options import Options
from labelwise.cli.text import caution, complain, next_steps, say, show_table, tell
from labelwise.errors import SettingsError
from labelwise.photos import Index, model_changed
from labelwise.photos.filters import PhotoFilter
from labelwise.photos.query import Found, Hit, answer, photos_like
from labelwise.queries import Query
from labelwise.report.contact_sheet import write_contact_sheet

FILTERS = ("folder", "since", "until", "camera", "rating", "keyword", "distinct")
ANSWERED = ("wrong_at_most", "sort", *FILTERS, "count", "html")  # of a query alone


def search(index: Path | None, query: str | None, given: Options) -> None:
    """Find photos by labels, with the probability of each."""
    alone = given.text is None and given.like is None and not given.unreadable
    folder, query = index_and_query(index, query, alone=alone)
    asked = query is not None or given.text is not None
    if sum((asked, given.like is not None, given.unreadable)) != 1:
        raise SettingsError(
            "give a query such as 'dog, -beach', --text TEXT, --like PHOTO or --unreadable"
        )
    _check(given, query)
    top = given.top or 50
    with Index(folder) as opened:
        if given.unreadable:
            show_table(("file", "reason"), opened.store.unreadable())
            return
        changed = model_changed(opened)
        caution(changed)
        if given.like is not None:
            _show_similar(*photos_like(opened, given.like, top), given)
            return
        if given.text is not None:
            parsed = None if query is None else Query.parse(query, opened.space, opened.taxonomy)
            _search_text(opened, given.text, parsed, top, given)
            return
        wanted = Query.parse(query or "", opened.space, opened.taxonomy)
        beside = opened.spec.caution_beside(wanted.names())
        caution(beside)
        beside = "; ".join(note for note in (beside, changed) if note) or None
        values = (given.folder, given.since, given.until, given.camera, given.rating)
        photos = PhotoFilter(*values, tuple(given.keyword or ()), distinct=given.distinct)
        cut: dict[str, Any] = {"at_least": given.at_least or 0.0}
        cut |= {"wrong_at_most": given.wrong_at_most, "sort": given.sort or "score"}
        found = answer(opened, wanted, top=top, photos=photos, **cut)
        counted_in_words = found.sentence(), found.copies_sentence, found.likeness.sentence()
        if given.count:
            if given.json:
                say(json.dumps(_numbers(found, beside)))
            else:
                tell(*counted_in_words)
            return
        _show_hits(found.hits, beside, given)
        if given.html is not None:
            write_contact_sheet(given.html, opened, found, beside)
        if given.json or given.paths_only:
            return
        tell(*counted_in_words, "" if given.html is None else f"the page: {given.html}")
        named = f"{quote(str(folder))} {quote(str(wanted))}"
        audits = given.wrong_at_most is not None
        next_steps(f"audit {named}" if audits else f"search {named} --wrong-at-most 0.1")


def _check(given: Options, query: str | None) -> None:
    if given.text is None:
        given.refuse("only --text is encoded", "encoder")
    if given.unreadable:
        given.refuse("--unreadable lists files", "at_least", *ANSWERED, "json", "paths_only")
    if given.like is not None:
        given.refuse("--like ranks by likeness", "at_least", *ANSWERED)
    if given.text is not None:
        given.refuse("--text ranks by likeness and guarantees nothing", *ANSWERED)
        if query is None:
            given.refuse("without a query no photo has a probability", "at_least")
    if given.count:
        given.refuse("--count shows no photos", "paths_only", "html")
    if not given.paths_only:
        given.refuse("it ends the paths of --paths-only", "null")
    else:
        given.refuse("--paths-only writes nothing else", "json")


def _search_text(index: Index, text: str, query: Query | None, top: int, given: Options) -> None:
    from labelwise.photos.words import FreeText

    least, texts = given.get("at_least", 0.5), FreeText.of(index, given.encoder)
    caution(texts.doubt(text))
    if query is not None:
        caution(index.spec.caution_beside(query.names()))
    hits = texts.photos(index, text, top, query=query, at_least=least)
    _show_similar([], hits, given)
    if query is not None and len(hits) < top:
        few = f"{counted(len(hits), 'photo')} with a probability of at least {least:g}"
        complain(f"{few} for {query}; --at-least lowers that")
    if not given.json and not given.paths_only:
        say(f"the photos most like {text!r} first; a likeness is not a probability")


def _numbers(found: Found, caution: str | None) -> dict[str, Any]:
    count, (lower, upper) = found.count, found.interval or (None, None)
    statement, likeness = found.statement, found.likeness
    return {
        "query": found.query,
        "photos": found.photos,
        "expected": count.expected,
        "lower": lower,
        "upper": upper,
        "confidence": None if lower is None else count.confidence,
        "untested": found.untested or None,
        "above": found.above,
        "statement": None if statement is None else asdict(statement),
        "likeness": {"outcome": likeness.likeness.outcome, "text": likeness.sentence()},
        "near_copies": None if found.copies is None else found.copies.copies,
        **_beside(caution),
    }


def _beside(caution: str | None) -> dict[str, str]:
    return {} if caution is None else {"caution": caution}


def _show_paths(hits: Sequence[Hit], null: bool) -> None:
    """Print paths, ended by lines or null bytes: as their bytes are, to a terminal made safe."""
    paths = [hit.paths[0] for hit in hits]
    if sys.stdout.isatty() and not null:
        tell(*paths)
        return
    sys.stdout.flush()
    end = b"\0" if null else b"\n"
    sys.stdout.buffer.write(b"".join(os.fsencode(path) + end for path in paths))
    sys.stdout.buffer.flush()


def _show_hits(hits: Sequence[Hit], caution: str | None, given: Options) -> None:
    if given.paths_only:
        _show_paths(hits, given.null)
        return
    if given.json:
        for hit in hits:
            facts: dict[str, Any] = {"path": hit.paths[0], "probability": hit.probability}
            facts |= {"labels": hit.reasons, "taken": hit.taken, "copies": list(hit.paths[1:])}
            say(json.dumps(facts | _beside(caution)))
        return
    labels = ["labels by themselves"] if any(hit.why for hit in hits) else []
    rows = []
    for hit in hits:
        why = [", ".join(f"{name} {chance:.2f}" for name, chance in hit.why.items())] * len(labels)
        rows.append((f"{hit.probability:.3f}", hit.paths[0], *why, (hit.taken or "")[:10]))
    show_table(("probability", "photo", *labels, "taken"), rows)


def _show_similar(copies: Sequence[Hit], similar: Sequence[Hit], given: Options) -> None:
    if given.paths_only:
        _show_paths([*copies, *similar], given.null)
        return
    rows = []
    for number, hit in enumerate([*copies, *similar]):
        equal = number < len(copies)
        if given.json:
            facts = {"path": hit.paths[0], "likeness": hit.probability, "equal": equal}
            say(json.dumps(facts | {"taken": hit.taken, "copies": list(hit.paths[1:])}))
        else:
            word = "equal" if equal else f"{hit.probability:.3f}"
            rows.append((word, hit.paths[0], (hit.taken or "")[:10]))
    if not given.json:
        show_table(("likeness", "photo", "taken"), rows)
