"""``labelwise data``: describe a table, split it, hide labels, write it in another format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelwise.cli.data_field import (
    attribute_conflicts,
    burst_groups,
    crop_detections,
    fetch_iiif,
    write_back,
)
from labelwise.cli.data_keywords import keywords_table
from labelwise.cli.data_next import next_questions
from labelwise.cli.data_review import repair_table, suspects
from labelwise.cli.data_votes import votes_table
from labelwise.cli.options import A_MODEL

if TYPE_CHECKING:
    from labelwise.data import LabelTable, UnreadableImage
    from labelwise.data.describe import Description

__all__ = ["data_app", "parse_options"]

data_app = typer.Typer(
    help="Describe, split, convert, repair and extend label tables.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

data_app.command("suspects")(suspects)
data_app.command("repair")(repair_table)
data_app.command("next")(next_questions)
data_app.command("votes")(votes_table)
data_app.command("keywords")(keywords_table)
data_app.command("crops")(crop_detections)
data_app.command("answers")(write_back)
data_app.command("iiif")(fetch_iiif)
data_app.command("bursts")(burst_groups)
data_app.command("clashes")(attribute_conflicts)

Source = Annotated[
    str,
    typer.Argument(help="A file, a folder, scenes, FORMAT:path, or 'train=a.csv;test=b.csv'."),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Where to write: .csv .tsv .jsonl .parquet")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="An option of the format, as columns.labels=tags."
    ),
]
Skip = Annotated[bool, typer.Option("--skip-missing", help="Leave missing images out.")]
Duplicates = Annotated[
    Literal["stop", "drop", "keep"],
    typer.Option(help="Rows that are there twice, labels and all: stop, drop or keep."),
]
Extension = Annotated[
    str | None, typer.Option(help="Added to image names that do not end in it, such as .jpg.")
]
TaxonomyFile = Annotated[
    Path | None,
    typer.Option("--taxonomy", help="Which label is a kind of which: child,parent or a|b|c."),
]
Seed = Annotated[int, typer.Option(help="The seed of what is drawn by chance.")]
LABELS_SHOWN = 30
SHARES = "train=.8,val=.1,test=.1"


@data_app.command("describe")
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

    table = _load(source, options, skip_missing, duplicates, extension)
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
        raise DataError(f"{table.name}: {len(broken):,} images cannot be read")


@data_app.command("split")
def split_table(
    source: Source,
    out: Out,
    shares: Annotated[
        str | None,
        typer.Option(help="Draw a new split with these shares.", show_default=SHARES),
    ] = None,
    val: Annotated[
        float | None,
        typer.Option(help="Keep the split there is and take this share of train for validation."),
    ] = None,
    seed: Seed = 0,
    by_content: Annotated[
        bool, typer.Option(help="Read the images, keep equal ones in one split.")
    ] = True,
    options: Options = None,
    skip_missing: Skip = False,
    duplicates: Duplicates = "stop",
    extension: Extension = None,
) -> None:
    """Write the table with a stratified split.

    Groups and equal images stay together.
    A table that has a split keeps it: --val takes validation out of train, --shares draws anew.
    """
    from labelwise.cli.text import say
    from labelwise.data.export import export
    from labelwise.data.split import stratified_split, with_validation
    from labelwise.errors import DataError, SettingsError

    if val is not None and shares is not None:
        raise SettingsError("give --val, which keeps the split there is, or --shares, not both")
    table = _load(source, options, skip_missing, duplicates, extension)
    there = {} if table.split is None else {s: len(part) for s, part in table.splits().items()}
    listed = ", ".join(f"{name} {count:,}" for name, count in there.items())
    if val is not None:
        if "val" in there:
            raise DataError(f"{table.name} has a val split already ({listed}); draw with --shares")
        parted = with_validation(table, share=val, seed=seed, by_content=by_content)
    elif there and shares is None:
        raise DataError(
            f"{table.name} has a split already ({listed}); take validation out of train with "
            f"`--val 0.1`, or draw a new split with `--shares {SHARES}`"
        )
    else:
        wanted = _shares(shares or SHARES)
        parted = stratified_split(table, wanted, seed=seed, by_content=by_content)
    export(parted, out)
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in parted.splits().items())
    say(f"wrote {out}: {sizes}")


@data_app.command("near-copies")
def group_copies(
    source: Source,
    out: Out,
    options: Options = None,
    skip_missing: Skip = False,
    duplicates: Duplicates = "stop",
    extension: Extension = None,
) -> None:
    """Find photos that look alike, and write them as groups.

    Such as the same photo in another size, or the next shot of a burst. Photos that a chain of
    near copies joins get one `group`, so that splits, intervals and promises keep them together.
    Groups that the table has are joined where a photo of one looks like a photo of another.
    """
    from labelwise.cli.text import complain, say
    from labelwise.data.export import export
    from labelwise.data.near_copies import group_near_copies
    from labelwise.system.progress import make_watch
    from labelwise.system.text import counted

    table = _load(source, options, skip_missing, duplicates, extension)
    found = group_near_copies(table, make_watch())
    export(found.table, out)
    say(f"wrote {out}: {found.sentence()}")
    if found.divided:
        say(
            f"groups with photos in several splits: {found.divided:,}; draw a new split with "
            f"`labelwise data split {out} --shares {SHARES}`"
        )
    if found.unread:
        complain(
            f"{counted(len(found.unread), 'photo')} could not be looked at and "
            f"{'is' if len(found.unread) == 1 else 'are'} taken as unlike all others, first "
            f"{found.unread[0]}"
        )


@data_app.command("observe")
def observe_table(
    source: Source,
    out: Out,
    single_positive: Annotated[
        bool, typer.Option("--single-positive", help="Keep one present label per image.")
    ] = False,
    keep: Annotated[float | None, typer.Option(help="Keep each label known at this rate.")] = None,
    flip_present: Annotated[float, typer.Option(help="Chance that present turns absent.")] = 0.0,
    flip_absent: Annotated[float, typer.Option(help="Chance that absent turns present.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Default 1200 for single positives.")] = None,
    options: Options = None,
    skip_missing: Skip = False,
    duplicates: Duplicates = "stop",
    extension: Extension = None,
) -> None:
    """Write the table with fewer labels known, or some wrong.

    Single positives are taken in the train split only; the other two act on every split.
    """
    from labelwise.cli.text import say
    from labelwise.data import observe as corrupt
    from labelwise.data.describe import describe
    from labelwise.data.export import export
    from labelwise.errors import SettingsError

    chosen = [single_positive, keep is not None, flip_present > 0 or flip_absent > 0]
    if sum(chosen) != 1:
        raise SettingsError("give one of --single-positive, --keep, --flip-present/--flip-absent")
    table = _load(source, options, skip_missing, duplicates, extension)
    if single_positive:
        table = corrupt.single_positive(table, seed=1200 if seed is None else seed)
    elif keep is not None:
        table = corrupt.keep_known(table, keep, seed=seed or 0)
    else:
        table = corrupt.flip_labels(table, present=flip_present, absent=flip_absent, seed=seed or 0)
    export(table, out)
    share = describe(table).unknown_share
    say(f"wrote {out}: {len(table):,} images, {share:.1%} of the entries unknown")


@data_app.command("export")
def export_table(
    source: Source,
    out: Out,
    options: Options = None,
    skip_missing: Skip = False,
    duplicates: Duplicates = "stop",
    extension: Extension = None,
    tool: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Write as this tool reads it: label-studio, cvat, fiftyone, coco, voc (a folder), "
            "huggingface (metadata.jsonl).",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            help="A run, or a model in any form, whose predictions the tool begins from.",
        ),
        A_MODEL,
    ] = None,
    taxonomy: TaxonomyFile = None,
    add_groups: Annotated[
        bool,
        typer.Option("--add-groups", help="Make labels of the taxonomy's parents that are none."),
    ] = False,
) -> None:
    """Write the table in another format, or for an annotation tool.

    With a taxonomy a present label makes what it is a kind of present, and an absent one makes
    its kinds absent.
    """
    from labelwise.cli.text import complain, say
    from labelwise.data.annotation_exports import Guesses, export_for_tool
    from labelwise.data.export import export
    from labelwise.data.hierarchy import obey_taxonomy
    from labelwise.errors import SettingsError
    from labelwise.taxonomy import Taxonomy

    if model is not None and tool is None:
        raise SettingsError("--model is for annotation tools; say --for label-studio, or leave it")
    if add_groups and taxonomy is None:
        raise SettingsError("--add-groups makes labels of a taxonomy's parents: give --taxonomy")
    table = _load(source, options, skip_missing, duplicates, extension)
    if taxonomy is not None:
        obeyed = obey_taxonomy(table, Taxonomy.read(taxonomy), add_groups=add_groups)
        table = obeyed.table
        say(obeyed.sentence())
    guesses = None
    if model is not None:
        from labelwise.fitting.pools import score_pool
        from labelwise.models import load_model
        from labelwise.system.progress import make_watch

        scored = score_pool(table, load_model(model), watch=make_watch())
        for note in scored.notes:
            complain(note)
        table = scored.table
        guesses = Guesses(scored.pool.probs, scored.pool.sets, model.name)
    note = ""
    if tool is None:
        export(table, out)
    else:
        note = export_for_tool(table, out, tool, guesses)
    say(f"wrote {out}: {len(table):,} images, {len(table.space)} labels")
    if note:
        say(note)


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


def _load(
    source: str,
    options: list[str] | None,
    skip_missing: bool,
    duplicates: Literal["stop", "drop", "keep"],
    extension: str | None,
) -> "LabelTable":
    from labelwise.data import load

    given = parse_options(options)
    if extension is not None:
        given["extension"] = extension
    return load(source, skip_missing=skip_missing, duplicates=duplicates, **given)


def parse_options(options: list[str] | None) -> dict[str, Any]:
    """Return the options of a format given as ``--set columns.labels=tags``."""
    from labelwise.system.yaml_values import nested, parse_assignments

    return nested(parse_assignments(options or ()))


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


def _shares(text: str) -> dict[str, float]:
    from labelwise.errors import SettingsError

    shares = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            raise SettingsError(f"shares must read train=.8,val=.2, got {text!r}") from None
    return shares


def _against_papers(source: str, table: "LabelTable") -> tuple[bool, list[str]]:
    """Return whether counts are stated of this format, and the sentences where they differ."""
    from labelwise.data.describe import count_mismatches
    from labelwise.data.load import GENERATED, find_parts

    parts = [] if source in GENERATED else find_parts(source)
    if len(parts) != 1 or not parts[0][1].counts:
        return False, []
    reader = parts[0][1]
    return True, count_mismatches(table, reader.counts, reader.labels)


def _show(description: "Description", shown: int) -> None:
    from labelwise.cli.text import say, show_table

    images = max(1, description.images)
    say(f"{description.name}: {description.images:,} images, {len(description.labels)} labels")
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
        say(f"... and {len(ranked) - shown} more labels (--all shows them)")
    if description.pairs:
        say()
        pairs = [(p.first, p.second, f"{p.images:,}", f"{p.lift:.2f}") for p in description.pairs]
        title = "most frequent pairs; lift: times as often as if they came independently"
        show_table(("label", "with", "images", "lift"), pairs[:10], title=title)
    for note in description.notes:
        say(f"note: {note}")
