"""``labelwise data``: describe a label table, split it, group it, hide labels, convert it."""

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from labelwise.base.files import write_text
from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    Assign,
    By,
    Duplicates,
    Extension,
    ForTool,
    Json,
    Model,
    NeededOut,
    Pool,
    Scores,
    Seed,
    SkipBroken,
    SkipMissing,
    Source,
    Strict,
    TaxonomyFile,
    option,
)
from labelwise.cli.command import as_typed, data_app, refuse, refuse_overwriting, verb
from labelwise.cli.figures import few_test_photos
from labelwise.cli.options import load_table, model_path
from labelwise.cli.text import (
    caution,
    complain,
    next_steps,
    number,
    quoted,
    say,
    show_table,
    tell,
)
from labelwise.errors import DataError, SettingsError

if TYPE_CHECKING:
    from labelwise.tables import LabelTable
    from labelwise.tables.checks import Description

LABELS_SHOWN = 30
SHARES = "train=.8,val=.1,test=.1"


@verb(
    data_app,
    "data describe photos.csv",
    "data describe coco:annotations/ --content --strict",
    name="describe",
    more="assign",
)
def describe_table(
    source: Source,
    *,
    content: Annotated[
        bool, option("--content", help="Also read every pixel; name broken and shared images.")
    ] = False,
    taxonomy: TaxonomyFile = None,
    strict: Strict = False,
    every: Annotated[bool, option("--all", help="Show every row.")] = False,
    settings: Annotated[
        Path | None, option("--settings", help="Write how it is read, for train --settings.")
    ] = None,
    as_json: Json = False,
    assign: Assign = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    duplicates: Duplicates = None,
    extension: Extension = None,
) -> None:
    """Show how a table is read, and how often labels occur, alone and in pairs.

    Also labels per image, images without any, and the share of unknown entries. --strict fails if
    a known data set is not complete, or an image cannot be read.
    """
    from yaml import safe_dump

    from labelwise.tables.checks import (
        count_mismatches,
        describe,
        find_unreadable,
        reject_divided_groups,
        reject_shared_content,
        without_unreadable,
    )
    from labelwise.tables.load import GENERATED, find_parts
    from labelwise.tables.tabular import examples

    table = load_table(source, assign, skip_missing, skip_broken, duplicates, extension, quiet=True)
    broken = []
    if content:
        watch = make_watch(sys.stderr)
        watch.start("reading every image", len(table))
        broken = find_unreadable(table, progress=lambda _: watch.advance(1))
        watch.finish()
        good = without_unreadable(table, broken, on_error="skip") if broken else table
        reject_divided_groups(good)
        reject_shared_content(good)
    description = describe(table)
    if taxonomy is not None:
        description.notes.append(_obedience(table, taxonomy))
    parts = [] if source in GENERATED else find_parts(source)
    stated = parts[0][1] if len(parts) == 1 and parts[0][1].counts else None
    mismatches = [] if stated is None else count_mismatches(table, stated.counts, stated.labels)
    if as_json:
        record = description.as_dict() | {"count_mismatches": mismatches}
        record |= {"unreadable": [image.reason for image in broken]} if content else {}
        say(dumps(record, indent=2))
    else:
        _show(description, len(description.labels) if every else LABELS_SHOWN)
        for sentence in mismatches:
            say(f"not the complete set: {sentence}")
        if stated is not None and not mismatches:
            say("the counts are those stated of the complete set")
        if content:
            say(f"images that cannot be read: {len(broken):,} of {len(table):,}")
            for image in broken if every else broken[:LABELS_SHOWN]:
                say(f"  {image.reason}")
            if len(broken) > LABELS_SHOWN and not every:
                say(f"  ... and {len(broken) - LABELS_SHOWN:,} more (--all shows them)")
        say()
        show_table(("photo", "read as"), examples(table))
        more = as_typed("assign", "skip_missing", "skip_broken")
        extra = as_typed("extension", "duplicates")
        if settings is not None:
            options = {**table.reading, **({"duplicates": duplicates} if duplicates else {})}
            how_read = {"data": source, "data_options": options, "skip_missing": skip_missing}
            write_text(settings, safe_dump(how_read, sort_keys=False, allow_unicode=True))
            say(f"wrote {settings}: how {source} is read")
        split = f"data split {quoted(source)}{more}{extra} -o split.csv"
        train = f"train {quoted(source)}{more}"
        if settings is not None:
            train = f"train --settings {quoted(settings)}"
        elif extra:
            train = "train split.csv" if not description.splits else ""
        next_steps(*([] if description.splits else [split]), *([train] if train else []))
    if strict and mismatches:
        raise DataError(f"{table.name}: {'; '.join(mismatches)}")
    if strict and broken:
        raise DataError(f"{table.name}: {counted(len(broken), 'image')} cannot be read")


