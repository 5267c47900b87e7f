"""Any tags to audit: what :mod:`labelwise.tables.tags` reads, and labelwise's own forms.

score files       score:NAME columns, predictions.parquet, what `labelwise predict` wrote
a run             the labels that its rule gives its test photos
an index          the labels that its model gives the photos
a folder          keywords in the photos and their side-cars
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelwise.contrib.annotation_tools import Annotation, ImageFolder, LabelTask, read_tasks
from labelwise.errors import DataError, SettingsError
from labelwise.tables import open_table
from labelwise.tables.load import recognise
from labelwise.tables.tags import FoundUse, TagTable

if TYPE_CHECKING:
    from labelwise.tables.score_files import Kind

AT_LEAST = 0.5


def tags_to_audit(
    path: Path,
    photos: Path | None,
    *,
    kind: "Kind | None" = None,
    at_least: float | None = None,
    trust: str | None = None,
    data: str | None = None,
) -> tuple[TagTable, Path]:
    """Return the tags of a file, run, index or folder of photos, and the folder of the photos.

    ``kind`` says what scores are, where the file does not; from ``at_least`` on they are tags.
    """
    least = AT_LEAST if at_least is None else at_least
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if (path / "index.json").is_file():
        return _of_index(path), Path(photos or "/")
    if (path / "model.json").is_file():
        return _of_run(path), _required(photos)
    if path.is_dir() and (photos is None or photos.samefile(path)):
        from labelwise.photos.metadata import read_keywords

        return TagTable.of_labels(read_keywords(path).table), path
    table = open_table(path)
    if path.is_file() and trust is None and table.holds == "scores":
        from labelwise.scores.read import read_unlabelled

        given = read_unlabelled(path, kind)
        if given.link is None:
            raise SettingsError(
                f"{path.name}: its scores are not probabilities; give --scores probs"
            )
        probs = np.asarray(given.link.decision_probs(given.logits), np.float64)
        tags = TagTable.of_scores(path.name, given.ids, given.names, probs, probs >= least)
        return tags, _required(photos)
    if path.suffix.lower() == ".json" and recognise(path).name == "label-studio":
        tasks = read_tasks(path)
        if any(task.predictions for _, task in tasks):
            return _of_label_studio(path, tasks), _required(photos)
    images = None if data is None else Path(data)
    return table.tags(trust=trust, images=images, at_least=least), _required(photos)


def _required(photos: Path | None) -> Path:
    if photos is None:
        raise SettingsError("give the folder that the paths of the tags start from with --photos")
    if not photos.is_dir():
        raise DataError(f"there is no folder {photos}; --photos names where the photos are")
    return photos


def _of_run(path: Path) -> TagTable:
    from labelwise.scores import read_run

    own = read_run(path, "test")
    scores = own.predictions
    if own.calibrated is not None:
        scores = scores.with_link(own.calibrated)
    probs, sets = np.asarray(scores.decision_probs(), np.float64), scores.sets(own.rule)
    return TagTable.of_scores(path.name, scores.ids, scores.names, probs, sets)


def _of_index(path: Path) -> TagTable:
    from labelwise.photos import Index
    from labelwise.photos.tagging import tags_of

    with Index(path) as index:
        tagged = list(tags_of(index, None))
        paths = index.store.paths_of(row for row, _ in tagged)
    uses = [
        (paths[row][0], keyword.label, float(np.float64(keyword.probability)))
        for row, own in tagged
        for keyword in own
    ]
    return TagTable.of(path.name, uses, [paths[row][0] for row, _ in tagged])


def _of_label_studio(path: Path, tasks: Sequence[tuple[str, LabelTask]]) -> TagTable:
    folder = ImageFolder(path.parent)
    uses: list[FoundUse] = []
    photos = [folder.path_of(task.image(where)) for where, task in tasks]
    for photo, (where, task) in zip(photos, tasks, strict=True):
        models = [made for made in task.predictions if isinstance(made, Annotation)]
        for made in models[-1:]:
            for result in made.result:
                score = made.score if result.score is None else result.score
                uses += [(photo, name, score) for name in result.labels(where)]
    return TagTable.of(path.name, uses, photos)
