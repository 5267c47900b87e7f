"""``labelwise tag``: labels written to side-cars, photos or Immich, and taken out again."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.index import DEFAULT_INDEX, IndexFolder

if TYPE_CHECKING:
    from labelwise.contrib.immich import Immich
    from labelwise.decide import Promised
    from labelwise.photos import Index


SHOWN = 20


def tag(
    folder: IndexFolder = DEFAULT_INDEX,
    xmp: Annotated[
        bool, typer.Option("--xmp", help="Write XMP side-cars beside the photos.")
    ] = False,
    embed: Annotated[
        bool,
        typer.Option("--embed", help="Write into JPEG, TIFF and PNG files, through exiftool."),
    ] = False,
    immich: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Write tags below 'labelwise' in Immich, such as http://immich.local:2283, for "
            "photos that were uploaded to it.",
        ),
    ] = None,
    immich_key_file: Annotated[
        Path | None,
        typer.Option(help="Of --immich: a file with an API key. LABELWISE_IMMICH_KEY works too."),
    ] = None,
    wrong_at_most: Annotated[
        float | None,
        typer.Option(help="Promise that at most this share of the tags is wrong, such as 0.05."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of that promise; 0.95 unless given.")
    ] = None,
    per_label: Annotated[
        bool,
        typer.Option(
            "--per-label",
            help="Promise it of each label's tags, not of all together, which one common label "
            "may decide; labels that cannot be promised are not written.",
        ),
    ] = False,
    who: Annotated[
        str | None, typer.Option(help="By whom the promise is made. Default: the user.")
    ] = None,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Take out all that we wrote; with --immich: from there."),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Believe the notes of another index in the side-cars: replace its keywords too.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written; write nothing.")
    ] = False,
) -> None:
    """Write labels as keywords that other photo programs read.

    Keywords are added to dc:subject, lr:hierarchicalSubject and digiKam:TagsList; what is there
    stays, byte for byte, and what is ours is marked and kept in the index, so that --undo takes
    out exactly that. Keywords that another index wrote stay too, unless --adopt is given. A new
    side-car takes over the XMP and the keywords inside its photo.

    Photos themselves are written only with --embed, which needs exiftool; --undo gives back the
    bytes they had. The next `labelwise index` takes them for new photos and scores them again.

    What --wrong-at-most promises is kept as a receipt, which `labelwise verify` holds to answers.

    With --immich nothing is written beside or into photos: tags go to that server alone. Running
    it again takes away what the model no longer gives.

    Examples: `labelwise tag --xmp --wrong-at-most 0.05`, `labelwise tag --undo`.
    """
    from labelwise.cli.text import caution, complain, resumable, say
    from labelwise.contrib.immich import remove_tags, write_tags
    from labelwise.errors import SettingsError
    from labelwise.photos import Index, model_changed
    from labelwise.photos.inside_photos import embed_tags, require_exiftool, undo_embedded
    from labelwise.photos.tag_receipts import withdraw_tags
    from labelwise.photos.tagging import (
        TagOutcome,
        raw_partners,
        sidecar_of,
        tags_of,
        undo_sidecar,
        write_sidecar,
    )
    from labelwise.photos.written_files import written_photos, written_sidecars
    from labelwise.system.progress import make_watch
    from labelwise.system.storage import is_uri, without_options
    from labelwise.system.text import counted

    if immich is None and xmp + embed + undo != 1:
        raise SettingsError(
            "say where the labels go: --xmp writes side-cars beside the photos, --embed writes "
            "into the photos, --immich ADDRESS to a server; and --undo alone takes out all that "
            "the first two wrote"
        )
    if immich is not None and (xmp or embed or adopt):
        raise SettingsError("--immich writes to a server alone: leave out --xmp, --embed, --adopt")
    if immich is None and immich_key_file is not None:
        raise SettingsError("--immich-key-file is the key of a server: say --immich ADDRESS too")
    if embed:
        require_exiftool()
    if embed and adopt:
        raise SettingsError("--adopt is for side-cars: say --xmp too, and not --embed")
    if undo and wrong_at_most is not None:
        raise SettingsError("--wrong-at-most does not apply to --undo")
    if undo and adopt:
        raise SettingsError("--adopt does not apply to --undo, which takes out what we wrote")
    if wrong_at_most is None and confidence is not None:
        raise SettingsError("--confidence is that of a promise: say --wrong-at-most 0.05 too")
    if wrong_at_most is None and not undo and who is not None:
        raise SettingsError("--who is for a promise: say --wrong-at-most 0.05 too, or leave it out")
    if wrong_at_most is None and per_label:
        raise SettingsError("--per-label says what is promised: say --wrong-at-most 0.05 too")
    if immich is not None:
        server = _immich(immich, immich_key_file)
        if undo:
            removed = remove_tags(server, dry_run=dry_run)
            say(f"{_unwritten(dry_run)}Immich: {counted(removed, 'tag')} removed")
            return
        with Index(folder) as index:
            caution(index.spec.caution)
            caution(model_changed(index))
            made = _promised(index, wrong_at_most, confidence, per_label)
            rule = None if made is None else made.rule
            done = write_tags(index, server, rule, dry_run=dry_run)
            _keep(index, made, who, dry_run)
        _show_counts(done.given)
        taken = sum(done.taken.values())
        say(
            f"{_unwritten(dry_run)}Immich: {counted(sum(done.given.values()), 'tag')} given, "
            f"{taken:,} taken away"
        )
        if done.missing:
            say(f"{counted(done.missing, 'photo')} with labels are not among its uploaded photos")
        return
    with resumable(folder), Index(folder) as index:
        bucket = next((root for root in index.store.roots().values() if is_uri(root)), None)
        if bucket is not None:
            raise SettingsError(
                f"side-cars are written beside photos on a disk, and {folder} holds photos of "
                f"{without_options(bucket)}; index the photos on a disk apart and tag those"
            )
        watch = make_watch()
        outcomes: list[TagOutcome] = []
        given = Counter[str]()
        if undo:
            store = index.store
            outcomes = [
                *(
                    undo_sidecar(store, one, dry_run=dry_run)
                    for one in written_sidecars(store).paths()
                ),
                *(
                    undo_embedded(store, one, dry_run=dry_run)
                    for one in written_photos(store).paths()
                ),
            ]
            if not dry_run and all(one.state == "undone" for one in outcomes):
                withdraw_tags(index, who)
        else:
            caution(index.spec.caution)
            caution(model_changed(index))
            made = _promised(index, wrong_at_most, confidence, per_label)
            rule = None if made is None else made.rule
            watch.start("tagging", index.photos)
            for row, keywords in tags_of(index, rule):
                given.update(keyword.label for keyword in keywords)
                for photo in index.store.paths_of([row])[row]:
                    if embed:
                        outcomes.append(embed_tags(index.store, photo, keywords, dry_run=dry_run))
                        continue
                    shots = [*raw_partners(photo), photo]  # a side-car of both is the photo's
                    for place, shot in {sidecar_of(shot): shot for shot in shots}.items():
                        outcomes.append(
                            write_sidecar(
                                index.store,
                                place,
                                keywords,
                                photo=shot,
                                adopt=adopt,
                                dry_run=dry_run,
                            )
                        )
                watch.advance(1)
            watch.finish()
            _keep(index, made, who, dry_run)
    _show_counts(given)
    for outcome in [one for one in outcomes if one.state == "left alone"][:SHOWN]:
        complain(f"{outcome.path} is left alone: {outcome.reason}")
    counts = Counter(outcome.state for outcome in outcomes)
    words = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "nothing"
    what = "photos" if embed else "side-cars and photos" if undo else "side-cars"
    say(f"{_unwritten(dry_run)}{what}: {words}")
    if counts["left alone"]:
        raise typer.Exit(1)


def _unwritten(dry_run: bool) -> str:
    return "dry run, nothing was written; without --dry-run, " if dry_run else ""


def _show_counts(given: Mapping[str, int]) -> None:
    """Show the labels that were given most often."""
    from labelwise.cli.text import say, show_table
    from labelwise.system.text import counted

    if given:
        most = Counter(given).most_common(SHOWN)
        show_table(("label", "photos"), [(name, f"{count:,}") for name, count in most])
        if len(given) > SHOWN:
            say(f"and {counted(len(given) - SHOWN, 'more label')}")


def _promised(
    index: "Index", wrong_at_most: float | None, confidence: float | None, per_label: bool
) -> "Promised | None":
    """Return the promised rule, having said what it promises; None for the model's own."""
    from labelwise.cli.text import say
    from labelwise.photos.tagging import promised_rule

    if wrong_at_most is None:
        return None
    level = 0.95 if confidence is None else confidence
    made = promised_rule(index, wrong_at_most, level, per_label=per_label)
    for sentence in (*map(str, made.promises), *made.refused):
        say(sentence)
    return made