@verb(
    data_app,
    "data split photos.csv -o split.csv",
    "data split photos.csv --shares train=.6,val=.2,test=.2 -o split.csv",
    name="split",
    more="assign",
)
def split_table(
    source: Source,
    *,
    out: NeededOut,
    shares: Annotated[
        str | None,
        option("--shares", show_default="train=.8,val=.1,test=.1", help="Draw a new split."),
    ] = None,
    val: Annotated[
        float | None,
        option("--val", help="Keep the split; take this share of train as validation."),
    ] = None,
    seed: Seed = None,
    by_content: Annotated[
        bool,
        option("--by-content/--no-by-content", help="Keep copies in one split (default)."),
    ] = True,
    assign: Assign = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    duplicates: Duplicates = None,
    extension: Extension = None,
) -> None:
    """Write the table with a stratified split into train, val and test.

    Groups, equal images and copies (another size, quality, crop or mirror image) stay together. A
    table that has a split keeps it: --val takes validation out of train, --shares draws a new one.
    """
    from labelwise.scores.unlabelled_pool import copies_as_groups
    from labelwise.tables.derived import stratified_split, with_validation
    from labelwise.tables.export import export

    if val is not None and shares is not None:
        raise SettingsError("give --val, which keeps the split there is, or --shares, not both")
    table = load_table(source, assign, skip_missing, skip_broken, duplicates, extension)
    there = table.split_sizes()
    listed = ", ".join(f"{name} {count:,}" for name, count in there.items())
    if by_content and ((val is not None and "val" not in there) or shares or not there):
        table, sentence = copies_as_groups(table, make_watch())
        tell(*filter(None, [sentence]))
    if val is not None:
        if "val" in there:
            raise DataError(f"{table.name} has a val split already ({listed}); draw with --shares")
        parted = with_validation(table, share=val, seed=seed or 0, by_content=by_content)
    elif there and shares is None:
        mend = f"take validation out of train with `--val 0.1`, or draw with `--shares {SHARES}`"
        raise DataError(f"{table.name} has a split already ({listed}); {mend}")
    else:
        wanted = _shares(shares or SHARES)
        parted = stratified_split(table, wanted, seed=seed or 0, by_content=by_content)
    export(parted, Path(out))
    sizes = parted.split_sizes()
    say(f"wrote {out}: {', '.join(f'{name} {size:,}' for name, size in sizes.items())}")
    tell(*parted.notes[len(table.notes) :])
    caution(few_test_photos(sizes.get("test", 0)))
    next_steps(f"train {quoted(out)}")


