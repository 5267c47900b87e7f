"""``labelwise data describe``: what a table holds, and whether that is the whole of a known set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.data_options import (
    Duplicates,
    Extension,
    Options,
    Skip,
    Source,
    TaxonomyFile,
    load_table,
)
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.data import LabelTable, UnreadableImage
    from labelwise.data.describe import Description


LABELS_SHOWN = 30


def describe_table(
    source: Source,
    options: Options = None,
    skip_missing: Skip = False,
    duplicates: Duplicates = "stop",
    extension: Extension = None,
    content: Annotated[
        bool,
        typer.Option("--content", help="Also read every pixel; name broken and shared images."),
    ] = False,
    taxonomy: TaxonomyFile = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if a known set is not whole, or an image unreadable."),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every label.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how often labels occur, alone and in pairs.

    Also labels per image, images without any, and the share of unknown entries.
    """
    import json

    from labelwise.cli.text import say
    from labelwise.data.checks import (
        reject_divided_groups,
        reject_shared_content,
        without_unreadable,
    )
    from labelwise.data.describe import describe
    from labelwise.errors import DataError

    table = load_table(source, options, skip_missing, duplicates, extension)
    broken = _find_unreadable(table) if content else []
    if content:
        good = without_unreadable(table, broken, on_error="skip") if broken else table
        reject_divided_groups(good)
        reject_shared_content(good)
    description = describe(table)
    if taxonomy is not None:
        description.notes.append(_obedience(table, taxonomy))
    stated, mismatches = _against_papers(source, table)
    if as_json:
        found = {"count_mismatches": mismatches}
        if content:
            found["unreadable"] = [image.reason for image in broken]
        say(json.dumps({**description.as_dict(), **found}, indent=2))
    else:
        _show(description, LABELS_SHOWN if not every else len(description.labels))
        for sentence in mismatches:
            say(f"not the whole set: {sentence}")
        if stated and not mismatches:
            say("the counts are those stated of the whole set")
        if content:
            say(f"images that cannot be read: {len(broken):,} of {len(table):,}")
            for image in broken if every else broken[:LABELS_SHOWN]:
                say(f"  {image.reason}")
            if len(broken) > LABELS_SHOWN and not every:
                say(f"  ... and {len(broken) - LABELS_SHOWN:,} more (--all shows them)")
    if strict and mismatches:
        raise DataError(f"{table.name}: {'; '.join(mismatches)}")
    if strict and broken:
        raise DataError(f"{table.name}: {counted(len(broken), 'image')} cannot be read")


def _obedience(table: "LabelTable", file: Path) -> str:
    """Return how far a table obeys a taxonomy, in one sentence."""
    from labelwise.data.hierarchy import obey_taxonomy
    from labelwise.taxonomy import Taxonomy

    taxonomy = Taxonomy.read(file)
    obeyed = obey_taxonomy(table, taxonomy)
    levels = taxonomy.within(table.space).levels()
    depths = ", ".join(f"{len(columns)} at level {level}" for level, columns in levels.items())
    if not obeyed.raised and not obeyed.learned:
        return f"the labels obey the taxonomy; {depths}"
    return f"{obeyed.sentence()} (`labelwise data export --taxonomy` writes that); {depths}"


def _find_unreadable(table: "LabelTable") -> "list[UnreadableImage]":
    """Return the broken images, with a progress bar on the error output if that is a terminal."""
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from labelwise.data.checks import find_unreadable

    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading every image", total=len(table))
        return find_unreadable(table, progress=lambda done: bar.update(task, completed=done))


def _against_papers(source: str, table: "LabelTable") -> tuple[bool, list[str]]:
    """Return whether counts are stated of this format, and the sentences where they differ."""
    from labelwise.data.describe import count_mismatches
    from labelwise.data.load import find_parts
    from labelwise.data.readers import GENERATED

    parts = [] if source in GENERATED else find_parts(source)
    if len(parts) != 1 or not parts[0][1].counts:
        return False, []
    reader = parts[0][1]
    return True, count_mismatches(table, reader.counts, reader.labels)


def _show(description: "Description", shown: int) -> None:
    from labelwise.cli.text import say, show_table

    images = max(1, description.images)
    labels = counted(len(description.labels), "label")
    say(f"{description.name}: {counted(description.images, 'image')}, {labels}")
    if description.splits:
        say("splits: " + ", ".join(f"{name} {n:,}" for name, n in description.splits.items()))
    if description.groups is not None:
        say(f"groups: {description.groups:,}")
    say(f"labels per image: {description.mean_labels:.2f} on average; images with 0, 1, 2, ...: ")
    say("  " + ", ".join(f"{count:,}" for count in description.labels_per_image[:16]))
    say(f"zero-label (reviewed, none of them): {description.zero_label / images:.1%}")
    say(f"unlabelled (nothing known): {description.unlabelled / images:.1%}")
    say(f"unknown entries: {description.unknown_share:.1%}")
    if description.never_present:
        say(f"labels without any image: {', '.join(description.never_present[:shown])}")
    ranked = sorted(description.labels, key=lambda label: (-label.present, label.name))
    rows = [
        (
            label.name,
            f"{label.present:,}",
            f"{label.absent:,}",
            f"{label.unknown:,}",
            "undefined" if label.share is None else f"{label.share:.2%}",
        )
        for label in ranked[:shown]
    ]
    say()
    show_table(("label", "present", "absent", "unknown", "present among known"), rows)
    if len(ranked) > shown:
        say(f"... and {counted(len(ranked) - shown, 'more label')} (--all shows them)")
    if description.pairs:
        say()
        pairs = [(p.first, p.second, f"{p.images:,}", f"{p.lift:.2f}") for p in description.pairs]
        title = "most frequent pairs; lift: times as often as if they came independently"
        show_table(("label", "with", "images", "lift"), pairs[:10], title=title)
    for note in description.notes:
        say(f"note: {note}")
