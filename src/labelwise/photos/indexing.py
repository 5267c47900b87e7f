"""Bringing an index up to date with photos in folders and buckets.

An index belongs to one model. Another link or rule of the same weights changes its answers and
reads no picture; other weights, another decoder or a damaged file need a rebuild:
the index is set aside until every photo has been scored again, and what people said of photos is
carried over by content.
"""

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from labelwise.errors import CheckpointError, DataError
from labelwise.models import Predictor
from labelwise.models.loading import load_model, spec_of
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.photos.held_out_pictures import PICTURES_FILE, HeldOutPictures
from labelwise.photos.index import Index
from labelwise.photos.index_facts import IndexFacts
from labelwise.photos.likeness import likeness_of
from labelwise.photos.looking import Changes, FileToRead, look_at, look_into, root_place
from labelwise.photos.near_copies import near_copies
from labelwise.photos.receipts import carry_receipts
from labelwise.photos.scored_files import score_files
from labelwise.photos.store import Store
from labelwise.pictures.cubes import BAND_SUFFIXES
from labelwise.system.files import locked, replacing, write_error
from labelwise.system.progress import Watch
from labelwise.system.storage import StorageError, is_uri, storage_at
from labelwise.taxonomy import Taxonomy

ASIDE = "before-rebuild"
WRITTEN_FIRST = ("photos.sqlite", "model.json", ".")  # of an index whose making was stopped


