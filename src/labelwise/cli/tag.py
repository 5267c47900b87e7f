"""``labelwise tag``: labels written to side-cars, photos or Immich, and taken out again."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from labelwise.answers.audit_session import RECEIPT
from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri, without_options
from labelwise.base.text import counted
from labelwise.cli.options import Options, read_secret
from labelwise.cli.text import caution, complain, next_steps, resumable, say, show_table, tell
from labelwise.contrib.immich import Immich, remove_tags, write_tags
from labelwise.decide import Promised
from labelwise.errors import SettingsError
from labelwise.photos import Index, model_changed
from labelwise.photos.metadata import sidecar_of
from labelwise.photos.store import Store
from labelwise.photos.tagging import (
    TagOutcome,
    WrittenFiles,
    embed_tags,
    promised_rule,
    raw_partners,
    require_exiftool,
    tags_of,
    tags_of_audit,
    undo_embedded,
    undo_sidecar,
    write_sidecar,
)
from labelwise.photos.xmp import Keyword

SHOWN = 20


def tag(folder: Path, given: Options) -> None:
    """Write labels as keywords that other photo programs read."""
    _check(given)
    if given.embed and not given.undo:
        require_exiftool()
    labels = Counter[str]()
    if (folder / RECEIPT).is_file():
        given.refuse("an audit writes side-cars or photos", "immich", "wrong_at_most")
        outcomes = _of_audit(folder, labels, given)
    elif given.immich is not None:
        _tag_immich(folder, _immich(given.immich, given.immich_key_file), given)
        return
    else:
        outcomes = _of_index(folder, labels, given)
    _show_counts(labels)
    for outcome in [outcome for outcome in outcomes if outcome.state == "left alone"][:SHOWN]:
        complain(f"{outcome.path} is left alone: {outcome.reason}")
    counts = Counter(outcome.state for outcome in outcomes)
    words = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "nothing"
    what, where = ("photos", "--embed") if given.embed else ("side-cars", "--xmp")
    say(f"{_unwritten(given)}{'side-cars and photos' if given.undo else what}: {words}")
    if counts["left alone"]:
        raise typer.Exit(1)
    if given.undo:
        next_steps(f"tag {folder} {'--undo' if given.dry_run else where}")
    else:
        next_steps(f"tag {folder} {where}" if given.dry_run else f"tag {folder} --undo")


def _check(given: Options) -> None:
    if given.immich is not None:
        given.refuse("--immich writes to a server alone", "xmp", "embed", "adopt")
    elif given.xmp + given.embed != 1 and not (given.undo and not given.xmp):
        raise SettingsError(
            "say where the labels go: --xmp writes side-cars beside the photos, --embed writes "
            "into the photos, --immich ADDRESS to a server; --undo takes out all that the first "
            "two wrote, with one of them what that wrote"
        )
    else:
        given.refuse("it is the key of a server: say --immich ADDRESS too", "immich_key_file")
    if given.embed:
        given.refuse("it is for side-cars: say --xmp, and not --embed", "adopt")
    if given.undo:
        given.refuse("--undo takes out what we wrote", "wrong_at_most", "adopt")
    if given.wrong_at_most is None:
        reason = "it is for a guarantee: say --wrong-at-most 0.05 too"
        given.refuse(reason, "confidence", "per_label")


def _tag_immich(folder: Path, server: Immich, given: Options) -> None:
    if given.undo:
        removed = remove_tags(server, dry_run=given.dry_run)
        say(f"{_unwritten(given)}Immich: {counted(removed, 'tag')} removed")
        return
    with Index(folder) as index:
        caution(index.spec.caution, model_changed(index))
        made = _promised(index, given)
        rule = None if made is None else made.rule
        added, taken, missing = write_tags(index, server, rule, dry_run=given.dry_run)
    _show_counts(added)
    tags = counted(sum(added.values()), "tag")
    say(f"{_unwritten(given)}Immich: {tags} given, {sum(taken.values()):,} taken away")
    if missing:
        say(f"{counted(missing, 'photo')} with labels are not among its uploaded photos")
    next_steps(f"tag {folder} --immich {given.immich} --undo")


def _undone(store: Store, given: Options) -> list[TagOutcome]:
    dry = given.dry_run
    sidecars = [] if given.embed else WrittenFiles(store, "sidecars").paths()
    photos = [] if given.xmp else WrittenFiles(store, "embedded").paths()
    outcomes = [undo_sidecar(store, path, dry_run=dry) for path in sidecars]
    return outcomes + [undo_embedded(store, path, dry_run=dry) for path in photos]


def _of_audit(folder: Path, labels: Counter[str], given: Options) -> list[TagOutcome]:
    written = folder / "written"
    is_new = not (written / "photos.sqlite").is_file()
    with resumable(folder), Store.create(written, ()) if is_new else Store(written, ()) as store:
        if given.undo:
            return _undone(store, given)
        tags = tags_of_audit(folder)
        return _written(store, iter(tags), len(tags), labels, given)


def _of_index(folder: Path, labels: Counter[str], given: Options) -> list[TagOutcome]:
    with resumable(folder), Index(folder) as index:
        bucket = next((root for root in index.store.roots().values() if is_uri(root)), None)
        if bucket is not None:
            raise SettingsError(
                f"side-cars are written beside photos on a disk, and {folder} holds photos of "
                f"{without_options(bucket)}; index the photos on a disk apart and tag those"
            )
        if given.undo:
            return _undone(index.store, given)
        caution(index.spec.caution, model_changed(index))
        made = _promised(index, given)
        found = tags_of(index, None if made is None else made.rule)
        by_path = ((index.store.paths_of([row])[row], own) for row, own in found)
        return _written(index.store, by_path, index.photos, labels, given)


def _written(
    store: Store,
    tags: Iterator[tuple[list[str], list[Keyword]]],
    total: int,
    labels: Counter[str],
    given: Options,
) -> list[TagOutcome]:
    outcomes: list[TagOutcome] = []
    watch = make_watch()
    watch.start("tagging", total)
    for photos, keywords in tags:
        labels.update(keyword.label for keyword in keywords)
        for photo in photos:
            if given.embed:
                outcomes.append(embed_tags(store, photo, keywords, dry_run=given.dry_run))
                continue
            shots = [*raw_partners(photo), photo]  # a side-car of both is the photo's
            how: dict[str, Any] = {"adopt": given.adopt, "dry_run": given.dry_run}
            for sidecar, shot in {sidecar_of(shot): shot for shot in shots}.items():
                outcomes.append(write_sidecar(store, sidecar, keywords, photo=shot, **how))
        watch.advance(1)
    watch.finish()
    return outcomes


def _unwritten(given: Options) -> str:
    return "dry run, nothing was written; without --dry-run, " if given.dry_run else ""


def _show_counts(given: Mapping[str, int]) -> None:
    if given:
        most = Counter(given).most_common(SHOWN)
        show_table(("label", "photos"), [(name, f"{count:,}") for name, count in most])
        if len(given) > SHOWN:
            say(f"and {counted(len(given) - SHOWN, 'more label')}")


def _promised(index: Index, given: Options) -> Promised | None:
    if given.wrong_at_most is None:
        return None
    level, per_label = given.get("confidence", 0.95), given.per_label
    made = promised_rule(index, given.wrong_at_most, level, per_label=per_label)
    tell(*map(str, made.promises), *made.refused)
    return made


def _immich(address: str, key_file: Path | None) -> Immich:
    key = read_secret(key_file, "LABELWISE_IMMICH_KEY", "the key of Immich", "--immich-key-file")
    if key is None:
        mend = "write it into a file and give --immich-key-file FILE"
        raise SettingsError(f"Immich needs an API key (Account Settings, API Keys): {mend}")
    return Immich(address, key)
