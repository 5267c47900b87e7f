"""The training loop: steps, looks at the loss, epochs, checkpoints.

Losses stay on the device until a look, every ``log_steps`` steps. A checkpoint is only written
after a look, so that a loss that is not a number never reaches one. The batches of an epoch, and
with them everything else, depend on the settings and the position alone.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import isfinite
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelwise.base.distributed import rank, tensors_of_first, wait_for_all, world_size
from labelwise.base.storage import StorageError
from labelwise.errors import TrainingError
from labelwise.learn.predictor import Model
from labelwise.pictures import ImageSource
from labelwise.training.checkpoint import (
    Position,
    TrainingState,
    WeightAverage,
    make_optimizer,
    rate,
    set_rate,
)
from labelwise.training.execution import (
    LossFunction,
    accelerated,
    autocast_type,
    compiles,
)
from labelwise.training.inference import higher_is_better, infer_logits, validation_figures
from labelwise.training.loader import Batch, Loader, kept_in_memory
from labelwise.training.loggers import Record, opened_loggers
from labelwise.training.prepare import Training
from labelwise.types import Targets

SAVING_SHARE = 0.1  # of the time, at most, is spent on the checkpoints of short epochs


class Loop:
    """Trains the model of a run until the recipe or a stop request ends it."""

    def __init__(self, training: Training) -> None:
        self.training, self.watch, settings = training, training.watch, training.settings
        self.recipe, self.folder = settings.recipe, training.run.checkpoint
        self.device, self.world = training.device, world_size()
        self.precision = autocast_type(settings.precision, self.device.type)
        self.loader = Loader(
            training.splits["train"],
            training.model.backbone.transform,
            batch_size=settings.batch_size // self.world,
            device=self.device,
            seed=settings.seed,
            augment=settings.augment,
            shuffle=True,
            workers=settings.hardware.workers,
            rank=rank(),
            world=self.world,
        )
        self.journal = training.run.journal
        self.joined = min(self.loader.batch_size * self.world, len(self.loader.table))
        self.steps_per_epoch = -(-len(self.loader) // self.recipe.accumulate)
        self.steps = self.recipe.epochs * self.steps_per_epoch
        self.losses: list[Tensor] = []  # since the last look, on the device
        self.stop = StopRequest()
        self.saved_at = time.monotonic()
        self.saving_seconds = 0.0
        model, objective = training.model, training.objective
        model.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        objective.to(self.device)
        if self.world > 1 and self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        optimizer = make_optimizer(model, objective, self.recipe.optimizer)
        average = WeightAverage(model, self.recipe.ema) if self.recipe.ema else None
        self.state = TrainingState(
            model, objective, optimizer, average, Position(), training.contents
        )
        # The model as a step calls it: itself, or wrapped for data parallelism.
        self.model: nn.Module = model
        if self.world > 1 and self.device.type == "cuda":
            self.model = DistributedDataParallel(model, device_ids=[self.device.index])
        elif self.world > 1:
            self.model = DistributedDataParallel(model)
        self.loss_of = self._loss_function()
        torch.manual_seed(settings.seed + 1 + rank())  # dropout differs by process
        damaged = self.state.restore(self.folder)
        position = self.state.position
        if damaged:
            self.watch.say(damaged)
        if damaged is not None and not position.done:
            at = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
            self.watch.say(f"going on from {at}")
        if training.is_first:
            self.journal.cut(position.journal_bytes)
        self.validation: tuple[ImageSource, Tensor, Tensor | None] | None = None
        if "val" in training.splits:
            images, workers = training.splits["val"].images, settings.hardware.workers
            kept = kept_in_memory(images, self.loader.transform, workers=workers)
            self.validation = (kept, *training.targets("val"))

    def _loss_function(self) -> LossFunction:
        settings, objective = self.training.settings, self.state.objective

        def loss_of(images: Tensor, targets: Targets) -> Tensor:
            loss: Tensor = objective(self.model(images), targets)
            return loss

        hardware, fixed = settings.hardware, settings.deterministic
        each = max(1, len(self.training.splits["train"]) // settings.batch_size)
        batches = self.recipe.epochs * each
        compiled, why = compiles(hardware, self.device, self.world, batches, deterministic=fixed)
        if why:
            self.watch.say(why)
        if compiled:
            torch.compiler.reset()  # a process that trains many models would reach dynamo's limit
        return accelerated(loss_of, precision=self.precision, compiled=compiled)

    def run(self) -> Model:
        run, settings, first = self.training.run, self.training.settings, self.training.is_first
        with stop_requests() as self.stop, opened_loggers(run, settings, first) as self.log:
            try:
                while not self.state.position.done:
                    self._epoch()
                if any(self._agreed(self.stop.asked)):  # while the last epoch was being judged
                    raise KeyboardInterrupt
            finally:
                self.watch.finish()
        self.state.restore_best(self.folder)
        return self._deployed()

    def _epoch(self) -> None:
        position, batches = self.state.position, len(self.loader)
        begun, first = time.monotonic(), position.batch
        self.state.model.train()
        self.state.objective.train()
        task = f"epoch {position.epoch + 1}/{self.recipe.epochs}"
        self.watch.start(task, batches * self.joined, first * self.joined)
        for batch in self.loader.epoch(position.epoch, position.batch):
            position.batch += 1
            ends_step = position.batch % self.recipe.accumulate == 0 or position.batch == batches
            self._batch(batch, ends_step)
            self.watch.advance(self.joined)
            if not ends_step:
                continue
            position.step += 1
            full = len(self.losses) == self.recipe.log_steps * self.recipe.accumulate
            if full or (self.world == 1 and self.stop.asked):
                self._look()
                self._save_or_stop(time.monotonic() - self.saved_at > self.recipe.save_seconds)
        self._look()
        seconds = time.monotonic() - begun
        position.seconds += seconds
        self._end_epoch((batches - first) * self.joined / max(seconds, 1e-9))

    def _batch(self, batch: Batch, ends_step: bool) -> None:
        state, recipe = self.state, self.recipe
        alone: AbstractContextManager[None] = nullcontext()
        if not ends_step and isinstance(self.model, DistributedDataParallel):
            alone = self.model.no_sync()  # gradients are exchanged when the step ends
        begins = (state.position.batch - 1) // recipe.accumulate * recipe.accumulate
        together = min(recipe.accumulate, len(self.loader) - begins)  # the last step may have fewer
        with alone:
            loss = self.loss_of(batch.images, batch.targets)
            torch.autograd.backward(loss / together)
        self.losses.append(loss.detach().clone())  # the next call may write the same memory
        if not ends_step:
            return
        factor = rate(recipe.schedule, state.position.step, self.steps, self.steps_per_epoch)
        set_rate(state.optimizer, factor)
        if recipe.optimizer.clip is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), recipe.optimizer.clip)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.objective.step(recipe.optimizer.lr * factor)
        if state.average is not None:
            state.average.update(state.model)

    def _save_or_stop(self, save: bool) -> None:
        stop, save = self._agreed(self.stop.asked, save)
        if stop or save:
            self._save()
        if stop:
            wait_for_all()  # a helper that ends earlier takes the writing process with it
            raise KeyboardInterrupt

    def _agreed(self, *wishes: bool) -> list[bool]:
        if self.world == 1:
            return list(wishes)
        votes = torch.tensor(wishes, dtype=torch.int32, device=self.device)
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
        return [bool(vote) for vote in votes.tolist()]

    def _look(self) -> None:
        """Bring the losses since the last look to the host; stop if one is not a number."""
        if not self.losses:
            return
        position, values = self.state.position, torch.stack(self.losses).tolist()
        self.losses.clear()
        for batch, value in enumerate(values, position.batch - len(values)):
            if not isfinite(value):
                first = next(iter(self.loader.epoch(position.epoch, batch)))
                rows = [] if first.targets.index is None else first.targets.index[:3].tolist()
                names = ", ".join(self.loader.table.images.ids[row] for row in rows)
                raise TrainingError(
                    f"the loss became {value} in epoch {position.epoch + 1}, "
                    f"batch {batch + 1} of {len(self.loader)} (images {names}, ...); {self._kept}"
                )
            position.loss_sum += value
        mean = sum(values) / len(values)
        self.watch.look(mean)
        lr = max(group["lr"] for group in self.state.optimizer.param_groups)
        # The single numbers an objective keeps, such as quasibinary's normaliser.
        buffers = self.state.objective.named_buffers()
        numbers = {name: buffer.item() for name, buffer in buffers if buffer.numel() == 1}
        scalars = {name: value for name, value in numbers.items() if isfinite(value)}
        self._write({"step": position.step, "loss": mean, "lr": lr, **scalars})

    @property
    def _kept(self) -> str:
        return (
            f"the last good checkpoint is kept in {self.training.run.address}; try a lower "
            "learning rate or gradient clipping, with --fresh"
        )

    def _end_epoch(self, images_per_second: float) -> None:
        position = self.state.position
        position.epoch, position.batch = position.epoch + 1, 0
        record: dict[str, float | None] = {
            "epoch": position.epoch,
            "step": position.step,
            "epoch_loss": position.loss_sum / len(self.loader),
            "images_per_second": images_per_second,
            "seconds": position.seconds,
        }
        position.loss_sum = 0.0
        self.watch.finish()
        if self.validation is not None:
            images, labels, observed = self.validation
            model, workers = self._deployed(), self.training.settings.hardware.workers
            logits = infer_logits(
                model,
                images,
                self.device,
                batch_size=self.loader.batch_size,
                workers=workers,
                precision=self.precision,
            ).logits
            link = self.training.objective.link
            figures = validation_figures(logits, labels, observed, link, self.recipe.metric)
            record |= {f"val_{name}": value for name, value in figures.items()}
            record["best"] = self._is_best(figures[self.recipe.metric])
        patience = None if self.validation is None else self.recipe.patience
        waited = position.epoch - (position.best_epoch or 0)
        out_of_patience = patience is not None and waited >= patience
        position.done = position.epoch >= self.recipe.epochs or out_of_patience
        self._write(record)
        self.watch.epoch(record, self.recipe.epochs)
        since = time.monotonic() - self.saved_at
        self._save_or_stop(position.done or self.saving_seconds <= SAVING_SHARE * since)

    def _deployed(self) -> Model:
        model = self.state.deployed
        if self.world > 1:  # on a CPU each process has its own statistics of batch normalisation
            own = dict(model.named_buffers())
            for name, value in tensors_of_first(own, self.device).items():
                own[name].copy_(value)
        return model

    def _is_best(self, value: float | None) -> bool:
        position, sign = self.state.position, 1 if higher_is_better(self.recipe.metric) else -1
        if value is None or (position.best is not None and sign * value <= sign * position.best):
            return False
        position.best, position.best_epoch = value, position.epoch
        if self.recipe.keep == "best":
            position.best_step = position.step
            if self.training.is_first:
                self.state.save_best(self.folder)
        return True

    def _save(self) -> None:
        begun = time.monotonic()
        position = self.state.position
        for name, tensor in self.state.model.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise TrainingError(
                    f"the weights {name!r} are no longer numbers after epoch {position.epoch}, "
                    f"batch {position.batch}; {self._kept}"
                )
        position.journal_bytes = self.journal.size
        self.state.save(self.folder, write=self.training.is_first)
        if self.training.is_first:
            try:
                self.training.run.publish()
            except StorageError as error:  # an outage there does not stop training
                self.watch.say(f"the checkpoint was not sent, the next one will be ({error})")
        self.saved_at = time.monotonic()
        self.saving_seconds = self.saved_at - begun

    def _write(self, record: Record) -> None:
        if self.training.is_first:
            self.journal.write(record)
            self.log(record)


class StopRequest:
    """Whether someone asked the run to stop; a second request does not wait any longer."""

    asked = False

    def ask(self, signum: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request while the block runs, in the main thread."""
    request, is_main = StopRequest(), threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, request.ask) for number in signals}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
