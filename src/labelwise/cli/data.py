"""``labelwise data``: describe a label table, split it, group it, hide labels, convert it."""

import json
import sys
from pathlib import Path
from typing import Any

from labelwise.base.progress import make_watch
from labelwise.base.text import counted
from labelwise.cli.evaluate import few_test_photos
from labelwise.cli.options import Options, load_table, model_path
from labelwise.cli.text import caution, complain, next_steps, number, say, show_table, tell
from labelwise.contrib.annotation_tools import Guesses, export_for_tool
from labelwise.errors import DataError, SettingsError
from labelwise.models import load_model
from labelwise.scores.aggregating import aggregate_table
from labelwise.tables import LabelTable
from labelwise.tables import derived as corrupt
from labelwise.tables.camera_results import write_bursts
from labelwise.tables.checks import (
    Description,
    count_mismatches,
    describe,
    find_unreadable,
    reject_divided_groups,
    reject_shared_content,
    without_unreadable,
)
from labelwise.tables.derived import obey_taxonomy, stratified_split, with_validation
from labelwise.tables.export import export
from labelwise.tables.load import GENERATED, find_parts
from labelwise.taxonomy import Taxonomy

LABELS_SHOWN = 30
SHARES = "train=.8,val=.1,test=.1"


def describe_table(source: str, given: Options) -> None:
    """Show how often labels occur, alone and in pairs."""
    table = load_table(source, given)
    broken = []
    if given.content:
        watch = make_watch(sys.stderr)
        watch.start("reading every image", len(table))
        broken = find_unreadable(table, progress=lambda _: watch.advance(1))
        watch.finish()
        good = without_unreadable(table, broken, on_error="skip") if broken else table
        reject_divided_groups(good)
        reject_shared_content(good)
    description = describe(table)
    if given.taxonomy is not None:
        description.notes.append(_obedience(table, given.taxonomy))
    parts = [] if source in GENERATED else find_parts(source)
    stated = parts[0][1] if len(parts) == 1 and parts[0][1].counts else None
    mismatches = [] if stated is None else count_mismatches(table, stated.counts, stated.labels)
    if given.json:
        facts = description.as_dict() | {"count_mismatches": mismatches}
        facts |= {"unreadable": [image.reason for image in broken]} if given.content else {}
        say(json.dumps(facts, indent=2))
    else:
        _show(description, len(description.labels) if given.all else LABELS_SHOWN)
        for sentence in mismatches:
            say(f"not the complete set: {sentence}")
        if stated is not None and not mismatches:
            say("the counts are those stated of the complete set")
        if given.content:
            say(f"images that cannot be read: {len(broken):,} of {len(table):,}")
            for image in broken if given.all else broken[:LABELS_SHOWN]:
                say(f"  {image.reason}")
            if len(broken) > LABELS_SHOWN and not given.all:
                say(f"  ... and {len(broken) - LABELS_SHOWN:,} more (--all shows them)")
        split = [] if description.splits else [f"data split {source} -o split.csv"]
        next_steps(*split, f"train {source}")
    if given.strict and mismatches:
        raise DataError(f"{table.name}: {'; '.join(mismatches)}")
    if given.strict and broken:
        raise DataError(f"{table.name}: {counted(len(broken), 'image')} cannot be read")


def split_table(source: str, given: Options) -> None:
    """Write the table with a stratified split into train, val and test."""
    if given.val is not None and given.shares is not None:
        raise SettingsError("give --val, which keeps the split there is, or --shares, not both")
    table = load_table(source, given)
    there = table.split_sizes()
    listed = ", ".join(f"{name} {count:,}" for name, count in there.items())
    how: dict[str, Any] = {"seed": given.seed or 0, "by_content": given.by_content is not False}
    if given.val is not None:
        if "val" in there:
            raise DataError(f"{table.name} has a val split already ({listed}); draw with --shares")
        parted = with_validation(table, share=given.val, **how)
    elif there and given.shares is None:
        mend = f"take validation out of train with `--val 0.1`, or draw with `--shares {SHARES}`"
        raise DataError(f"{table.name} has a split already ({listed}); {mend}")
    else:
        parted = stratified_split(table, _shares(given.shares or SHARES), **how)
    export(parted, given.target)
    sizes = parted.split_sizes()
    say(f"wrote {given.out}: {', '.join(f'{name} {size:,}' for name, size in sizes.items())}")
    caution(few_test_photos(sizes.get("test", 0)))
    next_steps(f"train {given.out}")


