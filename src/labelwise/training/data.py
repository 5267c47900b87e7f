"""The data of a run: a table that can be used, its labels completed. Needs no model to be read."""

import os
from dataclasses import dataclass
from pathlib import Path

from labelwise.base.progress import Watch
from labelwise.pictures import ImageSource
from labelwise.pictures.transform import ALL, Bands, named_bands
from labelwise.tables import LabelTable, find_unreadable, load, obey_taxonomy, without_unreadable
from labelwise.tables.checks import without_training_photos
from labelwise.tables.derived import obey_groups
from labelwise.taxonomy import AttributeColumns, AttributeGroups, Taxonomy
from labelwise.training.settings import Settings


@dataclass(frozen=True)
class Data:
    """A table whose labels obey a taxonomy, or groups that exclude each other."""

    table: LabelTable
    taxonomy: Taxonomy | None = None
    attributes: AttributeColumns | None = None


def read_data(settings: Settings, table: LabelTable | None, watch: Watch) -> Data:
    """Return the data of a run; ``table`` spares reading it."""
    if table is None:
        options = {"skip_missing": True} if settings.skip_missing else {}
        table = load(settings.data, **{**options, **settings.data_options})
        if settings.on_error == "skip":
            table = readable(settings, table, watch)
        for note in table.notes:
            watch.say(note)
    for note in without_training_photos(table):
        watch.say(note)
    taxonomy, attributes = None, None
    if settings.taxonomy is not None:
        taxonomy = Taxonomy.read(Path(settings.taxonomy))
        obeyed = obey_taxonomy(table, taxonomy)
        table = obeyed.table
        if obeyed.raised or obeyed.learned:
            watch.say(obeyed.sentence())
    elif settings.attributes is not None:
        settled = obey_groups(table, AttributeGroups.read(Path(settings.attributes)))
        table, attributes = settled.table, settled.columns
        watch.say(settled.sentence())
    return Data(table, taxonomy, attributes)


def readable(settings: Settings, table: LabelTable, watch: Watch) -> LabelTable:
    """Return the table without pictures that cannot be read, or raise with all of them."""
    workers = settings.hardware.workers or os.cpu_count() or 1
    watch.start("checking pictures", len(table))
    named = settings.bands
    bands = None if named is None else bands_of(named, settings, table.images)
    try:
        broken = find_unreadable(
            table, workers=workers, progress=lambda _: watch.advance(1), bands=bands
        )
    finally:
        watch.finish()
    return without_unreadable(table, broken, on_error=settings.on_error)


def bands_of(bands: str, settings: Settings, images: ImageSource) -> Bands:
    """Return the bands that a run was told of; ``all`` are those of its first picture."""
    window = settings.window or "none"
    names_found = images.cube(0, window).found_names if bands == ALL and len(images) else None
    return named_bands(bands, settings.composite, window, names_found)
