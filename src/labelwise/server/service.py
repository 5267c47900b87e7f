"""What the server has: its models, the queue they share, and the photos of an index.

    lane     a model that is served under a name, with the batches of its pictures

Requests take the lane of their model once, and end with it. A model that is loaded again gets a new
lane when it has shown that it answers; the old one is gone with its last request.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from labelwise import __version__
from labelwise.errors import LabelwiseError
from labelwise.models.loading import spec_of
from labelwise.models.run_folder import RunFolder
from labelwise.models.spec import ModelSpec
from labelwise.pictures import PictureImages
from labelwise.pictures.decoders import Decoders
from labelwise.pictures.inputs import input_of
from labelwise.server.batching import Batcher, Tagged, model_thread
from labelwise.server.library import Library
from labelwise.server.models import ModelView, PromiseView, TrustView
from labelwise.server.monitoring import Monitor
from labelwise.server.queueing import PictureQueue, Place, Threads
from labelwise.server.security import RefusedError
from labelwise.server.served_model import ServedModel
from labelwise.server.settings import ServeSettings
from labelwise.server.shadow import Shadow
from labelwise.server.trust_views import promise_views, trust_view
from labelwise.server.uploads import Pixels, Upload

T = TypeVar("T")

log = logging.getLogger("labelwise.server")

SHADOW = "shadow"  # what it is called where it is loaded
NO_SHADOW = "no shadow model is served; start the server with --shadow RUN"
ASIDE = 2  # threads for reading requests and writing answers


@dataclass(frozen=True, eq=False)
class Lane:
    """A model that is served, and what puts pictures through it."""

    model: ServedModel
    batcher: Batcher


class _Answers(Collector):
    """What the models have answered: sums of arrays, made into metrics when they are read."""

    def __init__(self, lanes: Mapping[str, Lane]) -> None:
        self.lanes = lanes

    def collect(self) -> Iterable[Metric]:
        of_model, of_label = ["model"], ["model", "label"]
        info = GaugeMetricFamily(
            "labelwise_info", "What runs here.", labels=["version", "model", "model_version"]
        )
        photos = CounterMetricFamily("labelwise_photos", "Pictures answered.", labels=of_model)
        nothing = CounterMetricFamily(
            "labelwise_none", "Pictures without any label.", labels=of_model
        )
        decided = CounterMetricFamily(
            "labelwise_predictions", "How often a label was decided.", labels=of_label
        )
        share = GaugeMetricFamily(
            "labelwise_label_share", "Estimated share of recent pictures.", labels=of_label
        )
        for model, lane in self.lanes.items():
            counts = lane.model.counts
            info.add_metric([__version__, model, counts.version], 1)
            photos.add_metric([model], counts.photos)
            nothing.add_metric([model], counts.nothing)
            for name, count in zip(counts.names, counts.decided.tolist(), strict=True):
                decided.add_metric([model, name], count)
            for name, now in counts.share_now.items():
                share.add_metric([model, name], now)
        return [info, photos, nothing, decided, share]


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
        self.decoders = Decoders(
            spec_of(run).transform,
            settings.decode_processes,
            seconds=settings.decode_seconds,
            memory=settings.decode_memory,
        )
        self.monitor = Monitor()
        self.queue = PictureQueue(
            max_queue=settings.max_queue,
            client_queue=settings.pictures_per_client,
            openers=max(1, settings.decode_processes),
            monitor=self.monitor,
        )
        self._threads = threads or torch.get_num_threads()
        self._aside = Threads(ASIDE, "aside", waiting=settings.connections)
        self.aside = self._aside.run  # for what would hold up the event loop, such as much JSON
        self._slowly = Threads(1, "slow", waiting=settings.connections)
        self._computing = model_thread()
        # Without threads of torch's own beside those that compute: see batching.model_thread.
        self._loading = ThreadPoolExecutor(1, "load", torch.set_num_threads, (1,))
        self._is_reloading = False
        self._watching: asyncio.Task[None] | None = None
        self.library: Library | None = None
        self.lanes: dict[str, Lane] = {}
        self.monitor.registry.register(_Answers(self.lanes))
        self.shadow: Shadow | None = None
        try:
            for name in self.folders:
                model = self._loading.submit(self._load, name, self.folders[name]).result()
                self._serve(model)
            if settings.shadow is not None:
                self.shadow = self._shadow_of(
                    self._loading.submit(self._load, SHADOW, settings.shadow).result()
                )
            if index is not None:
                spec = self.lane().model.spec
                self.library = Library(index, spec, self.decoders.thumbnail)
            self.decoders.await_start()
        except BaseException:
            self.close()
            raise

    async def start(self) -> None:
        """Begin to take pictures."""
        self._watching = asyncio.create_task(self.monitor.loop.watch())

    async def stop(self) -> None:
        """Take no more pictures, and let go of everything."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        self.close()

    def close(self) -> None:
        """Let go of everything, also where it never started."""
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
        """Whether pictures are taken and can be opened."""
        return self._watching is not None and not self.decoders.is_lost

    # Models

    def lane(self, name: str | None = None) -> Lane:
        """Return the lane of a model, of the first one unless it is named."""
        found = self.lanes.get(self.first if name is None else name)
        if found is None:
            there = ", ".join(map(repr, self.lanes))
            are = "the one here is" if len(self.lanes) == 1 else "those here are"
            raise RefusedError(404, f"there is no model of this name; {are} {there}")
        return found

    def _load(self, name: str, folder: Path) -> ServedModel:
        return ServedModel(name, RunFolder(folder), self.device)

    def _shadow_of(self, model: ServedModel) -> Shadow:
        share = self.settings.shadow_share
        shadow = Shadow(self.lane().model, model, self._batcher(model), share)
        if self.shadow is not None:
            self.monitor.registry.unregister(self.shadow)
        self.monitor.registry.register(shadow)
        return shadow

    def _serve(self, model: ServedModel) -> None:
        """Answer with a model from now on."""
        self.lanes[model.name] = Lane(model, self._batcher(model))

    def _batcher(self, model: ServedModel) -> Batcher:
        return Batcher(
            self.queue,
            partial(self._open, model.spec),
            partial(self._forward_beside_others, model),
            max_batch=self.settings.max_batch,
            max_wait=self.settings.max_wait,
            model=self._computing,
        )

    async def reload(self, name: str) -> bool:
        """Answer with what the folder of a model holds now; return whether that has changed.

        A model that cannot be loaded, has no answers or does not fit the index or the shadow is
        refused, and the one before goes on. Requests that are under way end with the model they
        began with.
        """
        before = self.lane(name).model
        with self._alone(name):
            model = await self._loaded(name, self.folders[name], before.spec)
            if model is None:
                return False
            if self.library is not None and name == self.first:
                self._require_same_weights(before.spec, model.spec)
            if self.shadow is not None and name == self.first:
                self.shadow.follow(model)
            self._serve(model)
        return True

    async def reload_shadow(self) -> bool:
        """Compare with what the folder of the shadow model holds now, from the beginning."""
        if self.shadow is None or self.settings.shadow is None:
            raise RefusedError(404, NO_SHADOW)
        with self._alone(SHADOW):
            model = await self._loaded(SHADOW, self.settings.shadow, self.shadow.model.spec)
            if model is None:
                return False
            self.shadow = self._shadow_of(model)
        return True

    async def reload_all(self) -> None:
        """Load every model whose folder has changed, and log what came of it."""
        for name in self.folders:
            await self._reload_and_log(name, self.reload(name))
        if self.shadow is not None:
            await self._reload_and_log(SHADOW, self.reload_shadow())

    async def _reload_and_log(self, name: str, reloading: Coroutine[Any, Any, bool]) -> None:
        try:
            if await reloading:
                log.warning("%r was loaded anew", name)
        except RefusedError as refused:
            log.warning("%s", refused.detail)

    async def _loaded(self, name: str, folder: Path, before: ModelSpec) -> ServedModel | None:
        """Return the model of a folder, None if it is the one before."""
        spec = await self.aside(lambda: spec_of(folder))
        if spec == before:
            return None
        work = partial(self._load, name, folder)
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Refuse what cannot be loaded, and a second one at the same time."""
        if self._is_reloading:
            raise RefusedError(
                409, "another model is being loaded; try again", {"retry-after": "5"}
            )
        self._is_reloading = True
        try:
            yield
        except LabelwiseError as error:
            raise RefusedError(409, f"{name!r} goes on as it was, because {error}") from None
        finally:
            self._is_reloading = False

    def _require_same_weights(self, before: ModelSpec, now: ModelSpec) -> None:
        if before.weights_sha256 != now.weights_sha256:
            raise RefusedError(
                409,
                f"{self.first!r} goes on as it was, because the index was made with other weights "
                "than its folder has now; index again with --rebuild, and start the server anew",
            )

    # Tagging

    def _open(self, spec: ModelSpec, upload: Upload) -> Pixels:
        """Return a model's input of a picture, or raise ImageError."""
        if isinstance(upload.content, bytes):
            return self.decoders.pixels(upload.content, upload.name, spec.transform)
        picture = input_of(PictureImages([upload.content]), 0, spec.transform)
        return picture.numpy().transpose(1, 2, 0)

    def _forward_beside_others(
        self, model: ServedModel, pixels: Sequence[Pixels], names: Sequence[str]
    ) -> list[Tagged]:
        """Compute with all cores, or leave half to decoders where they have as many pictures.

        Threads of a forward pass wait for each other; one that has lost its core to a decoder
        keeps all the others waiting. The number holds for the thread that sets it.
        """
        many = self.queue.opening >= len(pixels)
        threads = max(1, self._threads // 2) if many else self._threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return model.forward(pixels, names)

    async def tag(self, lane: Lane, uploads: Sequence[Upload], place: Place | None) -> list[Tagged]:
        """Return a model's answers for the pictures of one request, or raise BusyError."""
        answers = await lane.batcher.tag(uploads, place)
        faults = [one.fault for one in answers if one.fault is not None]
        if faults:
            self.monitor.failures.inc(len(faults))
            raise RefusedError(503, f"the model has no answer: {faults[0]}", {"retry-after": "60"})
        for one in answers:
            if one.probs is None or one.chosen is None:
                self.monitor.failures.inc()
            else:
                lane.model.counts.answered(one.probs, one.chosen)
        if self.shadow is not None and lane.model.name == self.first:
            self.shadow.offer(lane.model, uploads, answers)
        return answers

    # What is known of a model

    def model_view(self, model: ServedModel) -> ModelView:
        """Return which model answers."""
        library = self._library_of(model)
        return ModelView(
            name=model.name,
            method=model.spec.method,
            backbone=model.spec.backbone.name,
            labels=len(model.names),
            weights=model.weights,
            calibration=model.calibration,
            caution=model.spec.caution,
            rule=model.rule,
            version=__version__,
            photos=None if library is None else library.index.photos,
            held_out=None if model.held_out is None else str(model.held_out),
            max_body=self.settings.max_body,
        )

    def _library_of(self, model: ServedModel) -> Library | None:
        """Return the library that a model scored: the index belongs to the first model."""
        return self.library if model.name == self.first else None

    async def promise_views(self, model: ServedModel) -> list[PromiseView]:
        """Return every promise, and what photos reviewed since then say of it."""
        return await promise_views(model, self._library_of(model))

    async def trust_view(self, model: ServedModel) -> TrustView:
        """Return what speaks for and against trusting the model today."""
        return await trust_view(model, self._library_of(model), self.monitor, self._slowly)