def _keep(index: "Index", made: "Promised | None", who: str | None, dry_run: bool) -> None:
    """Keep and name the receipts of what was promised, where tags were written."""
    from labelwise.cli.text import say
    from labelwise.photos.tag_receipts import keep_tags

    if made is None or dry_run:
        return
    numbers = [one.number for one in keep_tags(index, made, who)]
    if not numbers:
        say("no receipt is kept of this promise, since the index may only be read")
        return
    which = f"receipt {numbers[0]}" if len(numbers) == 1 else f"receipts {_listed(numbers)}"
    promise = "the promise" if len(numbers) == 1 else "the promises"
    say(f"{which}: labelwise verify holds {promise} to answers")


def _listed(numbers: "list[int]") -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def _immich(address: str, key_file: Path | None) -> "Immich":
    """Return the server of an address, with the key of a file or of the environment."""
    from labelwise.cli.options import read_secret
    from labelwise.contrib.immich import Immich
    from labelwise.errors import SettingsError

    key = read_secret(key_file, "LABELWISE_IMMICH_KEY", "the key of Immich", "--immich-key-file")
    if key is None:
        raise SettingsError(
            "Immich needs an API key (Account Settings, API Keys): write it into a file and give "
            "--immich-key-file FILE"
        )
    return Immich(address, key)
