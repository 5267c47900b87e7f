"""Any tags to audit: what :mod:`labelwise.tables.tags` reads, and labelwise's own forms.

score files       score:NAME columns, predictions.parquet, what `labelwise predict` wrote
a run             the labels that its rule gives its test photos
an index          the labels that its model gives the photos
a folder          keywords in the photos and their side-cars
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.contrib.annotation_tools import ImageFolder, chosen_labels, image_of_task
from labelwise.errors import DataError, SettingsError
from labelwise.tables import open_table
from labelwise.tables.rows import read_json
from labelwise.tables.tags import FoundUse, TagTable, score_of

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
    if path.suffix.lower() == ".json":
        tasks = read_json(path)
        listed = tasks if isinstance(tasks, list) else []
        if any(isinstance(task, dict) and "predictions" in task for task in listed):
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


def _of_label_studio(path: Path, tasks: Sequence[Any]) -> TagTable:
    folder = ImageFolder(path.parent)
    uses: list[FoundUse] = []
    photos: list[str] = []
    for number, task in enumerate(tasks, 1):
        where = f"{path.name}, task {number}"
        photos.append(folder.path_of(image_of_task(task, where)))
        made = task.get("predictions") or []
        if not isinstance(made, list) or not all(isinstance(one, dict) for one in made):
            raise DataError(f"{where}: 'predictions' must be a list of objects")
        if made:
            score = made[-1].get("score")
            for result in made[-1].get("result") or []:
                own = result.get("score", score) if isinstance(result, dict) else None
                chance = None if own is None else score_of(own, where)
                uses += [(photos[-1], name, chance) for name in chosen_labels(result, where)]
    return TagTable.of(path.name, uses, photos)
