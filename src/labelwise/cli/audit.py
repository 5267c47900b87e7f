"""``labelwise audit``: are these labels right? Any tags, a list of photos, or past guarantees."""

from functools import partial
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.arguments import (
    AllowHost,
    Answers,
    Ask,
    AtLeast,
    Confidence,
    Csv,
    Data,
    Distinct,
    Encoder,
    Host,
    Json,
    Like,
    OpenPage,
    Out,
    Page,
    Photos,
    Port,
    Scores,
    Seed,
    SkipBroken,
    Strict,
    Text,
    TokenFile,
    Top,
    Who,
    WrongAtMost,
    option,
)
from labelwise.cli.command import app, as_typed, refuse, refuse_overwriting, typed, verb
from labelwise.cli.options import default_index, index_and_query
from labelwise.cli.serve import server_settings
from labelwise.cli.text import quoted
from labelwise.errors import SettingsError

OF_TAGS = (
    *("photos", "right_at_least", "per_tag", "page", "csv", "again", "seed", "scores", "data"),
    *("trust", "skip_broken", "host", "port", "token_file", "allow_host", "open_page"),
)
OF_THE_PAGE = ("host", "port", "token_file", "allow_host", "open_page")
OF_A_QUERY = ("wrong_at_most", "answers_at_most", "distinct", "text", "encoder", "like")
OF_A_LIST = (*OF_A_QUERY, "confidence", "at_least", "top", "who")
OF_GUARANTEES = ("ask", "receipts", "strict", "as_json")


