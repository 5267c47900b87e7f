"""What the server has: its models, the queue they share, and the photos of an index.

Requests end with the model that they began with, also where another takes its place.
"""

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic_core import to_json

from labelwise import __version__
from labelwise.base.bounds import clopper_pearson
from labelwise.base.markup import Markup
from labelwise.decide import Check, Promise
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Link, check_log_probs
from labelwise.metrics import label_reliability
from labelwise.metrics.shift import HeldOutShare, LabelShare, estimate_share, held_out_shares
from labelwise.models.answer_files import NOT_FINITE
from labelwise.models.loading import load_model, spec_of
from labelwise.models.run_folder import RunFolder
from labelwise.models.spec import ModelSpec
from labelwise.pictures import Transform
from labelwise.pictures.worker_starter import Decoders
from labelwise.predictions import Predictions
from labelwise.server import schemas
from labelwise.server.batching import (
    Batcher,
    PictureQueue,
    Place,
    Tagged,
    Threads,
    compute_alone,
    model_thread,
)
from labelwise.server.bodies import Pixels, Upload
from labelwise.server.monitoring import Monitor
from labelwise.server.security import RefusedError
from labelwise.server.settings import ServeSettings

if TYPE_CHECKING:  # a server without an index needs none of it
    from labelwise.server.library import Library

log = logging.getLogger("labelwise.server")

SECONDS, MEMORY = 10.0, 2 << 30  # that a picture may take to be opened
BINS = 10
ENOUGH_ANSWERS = 50  # to random questions, before no alarm means that probabilities fit
CHECKABLE = ("recall", "precision", "f", "tags")
NOT_CHECKED = "no photo has had all its labels reviewed yet"
ASIDE, ASIDE_WAITING = 2, 512  # threads for reading requests and writing answers, and their work
RANKS = "this model ranks labels and has no probabilities; use `labelwise calibrate` first"
NO_HELD_OUT = (
    "The folder of this model holds no predictions of held-out photos, so nothing can be said of "
    "its reliability. Serve a complete run, not only its model."
)
ON_ALARMS = (
    "Alarms rest on photos audited in a random order. What people correct on their own is what "
    "they happened to see, and says nothing of the whole."
)


def label_views(
    held_out: Predictions, link: Link, split: str, thresholds: Sequence[float | None] | None = None
) -> dict[str, schemas.LabelView]:
    """Return what became of held-out photos, for every label and ten ranges of probability."""
    probs = link(held_out.logits.astype(np.float64))
    reliability = label_reliability(probs, held_out.labels, held_out.observed, bins=BINS)
    errors, views = reliability.ece(), {}
    edges = list(pairwise(reliability.edges.tolist()))
    for column, name in enumerate(held_out.names):
        photos = reliability.counts[column].astype(int).tolist()
        carried = np.rint(reliability.present_sums[column]).astype(int).tolist()
        means, bins = reliability.confidence[column].tolist(), []
        for (low, high), n, k, mean in zip(edges, photos, carried, means, strict=True):
            got = f"got {100 * low:.0f}–{100 * high:.0f} % for {name}"
            words = f"Of {n:,} held-out photos that {got}, {k:,} carried it."
            words = words if n else f"No photo of the {split} split {got}."
            shares = clopper_pearson(k, n, 0.975)
            bins.append(schemas.BinView(low, high, n, k, *shares, mean if n else None, words))
        ece = None if np.isnan(errors[column]) else float(errors[column])
        threshold = None if thresholds is None else thresholds[column]
        views[name] = schemas.LabelView(name, threshold, sum(photos), sum(carried), ece, bins)
    return views


def trust_chart(trust: schemas.LabelView) -> Markup:
    """Return the reliability diagram of one label, drawn as the report draws it."""
    from labelwise.evaluation import Curve
    from labelwise.report.charts import reliability_chart

    bins, of = trust.bins, "held-out photos"
    curve = Curve(
        (0.0, *(bin_.high for bin_ in bins)),
        tuple(bin_.mean for bin_ in bins),
        tuple(bin_.carried / bin_.photos if bin_.photos else None for bin_ in bins),
        tuple(bin_.photos for bin_ in bins),
        *(trust.ece, None, None, of),
    )
    return reliability_chart([("after", of, curve)], title=f"Reliability of {trust.label}")


FEWEST = 50  # pictures before a share is estimated
RECENT = 4096  # photos whose probabilities are kept for the shares


