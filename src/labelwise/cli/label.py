"""``labelwise label``: what people say of photos, what to ask them, and a page that asks."""

from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    AccessLog,
    AllowHost,
    AllowOrigin,
    By,
    ClientQueue,
    Decoders,
    GroupTable,
    Host,
    Json,
    MaxBody,
    OpenPage,
    Order,
    Out,
    Page,
    Port,
    TokenFile,
    Top,
    TrustedProxy,
    Undo,
    Who,
    WordsFile,
    option,
)
from labelwise.cli.command import app, refuse, refuse_overwriting, verb
from labelwise.cli.options import default_index, find_photos
from labelwise.cli.serve import run_until_stopped, server_settings
from labelwise.cli.text import next_steps, quoted, say, show_table
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.photos.store import Fact
    from labelwise.server import ServeSettings

OF_THE_PAGE = (
    *("words", "guide", "host", "port", "token_file", "allow_host", "open_page", "allow_origin"),
    *("max_body", "client_queue", "trusted_proxy", "decoders", "access_log"),
)
ORDERS = ("value", "uncertain", "missing", "wrong")
SIGNS: "dict[str, Fact]" = {"-": "absent", "!": "absent", "?": "unknown"}


@verb(
    app,
    "label photos.index beach.jpg dog -cat",
    "label next photos.index -n 20",
    more="host",
    dashes=True,
)
def label(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[next] [INDEX] [PHOTO] [LABEL]...",
            help="dog: it is there. -beach: it is not. '?cat': you cannot tell.",
        ),
    ] = None,
    *,
    out: Out = None,
    top: Top = None,
    order: Order = None,
    label: Annotated[
        list[str] | None, option("--label", help="Only this label; may be repeated.")
    ] = None,
    undo: Undo = False,
    who: Who = None,
    as_json: Json = False,
    page: Page = False,
    words: WordsFile = None,
    guide: Annotated[
        Path | None, option("--guide", help="A run that chooses the questions.")
    ] = None,
    by: By = None,
    table: GroupTable = None,
    host: Host = None,
    port: Port = None,
    token_file: TokenFile = None,
    allow_host: AllowHost = None,
    open_page: OpenPage = False,
    allow_origin: AllowOrigin = None,
    max_body: MaxBody = None,
    client_queue: ClientQueue = None,
    trusted_proxy: TrustedProxy = None,
    decoders: Decoders = None,
    access_log: AccessLog = None,
) -> None:
    """Say which labels photos carry, or be asked.

    INDEX PHOTO LABEL... records labels: the photo's probabilities become certain, and nothing that
    was said before is lost. --undo withdraws them.

    next INDEX lists the questions most worth a person's minute: value (likely to change a photo's
    labels), uncertain, missing (likely, not given) or wrong (given, unlikely).

    INDEX -o labels.csv writes all that was said as a label table to train on.

    --page PHOTOS --words words.txt asks about words in the browser; -o names the label table
    (answers.csv), and every answer is kept beside it as .jsonl. With --guide, a run of `train
    --words`, four of five questions are about the photos it is least sure of.
    """
    names = list(named or [])
    if page:
        refuse("--page asks by itself", "top", "order", "label", "undo", "who", "by", "table")
        if not names or words is None:
            raise SettingsError(
                "name the photos and the words to ask about: labelwise label --page PHOTOS "
                "--words words.txt"
            )
        settings = server_settings(
            host=host,
            port=port,
            token_file=token_file,
            allow_host=allow_host,
            allow_origin=allow_origin,
            trusted_proxy=trusted_proxy,
            max_body=max_body,
            client_queue=client_queue,
            decoders=decoders,
            access_log=access_log,
        )
        _page([Path(name) for name in names], words, guide, out, settings, open_page)
        return
    refuse("it belongs to --page", *OF_THE_PAGE)
    if "next" in names[:2]:
        names.remove("next")
        refuse("`label next` lists questions", "undo", "who", "by", "table", "out")
        folder = default_index(names[0] if names else None)
        _next(folder, order or "value", top or 20, label, as_json)
        return
    refuse("it belongs to `label next`", "top", "order", "label", "as_json")
    is_index = bool(names) and (Path(names[0]) / "index.json").is_file()
    folder = default_index(names.pop(0) if is_index else None)
    if out is not None:
        if names or undo or who is not None:
            raise SettingsError("-o writes all corrections; leave out photo, --undo, --who")
        _export(folder, Path(out), by or [], table)
        return
    refuse("it groups what -o writes", "by", "table")
    if len(names) < 2:
        raise SettingsError("name a photo of the index and its labels, or -o FILE")
    _record(folder, *names, undo=undo, who=who)


