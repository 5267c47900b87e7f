"""``labelwise label``: what people say of photos, what to ask them, and a page that asks."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.cli.command import refuse_overwriting
from labelwise.cli.index import default_index
from labelwise.cli.options import SERVER, Options, find_photos
from labelwise.cli.serve import run_until_stopped, server_settings
from labelwise.cli.text import next_steps, say, show_table
from labelwise.errors import SettingsError
from labelwise.photos import Index, corrected_labels, questions
from labelwise.photos.filters import PhotoGroups
from labelwise.photos.store import Fact
from labelwise.tables.export import export

OF_THE_PAGE = (
    *("words", "guide", "host", "port", "token_file", "allow_host", "open"),
    *SERVER.split(),
)
ORDERS = ("value", "uncertain", "missing", "wrong")
SIGNS: dict[str, Fact] = {"-": "absent", "!": "absent", "?": "unknown"}


def label(named: list[str] | None, given: Options) -> None:
    """Say which labels photos carry, or be asked."""
    said = list(named or [])
    if given.page:
        given.refuse("--page asks by itself", "top", "order", "label", "undo", "who", "by", "table")
        _page([Path(word) for word in said], given)
        return
    given.refuse("it belongs to --page", *OF_THE_PAGE)
    if "next" in said[:2]:
        said.remove("next")
        given.refuse("`label next` lists questions", "undo", "who", "by", "table", "out")
        _next(default_index(said[0] if said else None), given)
        return
    given.refuse("it belongs to `label next`", "top", "order", "label", "json")
    is_index = bool(said) and (Path(said[0]) / "index.json").is_file()
    folder = default_index(said.pop(0) if is_index else None)
    if given.out is not None:
        if said or given.undo or given.who is not None:
            raise SettingsError("-o writes all corrections; leave out photo, --undo, --who")
        _export(folder, given)
        return
    given.refuse("it groups what -o writes", "by", "table")
    if len(said) < 2:
        raise SettingsError("name a photo of the index and its labels, or -o FILE")
    photo, *labels = said
    _record(folder, photo, labels, given)


def _record(folder: Path, photo: str, labels: list[str], given: Options) -> None:
    states: dict[str, Fact] = {}
    for text in (label.strip(" ,") for label in labels):
        name = text.lstrip("-?!")
        state: Fact = SIGNS.get(text.removesuffix(name), "present")
        states[name] = "withdrawn" if given.undo else state
    with Index(folder) as index:
        row = index.row_of(photo)
        index.correct(row, states, who=given.who)
        for name, state in states.items():
            say(f"{name}: {state}; probability now {index.probability(row, name):.2f}")
    next_steps(f"label next {folder}")


def _next(folder: Path, given: Options) -> None:
    order: Any = given.order or "value"
    if order not in ORDERS:
        raise SettingsError(f"--order must be one of {', '.join(ORDERS)}, got {order!r}")
    with Index(folder) as index:
        asked = questions(index, order, given.top or 20, given.label)
        paths = index.store.paths_of(question.row for question in asked)
    rows = []
    for question in asked:
        path, label, probability = paths[question.row][0], question.label, question.probability
        rows.append((path, label, f"{probability:.2f}", "yes" if question.given else "no"))
        if given.json:
            facts = {"path": path, "label": label, "probability": probability}
            say(json.dumps(facts | {"given": question.given, "worth": question.worth}))
    if given.json:
        return
    show_table(("photo", "label", "probability", "given"), rows)
    next_steps(f"label {folder} PHOTO LABEL -OTHER '?UNSURE'")


def _export(folder: Path, given: Options) -> None:
    if given.by and len(given.by) > 1:
        raise SettingsError("a label table has one group: give --by once")
    groups = PhotoGroups(given.by[0] if given.by else "", given.table)
    with Index(folder) as index:
        table, tested = corrected_labels(index, groups)
    export(table, given.target)
    known = len(table) * len(table.space) - int(table.unknown.counts().sum())
    labels, photos = counted(known, "label"), counted(len(table), "photo")
    say(f"wrote {given.out}: {labels} of {photos}, all of the split train")
    if tested:
        say(f"left out, because the model is tested on them: {tested:,}")
    next_steps(f"train {given.out}")


def _page(places: list[Path], given: Options) -> None:
    from labelwise.photos.words import WordList, WordsLearner

    if not places or given.words is None:
        raise SettingsError(
            "name the photos and the words to ask about: labelwise label --page PHOTOS --words "
            "words.txt"
        )
    settings = server_settings(given)
    from labelwise.server import create_labelling_app

    table, photos = Path(given.out or "answers.csv"), find_photos(places)
    if given.out is None and not given.overwrite:
        refuse_overwriting(table, is_log=True)
    learner = None if given.guide is None else WordsLearner(given.guide, photos, watch=make_watch())
    guided: Any = {} if learner is None else {"guide": learner.guide, "learn": learner.learnt}
    words, find = WordList.read(given.words), partial(find_photos, places)
    app = create_labelling_app(photos, words, table, settings, find=find, **guided)
    run_until_stopped(app, settings, given)
    next_steps(f"train {' '.join(map(str, places))} --words {given.words} --answers {table}")