class ServedModel:
    """A model that answers, with the batches of its pictures and what its answers are worth."""

    batcher: Batcher

    def __init__(self, name: str, folder: RunFolder, device: str) -> None:
        self.name, self.spec = name, spec_of(folder.path)
        self.predictor = load_model(folder.path, device).for_many()
        self.is_of_torch = hasattr(self.predictor, "device")
        if self.predictor.link is None:
            raise LabelwiseError(RANKS)
        self.link: Link = self.predictor.link
        self.held_out = folder.held_out()
        self.names = self.spec.space.names
        self.weights = self.spec.weights_sha256[:12]
        link = json.dumps(self.spec.link, sort_keys=True).encode()
        self.calibration = hashlib.sha256(link).hexdigest()[:12]
        self.version = f"{self.weights}-{self.calibration}"
        self.rule = str(self.spec.made_rule)
        # What was answered since it was loaded.
        self.recent: deque[NDArray[np.float64]] = deque(maxlen=RECENT)
        self.answered = self.nothing = 0
        self.decided = np.zeros(len(self.names), np.int64)
        self.share_now: dict[str, float] = {}
        asked = self.spec.transform
        kind = np.uint8 if asked.bands is None else np.float32
        grey = np.full((asked.size, asked.size, asked.channels), 127, kind)
        (answer,) = self.forward([grey], ["a grey picture"])
        if answer.fault is not None:  # better now than to those who ask
            raise CheckpointError(f"{folder.path} has no answer for a grey picture: {answer.fault}")

    def forward(self, pixels: Sequence[Pixels], names: Sequence[str]) -> list[Tagged]:
        inputs = np.stack(pixels).transpose(0, 3, 1, 2)
        if not self.is_of_torch:
            logits = self.predictor.logits(inputs)
        else:
            import torch

            with torch.inference_mode():
                tensor = torch.from_numpy(inputs)
                logits = self.predictor.logits(tensor).cpu().float().numpy()
        answers = [Tagged(name, fault=NOT_FINITE) for name in names]
        rows = np.flatnonzero(np.isfinite(logits).all(axis=1)).tolist()
        log_p, _ = check_log_probs(*self.link.log_probs(logits[rows].astype(np.float64)))
        probs = np.exp(log_p)
        sets = self.predictor.rule(probs.astype(np.float32))  # which it was fitted to
        for row, *answer in zip(rows, logits[rows], probs, sets, strict=True):
            answers[row] = Tagged(names[row], *answer)  # pixels were opened: a fault is not theirs
        return answers

    def picture_answer(self, tagged: Tagged) -> schemas.PictureAnswer:
        if tagged.probs is None or tagged.chosen is None:
            return schemas.PictureAnswer(name=tagged.name, error=tagged.error)
        probs, chosen = tagged.probs.clip(0, 1).tolist(), tagged.chosen.tolist()
        rows = list(zip(self.names, probs, self.thresholds, chosen, strict=True))
        order, fields = np.argsort(-tagged.probs, kind="stable"), schemas.LabelAnswer.model_fields
        labels = [dict(zip(fields, rows[k], strict=True)) for k in order.tolist()]
        given = [label["label"] for label in labels if label["decided"]]
        facts = {"name": tagged.name, "labels": labels, "decided": given, "none": not given}
        return schemas.PictureAnswer.model_validate(facts)

    @cached_property
    def answer_head(self) -> bytes:
        said = {"model": self.weights, "calibration": self.calibration, "rule": self.rule}
        head = schemas.Predicted(**said, caution=self.spec.caution, results=[])
        return to_json(head).removesuffix(b"]}")

    @cached_property
    def thresholds(self) -> list[float | None]:
        values = self.spec.made_rule.thresholds(len(self.names))
        return [None] * len(self.names) if values is None else list(values)

    @cached_property
    def trust(self) -> dict[str, schemas.LabelView]:
        held_out, limits = self.held_out, self.thresholds
        if held_out is not None:
            return label_views(held_out.predictions, self.link, str(held_out), limits)
        named = zip(self.names, limits, strict=True)
        return {name: schemas.LabelView(name, limit, 0, 0, None, []) for name, limit in named}

    def recent_shares(self) -> list[LabelShare]:
        if not self._held_out_shares or len(self.recent) < FEWEST:
            return []
        probs = np.stack(list(self.recent)).T
        known = zip(self.names, probs, self._held_out_shares, strict=True)
        shares = [estimate_share(name, own, held) for name, own, held in known if held is not None]
        self.share_now = {share.label: share.now for share in shares}
        return shares

    @cached_property
    def _held_out_shares(self) -> list[HeldOutShare | None]:
        if self.held_out is None:
            return []
        photos = self.held_out.predictions
        probs = self.link(photos.logits.astype(np.float64))
        return held_out_shares(probs, photos.majority, photos.observed)