def update_index(
    folder: Path,
    roots: Sequence[str | Path] = (),
    *,
    model: str | Path | None = None,
    device: str = "cpu",
    batch_size: int = 64,
    workers: int | None = None,
    decode: Literal["cpu", "cuda"] | None = None,
    rebuild: bool = False,
    forget_missing: bool = False,
    taxonomy: Path | None = None,
    only: Mapping[str, Collection[str]] | None = None,
    watch: Watch,
) -> Changes:
    """Bring the index in ``folder`` up to date with the photos below ``roots``, or make it.

    Without roots, those it was made of are looked at again; without a model, its own is used. A
    model with the same weights but another link or rule changes the answers, and no picture is
    read for it; one with other weights needs ``rebuild``. An interruption keeps what was scored.
    JPEGs are decoded by ``decode``, by default by what decoded the others of the index.
    ``only`` names, by root, the folders that changed, where that is known: no other is looked at.
    """
    if not (folder / "index.json").exists():
        _check_new(folder, roots, model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None
    busy = f"another process is indexing into {folder}; wait for it"
    with locked(folder, busy), ExitStack() as opened:
        if taxonomy is not None:
            Taxonomy.read(taxonomy)
        index, run = _opened(opened, folder, model, rebuild, decode)
        if index.facts.decode == "cuda" and device.partition(":")[0] != "cuda":
            raise DataError(
                f"{folder} was made with --decode cuda, which needs --device cuda, got {device}; "
                "or score every photo again with --decode cpu --rebuild"
            )
        if taxonomy is not None:
            with (
                index.store.checksums.rewriting("taxonomy.csv"),
                replacing(folder / "taxonomy.csv") as temporary,
            ):
                shutil.copyfile(taxonomy, temporary)
        index.store.checksums.put_missing()
        known = list(index.store.roots().values())
        places = [root_place(os.fspath(root)) for root in roots] or known
        if not places:
            raise DataError("name at least one folder of photos to index")
        for root in places:
            if root not in known:
                _require_photos(root)
        changes, todo = _looked_at(index, dict.fromkeys(places) if only is None else only)
        if todo:  # else the model need not be read
            predictor = load_model(run.path, device).fused(len(todo))
            if index.look_alikes.projection is None and isinstance(predictor, Predictor):
                weights = index.spec.weights_sha256
                pictures = HeldOutPictures.of_run(run, weights, predictor, watch)
                if pictures is not None:
                    index.start_with(pictures)
            score_files(
                index,
                predictor,
                todo,
                changes,
                batch_size=batch_size,
                workers=workers,
                watch=watch,
            )
        changes.settle()
        if (folder / ASIDE).is_dir() and not changes.refused:
            _finish_rebuild(index)
        if forget_missing:
            changes.forgotten = index.store.forget_missing()
        index.prepare(watch)
        found = likeness_of(index)
        if found.likeness.outcome in ("shares differ", "pictures differ"):
            changes.unlike = found.sentence()
        copies = near_copies(index)
        if copies is not None and copies.copies:
            what = f"{copies.photos:,} photos of the index"
            changes.repeated = f"{copies.sentence(what)}; --distinct takes such photos as one"
    return changes


def _check_new(folder: Path, roots: Sequence[str | Path], model: str | Path | None) -> None:
    """Raise, before anything is written, if no index can be made, or not in this folder."""
    if model is None:
        raise DataError("a new index needs a model: name a run with --model")
    if not roots:
        raise DataError("name at least one folder of photos to index")
    for root in roots:
        _require_photos(root_place(os.fspath(root)))
    if folder.is_dir() and not (folder / ASIDE).is_dir():
        others = sorted(one for one in os.listdir(folder) if not one.startswith(WRITTEN_FIRST))
        if others:
            raise DataError(
                f"{folder} is not an index and holds other files, such as {others[0]!r}; name a "
                "new folder for the index with -o"
            )


def _require_photos(root: str) -> None:
    if not storage_at(root).is_folder():
        raise DataError(f"{root} " + ("holds no files" if is_uri(root) else "is not a folder"))


def _looked_at(
    index: Index, roots: Mapping[str, Collection[str] | None]
) -> tuple[Changes, list[FileToRead]]:
    """Return what changed below some roots, or in some of their folders, and what must be read."""
    changes, todo = Changes(), list[FileToRead]()
    more = BAND_SUFFIXES if index.spec.transform.bands is not None else frozenset()
    for root, folders in roots.items():
        found = None if folders is None else look_into(index.store, root, folders, changes, more)
        try:
            todo += look_at(index.store, root, changes, more) if found is None else found
        except StorageError as error:
            changes.refused.append(f"{error}. Nothing was changed")
    return changes, todo


# The model of an index


def _opened(
    opened: ExitStack,
    folder: Path,
    model: str | Path | None,
    rebuild: bool,
    decode: Literal["cpu", "cuda"] | None,
) -> tuple[Index, RunFolder]:
    """Return the index, new if there is none, and the run whose model gives its logits.

    ``opened`` closes it.
    """
    there = (folder / "index.json").exists()
    try:
        index = opened.enter_context(Index(folder)) if there else None
    except CheckpointError:
        if not rebuild or model is None:
            raise
        _start_rebuild(folder)  # of an index with a damaged file
        index = None
    named = str(model) if model is not None else index.facts.model if index else ""
    run = RunFolder(fetched_run(named))
    spec = spec_of(run.path)
    if index is not None and decode not in (None, index.facts.decode):
        if not rebuild:
            raise DataError(
                f"{folder} was made with --decode {index.facts.decode}, got --decode {decode}; "
                "add --rebuild to score every photo again"
            )
        _set_aside(index)
        index = None
    elif index is not None:
        decode = index.facts.decode
    unfinished = (folder / ASIDE).is_dir()  # a rebuild that goes on, if it is of these weights
    same = index is not None and index.spec.weights_sha256 == spec.weights_sha256
    if index is not None and rebuild and not (unfinished and same):
        _set_aside(index)
        index = None
    if index is not None and model is None and spec == index.spec:
        return index, run
    if index is not None and not same:
        raise DataError(
            f"{folder} was made with other weights than {named} has; "
            "add --rebuild to score every photo again with them"
        )
    held_out = run.held_out()
    promising = held_out is not None and held_out.may_promise
    split = None if held_out is None else str(held_out) if promising else "val"
    if index is None:
        lasting = named if is_uri(named) else os.path.abspath(named)
        facts = IndexFacts(model=lasting, held_out=split, decode=decode or "cpu")
        index = opened.enter_context(Index.create(folder, spec, facts))
        if (folder / ASIDE).is_dir():
            with Store(folder / ASIDE, ()) as before:
                for root in before.roots().values():
                    index.store.root(root)
    elif index.facts.held_out != split:
        index.facts = index.facts.model_copy(update={"held_out": split})
        with index.store.checksums.rewriting("index.json"):
            index.facts.save(folder / "index.json")
    # Beside photos that fitted nothing, those of validation say which cuts are worth a test.
    validation = run.predictions("val") if promising and "val" in run.splits else None
    index.use(spec, None if held_out is None else held_out.predictions, validation)
    return index, run


def _set_aside(index: Index) -> None:
    index.close()
    _start_rebuild(index.folder)


def _start_rebuild(folder: Path) -> None:
    """Set the files of an index aside; its roots and corrections are taken up again."""
    aside = folder / ASIDE
    if aside.exists():  # an unfinished rebuild: the first index is the one to come back to
        for name in ("photos.sqlite", "model.json", "index.json"):
            (folder / name).unlink(missing_ok=True)
    else:
        aside.mkdir()
        for name in ("photos.sqlite", "model.json", "index.json"):
            os.replace(folder / name, aside / name)
    for name in ("scores", "embeddings", "looks", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("projection.npy", PICTURES_FILE):
        (folder / name).unlink(missing_ok=True)


def _finish_rebuild(index: Index) -> None:
    """Carry corrections and receipts over by content, and remove what was set aside."""
    with Store(index.folder / ASIDE, ()) as before:
        corrections = before.corrections()
        contents = before.contents_of({one.row for one in corrections})
        carry_receipts(before, index)
    hashes = {row: one.hash for row, one in contents.items()}
    rows = index.store.rows_by_hash(hashes.values())
    index.store.correct(
        [replace(one, row=rows[hashes[one.row]]) for one in corrections if hashes[one.row] in rows]
    )
    shutil.rmtree(index.folder / ASIDE)
