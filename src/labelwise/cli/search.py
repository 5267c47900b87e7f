"""``labelwise search``: photos of an index by labels wanted and unwanted, or by likeness."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.base.text import counted
from labelwise.cli.arguments import (
    AtLeast,
    Distinct,
    Encoder,
    Html,
    Json,
    Like,
    Text,
    Top,
    WrongAbout,
    WrongAtMost,
    option,
)
from labelwise.cli.command import app, refuse, verb
from labelwise.cli.options import index_and_query
from labelwise.cli.text import (
    caution,
    complain,
    next_steps,
    quoted,
    say,
    show_table,
    tell,
)
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.photos.query import Hit

FILTERS = ("folder", "since", "until", "camera", "rating", "keyword", "distinct")
FEWEST_LISTED = 10  # photos of a list that is checked because nothing can be estimated
ANSWERED = ("wrong_about", "wrong_at_most", "sort", *FILTERS, "count", "html")  # of a query alone


@verb(
    app,
    "search 'dog, -beach' --wrong-about 0.1",
    "search photos.index --like a.jpg -n 20",
    more="sort",
)
def search(
    index: Annotated[
        Path | None,
        typer.Argument(
            metavar="INDEX", help="The index; $LABELWISE_INDEX or photos.index if left out."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Argument(help="As in 'dog, -beach'. Write it in quotation marks.")
    ] = None,
    *,
    top: Top = None,
    at_least: AtLeast = None,
    wrong_about: WrongAbout = None,
    like: Like = None,
    text: Text = None,
    folder: Annotated[
        str | None, option("--folder", help="Only photos below this folder, such as 2023/june.")
    ] = None,
    since: Annotated[
        str | None, option("--since", help="Only photos taken on or after a day, month or year.")
    ] = None,
    until: Annotated[
        str | None, option("--until", help="Only photos taken on or before a day, month or year.")
    ] = None,
    html: Html = None,
    as_json: Json = False,
    paths_only: Annotated[
        bool, option("--paths-only", help="One path per line, as for xargs -d '\\n'.")
    ] = False,
    count: Annotated[bool, option("--count", help="Only say how many there are.")] = False,
    sort: Annotated[
        Literal["score", "date"], option("--sort", help="Most probable or newest first.")
    ] = "score",
    camera: Annotated[
        str | None, option("--camera", help="Only photos by a camera whose name holds this.")
    ] = None,
    rating: Annotated[
        int | None, option("--rating", min=1, max=5, help="Only photos rated this high.")
    ] = None,
    keyword: Annotated[
        list[str] | None, option("--keyword", help="Only photos with this keyword.")
    ] = None,
    distinct: Distinct = False,
    wrong_at_most: WrongAtMost = None,
    encoder: Encoder = None,
    null: Annotated[
        bool, option("--null", "-0", help="End each path with a null byte, as for xargs -0.")
    ] = False,
    unreadable: Annotated[
        bool, option("--unreadable", help="List the files that could not be read.")
    ] = False,
) -> None:
    """Find photos by labels, with the probability of each.

    'dog, -beach' finds photos with a dog and without a beach; '(cat | dog), -sofa', 'none' (none of
    the labels) and 'dog>0.8' are understood too. Write -- before a query that starts with a dash.
    --wrong-about 0.1 cuts the list where about 10 % of it is wrong, and shows the interval of
    that estimate. Your answers turn it into a guarantee: labelwise audit INDEX QUERY.
    --text ranks photos by any text (the model must know words), and gives no probability.
    """
    from labelwise.photos import Index, model_changed
    from labelwise.photos.filters import PhotoFilter
    from labelwise.photos.query import answer, guess_of, not_answered, photos_like
    from labelwise.queries import Query

    place, query = index_and_query(
        index, query, alone=text is None and like is None and not unreadable
    )
    if sum((query is not None or text is not None, like is not None, unreadable)) != 1:
        raise SettingsError(
            "give a query such as 'dog, -beach', --text TEXT, --like PHOTO or --unreadable"
        )
    if text is None:
        refuse("only --text is encoded", "encoder")
    if unreadable:
        refuse("--unreadable lists files", "at_least", *ANSWERED, "as_json", "paths_only")
    if like is not None:
        refuse("--like ranks by likeness", "at_least", *ANSWERED)
    if text is not None:
        refuse("--text ranks by likeness and guarantees nothing", *ANSWERED)
        if query is None:
            refuse("without a query no photo has a probability", "at_least")
    if count:
        refuse("--count shows no photos", "paths_only", "html")
    if not paths_only:
        refuse("it ends the paths of --paths-only", "null")
    else:
        refuse("--paths-only writes nothing else", "as_json")
    if wrong_at_most is not None:
        complain("in a search, --wrong-at-most is now --wrong-about; it works until 0.5")
        wrong_about = wrong_at_most if wrong_about is None else wrong_about
    with Index(place) as opened:
        if unreadable:
            show_table(("file", "reason"), opened.store.unreadable())
            return
        opened.require_photos()
        changed = model_changed(opened)
        caution(changed)
        shown = PrintedPhotos(as_json, paths_only, null)
        if like is not None:
            shown.similar(*photos_like(opened, like, top or 50))
            return
        wanted = None
        if query is not None:
            wanted = Query.parse(query, opened.space, opened.taxonomy)
            beside = opened.spec.caution_beside(wanted.names())
            caution(beside)
        if text is not None:
            from labelwise.photos.words import FreeText

            least, texts = 0.5 if at_least is None else at_least, FreeText.of(opened, encoder)
            caution(texts.doubt(text))
            hits = texts.photos(opened, text, top or 50, query=wanted, at_least=least)
            shown.similar([], hits)
            if wanted is not None and len(hits) < (top or 50):
                few = f"{counted(len(hits), 'photo')} with a probability of at least {least:g}"
                complain(f"{few} for {wanted}; --at-least lowers that")
            if not as_json and not paths_only:
                say(f"the photos most like {text!r} first; a likeness is not a probability")
            return
        if wanted is None:
            return
        if unknown := not_answered(opened, wanted.names() if count else wanted.unwanted):
            complain(guess_of(unknown[0]))
            next_steps(f"count {quoted(place, unknown[0])} --ask 30")
            raise typer.Exit(1)
        beside = "; ".join(note for note in (beside, changed) if note) or None
        found = answer(
            opened,
            wanted,
            top=top or 50,
            photos=PhotoFilter(
                folder, since, until, camera, rating, tuple(keyword or ()), distinct=distinct
            ),
            at_least=at_least or 0.0,
            wrong_about=wrong_about,
            sort=sort,
        )
        sentences = found.sentence(), found.copies_sentence, found.likeness.sentence()
        if count:
            if as_json:
                say(dumps({**found.record(), **_cautioned(beside)}))
            else:
                tell(*sentences)
            return
        named = quoted(place, wanted)
        if found.statement is not None and found.statement.kind == "none":
            complain(found.statement.sentence)
            if not as_json and not paths_only:
                top = min(50, found.photos, max(FEWEST_LISTED, round(found.count.expected)))
                next_steps(f"audit {named} --top {top} --wrong-at-most {wrong_about:g}")
            raise typer.Exit(1)
        shown.hits(found.hits, beside)
        if html is not None:
            from labelwise.report.contact_sheet import write_contact_sheet

            write_contact_sheet(html, opened, found, beside)
        if as_json or paths_only:
            return
        tell(*sentences, "" if html is None else f"the page: {html}")
        if wrong_about is None:
            next_steps(f"search {named} --wrong-about 0.1")
        else:
            next_steps(f"audit {named} --wrong-at-most {wrong_about:g}")


@dataclass(frozen=True)
class PrintedPhotos:
    """How photos are printed: as a table, as lines of JSON, or as paths alone."""

    as_json: bool
    paths_only: bool
    null: bool

    def paths(self, hits: "Sequence[Hit]") -> None:
        """Print paths, ended by lines or null bytes: as they are, to a terminal made safe."""
        paths = [hit.paths[0] for hit in hits]
        if sys.stdout.isatty() and not self.null:
            tell(*paths)
            return
        sys.stdout.flush()
        end = b"\0" if self.null else b"\n"
        sys.stdout.buffer.write(b"".join(os.fsencode(path) + end for path in paths))
        sys.stdout.buffer.flush()

    def hits(self, hits: "Sequence[Hit]", beside: str | None) -> None:
        """Print photos that match a query, with what must stand beside each."""
        if self.paths_only:
            self.paths(hits)
            return
        if self.as_json:
            for hit in hits:
                say(dumps({**hit.record(), **_cautioned(beside)}))
            return
        labels = ["labels by themselves"] if any(hit.why for hit in hits) else []
        rows = []
        for hit in hits:
            why = ", ".join(f"{name} {chance:.2f}" for name, chance in hit.why.items())
            cells = (f"{hit.probability:.3f}", hit.paths[0], *[why] * len(labels))
            rows.append((*cells, (hit.taken or "")[:10]))
        show_table(("probability", "photo", *labels, "taken"), rows)

    def similar(self, copies: "Sequence[Hit]", similar: "Sequence[Hit]") -> None:
        """Print photos by likeness, those that are equal first."""
        if self.paths_only:
            self.paths([*copies, *similar])
            return
        rows = []
        for number, hit in enumerate([*copies, *similar]):
            equal = number < len(copies)
            if self.as_json:
                record = {"path": hit.paths[0], "likeness": hit.probability, "equal": equal}
                say(dumps(record | {"taken": hit.taken, "copies": list(hit.paths[1:])}))
            else:
                word = "equal" if equal else f"{hit.probability:.3f}"
                rows.append((word, hit.paths[0], (hit.taken or "")[:10]))
        if not self.as_json:
            show_table(("likeness", "photo", "taken"), rows)


def _cautioned(caution: str | None) -> dict[str, str]:
    return {} if caution is None else {"caution": caution}
