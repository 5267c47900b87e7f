"""``labelwise demo``: the whole path on embedded data, in a few minutes, without a download."""

from pathlib import Path
from typing import Annotated

import typer

PHOTOS = 240


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder.")] = Path("runs/demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in the run folder.")] = False,
    photos: Annotated[
        Path | None,
        typer.Option(help="Also write a folder of new scenes as pictures, to index and serve."),
    ] = None,
) -> None:
    """Train, calibrate, measure and report on embedded pictures.

    They are scenes of handwritten digits, some with none of the ten.
    """
    from labelwise.cli.text import say
    from labelwise.cli.train import train_and_report
    from labelwise.models.run_folder import RunFolder
    from labelwise.training.recipe import OptimizerSettings, Recipe
    from labelwise.training.settings import Settings

    say("Scenes of 0 to 5 handwritten digits: which digits are there? Training takes minutes.")
    # Shifts, not mirrored: a mirrored digit is another one. Six epochs pass 0.90 mAP.
    recipe = Recipe(epochs=6, optimizer=OptimizerSettings(lr=5e-3))
    settings = Settings(data="scenes", backbone="small-cnn", augment="shift", recipe=recipe)
    train_and_report(settings, RunFolder(out), fresh=fresh)
    if photos is not None:
        _write_photos(photos)
        say(f"{PHOTOS} new scenes are in {photos}")


def _write_photos(folder: Path) -> None:
    """Write scenes that no split of the demo holds, large enough to look at."""
    from PIL import Image

    from labelwise.data import scenes

    folder.mkdir(parents=True, exist_ok=True)
    table = scenes(0, 0, PHOTOS, seed=1)
    for row in range(PHOTOS):
        picture = table.images.read(row)
        side = 4 * picture.width
        large = picture.resize((side, side), Image.Resampling.BICUBIC)
        large.save(folder / f"scene-{row:03d}.png")