@verb(
    app,
    "audit tags.csv --photos photos/ --page",
    "audit photos.index 'dog, -beach'",
    more="at_least",
)
def audit(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="TAGS|INDEX|RUN", help="Tags of any kind; photos.index if omitted."),
    ] = None,
    query: Annotated[
        str | None, typer.Argument(help="Check the list of this query, as 'dog, -beach'.")
    ] = None,
    *,
    photos: Photos = None,
    right_at_least: Annotated[
        float | None,
        option("--right-at-least", help="Guarantee that this share of the tags is right (0.9)."),
    ] = None,
    confidence: Confidence = None,
    per_tag: Annotated[
        bool, option("--per-tag", help="Guarantee each tag, not all together.")
    ] = False,
    page: Page = False,
    csv: Csv = None,
    answers: Answers = None,
    again: Annotated[
        Path | None,
        option("--again", help="Test what a receipt.json says, with other random questions."),
    ] = None,
    out: Out = None,
    who: Who = None,
    wrong_at_most: WrongAtMost = None,
    answers_at_most: Annotated[
        int | None,
        option("--answers-at-most", min=1, help="How many answers you are willing to give (30)."),
    ] = None,
    at_least: AtLeast = None,
    top: Top = None,
    ask: Ask = None,
    scores: Scores = None,
    data: Data = None,
    trust: Annotated[
        str | None, option("--trust", help="Of several annotators, the one whose answers count.")
    ] = None,
    seed: Seed = None,
    skip_broken: SkipBroken = False,
    distinct: Distinct = False,
    strict: Strict = False,
    as_json: Json = False,
    text: Text = None,
    like: Like = None,
    encoder: Encoder = None,
    receipts: Annotated[
        bool, option("--receipts", help="Print the receipts of an index as JSON lines.")
    ] = False,
    host: Host = None,
    port: Port = None,
    token_file: TokenFile = None,
    allow_host: AllowHost = None,
    open_page: OpenPage = False,
) -> None:
    """Find out which tags can be trusted, or check a list of photos or past guarantees.

    TAGS is a label table, a score file, JSON Lines of a language model, Label Studio predictions,
    COCO results (--data instances.json), several annotators (--trust NAME) or a folder of photos
    with keywords. Answer y (the tag is right), n, d (don't know), u (undo) or s (stop); the next
    call goes on. --page asks in the browser; --csv writes questions for a spreadsheet, and
    --answers takes them back. -o names the folder of the results (TAGS.audit). --again RECEIPT
    tests what another audit kept.

    INDEX QUERY asks about photos of the list, drawn at random, until at most --wrong-at-most (0.1)
    of it is wrong with --confidence (0.95). Answer y (it matches), n, d (don't know), u (undo)
    or s (stop); the next call goes on. --answers-at-most says how many answers you are willing to
    give (30): the more, the longer the list. --answers takes a CSV of path and answer instead.
    Photos found wrong leave the list, which -o writes.

    --like ALBUM, a folder or keyword:NAME, asks about its --top (50) suggestions in the same way.

    INDEX alone checks each list and tag that was guaranteed: --ask 30 -o questions.csv writes which
    photos to answer, and --answers takes them back. RUN checks its guarantees on its test photos,
    or on labelled photos with --answers. Exit status 1 where more guarantees are broken than may
    be.
    """
    alone = query is None and text is None and like is None
    if alone and _means_tags(place):
        refuse("it is for the list of a query", *OF_A_QUERY)
        refuse("it is for past guarantees", "receipts", "strict", "as_json")
        if page:
            refuse("the page asks by itself", "csv", "answers")
        else:
            refuse("it belongs to --page", *OF_THE_PAGE)
        folder = Path(out or f"{_name(place, again)}.audit")
        if out is None:
            refuse_overwriting(folder)
        from labelwise.cli.audit_tags import answer_file, ask_all, finish, open_session, serve

        session = open_session(
            place,
            folder / "answers.jsonl",
            again=again,
            photos=photos,
            right_at_least=right_at_least,
            confidence=confidence,
            per_tag=per_tag,
            seed=seed,
            ask=ask,
            scores=scores,
            at_least=at_least,
            trust=trust,
            data=data,
            skip_broken=skip_broken,
        )
        if answers is not None:
            answer_file(session, Path(answers), who or getuser())
        elif page:
            settings = server_settings(
                host=host, port=port, token_file=token_file, allow_host=allow_host
            )
            serve(session, folder, settings, open_page)
        elif csv is None:
            ask_all(session, who or getuser())
        finish(session, folder, partial(_again, place, folder), csv, top or 50, answers)
        return
    refuse("it is for tags: leave out the query", *OF_TAGS)
    from labelwise.cli.audit_lists import check_list, check_lists_of_index, check_run

    if alone and place is not None:
        is_index = (place / "index.json").is_file()
        if is_index or (place / "model.json").is_file():
            refuse("it is for the list of a query", *OF_A_LIST)
            if (ask is None) != (out is None):
                raise SettingsError("--ask N writes a table: give both --ask N and --out FILE")
            if sum((ask is not None, receipts, answers is not None)) > 1:
                raise SettingsError("--ask, --receipts and --answers do different things; give one")
            if ask is not None or receipts:
                refuse("--strict and --json are about verdicts", "strict", "as_json")
            if is_index:
                broken = check_lists_of_index(place, ask, out, receipts, answers, strict, as_json)
            else:
                refuse(f"{place} is not an index", "ask", "receipts", "strict")
                broken = check_run(place, answers, as_json)
            if broken:
                raise typer.Exit(1)
            return
    refuse("it is for past guarantees: leave out the query", *OF_GUARANTEES)
    place, query = index_and_query(place, query, alone=text is None and like is None)
    if at_least is not None and top is not None:
        raise SettingsError("--at-least and --top both end the list; give one of them")
    if at_least is not None and not 0 <= at_least <= 1:
        raise SettingsError(f"--at-least must be a probability between 0 and 1, got {at_least}")
    if sum(choice is not None for choice in (query, text, like)) != 1:
        raise SettingsError(
            "give a query such as 'dog, -beach', or --text TEXT, or --like ALBUM, and not both"
        )
    if text is None and encoder is not None:
        raise SettingsError("--encoder is an option of --text")
    if answers_at_most is not None and (top is not None or at_least is not None):
        raise SettingsError("--answers-at-most sets the length of the list; leave out --top")
    if query is None and (at_least is not None or distinct or (top is None and like is None)):
        mend = "end its list with --top, and leave out --at-least and --distinct"
        flag = "--text" if like is None else "--like"
        raise SettingsError(f"{flag} has no probabilities: {mend}")
    check_list(
        place,
        query,
        text=text,
        encoder=encoder,
        album=like,
        cut=at_least,
        top=top,
        wrong_at_most=0.1 if wrong_at_most is None else wrong_at_most,
        confidence=0.95 if confidence is None else confidence,
        who=who,
        answers_at_most=answers_at_most,
        distinct=distinct,
        answers=answers,
        out=out,
    )


def _means_tags(place: Path | None) -> bool:
    """Return whether tags are meant, and not past guarantees of an index or a run."""
    asked = bool(typed(*OF_TAGS))
    if asked or place is None or place.is_dir():
        return asked
    return place.exists() or bool(place.suffix) or not default_index(None).is_dir()


def _name(place: Path | None, again: Path | None) -> str:
    if again is not None:
        return f"{again.resolve().parent.name.removesuffix('.audit')}-again"
    if place is None:
        raise SettingsError("name the tags: labelwise audit TAGS --photos PHOTOS")
    return place.resolve().with_suffix("").name or "tags"


def _again(place: Path | None, out: Path, level: float | None = None) -> str:
    """Return the command that goes on with an audit of tags, or tests another level."""
    options = ["again", "photos", "trust", "data", "scores", "at_least"]
    if level is None and typed("right_at_least"):
        options.append("right_at_least")
    elif level is None and place is not None and place.is_dir():
        level = 0.9  # else past guarantees would be meant
    words = ["audit", *([] if place is None else [place]), "-o", out]
    more = as_typed(*options, "confidence", "seed", "per_tag", "skip_broken")
    return quoted(*words) + more + ("" if level is None else f" --right-at-least {level:g}")
