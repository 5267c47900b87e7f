"""``labelwise search``: photos of an index by labels wanted and unwanted, or by likeness."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelwise.cli.index import IndexOrQuery, index_and_query
from labelwise.cli.search_shown import counted_numbers, say_counted, show_hits, show_similar
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.photos import Index
    from labelwise.retrieval import Query


# Groups of its options in the help.
PROMISED = "Promises"
LOOKS = "By looks instead of labels"
FILTERS = "Which photos"
SHOWN = "How they are shown"


def search(
    folder: IndexOrQuery = None,
    query: Annotated[
        str | None, typer.Argument(help="As in 'dog, -beach'. Write it in quotation marks.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "-n", min=1, help="How many photos.")] = 50,
    at_least: Annotated[
        float | None,
        typer.Option(
            help="Only photos of at least this probability, such as 0.8. With --text 0.5 unless "
            "given, else 0."
        ),
    ] = None,
    wrong_at_most: Annotated[
        float | None,
        typer.Option(
            help="Promise that at most this share of the list is wrong, such as 0.1.",
            rich_help_panel=PROMISED,
        ),
    ] = None,
    promise: Annotated[
        Literal["expected", "sure", "checked"] | None,
        typer.Option(
            help="expected: on average over searches like this, refused ones included (unless "
            "given). sure: of this very list, with a confidence; needs many more held-out photos, "
            "and of the lists that were "
            "promised so in our tests 2 to 12 in 100 held more. checked: a person answers first; "
            "says how.",
            rich_help_panel=PROMISED,
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Of --promise sure; 0.95 unless given.", rich_help_panel=PROMISED),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="Find photos that look like this file, indexed or not.", rich_help_panel=LOOKS
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Find photos that look like this text, as in 'a red bicycle'; with a query, among "
            "the photos of that query. Needs a model that began with words (labelwise start).",
            rich_help_panel=LOOKS,
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the sentence encoder, if it is not where it was.",
            rich_help_panel=LOOKS,
        ),
    ] = None,
    sort: Annotated[
        Literal["score", "date"],
        typer.Option(help="Most probable first, or newest first.", rich_help_panel=SHOWN),
    ] = "score",
    below: Annotated[
        str | None,
        typer.Option(
            "--folder",
            help="Only photos below this folder, such as 2023/june.",
            rich_help_panel=FILTERS,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only photos taken on or after a day, month or year.", rich_help_panel=FILTERS
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Only photos taken on or before a day, month or year.", rich_help_panel=FILTERS
        ),
    ] = None,
    camera: Annotated[
        str | None,
        typer.Option(
            help="Only photos by a camera whose name holds this.", rich_help_panel=FILTERS
        ),
    ] = None,
    rating: Annotated[
        int | None,
        typer.Option(
            min=1, max=5, help="Only photos rated so high or higher.", rich_help_panel=FILTERS
        ),
    ] = None,
    keyword: Annotated[
        list[str] | None,
        typer.Option(
            help="Only photos whose file or side-car has this keyword; may be repeated.",
            rich_help_panel=FILTERS,
        ),
    ] = None,
    distinct: Annotated[
        bool,
        typer.Option(
            "--distinct",
            help="Take near copies as one photo: the earliest of them.",
            rich_help_panel=FILTERS,
        ),
    ] = False,
    who: Annotated[
        str | None,
        typer.Option(
            help="By whom the promise is made. Default: the user.", rich_help_panel=PROMISED
        ),
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Only say how many there are.", rich_help_panel=SHOWN)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line.", rich_help_panel=SHOWN)
    ] = False,
    paths_only: Annotated[
        bool,
        typer.Option(
            "--paths-only", help="One path per line, as for xargs -d '\\n'.", rich_help_panel=SHOWN
        ),
    ] = False,
    null: Annotated[
        bool,
        typer.Option(
            "--null",
            "-0",
            help="End each path of --paths-only with a null byte, as for xargs -0.",
            rich_help_panel=SHOWN,
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with the photos, which works offline.", rich_help_panel=SHOWN
        ),
    ] = None,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="List the files that could not be read.")
    ] = False,
) -> None:
    """Find photos by labels, with the probability of each.

    'dog, -beach' finds photos with a dog and without a beach; '(cat | dog), -sofa', 'none' (none of
    the labels) and 'dog>0.8' are understood too. Write -- before a query that starts with a dash.
    Where no list can be promised, the photos are shown without a promise, with what would work.
    --text ranks photos by any text, and gives no probability: nobody has answered about that text.
    """
    from labelwise.cli.text import caution, say, show_table
    from labelwise.errors import SettingsError
    from labelwise.photos import Index, keep_found, model_changed
    from labelwise.photos.answering import answer
    from labelwise.photos.filters import PhotoFilter
    from labelwise.retrieval import Query

    alone = text is None and like is None and not unreadable
    place, query = index_and_query(folder, query, alone=alone)
    asked = query is not None or text is not None
    if sum((asked, like is not None, unreadable)) != 1:
        raise SettingsError(
            "give a query such as 'dog, -beach', --text TEXT, --like PHOTO or --unreadable"
        )
    answered = {
        "--wrong-at-most": wrong_at_most is not None,
        "--promise": promise is not None,
        "--confidence": confidence is not None,
        "--sort": sort != "score",
        "--folder": below is not None,
        "--since": since is not None,
        "--until": until is not None,
        "--camera": camera is not None,
        "--rating": rating is not None,
        "--keyword": bool(keyword),
        "--distinct": distinct,
        "--count": count,
        "--html": html is not None,
    }
    least = {"--at-least": at_least is not None}
    written = {"--json": as_json, "--paths-only": paths_only}
    if text is None:
        _refuse("only --text is encoded", {"--encoder": encoder is not None})
    if unreadable:
        _refuse("--unreadable lists files", least | answered | written)
    if like is not None:
        _refuse("--like ranks by likeness", least | answered)
    if text is not None:
        _refuse("--text ranks by likeness and promises nothing", answered)
        if query is None:
            _refuse("without a query no photo has a probability", least)
    if count:
        _refuse("--count shows no photos", {"--paths-only": paths_only, "--html": html is not None})
    if not paths_only:
        _refuse("--null ends the paths of --paths-only", {"--null": null})
    if paths_only:
        _refuse("--paths-only writes nothing else", {"--json": as_json})
    if wrong_at_most is None:
        without = {"--promise": promise, "--confidence": confidence, "--who": who}
        _refuse("without --wrong-at-most nothing is promised", without)
    elif promise == "checked":
        raise SettingsError(
            "a person has to answer for a checked promise, about photos of the list: labelwise "
            f"check {shlex.join([str(place), query or ''])} --wrong-at-most {wrong_at_most:g}"
        )
    elif promise != "sure":
        _refuse("an expected promise has no confidence", {"--confidence": confidence})
    with Index(place) as index:
        if unreadable:
            show_table(("file", "reason"), index.store.unreadable())
            return
        changed = model_changed(index)
        caution(changed)
        if like is not None:
            from labelwise.photos.like_file import photos_like

            copies, similar = photos_like(index, like, top)
            show_similar(copies, similar, as_json, paths_only, null)
            return
        if text is not None:
            parsed = None if query is None else Query.parse(query, index.space, index.taxonomy)
            lowest = 0.5 if at_least is None else at_least
            _search_text(index, text, parsed, top, lowest, encoder, as_json, paths_only, null)
            return
        wanted = Query.parse(query or "", index.space, index.taxonomy)
        beside = index.spec.caution_beside(wanted.names())
        caution(beside)
        beside = "; ".join(one for one in (beside, changed) if one) or None
        found = answer(
            index,
            wanted,
            top=top,
            at_least=at_least or 0.0,
            wrong_at_most=wrong_at_most,
            promise="sure" if promise == "sure" else "expected",
            confidence=confidence,
            sort=sort,
            photos=PhotoFilter(
                below, since, until, camera, rating, tuple(keyword or ()), distinct=distinct
            ),
        )
        receipt = keep_found(index, wanted, found, who)
        if count:
            if as_json:
                say(json.dumps(counted_numbers(found, receipt, beside)))
            else:
                say_counted(found, receipt)
            return
        show_hits(found.hits, beside, as_json, paths_only, null)
        if html is not None:
            from labelwise.report.contact_sheet import write_contact_sheet

            write_contact_sheet(html, index, found, beside)
        if not as_json and not paths_only:
            say_counted(found, receipt)
            if html is not None:
                say(f"the page: {html}")


def _search_text(
    index: "Index",
    text: str,
    query: "Query | None",
    top: int,
    at_least: float,
    encoder: Path | None,
    as_json: bool,
    paths_only: bool,
    null: bool,
) -> None:
    """Show the photos most like a text, with their likeness, which is not a probability."""
    from labelwise.cli.text import caution, complain, say
    from labelwise.photos.words import FreeText

    texts = FreeText.of(index, encoder)
    caution(texts.doubt(text))
    if query is not None:
        caution(index.spec.caution_beside(query.names()))
    hits = texts.photos(index, text, top, query=query, at_least=at_least)
    show_similar([], hits, as_json, paths_only, null)
    if query is not None and len(hits) < top:
        complain(
            f"{counted(len(hits), 'photo')} with a probability of at least {at_least:g} for "
            f"{query}; --at-least lowers that"
        )
    if not as_json and not paths_only:
        say(f"the photos most like {text!r} first; a likeness is not a probability")


def _refuse(reason: str, options: dict[str, Any]) -> None:
    """Raise for options that mean nothing here."""
    from labelwise.errors import SettingsError

    for name, given in options.items():
        if given:
            raise SettingsError(f"{reason}, so {name} does not apply; leave it out")
