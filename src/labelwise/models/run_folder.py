"""RunFolder: every file of a run, named, read and written in one place.

    settings.yaml                  what was asked for, resolved
    metrics.jsonl                  the journal: one JSON object per line, as training goes on
    checkpoint/                    what a killed run goes on from
    predictions/SPLIT.parquet      the logits of every split, with its labels
    predictions/near-copies.json   how many held-out photos look like a training photo
    folds/, folds.parquet          runs without a part of the training rows each, if they were
                                   asked for, and what they say of the part they did not see
    seen-photos.parquet            hashes and fingerprints of what it was fitted on, once asked for
    trials/                        the runs that an effort tried, if one was asked for
    tensorboard/, wandb/, mlflow/  the journal for these tools, if they were asked for
    evaluation.json, report.html   the figures, and the page that shows them
    model.json                     the model to deploy, with model.onnx (a solved head on an eye)
                                   or model.safetensors (a network that was trained)

The folder is locked while a process trains in it. A run that is kept in a bucket is trained in a
folder of the first process's machine and sent to the bucket with every checkpoint.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from labelwise import __version__
from labelwise.base.files import (
    MOST_FACTS,
    append_whole,
    locked,
    read_regular,
    remove_leftovers,
    replacing,
    write_error,
)
from labelwise.base.storage import (
    LocalStorage,
    Mirror,
    ObjectStorage,
    Storage,
    address_of,
    is_uri,
    parent_of,
    storage_at,
)
from labelwise.base.text import one_line_of
from labelwise.decide.rules import far_apart
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.models.spec import MODEL_FILE, SOLVED_FILE, WEIGHTS_FILE, ModelSpec
from labelwise.pictures.decode import find_images

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation
    from labelwise.models.scoring import DeployedModel, Scored
    from labelwise.predictions import Predictions

FOLDERS = ("checkpoint", "predictions", "tensorboard", "wandb", "mlflow", "folds", "trials")
SEEN_FILE = "seen-photos.parquet"
FILES = (
    "settings.yaml",
    "metrics.jsonl",
    "evaluation.json",
    "report.html",
    "folds.parquet",
    SEEN_FILE,
)
MODEL_FILES = (MODEL_FILE, WEIGHTS_FILE)
ANY_MODEL_FILES = (*MODEL_FILES, SOLVED_FILE)
NOT_RESULTS = ("checkpoint", "tensorboard", "wandb", "mlflow", "folds", "trials")
# Sent to a bucket after all others, in this order: what says that others are there.
SENT_LAST = (MODEL_FILE, "state.json", "evaluation.json", "settings.yaml")

RunPart = Literal["model", "results", "all"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Labelled photos by which a model's answers are judged, and the splits they come from.

    ``may_promise`` says that none of them fitted weights or link. Where every photo did, these are
    the ones that did least, and figures on them are somewhat too good.
    """

    predictions: "Predictions"
    splits: tuple[str, ...]
    may_promise: bool

    def __str__(self) -> str:
        return " and ".join(self.splits)


