"""What several verbs do with their options and arguments."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from labelwise.base.text import counted
from labelwise.cli.arguments import Duplicates, Pool, Scores
from labelwise.cli.text import caution, quoted, say
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.tables import LabelTable

DEFAULT_INDEX = Path("photos.index")


def model_path(model: str | None) -> Path | None:
    """Return the local folder or file of ``--model``; a run in a bucket is fetched."""
    from labelwise.base.storage import is_uri
    from labelwise.models.run_folder import fetched_run

    if model is None:
        return None
    return fetched_run(model, "model") if is_uri(model) else Path(model)


def decoder_of(decode: str | None, device: str) -> Literal["cpu", "cuda"]:
    """Return who decodes JPEGs for a model on the device; stop where it cannot be had."""
    on_gpu = device.partition(":")[0] == "cuda"
    if decode == "cuda" and not on_gpu:
        raise SettingsError(f"--decode cuda needs a model on a GPU, --device cuda; got {device}")
    return "cuda" if on_gpu and decode in ("auto", "cuda") else "cpu"


def check_weights(features: str | None, weights: str | None) -> None:
    """Stop at the weights of --features where no features are asked for."""
    if weights is not None and features is None:
        raise SettingsError(
            "--weights are those of --features, which is not given; for a backbone that is "
            f"trained say --set weights={weights}"
        )


def load_table(
    source: str, assign: list[str] | None, *more: Any, quiet: bool = False
) -> "LabelTable":
    """Return the label table of a source, read as the options of its format say.

    What was not read as it is written is said, unless the verb shows the notes by itself.
    """
    from labelwise.tables import load

    table = load(source, **reading(assign, *more))
    if not quiet:
        caution(*table.notes)
    return table


def reading(
    assign: list[str] | None,
    skip_missing: bool = False,
    skip_broken: bool = False,
    duplicates: Duplicates = None,
    extension: str | None = None,
) -> dict[str, Any]:
    """Return how a verb was told to read a table; flags count more than ``--set``."""
    from labelwise.base.yaml_values import nested, parse_assignments

    flags = {"skip_missing": skip_missing, "skip_broken": skip_broken}
    named = flags | {"duplicates": duplicates, "extension": extension}
    return nested(parse_assignments(assign or ())) | {k: v for k, v in named.items() if v}


@contextmanager
def pooled(source: Path, scores: Scores, by: list[str], pool: Pool) -> Iterator[Path]:
    """Have a table with one row per group of ``--by``, whose scores are logits."""
    from labelwise.scores.aggregating import aggregate_table

    with TemporaryDirectory(prefix="labelwise-units-") as folder:
        units = aggregate_table(source, scores, by, pool or "any")
        path = Path(folder) / f"{source.stem}.parquet"
        units.save(path)
        count = counted(int(units.photos.sum()), "photo")
        say(f"{count} in {counted(len(units.names), 'group')}; each group is one row")
        yield path


def review_of(run: Path) -> str:
    """Return the command that reviews the labels of a run, on validation where it has that."""
    from labelwise.models.run_folder import RunFolder

    splits = RunFolder(run).splits
    split = "" if "val" in splits or not splits else f" --split {quoted(splits[0])}"
    return f"data review {quoted(run)}{split} -o review.csv"


def find_photos(places: Sequence[Path]) -> list[Path]:
    """Return the files given, and the images in and below the folders given, in order."""
    from labelwise.pictures.decode import image_paths

    paths, notes = image_paths(places)
    caution(*notes)
    return paths


def default_index(place: Path | str | None) -> Path:
    """Return the index that is meant where none, or this one, is named."""
    return Path(place or os.environ.get("LABELWISE_INDEX") or DEFAULT_INDEX)


def index_and_query(
    folder: Path | None, query: str | None, *, alone: bool
) -> tuple[Path, str | None]:
    """Return the index and the query: ``alone``, one argument that does not name an index is it."""
    if alone and query is None and folder is not None and not (folder / "index.json").is_file():
        folder, query = None, str(folder)
    return default_index(folder), query


def read_secret(file: Path | None, variable: str, what: str, flag: str) -> str | None:
    """Return what a file or a variable of the environment holds; None where neither is given."""
    given = os.environ.get(variable)
    if file is None:
        return given or None
    if given:
        raise SettingsError(f"give {what} once: {flag} or {variable}, not both")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        what = what.removeprefix("the ")
        raise SettingsError(f"{what} file {file} cannot be read: {reason}") from None
