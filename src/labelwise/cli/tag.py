"""``labelwise tag``: labels written to side-cars, photos or Immich, and taken out again."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from labelwise.cli.command import verb
from labelwise.cli.index import DEFAULT_INDEX, IndexFolder
from labelwise.cli.options import Options, read_secret
from labelwise.cli.text import caution, complain, next_steps, resumable, say, show_table
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.contrib.immich import Immich
    from labelwise.decide import Promised
    from labelwise.photos import Index
    from labelwise.photos.embedded_tags import TagOutcome
    from labelwise.photos.store import Store
    from labelwise.photos.xmp import Keyword

SHOWN = 20


@verb(
    "xmp embed immich wrong_at_most per_label undo dry_run confidence adopt immich_key_file",
    examples=("tag photos.index --xmp --wrong-at-most 0.05", "tag tags.audit --xmp"),
)
def tag(folder: IndexFolder = DEFAULT_INDEX, *, given: Options) -> None:
    """Write labels as keywords that other photo programs read.

    Keywords are added to dc:subject, lr:hierarchicalSubject and digiKam:TagsList. What is there
    stays, byte for byte, and what is ours is marked, so that --undo takes out exactly that.
    Keywords that another index wrote stay too, unless --adopt is given. A new side-car takes over
    the XMP and the keywords inside its photo.

    Photos themselves are written only with --embed, which needs exiftool; --undo gives back the
    bytes they had. With --immich tags go to that server alone; running it again takes away what
    the model no longer gives.

    The folder of an audit writes the tags that it kept.
    """
    from labelwise.answers.audit_outcome import RECEIPT
    from labelwise.photos.embedded_tags import require_exiftool

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
    what = "photos" if given.embed else "side-cars"
    say(f"{_unwritten(given)}{'side-cars and photos' if given.undo else what}: {words}")
    if counts["left alone"]:
        raise typer.Exit(1)
    where = "--embed" if given.embed else "--xmp"
    if given.undo:
        next_steps(f"tag {folder} {'--undo' if given.dry_run else where}")
    else:
        next_steps(f"tag {folder} {where}" if given.dry_run else f"tag {folder} --undo")


def _check(given: Options) -> None:
    """Stop at options that do not fit together."""
    from labelwise.errors import SettingsError

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


def _tag_immich(folder: Path, server: "Immich", given: Options) -> None:
    """Write tags to a server, or remove them."""
    from labelwise.contrib.immich import remove_tags, write_tags
    from labelwise.photos import Index, model_changed

    if given.undo:
        removed = remove_tags(server, dry_run=given.dry_run)
        say(f"{_unwritten(given)}Immich: {counted(removed, 'tag')} removed")
        return
    with Index(folder) as index:
        caution(index.spec.caution)
        caution(model_changed(index))
        made = _promised(index, given)
        rule = None if made is None else made.rule
        done = write_tags(index, server, rule, dry_run=given.dry_run)
    _show_counts(done.given)
    tags = counted(sum(done.given.values()), "tag")
    say(f"{_unwritten(given)}Immich: {tags} given, {sum(done.taken.values()):,} taken away")
    if done.missing:
        say(f"{counted(done.missing, 'photo')} with labels are not among its uploaded photos")
    next_steps(f"tag {folder} --immich {given.immich} --undo")


def _undone(store: "Store", given: Options) -> "list[TagOutcome]":
    """Take out all that was written to side-cars and photos."""
    from labelwise.photos.embedded_tags import (
        undo_embedded,
        undo_sidecar,
        written_photos,
        written_sidecars,
    )

    dry = given.dry_run
    sidecars = [] if given.embed else written_sidecars(store).paths()
    photos = [] if given.xmp else written_photos(store).paths()
    outcomes = [undo_sidecar(store, path, dry_run=dry) for path in sidecars]
    return outcomes + [undo_embedded(store, path, dry_run=dry) for path in photos]


def _of_audit(folder: Path, labels: Counter[str], given: Options) -> "list[TagOutcome]":
    """Write the tags that an audit kept; its folder remembers what the files were before."""
    from labelwise.photos.store import Store
    from labelwise.photos.tagging import tags_of_audit

    written = folder / "written"
    is_new = not (written / "photos.sqlite").is_file()
    with resumable(folder), Store.create(written, ()) if is_new else Store(written, ()) as store:
        if given.undo:
            return _undone(store, given)
        tags = tags_of_audit(folder)
        return _written(store, iter(tags), len(tags), labels, given)


def _of_index(folder: Path, labels: Counter[str], given: Options) -> "list[TagOutcome]":
    """Write the labels that the model of an index gives, or take them out."""
    from labelwise.errors import SettingsError
    from labelwise.photos import Index, model_changed
    from labelwise.photos.tagging import tags_of
    from labelwise.system.storage import is_uri, without_options

    with resumable(folder), Index(folder) as index:
        bucket = next((root for root in index.store.roots().values() if is_uri(root)), None)
        if bucket is not None:
            raise SettingsError(
                f"side-cars are written beside photos on a disk, and {folder} holds photos of "
                f"{without_options(bucket)}; index the photos on a disk apart and tag those"
            )
        if given.undo:
            return _undone(index.store, given)
        caution(index.spec.caution)
        caution(model_changed(index))
        made = _promised(index, given)
        found = tags_of(index, None if made is None else made.rule)
        by_path = ((index.store.paths_of([row])[row], own) for row, own in found)
        return _written(index.store, by_path, index.photos, labels, given)


def _written(
    store: "Store",
    tags: "Iterator[tuple[list[str], list[Keyword]]]",
    total: int,
    labels: Counter[str],
    given: Options,
) -> "list[TagOutcome]":
    """Write the labels of each photo beside it or into it, counting them."""
    from labelwise.photos.embedded_tags import embed_tags, write_sidecar
    from labelwise.photos.metadata import sidecar_of
    from labelwise.photos.tagging import raw_partners
    from labelwise.system.progress import make_watch

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
            for sidecar, shot in {sidecar_of(shot): shot for shot in shots}.items():
                options: dict[str, Any] = {
                    "photo": shot,
                    "adopt": given.adopt,
                    "dry_run": given.dry_run,
                }
                outcomes.append(write_sidecar(store, sidecar, keywords, **options))
        watch.advance(1)
    watch.finish()
    return outcomes


def _unwritten(given: Options) -> str:
    return "dry run, nothing was written; without --dry-run, " if given.dry_run else ""


def _show_counts(given: Mapping[str, int]) -> None:
    """Show the labels that were given most often."""
    if given:
        most = Counter(given).most_common(SHOWN)
        show_table(("label", "photos"), [(name, f"{count:,}") for name, count in most])
        if len(given) > SHOWN:
            say(f"and {counted(len(given) - SHOWN, 'more label')}")


def _promised(index: "Index", given: Options) -> "Promised | None":
    """Return the guaranteed rule, having said what it guarantees; None for the model's own."""
    from labelwise.photos.tagging import promised_rule

    if given.wrong_at_most is None:
        return None
    level = 0.95 if given.confidence is None else given.confidence
    made = promised_rule(index, given.wrong_at_most, level, per_label=given.per_label)
    for sentence in (*map(str, made.promises), *made.refused):
        say(sentence)
    return made


def _immich(address: str, key_file: Path | None) -> "Immich":
    """Return the server of an address, with the key of a file or of the environment."""
    from labelwise.contrib.immich import Immich
    from labelwise.errors import SettingsError

    key = read_secret(key_file, "LABELWISE_IMMICH_KEY", "the key of Immich", "--immich-key-file")
    if key is None:
        raise SettingsError(
            "Immich needs an API key (Account Settings, API Keys): write it into a file and give "
            "--immich-key-file FILE"
        )
    return Immich(address, key)
