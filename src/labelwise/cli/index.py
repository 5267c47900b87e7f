"""``labelwise index``: photos of folders and buckets, scored once, to be searched."""

import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["IndexFolder", "index"]

IndexFolder = Annotated[
    Path, typer.Argument(envvar="LABELWISE_INDEX", help="The folder of an index.")
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
        Path | None, typer.Option("--model", "-m", help="The folder of a run, or of a model.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", envvar="LABELWISE_INDEX", help="The index folder.")
    ] = Path("photos.index"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and look for changes every few seconds.")
    ] = False,
    forget_missing: Annotated[
        bool, typer.Option("--forget-missing", help="Forget the files that are gone.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Score every photo again with other weights.")
    ] = False,
    taxonomy: Annotated[
        Path | None,
        typer.Option(help="A CSV file child,parent: asking for the parent finds the children."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Index folders of photos, or bring an index up to date.

    Files that did not change cost nothing, moved ones are known again by their content, edited
    ones are scored again, and what was interrupted goes on. A disk or a bucket that is not there
    deletes nothing.
    """
    from labelwise.cli.text import complain, resumable, say
    from labelwise.progress import make_watch
    from labelwise.search import update_index

    with resumable(out):
        while True:
            began = time.monotonic()
            changes = update_index(
                out,
                folders or [],
                model=model,
                device=device,
                batch_size=batch_size,
                rebuild=rebuild,
                forget_missing=forget_missing,
                taxonomy=taxonomy,
                watch=make_watch(),
            )
            for sentence in changes.refused:
                complain(sentence)
            for folder in changes.unlisted:
                complain(f"{folder} cannot be listed; what is known of it stays as it was")
            if not watch:
                break
            if changes.anything:
                say(f"{out}: {changes}")
            model, rebuild, taxonomy = None, False, None  # these apply once
            # A look at very many files takes seconds; at most a tenth of the time is spent so.
            time.sleep(max(SECONDS_BETWEEN_LOOKS, 9 * (time.monotonic() - began)))
    say(f"{out}: {changes}")
    if changes.failed:
        say(f"the reasons: labelwise search {out} --unreadable")
    if changes.refused:
        raise typer.Exit(1)