@verb(
    data_app,
    "data convert photos.csv -o photos.parquet",
    "data convert photos.csv --for label-studio --model runs/photos -o tasks.json",
    name="convert",
    more="assign",
)
def convert_table(
    source: Source,
    *,
    out: NeededOut,
    tool: ForTool = None,
    model: Model = None,
    taxonomy: TaxonomyFile = None,
    add_groups: Annotated[
        bool, option("--add-groups", help="Make labels of the taxonomy's parents.")
    ] = False,
    by: By = None,
    pool: Pool = None,
    scores: Scores = None,
    predictions: Annotated[
        Path | None,
        option("--predictions", help="What `labelwise predict` wrote about crops of the source."),
    ] = None,
    crops: Annotated[Path | None, option("--crops", help="crops.csv of `data import`.")] = None,
    assign: Assign = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    duplicates: Duplicates = None,
    extension: Extension = None,
) -> None:
    """Write a table in another format, or for an annotation tool.

    --for label-studio, cvat, fiftyone, coco, voc (a folder) or huggingface writes as that tool
    reads it, with --model its predictions to begin from. With --taxonomy a present label makes
    what it is a kind of present, and an absent one makes its kinds absent.

    Of a table of scores, --by burst makes one row of each burst. Of MegaDetector's results,
    --predictions and --crops put the classes of a model into them.
    """
    from labelwise.tables.derived import obey_taxonomy
    from labelwise.tables.export import export
    from labelwise.taxonomy import Taxonomy

    if predictions is not None:
        from labelwise.scores.unlabelled_pool import write_classes  # which imports torch

        if crops is None:
            raise SettingsError("give the table of crops of these results: --crops crops/crops.csv")
        count = write_classes(Path(source), predictions, crops, Path(out))
        say(f"wrote {out}: classes of {count:,} detections")
        next_steps(f"data import {quoted(out)} --data PHOTOS -o crops/")
        return
    refuse("it belongs to --predictions", "crops")
    if by or pool:
        _convert_units(Path(source), out, by or [], pool or "any", scores)
        return
    refuse("it is for a table of scores, pooled with --by", "scores")
    if tool is None:
        refuse("it is for annotation tools; say --for label-studio", "model")
    if add_groups and taxonomy is None:
        raise SettingsError("--add-groups makes labels of a taxonomy's parents: give --taxonomy")
    if tool == "label-studio":
        refuse_overwriting(Path(out).with_suffix(".config.xml"))
    table = load_table(source, assign, skip_missing, skip_broken, duplicates, extension)
    if taxonomy is not None:
        obeyed = obey_taxonomy(table, Taxonomy.read(taxonomy), add_groups=add_groups)
        table = obeyed.table
        say(obeyed.sentence())
    guesses, place, note = None, model_path(model), ""
    if tool is not None:
        from labelwise.contrib.annotation_tools import Guesses, export_for_tool
    if place is not None:
        from labelwise.models import load_model
        from labelwise.scores.unlabelled_pool import score_pool

        scored = score_pool(table, load_model(place), watch=make_watch())
        caution(*scored.notes)
        table = scored.table
        guesses = Guesses(scored.pool.probs, scored.pool.sets, place.name)
    if tool is None:
        export(table, Path(out))
    else:
        note = export_for_tool(table, Path(out), tool, guesses)
    say(f"wrote {out}: {counted(len(table), 'image')}, {counted(len(table.space), 'label')}")
    tell(note)
    next_steps(f"data describe {quoted(out)}" if tool is None else f"train {quoted(source)}")


def _convert_units(source: Path, out: str, by: list[str], pool: Pool, scores: Scores) -> None:
    from labelwise.scores.aggregating import aggregate_table

    units = aggregate_table(source, scores, by, pool or "any")
    units.save(Path(out))
    labelled = "" if units.truth is None else ", with their labels"
    photos, groups = counted(int(units.photos.sum()), "photo"), counted(len(units.names), "unit")
    say(f"wrote {out}: {photos} in {groups} by {', '.join(by)}{labelled}")
    if units.truth is None:
        next_steps(f"predict link.json {quoted(out)} --scores logits -o tags.csv")
    else:
        next_steps(f"calibrate {quoted(out)} --scores logits -o FOLDER")


@verb(
    data_app,
    "data group photos.csv -o grouped.csv",
    "data group photos.csv --gap 60 --camera-column camera -o bursts.csv",
    name="group",
    more="assign",
)
def group_table(
    source: Source,
    *,
    out: NeededOut,
    model: Model = None,
    embeddings: Annotated[
        Path | None, option("--embeddings", help="Compare embeddings of another program, .npz.")
    ] = None,
    cosine: Annotated[
        float | None, option("--cosine", help="Least cosine of near-duplicates, such as 0.9.")
    ] = None,
    gap: Annotated[
        float | None, option("--gap", min=0, help="Group bursts: seconds without a photo end one.")
    ] = None,
    time_column: Annotated[
        str | None, option("--time-column", help="The column of times (time).")
    ] = None,
    camera_column: Annotated[
        str | None, option("--camera-column", help="The column of cameras.")
    ] = None,
    assign: Assign = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    duplicates: Duplicates = None,
    extension: Extension = None,
) -> None:
    """Write near-duplicates, or bursts of a camera, as groups.

    Splits, intervals and guarantees keep a group together. Photos are compared by look; by what a
    --model sees in them, or by --embeddings, with the --cosine from which on they are
    near-duplicates. Photos that a chain of near-duplicates joins get one group.

    --gap 60 groups a .csv or .tsv by its column of times instead: in a burst no photo was taken
    more than 60 seconds after the one before.
    """
    from labelwise.scores.unlabelled_pool import grouped_copies
    from labelwise.tables.camera_results import write_bursts
    from labelwise.tables.export import export

    if gap is not None:
        refuse("bursts are found by time", "model", "embeddings", "cosine")
        columns = time_column or "time", camera_column
        photos, lengths = write_bursts(Path(source), Path(out), gap, *columns)
        words = f"{counted(photos, 'photo')} in {counted(len(lengths), 'burst')}"
        say(f"wrote {out}: {words} of up to {int(lengths.max()):,}")
        next_steps(f"data split {quoted(out)} -o split.csv")
        return
    refuse("it is for bursts: give --gap 60", "time_column", "camera_column")
    table = load_table(source, assign, skip_missing, skip_broken, duplicates, extension)
    grouped = grouped_copies(table, model_path(model), embeddings, cosine, watch=make_watch())
    export(grouped.table, Path(out))
    say(f"wrote {out}: {grouped.sentence()}")
    caution(grouped.warning)
    if grouped.unread:
        taken = f"{'is' if len(grouped.unread) == 1 else 'are'} taken as unlike all others"
        unread = counted(len(grouped.unread), "photo")
        complain(f"{unread} could not be looked at and {taken}, first {grouped.unread[0]}")
    if grouped.divided:
        say(f"groups with photos in several splits: {grouped.divided:,}; draw a new split")
    new = f" --shares {SHARES}" if table.split is not None else ""
    next_steps(f"data split {quoted(out)}{new} -o split.csv")


