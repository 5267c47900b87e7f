"""Photos that figures on reported detections do not count, in sentences.

A detector reports what reaches its least confidence. A photo with a label that it reported nothing
of has no score, so that it is in no calibration and under no threshold, and whoever reads a
sensitivity must know of it:

    sensitivity over all photos = sensitivity over reported ones * reported / seen by people
"""

from typing import TYPE_CHECKING

import numpy as np

from labelwise.data import LabelTable
from labelwise.data.camera_results import CameraResults
from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.scores.detections import Detections


NAMED = 5  # labels


def failed_note(results: CameraResults) -> tuple[str, ...]:
    """Return a sentence on the photos of which the program has no result, none if there is none."""
    if not results.failed:
        return ()
    count = counted(len(results.failed), "photo")
    return (f"{results.program} has no result of {count}, first {results.failed[0]}.",)


def unreported_notes(found: "Detections", table: LabelTable) -> tuple[str, ...]:
    """Return sentences on labelled photos that are not in the results, or not under their label."""
    place = {name: number for number, name in enumerate(found.files)}
    at = np.array([place.get(name, -1) for name in table.ids], np.intp)
    notes = []
    if (at < 0).any():
        first = table.ids[int((at < 0).argmax())]
        count = counted(int((at < 0).sum()), "photo")
        notes.append(f"Without a result in {found.source}: {count} of {table.name}, first {first}.")
    labels, observed = table.targets()
    known = np.ones(labels.shape, bool) if observed is None else np.asarray(observed)
    seen = (np.asarray(labels) > 0.5) & known & (at >= 0)[:, None]
    missed = []
    for column, name in enumerate(table.space.names):
        own = found.label == (found.names.index(name) if name in found.names else -1)
        reported = np.isin(at, found.file[own])
        lost = int((seen[:, column] & ~reported).sum())
        if lost:
            missed.append(f"{name} in {lost:,} of {int(seen[:, column].sum()):,}")
    if missed:
        more = f" and {len(missed) - NAMED:,} more labels" if len(missed) > NAMED else ""
        notes.append(
            "Photos in which people saw a label and the program reported none of it: "
            f"{', '.join(missed[:NAMED])}{more}. Sensitivity and recall are those of reported "
            "detections; over all photos they are lower by these shares."
        )
    return tuple(notes)
