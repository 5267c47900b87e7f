"""Lightning: our objectives with anyone's network, trainer and devices.

    module = MultilabelModule(network, labelwise.SPA(), lr=1e-3)
    Trainer(max_epochs=10, callbacks=[MultilabelMetrics()]).fit(module, train_loader, val_loader)
    probs = torch.cat(Trainer().predict(module, loader))

A batch is ``(images, labels)``, or ``(images, labels, observed)``, or with the rows' numbers
``(images, labels, observed, index)`` for objectives that keep something of each row. On several
processes the loss is that of the joined batch, as in :mod:`labelwise.learn.objectives.base`.
Probabilities are those of the objective's own link.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from labelwise.contrib.torchmetrics import (
    MultilabelCalibrationError,
    MultilabelMeanAveragePrecision,
)
from labelwise.learn.objectives import Objective
from labelwise.learn.objectives.base import refuse_accumulation
from labelwise.types import Outputs, Targets

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:
        raise ImportError(
            "labelwise.contrib.lightning needs lightning; pip install lightning"
        ) from error


Batch = Sequence[Any]


class MultilabelModule(LightningModule):  # type: ignore[misc]
    """A network whose outputs are logits (B, K), or ``Outputs``, trained by an objective.

    AdamW by default, without decay of biases, norms and the objective's own parameters, which have
    ``lr_scale`` times the rate; give ``configure_optimizers`` of your own for anything else.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__()
        self.network, self.objective = network, objective
        self.lr, self.weight_decay = lr, weight_decay

    def forward(self, images: Any) -> Tensor:
        return _outputs(self.network(images)).logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a batch, of all processes together."""
        images, targets = _read(batch)
        outputs = _outputs(self.network(images))
        if targets.index is None and not outputs.aux:  # with the checks that users' labels need
            loss: Tensor = self.objective(outputs.logits, targets.labels, targets.observed)
        else:
            loss = self.objective(outputs, targets)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(targets.labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor | None]:
        """Return logits, labels and what is observed of them, for callbacks such as ours."""
        images, targets = _read(batch)
        logits = self(images).float()
        return {"logits": logits, "labels": targets.labels, "observed": targets.observed}

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        images = batch[0] if isinstance(batch, list | tuple) else batch
        return self.objective.probabilities(self(images).float())

    def configure_optimizers(self) -> Optimizer:
        decayed = [p for p in self.network.parameters() if p.requires_grad and p.ndim > 1]
        others = [p for p in self.network.parameters() if p.requires_grad and p.ndim <= 1]
        own = [p for p in self.objective.parameters() if p.requires_grad]
        rates = ((decayed, 1.0, self.weight_decay), (others, 1.0, 0.0))
        groups = [
            {"params": parameters, "lr": self.lr * scale, "weight_decay": decay}
            for parameters, scale, decay in (*rates, (own, self.objective.lr_scale, 0.0))
            if parameters
        ]
        return AdamW(groups, lr=self.lr)

    def on_fit_start(self) -> None:
        name = type(self.objective).__name__
        refuse_accumulation(self.objective, name, self.trainer.accumulate_grad_batches)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, *more: Any) -> None:
        """Step, and then let the objective update what it keeps outside the optimiser."""
        super().optimizer_step(epoch, batch_idx, optimizer, *more)
        self.objective.step(optimizer.param_groups[0]["lr"])


class MultilabelMetrics(Callback):  # type: ignore[misc]
    """Log ``val_map``, and ``val_ece`` where the objective has probabilities, over all processes.

    Average precision is the mean over labels that have a positive; the calibration error is that of
    all known entries pooled, in ten bins of equal width.
    """

    def __init__(self) -> None:
        super().__init__()
        self._map: MultilabelMeanAveragePrecision | None = None
        self._ece: MultilabelCalibrationError | None = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._map = MultilabelMeanAveragePrecision().to(pl_module.device)
        self._ece = None

    @torch.no_grad()
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        logits, labels, observed = (outputs[name] for name in ("logits", "labels", "observed"))
        if self._map is not None:
            self._map.update(logits, labels, observed)
        link = pl_module.objective.link
        if link is None:
            return
        if self._ece is None:
            self._ece = MultilabelCalibrationError(logits.shape[1]).to(pl_module.device)
        self._ece.update(link(logits), labels, observed)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, metric in (("val_map", self._map), ("val_ece", self._ece)):
            if metric is not None:
                pl_module.log(name, metric.compute(), prog_bar=True, sync_dist=False)


def _outputs(value: Outputs | Tensor) -> Outputs:
    return value if isinstance(value, Outputs) else Outputs(value)


def _read(batch: Batch) -> tuple[Any, Targets]:
    if not isinstance(batch, list | tuple) or not 2 <= len(batch) <= 4:
        forms = "(images, labels), with observed and index after them where known"
        raise ValueError(f"a batch must be {forms}; got {type(batch).__name__}")
    images, labels, *more = batch
    return images, Targets(labels, *more)
