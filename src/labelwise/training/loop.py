"""The training loop: steps, looks at the loss, epochs, checkpoints.

No step waits for the device: losses stay there until a look, every ``log_steps`` steps. A look
checks them, and a checkpoint is only written after a look, so that a loss that is not a number
never reaches a checkpoint. Epochs end with a checkpoint, unless they are so short that writing
them all would take more than a tenth of the time. A run goes on from its newest checkpoint; the
batches of an epoch, and with them everything else, depend on the settings and the position alone.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labelwise.errors import TrainingError
from labelwise.predictor import Model
from labelwise.training.interrupt import StopRequest, stop_requests
from labelwise.training.journal import Journal
from labelwise.training.loader import Batch, Loader
from labelwise.training.losses import Losses
from labelwise.training.optimizer import set_rate
from labelwise.training.progress import Watch
from labelwise.training.recipe import Recipe
from labelwise.training.schedule import rate
from labelwise.training.state import TrainingState
from labelwise.training.step import LossFunction

__all__ = ["Loop", "Validation"]

SAVING_SHARE = 0.1  # of the time, at most, is spent on the checkpoints of short epochs


@dataclass(frozen=True)
class Validation:
    """How an epoch is judged: figures of a model, which of them counts, and which way."""

    measure: Callable[[Model], Mapping[str, float | None]]
    metric: str
    higher_is_better: bool


class Loop:
    """One run: trains ``state`` on ``loader`` until the recipe or a stop request ends it.

    ``model`` is the state's model as ``loss`` calls it: itself, or wrapped for data parallelism.
    """

    def __init__(
        self,
        fabric: Any,
        model: nn.Module,
        loss: LossFunction,
        state: TrainingState,
        loader: Loader,
        recipe: Recipe,
        *,
        folder: Path,
        watch: Watch,
        validation: Validation | None = None,
    ) -> None:
        self.fabric, self.model, self.loss, self.state = fabric, model, loss, state
        self.loader, self.recipe, self.watch, self.validation = loader, recipe, watch, validation
        self.folder = folder / "checkpoint"
        self.journal = Journal(folder / "metrics.jsonl")
        self.joined = min(loader.batch_size * fabric.world_size, len(loader.table))
        self.steps_per_epoch = -(-len(loader) // recipe.accumulate)
        self.steps = recipe.epochs * self.steps_per_epoch
        self.losses = Losses(recipe.log_steps * recipe.accumulate, fabric.device)
        self.stop = StopRequest()
        self.saved_at = time.monotonic()
        self.saving_seconds = 0.0

    def run(self) -> Model:
        """Train from the newest checkpoint to the end; return the model to deploy."""
        if self.fabric.is_global_zero:
            self.journal.cut(self.state.position.journal_bytes)
        with stop_requests() as self.stop:
            try:
                while not self.state.position.done:
                    self._epoch()
                if self.stop.asked:  # while the last epoch was being judged
                    raise KeyboardInterrupt
            finally:
                self.watch.finish()
        self.state.restore_best(self.folder)
        return self.state.deployed

    def _epoch(self) -> None:
        position, batches = self.state.position, len(self.loader)
        begun, first = time.monotonic(), position.batch
        self.state.model.train()
        self.state.objective.train()
        self.watch.start(
            f"epoch {position.epoch + 1}/{self.recipe.epochs}",
            batches * self.joined,
            position.batch * self.joined,
        )
        for batch in self.loader.epoch(position.epoch, position.batch):
            position.batch += 1
            ends_step = position.batch % self.recipe.accumulate == 0 or position.batch == batches
            self._batch(batch, ends_step)
            self.watch.advance(self.joined)
            if ends_step:
                position.step += 1
                self._between_steps()
        self._look()
        position.seconds += time.monotonic() - begun
        images = (batches - first) * self.joined
        self._end_epoch(images / max(time.monotonic() - begun, 1e-9))

    def _batch(self, batch: Batch, ends_step: bool) -> None:
        state, accumulate = self.state, self.recipe.accumulate
        begun = (state.position.batch - 1) // accumulate * accumulate
        parts = min(accumulate, len(self.loader) - begun)
        images = batch.images
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        with self._apart(not ends_step):
            loss = self.loss(images, batch.targets)
            torch.autograd.backward(loss / parts if parts > 1 else loss)
        self.losses.add(loss)
        if not ends_step:
            return
        factor = rate(self.recipe.schedule, state.position.step, self.steps, self.steps_per_epoch)
        set_rate(state.optimizer, factor)
        if self.recipe.optimizer.clip is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), self.recipe.optimizer.clip)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.objective.step(self.recipe.optimizer.lr * factor)
        if state.average is not None:
            state.average.update(state.model)

    def _apart(self, apart: bool) -> AbstractContextManager[None]:
        """Return a block in which gradients are not exchanged with other processes yet."""
        if apart and isinstance(self.model, DistributedDataParallel):
            return self.model.no_sync()
        return nullcontext()

    def _between_steps(self) -> None:
        alone = self.fabric.world_size == 1
        if not (self.losses.full or (alone and self.stop.asked)):
            return
        self._look()
        late = time.monotonic() - self.saved_at > self.recipe.save_seconds
        stop, save = self._agreed(self.stop.asked, late)
        if stop or save:
            self._save()
        if stop:
            raise KeyboardInterrupt

    def _agreed(self, *wishes: bool) -> list[bool]:
        """Return which of these any process wishes, so that all processes do the same."""
        if self.fabric.world_size == 1:
            return list(wishes)
        votes = torch.tensor(wishes, dtype=torch.int32, device=self.fabric.device)
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
        return [bool(vote) for vote in votes.tolist()]

    def _look(self) -> None:
        """Bring the losses since the last look to the host; stop if one is not a number."""
        position, values = self.state.position, self.losses.take()
        if not values:
            return
        for offset, value in enumerate(values):
            if not isfinite(value):
                raise self._diverged(position.batch - len(values) + offset, value)
            position.loss_sum += value
        mean = sum(values) / len(values)
        self.watch.look(mean)
        lr = max(group["lr"] for group in self.state.optimizer.param_groups)
        self._write({"step": position.step, "loss": mean, "lr": lr, **self._scalars()})

    def _diverged(self, batch: int, value: float) -> TrainingError:
        first = next(iter(self.loader.epoch(self.state.position.epoch, batch)))
        rows = [] if first.targets.index is None else first.targets.index[:3].tolist()
        names = ", ".join(self.loader.table.images.ids[row] for row in rows)
        return TrainingError(
            f"the loss became {value} in epoch {self.state.position.epoch + 1}, "
            f"batch {batch + 1} of {len(self.loader)} (images {names}, ...); the last good "
            f"checkpoint is kept in {self.folder}; try a lower learning rate or gradient "
            "clipping, with --fresh"
        )

    def _end_epoch(self, images_per_second: float) -> None:
        position = self.state.position
        position.epoch, position.batch = position.epoch + 1, 0
        record: dict[str, Any] = {
            "epoch": position.epoch,
            "step": position.step,
            "epoch_loss": position.loss_sum / len(self.loader),
            "images_per_second": images_per_second,
            "seconds": position.seconds,
        }
        position.loss_sum = 0.0
        self.watch.finish()
        if self.validation is not None:
            figures = self.validation.measure(self.state.deployed)
            record |= {f"val_{name}": value for name, value in figures.items()}
            record["best"] = self._judge(figures)
        waited = position.epoch - (position.best_epoch or 0)
        position.done = position.epoch >= self.recipe.epochs or (
            self.recipe.patience is not None
            and self.validation is not None
            and waited >= self.recipe.patience
        )
        self._write(record)
        self.watch.epoch(record, self.recipe.epochs)
        since = time.monotonic() - self.saved_at
        if any(self._agreed(position.done, self.saving_seconds <= SAVING_SHARE * since)):
            self._save()

    def _judge(self, figures: Mapping[str, float | None]) -> bool:
        """Note whether this is the best epoch so far; keep its weights if they may be deployed."""
        position, validation = self.state.position, self.validation
        value = None if validation is None else figures[validation.metric]
        if validation is None or value is None:
            return False
        sign = 1 if validation.higher_is_better else -1
        if position.best is not None and sign * value <= sign * position.best:
            return False
        position.best, position.best_epoch = value, position.epoch
        if self.recipe.keep == "best":
            position.best_step = position.step
            if self.fabric.is_global_zero:
                self.state.save_best(self.folder)
        return True

    def _save(self) -> None:
        begun = time.monotonic()
        for name, tensor in self.state.model.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                position = self.state.position
                raise TrainingError(
                    f"the weights {name!r} are no longer numbers after epoch {position.epoch}, "
                    f"batch {position.batch}; the last good checkpoint is kept in {self.folder}; "
                    "try a lower learning rate or gradient clipping, with --fresh"
                )
        self.state.position.journal_bytes = self.journal.size
        self.state.save(self.folder, write=self.fabric.is_global_zero)
        self.saved_at = time.monotonic()
        self.saving_seconds = self.saved_at - begun

    def _scalars(self) -> dict[str, float]:
        """Return the single numbers an objective keeps, such as quasibinary's normaliser."""
        buffers = self.state.objective.named_buffers()
        values = {name: buffer.item() for name, buffer in buffers if buffer.numel() == 1}
        return {name: value for name, value in values.items() if isfinite(value)}

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.fabric.is_global_zero:
            self.journal.write(record)