def group_table(source: str, given: Options) -> None:
    """Write near-duplicates, or bursts of a camera, as groups."""
    from labelwise.scores.unlabelled_pool import grouped_copies

    if given.gap is not None:
        given.refuse("bursts are found by time", "model", "embeddings", "cosine")
        columns = given.time_column or "time", given.camera_column
        photos, sizes = write_bursts(Path(source), given.target, given.gap, *columns)
        words = f"{counted(photos, 'photo')} in {counted(len(sizes), 'burst')}"
        say(f"wrote {given.out}: {words} of up to {int(sizes.max()):,}")
        next_steps(f"data split {given.out} -o split.csv")
        return
    given.refuse("it is for bursts: give --gap 60", "time_column", "camera_column")
    table = load_table(source, given)
    how = model_path(given), given.embeddings, given.cosine
    grouped = grouped_copies(table, *how, watch=make_watch())
    export(grouped.table, given.target)
    say(f"wrote {given.out}: {grouped.sentence()}")
    caution(grouped.warning)
    if grouped.unread:
        taken = f"{'is' if len(grouped.unread) == 1 else 'are'} taken as unlike all others"
        unread = counted(len(grouped.unread), "photo")
        complain(f"{unread} could not be looked at and {taken}, first {grouped.unread[0]}")
    if grouped.divided:
        say(f"groups with photos in several splits: {grouped.divided:,}; draw a new split")
    new = f" --shares {SHARES}" if table.split is not None else ""
    next_steps(f"data split {given.out}{new} -o split.csv")


def observe_table(source: str, given: Options) -> None:
    """Write the table with fewer labels known, or some wrong."""
    present, absent = given.flip_present or 0.0, given.flip_absent or 0.0
    if given.single_positive + (given.keep is not None) + (present > 0 or absent > 0) != 1:
        raise SettingsError("give one of --single-positive, --keep, --flip-present/--flip-absent")
    table = load_table(source, given)
    if given.single_positive:
        table = corrupt.single_positive(table, seed=1200 if given.seed is None else given.seed)
    elif given.keep is not None:
        table = corrupt.keep_known(table, given.keep, seed=given.seed or 0)
    else:
        table = corrupt.flip_labels(table, present=present, absent=absent, seed=given.seed or 0)
    export(table, given.target)
    share = describe(table).unknown_share
    say(f"wrote {given.out}: {counted(len(table), 'image')}, {share:.1%} of the entries unknown")
    next_steps(f"train {given.out}")


def convert_table(source: str, given: Options) -> None:
    """Write a table in another format, or for an annotation tool."""
    from labelwise.scores.unlabelled_pool import score_pool, write_classes

    if given.predictions is not None:
        if given.crops is None:
            raise SettingsError("give the table of crops of these results: --crops crops/crops.csv")
        count = write_classes(Path(source), given.predictions, given.crops, given.target)
        say(f"wrote {given.out}: classes of {count:,} detections")
        next_steps(f"data import {given.out} --data PHOTOS -o crops/")
        return
    given.refuse("it belongs to --predictions", "crops")
    if given.by or given.pool:
        _convert_units(Path(source), given)
        return
    given.refuse("it is for a table of scores, pooled with --by", "scores")
    if given.for_ is None:
        given.refuse("it is for annotation tools; say --for label-studio", "model")
    if given.add_groups and given.taxonomy is None:
        raise SettingsError("--add-groups makes labels of a taxonomy's parents: give --taxonomy")
    table, out = load_table(source, given), given.target
    if given.taxonomy is not None:
        obeyed = obey_taxonomy(table, Taxonomy.read(given.taxonomy), add_groups=given.add_groups)
        table = obeyed.table
        say(obeyed.sentence())
    guesses, model, note = None, model_path(given), ""
    if model is not None:
        scored = score_pool(table, load_model(model), watch=make_watch())
        caution(*scored.notes)
        table = scored.table
        guesses = Guesses(scored.pool.probs, scored.pool.sets, model.name)
    if given.for_ is None:
        export(table, out)
    else:
        note = export_for_tool(table, out, given.for_, guesses)
    say(f"wrote {out}: {counted(len(table), 'image')}, {counted(len(table.space), 'label')}")
    tell(note)
    next_steps(f"data describe {out}" if given.for_ is None else f"train {source}")


def _convert_units(source: Path, given: Options) -> None:
    units = aggregate_table(source, given.scores, given.by or [], given.pool or "any")
    units.save(given.target)
    labelled = "" if units.truth is None else ", with their labels"
    photos, groups = counted(int(units.photos.sum()), "photo"), counted(len(units.names), "unit")
    say(f"wrote {given.out}: {photos} in {groups} by {', '.join(given.by or [])}{labelled}")
    if units.truth is None:
        next_steps(f"predict link.json {given.out} --scores logits -o tags.csv")
    else:
        next_steps(f"calibrate {given.out} --scores logits -o FOLDER")


def _shares(text: str) -> dict[str, float]:
    shares = {}
    for share in text.split(","):
        name, _, value = share.partition("=")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            raise SettingsError(f"shares must read train=.8,val=.2, got {text!r}") from None
    return shares


def _obedience(table: LabelTable, file: Path) -> str:
    taxonomy = Taxonomy.read(file)
    obeyed = obey_taxonomy(table, taxonomy)
    levels = taxonomy.within(table.space).levels()
    depths = ", ".join(f"{len(columns)} at level {level}" for level, columns in levels.items())
    if not obeyed.raised and not obeyed.learned:
        return f"the labels obey the taxonomy; {depths}"
    return f"{obeyed.sentence()} (`labelwise data convert --taxonomy` writes that); {depths}"


def _show(description: Description, shown: int) -> None:
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
