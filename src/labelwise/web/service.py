"""What the server knows and does: the model, how far to trust it, and the photos of an index."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from labelwise import __version__
from labelwise.decide import Promise
from labelwise.metrics.drift import HeldOutShare, LabelShare, held_out_shares
from labelwise.models import Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.models.scoring import require_probabilities, score
from labelwise.pictures import ArrayImages, PictureImages
from labelwise.pictures.decoders import Decoders
from labelwise.pictures.inputs import input_of
from labelwise.web.batching import Batcher, Pixels, Place, Tagged, Upload, model_thread
from labelwise.web.library import Library
from labelwise.web.models import (
    AlarmView,
    BinView,
    LabelView,
    ModelView,
    PictureAnswer,
    PromiseView,
    ShareView,
    TrustView,
)
from labelwise.web.monitoring import Monitor
from labelwise.web.reliability import LabelTrust, label_trust
from labelwise.web.security import RefusedError
from labelwise.web.settings import ServeSettings
from labelwise.web.threads import Threads

__all__ = ["Service"]

T = TypeVar("T")

ASIDE = 2  # threads for reading requests and writing answers
CHECKABLE = ("recall", "precision", "f", "tags")


class Service:
    """A model that answers, with what is known of its answers' worth."""

    def __init__(
        self,
        run: Path,
        index: Path | None,
        settings: ServeSettings,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        folder = RunFolder(run)
        self.spec, self.settings = folder.spec, settings
        self.decoders = Decoders(
            self.spec.transform,
            settings.decode_processes,
            seconds=settings.decode_seconds,
            memory=settings.decode_memory,
        )
        self._threads = threads or torch.get_num_threads()
        self._aside = Threads(ASIDE, "aside", waiting=settings.connections)
        self._model = model_thread()
        self.library: Library | None = None
        try:
            self.predictor = self._model.submit(self._load, folder, device).result()
            self.link = require_probabilities(self.predictor)
            self.name = folder.path.absolute().name
            if index is not None:
                self.library = Library(index, self.spec, self.decoders.thumbnail)
            self.held_out = folder.held_out()
            self.decoders.await_start()
        except BaseException:
            self._release()
            raise
        self.names = self.spec.space.names
        self.weights = self.spec.weights_sha256[:12]
        self.calibration = _digest(self.spec.link)
        self.rule = str(self.spec.made_rule)
        self.monitor = Monitor(self.names, __version__, f"{self.weights}-{self.calibration}")
        self._batcher: Batcher | None = None
        self._watching: asyncio.Task[None] | None = None

    def _load(self, folder: RunFolder, device: str) -> Predictor:
        torch.set_num_threads(self._threads)
        return folder.model(device).fused()

    async def start(self) -> None:
        """Begin to take pictures."""
        self._watching = asyncio.create_task(self.monitor.watch_loop())
        self._batcher = Batcher(
            self.open_picture,
            self._forward_beside_others,
            max_batch=self.settings.max_batch,
            max_wait=self.settings.max_wait,
            max_queue=self.settings.max_queue,
            client_queue=self.settings.pictures_per_client,
            openers=max(1, self.settings.decode_processes),
            model=self._model,
            watcher=self.monitor,
        )

    async def stop(self) -> None:
        """Let go of everything."""
        if self._watching is not None:
            self._watching.cancel()
        if self._batcher is not None:
            self._batcher.stop()
            self._batcher = None
        self._release()

    def _release(self) -> None:
        self._aside.close(wait=False)
        self._model.shutdown()
        if self.library is not None:
            self.library.close()
        self.decoders.close()

    @property
    def is_ready(self) -> bool:
        """Whether pictures are taken and can be opened."""
        return self._batcher is not None and not self.decoders.is_lost

    async def aside(self, work: Callable[[], T]) -> T:
        """Return what some work returns that would hold up the event loop, such as much JSON."""
        return await self._aside.run(work)

    # Tagging

    def open_picture(self, upload: Upload) -> Pixels:
        """Return the model's input of a picture, or raise ImageError."""
        if isinstance(upload.content, bytes):
            return self.decoders.pixels(upload.content, upload.name)
        return (
            input_of(PictureImages([upload.content]), 0, self.spec.transform)
            .numpy()
            .transpose(1, 2, 0)
        )

    def forward(self, pixels: Pixels, names: Sequence[str]) -> list[Tagged]:
        """Return what the model says of pixels (n, size, size, 3)."""
        tagged: list[Tagged] = []
        of_bands = self.spec.transform.bands is not None
        images = ArrayImages(pixels, resized=True, any_depth=of_bands)
        for part in score(self.predictor, images, batch_size=len(pixels)):
            answers = {
                row: Tagged(names[row], logits, probs, chosen)
                for row, logits, probs, chosen in zip(
                    part.rows.tolist(),
                    part.logits.numpy(),
                    part.probs.numpy(),
                    part.sets.numpy(),
                    strict=True,
                )
            }
            for failure in part.failures:
                reason = failure.reason.partition(": ")[2]  # pixels were opened: not their fault
                answers[failure.row] = Tagged(names[failure.row], fault=reason)
            tagged += [answers[row] for row in sorted(answers)]
        return tagged

    def _forward_beside_others(self, pixels: Pixels, names: Sequence[str]) -> list[Tagged]:
        """Compute with all cores, or leave half to decoders where they have as many pictures.

        Threads of a forward pass wait for each other; one that has lost its core to a decoder
        keeps all the others waiting. The number holds for the thread that sets it.
        """
        many = self._batcher is not None and self._batcher.opening >= len(pixels)
        threads = max(1, self._threads // 2) if many else self._threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return self.forward(pixels, names)

    def reserve(self, client: str) -> Place | None:
        """Return a place for a request before its body is read, or raise BusyError."""
        return None if self._batcher is None else self._batcher.reserve(client)

    async def tag(self, uploads: Sequence[Upload], place: Place | None) -> list[Tagged]:
        """Return the answers for the pictures of one request, or raise BusyError."""
        if self._batcher is None:
            raise RuntimeError("the server has not started")
        answers = await self._batcher.tag(uploads, place)
        faults = [one.fault for one in answers if one.fault is not None]
        if faults:
            self.monitor.failures.inc(len(faults))
            raise RefusedError(503, f"the model has no answer: {faults[0]}", {"retry-after": "60"})
        for one in answers:
            if one.probs is None or one.chosen is None:
                self.monitor.failures.inc()
            else:
                self.monitor.answered(one.probs, one.chosen)
        return answers

    def picture_answer(self, tagged: Tagged) -> PictureAnswer:
        """Return an answer as the API gives it."""
        if tagged.probs is None or tagged.chosen is None:
            return PictureAnswer(name=tagged.name, error=tagged.error)
        order = np.argsort(-tagged.probs, kind="stable")
        probs, chosen = tagged.probs[order].clip(0, 1).tolist(), tagged.chosen[order].tolist()
        labels = [
            {
                "label": self.names[k],
                "probability": probability,
                "threshold": self.thresholds[k],
                "decided": decided,
            }
            for k, probability, decided in zip(order.tolist(), probs, chosen, strict=True)
        ]
        given = [one["label"] for one in labels if one["decided"]]
        facts = {"name": tagged.name, "labels": labels, "decided": given, "none": not given}
        return PictureAnswer.model_validate(facts)

    @cached_property
    def thresholds(self) -> list[float | None]:
        """The threshold of each label; None where the rule has none."""
        values = self.spec.made_rule.thresholds(len(self.names))
        return [None] * len(self.names) if values is None else list(values)

    # What is known of the model

    def model_view(self) -> ModelView:
        """Return which model answers."""
        return ModelView(
            name=self.name,
            method=self.spec.method,
            backbone=self.spec.backbone.name,
            labels=len(self.names),
            weights=self.weights,
            calibration=self.calibration,
            caution=self.spec.caution,
            rule=self.rule,
            version=__version__,
            photos=None if self.library is None else self.library.index.photos,
            held_out=None if self.held_out is None else str(self.held_out),
            max_body=self.settings.max_body,
        )

    @cached_property
    def trust(self) -> dict[str, LabelTrust]:
        """The reliability of every label; empty where no held-out photos are kept."""
        if self.held_out is None:
            return {}
        return {one.label: one for one in label_trust(self.held_out.predictions, self.link)}

    def label_view(self, label: str) -> LabelView:
        """Return one label's reliability."""
        threshold = self.thresholds[self.spec.space.column(label)]
        trust = self.trust.get(label)
        if trust is None:
            return LabelView(
                label=label, threshold=threshold, photos=0, carried=0, ece=None, bins=[]
            )
        split = "" if self.held_out is None else str(self.held_out)
        bins = [
            BinView(
                low=one.low,
                high=one.high,
                photos=one.photos,
                carried=one.carried,
                share_low=one.share_low,
                share_high=one.share_high,
                sentence=one.sentence(label, split),
            )
            for one in trust.bins
        ]
        return LabelView(
            label=label,
            threshold=threshold,
            photos=trust.photos,
            carried=trust.carried,
            ece=trust.ece,
            bins=bins,
        )

    @cached_property
    def held_out_shares(self) -> list[HeldOutShare | None] | None:
        """What held-out photos say of each label's share; None for a label they cannot tell of."""
        if self.held_out is None:
            return None
        photos = self.held_out.predictions
        with torch.no_grad():
            probs = self.link(photos.logits.double()).numpy()
        known = None if photos.observed is None else photos.observed.numpy()
        return held_out_shares(probs, photos.majority.numpy(), known)

    @property
    def promises(self) -> list[Promise]:
        """What was promised when the model was made."""
        return [Promise.from_spec(promise) for promise in self.spec.promises]

    async def promise_views(self) -> list[PromiseView]:
        """Return every promise, and what photos reviewed since then say of it."""
        promises = self.promises
        checkable = [one for one in promises if one.what in CHECKABLE]
        checks = {}
        if self.library is not None and checkable:
            library = self.library
            found = await library.run(lambda: library.check(checkable))
            checks = dict(zip(map(id, checkable), found, strict=True))
        views = []
        for promise in promises:
            check = checks.get(id(promise))
            views.append(
                PromiseView(
                    text=str(promise),
                    what=promise.what,
                    level=promise.level,
                    confidence=promise.confidence,
                    photos=promise.n,
                    made=promise.made,
                    verdict="cannot tell" if check is None else check.verdict,
                    checked="no photo has had all its labels reviewed yet"
                    if check is None or not check.counted
                    else str(check),
                )
            )
        return views

    async def trust_view(self) -> TrustView:
        """Return what speaks for and against trusting the model today."""
        library, known = self.library, self.held_out_shares
        alarms = await library.run(library.alarms) if library is not None else []
        self.monitor.note_alarms(alarms)
        shares: list[ShareView] = []
        if known is not None:
            recent = await asyncio.to_thread(self.monitor.shares, known)  # seconds of many labels
            shares += [_share(one, "recent pictures") for one in recent]
        notes = self._notes()
        if library is not None:
            likeness = await library.run(library.likeness)
            shares += [_share(one, "library") for one in likeness.likeness.shares]
            notes.append(likeness.sentence())
        return TrustView(
            alarms=[
                AlarmView(
                    label=one.label,
                    audited=one.audited,
                    present=one.present,
                    expected=one.expected,
                    evidence=one.evidence,
                    threshold=one.threshold,
                    raised=one.raised,
                )
                for one in alarms
            ],
            shares=shares,
            promises=await self.promise_views(),
            notes=notes,
        )

    def _notes(self) -> list[str]:
        notes = []
        if self.held_out is None:
            notes.append(
                "The folder of this model holds no predictions of held-out photos, so nothing can "
                "be said of its reliability. Serve a whole run, not only its model."
            )
        elif not self.held_out.may_promise:
            notes.append(
                f"Reliability is shown on photos of the split {self.held_out}, which the "
                "calibration was fitted on; on others it is somewhat worse."
            )
        if self.library is not None:
            notes.append(
                "Alarms rest on photos audited in a random order. What people correct on their own "
                "is what they happened to see, and says nothing of the whole."
            )
        return notes


def _share(share: LabelShare, source: str) -> ShareView:
    return ShareView.model_validate(
        {
            "label": share.label,
            "source": source,
            "before": share.before,
            "now": share.now,
            "low": share.low,
            "high": share.high,
            "photos": share.photos,
            "moved": share.moved,
        }
    )


def _digest(spec: object) -> str:
    text = json.dumps(spec, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