def _record(folder: Path, photo: str, *labels: str, undo: bool, who: str | None) -> None:
    from labelwise.photos import Index

    states: dict[str, Fact] = {}
    for text in (label.strip(" ,") for label in labels):
        name = text.lstrip("-?!")
        states[name] = "withdrawn" if undo else SIGNS.get(text.removesuffix(name), "present")
    with Index(folder) as index:
        row = index.row_of(photo)
        index.correct(row, states, who=who)
        for name, state in states.items():
            say(f"{name}: {state}; probability now {index.probability(row, name):.2f}")
    next_steps(f"label next {quoted(folder)}")


def _next(folder: Path, order: str, top: int, labels: list[str] | None, as_json: bool) -> None:
    from labelwise.photos import Index, questions

    by: Any = order
    if by not in ORDERS:
        raise SettingsError(f"--order must be one of {', '.join(ORDERS)}, got {order!r}")
    with Index(folder) as index:
        index.require_photos()
        asked = questions(index, by, top, labels)
        paths = index.store.paths_of(question.row for question in asked)
    rows = []
    for question in asked:
        path, label, probability = paths[question.row][0], question.label, question.probability
        rows.append((path, label, f"{probability:.2f}", "yes" if question.given else "no"))
        if as_json:
            record = {"path": path, "label": label, "probability": probability}
            say(dumps(record | {"given": question.given, "worth": question.worth}))
    if as_json:
        return
    show_table(("photo", "label", "probability", "given"), rows)
    next_steps(f"label {quoted(folder)} PHOTO LABEL -OTHER '?UNSURE'")


def _export(folder: Path, out: Path, by: list[str], groups: Path | None) -> None:
    from labelwise.photos import Index, corrected_labels
    from labelwise.photos.filters import PhotoGroups
    from labelwise.tables.export import export

    if len(by) > 1:
        raise SettingsError("a label table has one group: give --by once")
    with Index(folder) as index:
        table, tested = corrected_labels(index, PhotoGroups(by[0] if by else "", groups))
    export(table, out)
    known = len(table) * len(table.space) - int(table.unknown.counts().sum())
    labels, photos = counted(known, "label"), counted(len(table), "photo")
    say(f"wrote {out}: {labels} of {photos}, all of the split train")
    if tested:
        say(f"left out, because the model is tested on them: {tested:,}")
    next_steps(f"train {quoted(out)}")


def _page(
    places: list[Path],
    vocabulary: Path,
    guide: Path | None,
    out: str | None,
    settings: "ServeSettings",
    open_page: bool,
) -> None:
    from labelwise.photos.words import WordList, WordsLearner
    from labelwise.server import create_labelling_app

    table, photos = Path(out or "answers.csv"), find_photos(places)
    if out is None:
        refuse_overwriting(table, is_log=True)
    learner = None if guide is None else WordsLearner(guide, photos, watch=make_watch())
    guided: Any = {} if learner is None else {"guide": learner.guide, "learn": learner.learnt}
    words, find = WordList.read(vocabulary), partial(find_photos, places)
    service = create_labelling_app(photos, words, table, settings, find=find, **guided)
    run_until_stopped(service, settings, open_page)
    next_steps(f"train {quoted(*places, '--words', vocabulary, '--answers', table)}")