@verb(
    data_app,
    "data observe photos.csv --single-positive -o single.csv",
    "data observe photos.csv --keep 0.1 -o tenth.csv",
    name="observe",
    more="assign",
)
def observe_table(
    source: Source,
    *,
    out: NeededOut,
    single_positive: Annotated[
        bool, option("--single-positive", help="Keep one present label per image.")
    ] = False,
    keep: Annotated[
        float | None, option("--keep", help="Keep each label known at this rate.")
    ] = None,
    flip_present: Annotated[
        float, option("--flip-present", help="Chance that present turns absent.")
    ] = 0.0,
    flip_absent: Annotated[
        float, option("--flip-absent", help="Chance that absent turns present.")
    ] = 0.0,
    seed: Seed = None,
    assign: Assign = None,
    skip_missing: SkipMissing = False,
    skip_broken: SkipBroken = False,
    duplicates: Duplicates = None,
    extension: Extension = None,
) -> None:
    """Write the table with fewer labels known, or some wrong.

    Single positives are taken in the train split only; the other two act on every split.
    """
    from labelwise.tables import derived
    from labelwise.tables.checks import describe
    from labelwise.tables.export import export

    if single_positive + (keep is not None) + (flip_present > 0 or flip_absent > 0) != 1:
        raise SettingsError("give one of --single-positive, --keep, --flip-present/--flip-absent")
    table = load_table(source, assign, skip_missing, skip_broken, duplicates, extension)
    if single_positive:
        table = derived.single_positive(table, seed=1200 if seed is None else seed)
    elif keep is not None:
        table = derived.keep_known(table, keep, seed=seed or 0)
    else:
        chances = {"present": flip_present, "absent": flip_absent}
        table = derived.flip_labels(table, **chances, seed=seed or 0)
    export(table, Path(out))
    share = describe(table).unknown_share
    say(f"wrote {out}: {counted(len(table), 'image')}, {share:.1%} of the entries unknown")
    next_steps(f"train {quoted(out)}")


def _shares(text: str) -> dict[str, float]:
    shares = {}
    for share in text.split(","):
        name, _, value = share.partition("=")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            raise SettingsError(f"shares must read train=.8,val=.2, got {text!r}") from None
    return shares


def _obedience(table: "LabelTable", file: Path) -> str:
    from labelwise.tables.derived import obey_taxonomy
    from labelwise.taxonomy import Taxonomy

    taxonomy = Taxonomy.read(file)
    obeyed = obey_taxonomy(table, taxonomy)
    levels = taxonomy.within(table.space).levels()
    depths = ", ".join(f"{len(columns)} at level {level}" for level, columns in levels.items())
    if not obeyed.raised and not obeyed.learned:
        return f"the labels obey the taxonomy; {depths}"
    return f"{obeyed.sentence()} (`labelwise data convert --taxonomy` writes that); {depths}"


def _show(description: "Description", shown: int) -> None:
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
    counts = ((one.name, one.present, one.absent, one.unknown, one.share) for one in ranked[:shown])
    rows = [(*cells, number(share, ".2%")) for *cells, share in counts]
    say()
    show_table(("label", "present", "absent", "unknown", "present among known"), rows)
    if len(ranked) > shown:
        say(f"... and {counted(len(ranked) - shown, 'more label')} (--all shows them)")
    if description.pairs:
        say()
        pairs = [(p.first, p.second, p.images, f"{p.lift:.2f}") for p in description.pairs]
        title = "most frequent pairs; lift: times as often as if they came independently"
        show_table(("label", "with", "images", "lift"), pairs[:10], title=title)
    for note in description.notes:
        say(f"note: {note}")