class RunFolder:
    """The folder of a run, finished or not; nothing in it is read before it is asked for."""

    def __init__(self, path: str | Path, mirror: Mirror | None = None) -> None:
        self.path, self.mirror = Path(path), mirror
        self.name = self.path.name
        self.address = str(self.path) if mirror is None else mirror.address  # where it is kept
        self.settings_path = self.path / "settings.yaml"
        self.journal = Journal(self.path / "metrics.jsonl")
        self.checkpoint = self.path / "checkpoint"
        self.trials = self.path / "trials"
        self.folds_path = self.path / "folds.parquet"
        self.evaluation_path = self.path / "evaluation.json"
        self.report = self.path / "report.html"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @classmethod
    @contextmanager
    def working_in(cls, place: str | Path) -> Iterator[Self]:
        """Have the folder of a run to train in, or a copy of what a bucket keeps of it."""
        storage = storage_at(str(place))
        if not isinstance(storage, ObjectStorage):
            yield cls(_local_path(place, storage))
            return
        above = Path(tempfile.mkdtemp(prefix="labelwise-run-"))
        run = above / storage.prefix.rpartition("/")[2]
        mirror = Mirror(run, storage, _turn)
        try:
            yield cls(run, mirror)
        finally:
            if mirror.unsent:
                warnings.warn(
                    f"{run} keeps what could not be sent to {mirror.address}: the same command "
                    f"with -o {run} goes on from it",
                    stacklevel=2,
                )
            else:
                shutil.rmtree(above, ignore_errors=True)

    def fetch(self, *, tensors: bool = True) -> None:
        """Bring a copy to what the bucket holds, perhaps without the tensors of checkpoints."""
        if self.mirror is None:
            return
        self.mirror.fetch(lambda name: tensors or name.endswith("json") or "checkpoint" not in name)
        for folder in self.path.rglob("checkpoint/[0-9]*"):
            if not (folder / "state.json").exists():  # whoever sent it was stopped in between
                shutil.rmtree(folder)

    def claim(self) -> None:
        """Be the one who writes to the bucket; whoever did before stops when it notices."""
        if self.mirror is not None:
            self.mirror.claim()

    def publish(self) -> None:
        if self.mirror is not None:
            self.mirror.send()

    def out_of_fold(self) -> "Predictions | None":
        from labelwise.predictions import Predictions

        return Predictions.load(self.folds_path) if self.folds_path.is_file() else None

    def predictions_path(self, split: str) -> Path:
        return self.path / "predictions" / f"{split}.parquet"

    @property
    def settings(self) -> dict[str, Any]:
        import yaml  # a prediction needs none

        try:
            values = yaml.safe_load(read_regular(self.settings_path, MOST_FACTS)[0].decode())
        except FileNotFoundError:
            raise CheckpointError(f"{self.path} is not the folder of a run") from None
        except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
            reason = one_line_of(error)
            raise CheckpointError(f"{self.settings_path} cannot be read: {reason}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{self.settings_path} must hold settings by name")
        return values

    @property
    def data(self) -> str:
        """What the run was trained on, as it is reached from here."""
        source = str(self.settings["data"])
        if Path(source).exists():
            return source
        above = (folder / source for folder in self.path.resolve().parents)
        return str(next((path for path in above if path.exists()), source))

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(sorted(file.stem for file in (self.path / "predictions").glob("*.parquet")))

    @property
    def fitted_splits(self) -> frozenset[str]:
        """The splits whose rows fitted weights or link; no promise can be made on them."""
        cross_fitted = self.settings_path.is_file() and self.settings.get("cross_fit")
        return frozenset(("train", "val", *(("promise",) if cross_fitted else ())))

    def predictions(self, split: str) -> "Predictions":
        from labelwise.predictions import Predictions

        return Predictions.load(self._there(split))

    def ids(self, *splits: str) -> list[str]:
        """Return the photos of the predictions of splits, one after the other, and no numbers."""
        from labelwise.predictions import stored_ids

        return [photo for split in splits for photo in stored_ids(self._there(split))]

    @property
    def fitted_ids(self) -> list[str]:
        """The photos that trained the weights; of a solved run, the pool, which is val."""
        return self.ids("train" if "train" in self.splits else "val")

    def _there(self, split: str) -> Path:
        if split not in self.splits:
            there = f"there are: {', '.join(self.splits) or 'none'}"
            raise CheckpointError(f"{self.path} has no predictions of {split!r}; {there}")
        return self.predictions_path(split)

    def held_out(self) -> HeldOut | None:
        """Return all photos that fitted nothing, else the best of the others; None without any."""
        if not (names := self.held_out_splits):
            return None
        rows = reduce(lambda one, other: one.joined(other), map(self.predictions, names))
        return HeldOut(rows, names, names[0] not in self.fitted_splits)

    @property
    def held_out_splits(self) -> tuple[str, ...]:
        there = [name for name in ("promise", "test", "val") if name in self.splits]
        return tuple([name for name in there if name not in self.fitted_splits] or there[:1])

    @property
    def evaluation(self) -> "Evaluation":
        from labelwise.evaluation import Evaluation

        if not self.evaluation_path.exists():
            raise CheckpointError(f"{self.path} has no evaluation.json; give a finished run")
        return Evaluation.load(self.evaluation_path)

    def measured(self, evaluation: "Evaluation") -> None:
        """Write the figures; the page that shows others goes, and is written again."""
        self.report.unlink(missing_ok=True)
        evaluation.save(self.evaluation_path)

    def size_note(self, chosen: float) -> str:
        """Say that photos got far more or fewer labels than those of the test have, "" if not."""
        try:  # read as it is: its own class takes as long to import as a photo to answer for
            sets = json.loads(read_regular(self.evaluation_path, MOST_FACTS)[0])["sets"]
            all_known = sum(sets["true_sizes"]) == sum(sets["sizes"])
            true = float(sets["mean_true_size"]) if all_known else None
        except (OSError, LookupError, TypeError, ValueError, RecursionError):
            return ""
        if true is None or not far_apart(chosen, true):
            return ""
        return (
            f"{chosen:.2f} labels per photo, where the photos that judged the model have "
            f"{true:.2f}: these photos differ from those, or the rule does not suit them"
        )

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec.load(self.path / MODEL_FILE)

    @property
    def is_solved(self) -> bool:
        """Whether the model is a linear classifier on an eye, which needs no torch."""
        return (self.path / SOLVED_FILE).exists() and not (self.path / WEIGHTS_FILE).exists()

    @property
    def is_trained(self) -> bool:
        """Whether the folder holds, or is about to hold, a network that torch trained."""
        states = self.checkpoint.glob("[0-9]*")
        return (self.path / WEIGHTS_FILE).is_file() or any(states)

    def model(self, device: str = "cpu") -> "DeployedModel":
        """Return the model to score with."""
        from labelwise.models.loading import load_model

        return load_model(self.path, device)

    def predict(self, pictures: Any, **options: Any) -> "Scored":
        if isinstance(pictures, str | Path) and Path(pictures).is_dir():
            pictures = [Path(pictures) / name for name in find_images(Path(pictures))[0]]
        return self.model().predict(pictures, **options)

    @property
    def is_finished(self) -> bool:
        needed = ("evaluation.json", MODEL_FILE, SOLVED_FILE if self.is_solved else WEIGHTS_FILE)
        return all((self.path / name).exists() for name in needed)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Have the folder alone while the block runs; what a killed run half wrote is removed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from None
        busy = f"another process is training in {self.path}; wait for it, or choose another folder"
        with locked(self.path, busy) as alone:
            for folder in (self.path, *(self.path / name for name in FOLDERS)) if alone else ():
                remove_leftovers(folder)
            yield

    def take_over(self, other: "RunFolder") -> None:
        """Make the results of another run those of this one; the other keeps its own."""
        files = (other.path / "predictions").glob("[!.]*")
        predictions = [f"predictions/{file.name}" for file in files]
        # What says that a run is finished comes last.
        for name in ("metrics.jsonl", *predictions, "settings.yaml", *other.model_files):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path / name) as temporary:
                shutil.copyfile(other.path / name, temporary)

    @property
    def model_files(self) -> tuple[str, str]:
        """The weights and, written last, what says that they are complete."""
        return SOLVED_FILE if self.is_solved else WEIGHTS_FILE, MODEL_FILE

    def clear(self) -> None:
        if self.mirror is not None:
            self.mirror.claim()
            self.mirror.clear()
        for name in (*FILES, *ANY_MODEL_FILES, *FOLDERS):
            path = self.path / name
            try:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise LabelwiseError(f"cannot remove {path}: {error.strerror}") from None