class _Answers(Collector):
    """What the models have answered: sums of arrays, made into metrics when they are read."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.models = models

    def collect(self) -> Iterable[Metric]:
        counter, gauge, versions = CounterMetricFamily, GaugeMetricFamily, ["version", "model"]
        of_model, of_label = ["model"], ["model", "label"]
        info = gauge("labelwise_info", "What runs here.", labels=[*versions, "model_version"])
        photos = counter("labelwise_photos", "Pictures answered.", labels=of_model)
        nothing = counter("labelwise_none", "Pictures without any label.", labels=of_model)
        decided = counter("labelwise_predictions", "Labels decided.", labels=of_label)
        share = gauge("labelwise_label_share", "Share of recent pictures.", labels=of_label)
        for model, served in self.models.items():
            info.add_metric([__version__, model, served.version], 1)
            photos.add_metric([model], served.answered)
            nothing.add_metric([model], served.nothing)
            for name, count in zip(served.names, served.decided.tolist(), strict=True):
                decided.add_metric([model, name], count)
            for name, now in served.share_now.items():
                share.add_metric([model, name], now)
        return [info, photos, nothing, decided, share]


def decoders_of(settings: ServeSettings, transform: Transform) -> Decoders:
    """Return the processes that open pictures for a server."""
    return Decoders(transform, settings.decode_processes, seconds=SECONDS, memory=MEMORY)


class Service:
    """Models that answer, with what is known of their answers' worth."""

    def __init__(
        self,
        run: Path,
        index: Path | None,
        settings: ServeSettings,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self.settings, self.device = settings, device
        self.first = RunFolder(run).path.absolute().name
        self.folders = settings.folders(self.first, Path(run))
        self.decoders = decoders_of(settings, spec_of(run).transform)
        self.monitor, openers = Monitor(), max(1, settings.decode_processes)
        most = {"max_queue": settings.max_queue, "client_queue": settings.pictures_per_client}
        self.queue = PictureQueue(**most, openers=openers, monitor=self.monitor)
        self._threads = threads
        self._aside = Threads(ASIDE, "aside", waiting=ASIDE_WAITING)
        self.aside = self._aside.run  # for what would hold up the event loop, such as much JSON
        self._slowly = Threads(1, "slow", waiting=ASIDE_WAITING)
        self._computing = model_thread()
        self._loading = ThreadPoolExecutor(1, "load", compute_alone)
        self._is_reloading = False
        self._is_started = False
        self.library: Library | None = None
        self.models: dict[str, ServedModel] = {}
        self.monitor.registry.register(_Answers(self.models))
        try:
            for name in self.folders:
                self.models[name] = self._loading.submit(self._load, name).result()
            if index is not None:
                from labelwise.server import library

                drawn = self.decoders.thumbnail
                self.library = library.Library(index, self.model().spec, drawn)
            self.decoders.await_start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        self._is_started = True

    def close(self) -> None:
        """Let go of everything, also where it never started."""
        self._is_started = False
        self.queue.stop()
        for threads in (self._aside, self._slowly):
            threads.close(wait=False)
        self._loading.shutdown(cancel_futures=True)
        self._computing.shutdown(cancel_futures=True)
        if self.library is not None:
            self.library.close()
        self.decoders.close()

    @property
    def is_ready(self) -> bool:
        return self._is_started and not self.decoders.is_lost

    def require_ready(self) -> None:
        if not self.is_ready:
            raise RefusedError(503, "the server is starting or stopping, or must be restarted")

    def model(self, name: str | None = None) -> ServedModel:
        model = self.models.get(self.first if name is None else name)
        if model is None:
            there = ", ".join(map(repr, self.models))
            are = "the one here is" if len(self.models) == 1 else "those here are"
            raise RefusedError(404, f"there is no model of this name; {are} {there}")
        return model

    def _load(self, name: str) -> ServedModel:
        model = ServedModel(name, RunFolder(self.folders[name]), self.device)
        own, opened = self.settings, partial(self._open, model.spec)
        forward, limits = partial(self._forward_beside_others, model), (own.max_batch, own.max_wait)
        model.batcher = Batcher(self.queue, opened, forward, *limits, self._computing)
        return model

    async def reload(self, name: str) -> bool:
        """Answer with what the folder of a model holds now, if it is usable and has changed."""
        before = self.model(name).spec
        if self._is_reloading:
            raise RefusedError(409, "another model is being loaded", {"retry-after": "5"})
        self._is_reloading = True
        try:
            spec = await self.aside(lambda: spec_of(self.folders[name]))
            if spec == before:
                return False
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._loading, self._load, name)
            changed = before.weights_sha256 != model.spec.weights_sha256
            if self._library_of(model) is not None and changed:
                raise LabelwiseError("the index was made with other weights; index with --rebuild")
            self.models[name] = model
        except LabelwiseError as error:
            raise RefusedError(409, f"{name!r} goes on as it was, because {error}") from None
        finally:
            self._is_reloading = False
        return True

    async def reload_all(self) -> None:
        for name in self.folders:
            try:
                if await self.reload(name):
                    log.warning("%r was loaded again", name)
            except RefusedError as refused:
                log.warning("%s", refused.detail)

    def _open(self, spec: ModelSpec, upload: Upload) -> Pixels:
        return self.decoders.pixels(upload.content, upload.name, spec.transform)

    def _forward_beside_others(
        self, model: ServedModel, pixels: Sequence[Pixels], names: Sequence[str]
    ) -> list[Tagged]:
        """Compute with all cores, or leave half to decoders where they have as many pictures.

        Threads of a forward pass wait for each other; one that has lost its core to a decoder
        keeps all the others waiting. The number holds for the thread that sets it.
        """
        if not model.is_of_torch:
            return model.forward(pixels, names)
        import torch

        self._threads = self._threads or torch.get_num_threads()
        many = self.queue.opening >= len(pixels)
        threads = max(1, self._threads // 2) if many else self._threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return model.forward(pixels, names)

    async def tag(
        self, model: ServedModel, uploads: Sequence[Upload], place: Place | None
    ) -> list[Tagged]:
        answers = await model.batcher.tag(uploads, place)
        faults = [answer.fault for answer in answers if answer.fault is not None]
        if faults:
            self.monitor.failures.inc(len(faults))
            raise RefusedError(503, f"the model has no answer: {faults[0]}", {"retry-after": "60"})
        for answer in answers:
            if answer.probs is None or answer.chosen is None:
                self.monitor.failures.inc()
            else:
                model.answered += 1
                model.nothing += not answer.chosen.any()
                model.decided += answer.chosen
                model.recent.append(answer.probs)
        return answers

    def model_view(self, model: ServedModel) -> schemas.ModelView:
        library, spec = self._library_of(model), model.spec
        facts = vars(model) | {
            "method": spec.method,
            "backbone": spec.backbone.name,
            "labels": len(model.names),
            "caution": spec.caution,
            "version": __version__,
            "photos": None if library is None else library.index.photos,
            "held_out": None if model.held_out is None else str(model.held_out),
            "max_body": self.settings.max_body,
        }
        return schemas.ModelView.model_validate(facts)

    def _library_of(self, model: ServedModel) -> "Library | None":
        return self.library if model.name == self.first else None

    async def promise_views(self, model: ServedModel) -> list[schemas.PromiseView]:
        promises = [Promise.from_spec(promise) for promise in model.spec.promises]
        library = self._library_of(model)
        checkable = [promise for promise in promises if promise.what in CHECKABLE]
        checks: Iterator[Check] = iter(())
        if library is not None and checkable:
            checks = iter(await library.run(lambda: library.check(checkable)))
        views = []
        for promise in promises:
            check = next(checks, None) if promise.what in CHECKABLE else None
            facts = vars(promise) | {"text": str(promise), "photos": promise.n}
            facts |= {"verdict": "cannot tell" if check is None else check.verdict}
            facts |= {"checked": str(check) if check and check.counted else NOT_CHECKED}
            views.append(schemas.PromiseView.model_validate(facts))
        return views

    async def trust_view(self, model: ServedModel) -> schemas.TrustView:
        library = self._library_of(model)
        alarms = await library.run(library.alarms) if library is not None else []
        for alarm in alarms:
            self.monitor.evidence.labels(alarm.label).set(alarm.evidence)
            self.monitor.alarm.labels(alarm.label).set(alarm.raised)
        recent = await self._slowly.run(model.recent_shares)  # seconds of many labels
        shares = [schemas.ShareView(source="recent pictures", **vars(share)) for share in recent]
        notes = []
        if model.held_out is None:
            notes.append(NO_HELD_OUT)
        elif not model.held_out.may_promise:
            words = f"Reliability is shown on photos of the split {model.held_out}, which the"
            notes.append(f"{words} calibration was fitted on; on others it is somewhat worse.")
        if library is not None:
            likeness = await library.run(library.likeness)
            now = likeness.likeness.shares
            shares += [schemas.ShareView(source="library", **vars(share)) for share in now]
            notes += [ON_ALARMS, likeness.sentence()]
        answers = sum(alarm.audited for alarm in alarms)
        photos = 0 if library is None else library.index.photos
        needed = min(ENOUGH_ANSWERS, photos * len(model.names)) or ENOUGH_ANSWERS
        fits: Literal["yes", "too few answers"] = "yes" if answers >= needed else "too few answers"
        return schemas.TrustView(
            answers=answers,
            answers_needed=needed,
            shares=shares,
            fits="no" if any(alarm.raised for alarm in alarms) else fits,
            notes=notes,
            alarms=[schemas.AlarmView.model_validate(alarm) for alarm in alarms],
            promises=await self.promise_views(model),
        )
