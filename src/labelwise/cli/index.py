"""``labelwise index``: photos of folders and buckets, scored once, to be searched."""

from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.base.progress import make_watch
from labelwise.cli.arguments import BatchSize, Decode, Device, Model, Out, TaxonomyFile, option
from labelwise.cli.command import app, verb
from labelwise.cli.options import decoder_of, default_index
from labelwise.cli.text import (
    caution,
    complain,
    next_steps,
    quoted,
    resumable,
    say,
    tell,
)
from labelwise.errors import DataError

if TYPE_CHECKING:
    from labelwise.photos import Changes

SECONDS_BETWEEN_LOOKS = 5.0


@verb(app, "index ~/photos --model runs/photos", "index --watch -o photos.index")
def index(
    folders: Annotated[
        list[str] | None,
        typer.Argument(help="Folders of photos or s3:// addresses; none: those of the index."),
    ] = None,
    *,
    model: Model = None,
    out: Out = None,
    watch: Annotated[
        bool, option("--watch", help="Stay, and take in changes as they happen.")
    ] = False,
    forget_missing: Annotated[
        bool, option("--forget-missing", help="Forget the files that are gone.")
    ] = False,
    rebuild: Annotated[bool, option("--rebuild", help="Score every photo again.")] = False,
    taxonomy: TaxonomyFile = None,
    batch_size: BatchSize = None,
    device: Device = "cpu",
    decode: Decode = None,
) -> None:
    """Index folders of photos, or bring an index up to date.

    Files that did not change cost nothing, moved ones are known again by their content, edited
    ones are scored again, and what was interrupted is resumed. A disk or a bucket that is not
    there deletes nothing. With --taxonomy, asking for the parent finds the children.
    """
    from labelwise.models.loading import caution_of
    from labelwise.photos import update_index

    decoder = None if decode is None else decoder_of(decode, device)
    place = default_index(out)

    def update(model: str | None, rebuild: bool, taxonomy: Path | None) -> "Changes":
        changes = update_index(
            place,
            folders or [],
            model=model,
            rebuild=rebuild,
            forget_missing=forget_missing,
            taxonomy=taxonomy,
            device=device,
            batch_size=batch_size or 64,
            decode=decoder,
            watch=make_watch(),
        )
        caution(*changes.refused)
        for folder in changes.unlisted:
            complain(f"{folder} cannot be listed; what is known of it stays as it was")
        return changes

    with resumable(place):
        changes = update(model, rebuild, taxonomy)
        say(f"{place}: {changes}")
        tell(*changes.notes)
        caution(caution_of(place))
        if changes.failed:
            say(f"the reasons: labelwise search {quoted(place)} --unreadable")
        if watch:
            say("looking every few seconds; Ctrl-C stops")
        while watch:
            # A look at very many files takes seconds; at most a tenth of the time is spent so.
            began = monotonic()
            changes = update(None, False, None)
            if changes.anything:
                say(f"{place}: {changes}")
            sleep(max(SECONDS_BETWEEN_LOOKS, 9 * (monotonic() - began)))
    if changes.refused:
        raise typer.Exit(1)
    if not (changes.anything or changes.unchanged or changes.forgotten):
        raise DataError(f"{place} is an index of no photos: name a folder that has some")
    named = quoted(place)
    next_steps(f"search {named} 'LABEL, -OTHER'", f"tag {named} --xmp --dry-run")
