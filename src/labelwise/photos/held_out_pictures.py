"""What the held-out photos of a model look like to its backbone, for comparison with a library.

    held-out-pictures.safetensors   in the folder of a run, and in each index that is made with it

holds the backbone's features of at most SAMPLE held-out photos and of as many photos that the run
was fitted on, drawn at random, and what the former look like (:mod:`near_copies`). It is made when
the first index is made with the run, which scores these photos once; a run whose photos are not
there, or a model of other weights, has none.

The photos that were fitted set the projection of the index: a map that was fitted on one of two
sides would make them look different, even if they were drawn alike.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.metrics.drift import audit_order
from labelwise.models import Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.models.scoring import Scored, score
from labelwise.models.seen_photos import own_table
from labelwise.pictures import ImageSource
from labelwise.system.files import replacing
from labelwise.system.progress import Watch
from labelwise.system.tensors import load_tensors, save_tensors

PICTURES_FILE = "held-out-pictures.safetensors"
SAMPLE = 500
FEWEST_FITTED = 50  # photos that set a projection

Halves = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class HeldOutPictures:
    """Features (n, D) and looks (n, W) of the ``rows`` of held-out predictions, and ``fitted``.

    ``fitted`` (m, D) are features of photos that the model was fitted on; W is 0 for a model of
    stored features.
    """

    rows: NDArray[np.int64]
    features: Halves
    looks: Halves
    fitted: Halves
    weights_sha256: str

    @classmethod
    def of_run(
        cls, run: RunFolder, weights: str, predictor: Predictor, watch: Watch
    ) -> "HeldOutPictures | None":
        """Return what is kept with a run of these weights, made if need be.

        None where its photos are not there.
        """
        path = run.path / PICTURES_FILE
        kept = cls.load(path)
        if kept is not None and kept.weights_sha256 == weights:
            return kept
        if not run.settings_path.is_file():  # a model that was copied out of its run
            return None
        try:
            made = cls._made(run, weights, predictor, watch)
        except (LabelwiseError, LookupError, OSError):
            return None
        if made is not None:
            try:
                made.save(path)
            except OSError:  # a folder that may only be read
                return made
        return made

    @classmethod
    def _made(
        cls, run: RunFolder, weights_sha256: str, predictor: Predictor, watch: Watch
    ) -> "HeldOutPictures | None":
        held_out, table = run.ids(*run.held_out_splits), own_table(run)
        if not held_out or table.images.blocks is not None:
            return None
        apart = {name: row for row, name in enumerate(held_out)}
        places = np.array([row for row, name in enumerate(table.ids) if name in apart], np.int64)
        trained = set(run.ids("train"))
        fitted = [row for row, name in enumerate(table.ids) if name in trained]
        sides = [_sample("held-out", places), _sample("fitted", np.array(fitted, np.int64))]
        if len(sides[1]) < FEWEST_FITTED or not len(sides[0]):
            return None
        watch.start("looking at photos of the model", sum(map(len, sides)))
        own = _scored(predictor, table.images, sides[0], watch)
        others = _scored(predictor, table.images, sides[1], watch)
        watch.finish()
        looks = torch.empty(len(own), 0) if own.looks is None else own.looks
        return cls(
            np.array([apart[name] for name in own.ids], np.int64),
            _halves(own.embeddings),
            _halves(looks),
            _halves(others.embeddings),
            weights_sha256,
        )

    def save(self, path: Path) -> None:
        """Write the file."""
        tensors = {
            "rows": torch.from_numpy(self.rows),
            "features": torch.from_numpy(self.features),
            "looks": torch.from_numpy(self.looks),
            "fitted": torch.from_numpy(self.fitted),
            "weights": torch.frombuffer(bytearray.fromhex(self.weights_sha256), dtype=torch.uint8),
        }
        with replacing(path) as temporary:
            save_tensors(temporary, tensors)

    @staticmethod
    def load(path: Path) -> "HeldOutPictures | None":
        """Return what a file holds; None where it is not there or not whole."""
        try:
            tensors = load_tensors(path)
            found = HeldOutPictures(
                tensors["rows"].numpy(),
                tensors["features"].numpy(),
                tensors["looks"].numpy(),
                tensors["fitted"].numpy(),
                bytes(tensors["weights"].tolist()).hex(),
            )
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            return None
        return found if found._is_whole() else None

    def _is_whole(self) -> bool:
        """Return whether the numbers are of the kinds and sizes that belong together."""
        matrices = (self.features, self.looks, self.fitted)
        if self.rows.dtype != np.int64 or self.rows.ndim != 1 or (self.rows < 0).any():
            return False
        if any(one.dtype != np.float16 or one.ndim != 2 for one in matrices):
            return False
        count, width = self.features.shape
        fits = len(self.rows) == count == len(self.looks) and self.fitted.shape[1] == width
        return fits and len(self.weights_sha256) == 64 and all(map(_are_finite, matrices))


def _are_finite(values: Halves) -> bool:
    return bool(np.isfinite(values).all())


def _sample(name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return some of the rows at random, in order; the same each time."""
    return np.sort(rows[np.argsort(audit_order(name, rows))[:SAMPLE]])


def _scored(
    predictor: Predictor, images: ImageSource, rows: NDArray[np.int64], watch: Watch
) -> Scored:
    parts = []
    for part in score(predictor, images, rows=rows.tolist(), embed=True):
        parts.append(part)
        watch.advance(len(part) + len(part.failures))
    return Scored.join(parts)


def _halves(values: torch.Tensor | None) -> Halves:
    if values is None:
        raise ValueError("photos were scored without embeddings")
    return np.asarray(values.numpy(), np.float16)
