"""``labelwise demo``: a model of real photos, what it says about new ones, and what to try next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labelwise
from labelwise.base.text import counted
from labelwise.cli.arguments import Fresh, Out
from labelwise.cli.command import app, verb
from labelwise.cli.text import next_steps, quoted, say
from labelwise.errors import DataError

if TYPE_CHECKING:
    from labelwise.pictures import ImageSource

TAGGED = 12  # photos on the contact sheet


@verb(app, "demo", "demo photos.csv -o runs/own")
def demo(
    photos: Annotated[
        Path | None,
        typer.Argument(help="Your own photos with labels: a table or a folder."),
    ] = None,
    *,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Train on 274 real photos, report, and tag 12 new ones.

    The photos are in the folder open-photos of a clone. With your own, a table without a split
    gets one, and 12 of its test photos are tagged.
    """
    from labelwise.cli.train import train_and_report
    from labelwise.models.run_folder import RunFolder
    from labelwise.pictures import PictureImages
    from labelwise.pictures.decode import image_paths
    from labelwise.report.contact_sheet import write_tagged_sheet
    from labelwise.training.settings import Settings

    folder = RunFolder(Path(out or "runs/demo"))
    new: ImageSource
    if photos is None:
        place = _open_photos()
        data, tags, query = place / "labels.csv", place / "machine-tags.csv", "sky, -building"
        new, which = PictureImages(image_paths([place / "new"])[0]), "photos that no split holds"
        say(f"Training on {data}: real photos with 12 labels.")
    else:
        data, new, query = _divided(photos, folder.path)
        place, tags, which = photos if photos.is_dir() else photos.parent, photos, "test photos"
    done = train_and_report(Settings(data=str(data)), folder, fresh=fresh, steps=False)
    if done is None:
        return
    sheet = folder.path / "tagged.html"
    write_tagged_sheet(sheet, new, folder.predict(new), which)
    say(f"{counted(len(new), 'new photo')} with tags: {sheet}")
    next_steps(
        f"predict {quoted(folder.path, place / 'new' if photos is None else place)} -o tags.csv",
        f"index {quoted(place)} --model {quoted(folder.path)}",
        f"search {quoted(query)}",
        f"audit {quoted(tags)} --photos {quoted(place)} --page",
    )


def _open_photos() -> Path:
    """Return the folder of the open photos: below here, or in the clone that this code is of."""
    here, clone = Path("open-photos"), Path(labelwise.__file__).parents[2] / "open-photos"
    for folder in (here, clone):
        if (folder / "labels.csv").is_file():
            return folder
    raise DataError(
        "The demo's photos are in the folder open-photos of labelwise's repository, which is not "
        "here: run `labelwise demo` in a clone, or with your own, `labelwise demo photos.csv`."
    )


def _divided(source: Path, run: Path) -> tuple[Path, "ImageSource", str]:
    """Return a table with a split, photos of it to tag, and its most frequent label."""
    import numpy as np

    from labelwise.tables import load
    from labelwise.tables.derived import stratified_split
    from labelwise.tables.export import export

    table = load(str(source))
    if table.split is None:
        table = stratified_split(table, {"train": 0.6, "val": 0.2, "test": 0.2})
        source = run.with_name(f"{run.name}-split.csv")
        source.parent.mkdir(parents=True, exist_ok=True)
        export(table, source)
        say(f"Every photo got a split: {source}")
    splits = table.splits()
    held_out = splits.get("test") or splits.get("val") or table
    labels, _ = table.targets()
    query = table.space.names[int(labels.sum(0).argmax())]
    return source, held_out.images.subset(np.arange(min(TAGGED, len(held_out)))), query
