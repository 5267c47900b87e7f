"""``labelwise data``: describe a table, split it, hide labels, write it in another format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.data_describe import describe_table
from labelwise.cli.data_field import (
    attribute_conflicts,
    burst_groups,
    crop_detections,
    fetch_iiif,
    write_back,
)
from labelwise.cli.data_keywords import keywords_table
from labelwise.cli.data_next import next_questions
from labelwise.cli.data_options import (
    Duplicates,
    Extension,
    Options,
    Out,
    Seed,
    Skip,
    Source,
    TaxonomyFile,
    load_table,
)
from labelwise.cli.data_review import repair_table, suspects
from labelwise.cli.data_votes import votes_table
from labelwise.cli.options import A_MODEL
from labelwise.system.text import counted

if TYPE_CHECKING:
    pass


data_app = typer.Typer(
    help="Describe, split, convert, repair and extend label tables.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

data_app.command("describe")(describe_table)
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

SHARES = "train=.8,val=.1,test=.1"


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
    table = load_table(source, options, skip_missing, duplicates, extension)
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
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", help="A run: compare what it sees in photos, not how they look."
        ),
        A_MODEL,
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="An .npz of ids and embeddings by another program: compare those."),
    ] = None,
    cosine: Annotated[
        float | None,
        typer.Option(help="The least cosine of near copies by a model or by embeddings."),
    ] = None,
    options: Options = None,
    skip_missing: Skip = False,
    duplicates: Duplicates = "stop",
    extension: Extension = None,
) -> None:
    """Find photos that look alike, and write them as groups.

    Such as the same photo in another size, or the next shot of a burst. Photos that a chain of
    near copies joins get one `group`, so that splits, intervals and promises keep them together.
    Groups that the table has are joined where a photo of one looks like a photo of another.
    Photos are compared by look; by what a model sees in them, or by embeddings of another program,
    where you say which cosine makes two of them near copies.
    """
    from labelwise.cli.data_copies import grouped_copies
    from labelwise.cli.text import complain, say
    from labelwise.data.export import export

    table = load_table(source, options, skip_missing, duplicates, extension)
    found = grouped_copies(table, model, embeddings, cosine)
    export(found.table, out)
    say(f"wrote {out}: {found.sentence()}")
    if found.warning:
        complain(found.warning)
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
    table = load_table(source, options, skip_missing, duplicates, extension)
    if single_positive:
        table = corrupt.single_positive(table, seed=1200 if seed is None else seed)
    elif keep is not None:
        table = corrupt.keep_known(table, keep, seed=seed or 0)
    else:
        table = corrupt.flip_labels(table, present=flip_present, absent=flip_absent, seed=seed or 0)
    export(table, out)
    share = describe(table).unknown_share
    say(f"wrote {out}: {counted(len(table), 'image')}, {share:.1%} of the entries unknown")


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
    table = load_table(source, options, skip_missing, duplicates, extension)
    if taxonomy is not None:
        obeyed = obey_taxonomy(table, Taxonomy.read(taxonomy), add_groups=add_groups)
        table = obeyed.table
        say(obeyed.sentence())
    guesses = None
    if model is not None:
        from labelwise.models import load_model
        from labelwise.scores.pools import score_pool
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
    labels = counted(len(table.space), "label")
    say(f"wrote {out}: {counted(len(table), 'image')}, {labels}")
    if note:
        say(note)


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
