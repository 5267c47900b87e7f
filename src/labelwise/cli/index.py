"""``labelwise index``: photos of folders and buckets, scored once, to be searched."""

import os
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import typer

from labelwise.base.progress import make_watch
from labelwise.cli.options import Options, decoder_of
from labelwise.cli.text import caution, complain, next_steps, resumable, say, tell
from labelwise.errors import DataError
from labelwise.models.loading import caution_of

if TYPE_CHECKING:
    from labelwise.photos import Changes

DEFAULT_INDEX = Path("photos.index")
SECONDS_BETWEEN_LOOKS = 5.0


def index(folders: list[str] | None, given: Options) -> None:
    """Index folders of photos, or bring an index up to date."""
    from labelwise.photos import update_index

    decoder = None if given.decode is None else decoder_of(given)
    out = default_index(given.out)

    def update() -> "Changes":
        names = ("model", "rebuild", "forget_missing", "taxonomy")
        how: dict[str, Any] = {name: getattr(given, name) for name in names}
        how |= {"device": given.device or "cpu", "batch_size": given.batch_size or 64}
        changes = update_index(out, folders or [], decode=decoder, watch=make_watch(), **how)
        caution(*changes.refused)
        for folder in changes.unlisted:
            complain(f"{folder} cannot be listed; what is known of it stays as it was")
        return changes

    with resumable(out):
        changes = update()
        say(f"{out}: {changes}")
        tell(*changes.notes)
        caution(caution_of(out))
        if changes.failed:
            say(f"the reasons: labelwise search {out} --unreadable")
        if given.watch:
            given.model, given.rebuild, given.taxonomy = None, False, None
            say("looking every few seconds; Ctrl-C stops")
        while given.watch:
            # A look at very many files takes seconds; at most a tenth of the time is spent so.
            began = monotonic()
            changes = update()
            if changes.anything:
                say(f"{out}: {changes}")
            sleep(max(SECONDS_BETWEEN_LOOKS, 9 * (monotonic() - began)))
    if changes.refused:
        raise typer.Exit(1)
    if not (changes.anything or changes.unchanged or changes.forgotten):
        raise DataError(f"{out} is an index of no photos: name a folder that has some")
    next_steps(f"search {out} 'LABEL, -OTHER'", f"tag {out} --xmp --dry-run")


def default_index(place: Path | str | None) -> Path:
    """Return the index that is meant where none, or this one, is named."""
    return Path(place or os.environ.get("LABELWISE_INDEX") or DEFAULT_INDEX)


def index_and_query(
    folder: Path | None, query: str | None, *, alone: bool
) -> tuple[Path, str | None]:
    """Return the index and the query: ``alone``, one argument that does not name an index is it."""
    if alone and query is None and folder is not None and not (folder / "index.json").is_file():
        folder, query = None, str(folder)
    return default_index(folder), query
