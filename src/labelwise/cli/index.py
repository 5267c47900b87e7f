"""``labelwise index``: photos of folders and buckets, scored once, to be searched."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import DecodeOption, chosen_decoder

if TYPE_CHECKING:
    from labelwise.photos import Changes


DEFAULT_INDEX = Path("photos.index")
IndexFolder = Annotated[
    Path, typer.Argument(envvar="LABELWISE_INDEX", help="The folder of an index.")
]
IndexOrQuery = Annotated[
    Path | None,
    typer.Argument(
        help=f"The folder of an index. Unless given, $LABELWISE_INDEX or {DEFAULT_INDEX}, where "
        "`labelwise index` puts it."
    ),
]
SECONDS_BETWEEN_LOOKS = 5.0


def index(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders of photos, or s3:// and gs:// addresses. None: those of the index."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="The folder of a run, or of a model; or an exported .onnx file."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", envvar="LABELWISE_INDEX", help="The index folder.")
    ] = DEFAULT_INDEX,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and take in changes as they happen.")
    ] = False,
    forget_missing: Annotated[
        bool, typer.Option("--forget-missing", help="Forget the files that are gone.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Score every photo again: with other weights, or for a damaged file."
        ),
    ] = False,
    taxonomy: Annotated[
        Path | None,
        typer.Option(help="A CSV file child,parent: asking for the parent finds the children."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    decode: DecodeOption = None,
) -> None:
    """Index folders of photos, or bring an index up to date.

    Files that did not change cost nothing, moved ones are known again by their content, edited
    ones are scored again, and what was interrupted goes on. A disk or a bucket that is not there
    deletes nothing.
    """
    from labelwise.cli.text import caution, resumable, say
    from labelwise.errors import DataError
    from labelwise.models.loading import caution_of
    from labelwise.photos import Index, update_index
    from labelwise.photos.looking import root_place
    from labelwise.system.progress import make_watch

    decoder = None if decode is None else chosen_decoder(decode, device)

    def update(only: Mapping[str, Collection[str]] | None = None) -> "Changes":
        """Bring the index up to date once; model, rebuild and taxonomy apply the first time."""
        changes = update_index(
            out,
            folders or [],
            model=model,
            device=device,
            batch_size=batch_size,
            decode=decoder,
            rebuild=rebuild,
            forget_missing=forget_missing,
            taxonomy=taxonomy,
            only=only,
            watch=make_watch(),
        )
        _complain(changes)
        return changes

    with resumable(out):
        changes = update()
        say(f"{out}: {changes}")
        for note in changes.notes:
            say(note)
        caution(caution_of(out))
        if changes.failed:
            say(f"the reasons: labelwise search {out} --unreadable")
        if watch:
            model, rebuild, taxonomy = None, False, None
            with Index(out) as opened:
                roots = [root_place(folder) for folder in folders or []]
                roots = roots or list(opened.store.roots().values())
            for changes in _updates(update, roots, out):
                if changes.anything:
                    say(f"{out}: {changes}")
    if changes.refused:
        raise typer.Exit(1)
    if not (changes.anything or changes.unchanged or changes.forgotten):
        raise DataError(f"{out} is an index of no photos: name a folder that has some")


def _updates(update: Callable[..., "Changes"], roots: list[str], out: Path) -> Iterator["Changes"]:
    """Yield what each update finds, for ever: when the system tells of changes, or by looking."""
    from labelwise.cli.text import say
    from labelwise.photos.events import NoEventsError, events_of
    from labelwise.system.text import counted

    try:
        with events_of(roots, {os.path.realpath(out)}) as events:
            yield update()  # with what changed before the watches were there
            say(f"watching {counted(len(events), 'folder')}; Ctrl-C stops")
            while True:
                yield update(events.wait())
    except NoEventsError as reason:
        say(f"looking every few seconds, since {reason}; Ctrl-C stops")
    while True:
        # A look at very many files takes seconds; at most a tenth of the time is spent so.
        began = time.monotonic()
        yield update()
        time.sleep(max(SECONDS_BETWEEN_LOOKS, 9 * (time.monotonic() - began)))


def _complain(changes: "Changes") -> None:
    from labelwise.cli.text import complain

    for sentence in changes.refused:
        complain(sentence)
    for folder in changes.unlisted:
        complain(f"{folder} cannot be listed; what is known of it stays as it was")


def index_and_query(
    folder: Path | None, query: str | None, *, alone: bool
) -> tuple[Path, str | None]:
    """Return the index and the query: ``alone``, one argument that does not name an index is it."""
    if alone and query is None and folder is not None and not (folder / "index.json").is_file():
        folder, query = None, str(folder)
    return folder or Path(os.environ.get("LABELWISE_INDEX") or DEFAULT_INDEX), query