def fetched_run(place: str | Path, part: RunPart = "results") -> Path:
    """Return the folder of a run to read from: of a bucket or hub, a copy in this user's cache.

    ``results`` are all files but checkpoints and logs; ``model`` may be an exported file or folder.
    """
    if str(place).startswith(HUB):
        return fetched_from_hub(str(place), MODEL_FILES)
    storage = storage_at(str(place))
    if not isinstance(storage, ObjectStorage):
        return _local_path(place, storage)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    key = hashlib.sha256(storage.place.encode()).hexdigest()[:16]
    folder = Path(root) / "labelwise" / "runs" / key / storage.prefix.rpartition("/")[2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None

    if folder.suffix.lower() == ".onnx":
        above, name = parent_of(str(place))
        bucket = storage_at(above)
        size = bucket.size(name)
        if not isinstance(bucket, ObjectStorage) or size is None:
            raise CheckpointError(f"{address_of(above, name)} is not there; is its address right?")
        with locked(folder):
            bucket.download(name, folder / name, size)
        return folder / name

    def wanted(name: str) -> bool:
        return part in ("all", "model") or name.split("/")[0] not in NOT_RESULTS

    def model_turn(name: str, there: bool) -> int | None:
        return 0 if name in ANY_MODEL_FILES else None

    mirror = Mirror(folder, storage, model_turn if part == "model" else _turn)
    with locked(folder):
        if not mirror.fetch(wanted):
            raise CheckpointError(f"{mirror.address} holds no run; is its address right?")
    return folder


def _local_path(place: str | Path, storage: Storage) -> Path:
    """Return the folder that a path or a file:// URI names, a path as it was written."""
    if isinstance(storage, LocalStorage) and is_uri(str(place)):
        return storage.folder
    return Path(place)


def _turn(name: str, there: bool) -> int | None:
    """Return when a file of a run is sent to a bucket, None for what is not a file of a run.

    A checkpoint is there once its state.json is. Settings that changed are sent when all that
    follows from them is there; at the very first they come first.
    """
    parts = name.split("/")
    own = FOLDERS if len(parts) > 1 else (*FILES, *ANY_MODEL_FILES)
    if parts[0] not in own or any(level.startswith(".") for level in parts):
        return None
    last = parts[-1]
    if last == "settings.yaml" and not there:
        return 0
    return 2 + SENT_LAST.index(last) if last in SENT_LAST else 1


# Journal: a file of records, one JSON object per line, that is written while something goes on.


class Journal:
    """A file of records that can be cut back to where a checkpoint was taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the records; the last line may still be being written, or have been cut off."""
        try:
            content = read_regular(self.path, MOST_FACTS)[0]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from None
        records, (*lines, last) = [], content.split(b"\n")
        for number, line in enumerate([*lines, last], start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                records.append(record)
            elif line.strip() and number <= len(lines):
                warnings.warn(f"{self.path}: line {number} is damaged, left out", stacklevel=2)
        return records

    def progress(self, epochs: int) -> str:
        """Return the epoch of a run of ``epochs`` and its time left; its step in the first one."""
        records = self.read()
        if not records:
            return ""
        last = next((record for record in reversed(records) if "epoch" in record), None)
        if last is None:
            return f"step {records[-1]['step']}"
        done = last["epoch"]
        left = last["seconds"] / done * (epochs - done) / 60
        return f"epoch {done}/{epochs}, {left:,.1f} min left"

    def cut(self, size: int) -> None:
        """Forget what was written after the first ``size`` bytes, and a line that has no end."""
        try:
            with self.path.open("a+b") as stream:
                stream.seek(0)
                self.size = stream.read(size).rfind(b"\n") + 1
                stream.truncate(self.size)
        except OSError as error:
            raise write_error(self.path, error) from error

    def write(self, record: Mapping[str, object]) -> None:
        line = (json.dumps(record) + "\n").encode()
        try:
            with self.path.open("ab", buffering=0) as stream:
                append_whole(stream, line)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.size += len(line)


# Models on the Hugging Face Hub, or on another server that speaks its API.
#
#     hf://OWNER/NAME              the newest version of a model that ``export --format hf`` wrote
#     hf://OWNER/NAME@REVISION     that branch, tag or commit
#
HUB = "hf://"
NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?/?", re.ASCII)


def fetched_from_hub(
    address: str,
    files: tuple[str, ...],
    optional: tuple[str, ...] = (),
    lacking: str = "so it is not a model of labelwise; `labelwise export RUN --format hf` writes "
    "one",
) -> Path:
    """Return a folder with some files of a model, fetched unless this user's cache has them."""
    from huggingface_hub import snapshot_download

    match = ADDRESS.fullmatch(address)
    if match is None:
        raise SettingsError(
            f"a model on a hub is hf://OWNER/NAME, or hf://OWNER/NAME@REVISION, got {address}"
        )
    try:
        folder = Path(
            snapshot_download(
                match["name"],
                revision=match["revision"],
                allow_patterns=[*files, *optional],
                library_name="labelwise",
                library_version=__version__,
            )
        )
    except Exception as error:  # of the hub's many kinds, and of the network's
        raise CheckpointError(f"{address} cannot be fetched: {_reason(error)}") from None
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{address} has no {missing[0]}, {lacking}")
    return folder


def push_to_hub(folder: Path, name: str) -> str:
    """Put the files of a folder into a repository of a hub (private if new); return its address."""
    from huggingface_hub import HfApi

    check_repository(name)
    api = HfApi(library_name="labelwise", library_version=__version__)
    try:
        repository = str(api.create_repo(name, private=True, exist_ok=True))
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Model from labelwise")
    except Exception as error:  # of the hub's many kinds, and of the network's
        raise CheckpointError(
            f"{name} cannot be written: {_reason(error)}; log in with `hf auth login`. The folder "
            f"{folder} is complete, and can be pushed with `hf upload {name} {folder}`"
        ) from None
    return repository


def check_repository(name: str) -> None:
    """Raise unless a name can be one of a hub's repositories."""
    if not NAME.fullmatch(name):
        raise SettingsError(f"a repository on a hub is OWNER/NAME, got {name!r}")


def _reason(error: Exception) -> str:
    return one_line_of(error)[:300]
