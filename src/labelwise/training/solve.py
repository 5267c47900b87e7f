"""Features by a network of torch: the source of a run's solved head on GPUs, of bands, of rows."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labelwise.base.arrays import to_numpy
from labelwise.base.convex import ConvexLoss
from labelwise.decide import Rule
from labelwise.eyes import Eye
from labelwise.eyes.fit import Fitted
from labelwise.learn.backbones.weights import EYE
from labelwise.learn.objectives import Objective
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Link, Sigmoid
from labelwise.models import HeadSpec
from labelwise.pictures import FeatureRows
from labelwise.tables import LabelTable
from labelwise.training.features import FrozenBackbone
from labelwise.training.finish import Promises, Save
from labelwise.training.solved import FeatureSource, Solving
from labelwise.types import Targets


@dataclass(frozen=True, eq=False)
class NetworkSource(FeatureSource):
    """A network of torch, and a linear ``model`` of its features that the solution is put into."""

    frozen: FrozenBackbone
    model: Model
    head: HeadSpec
    objective: Objective
    device: torch.device

    @property
    def parts(self) -> Sequence[tuple[int, float]]:
        return Eye.open().head_parts if self.frozen.backbone.name == EYE else ()

    def features(self, solving: Solving, table: LabelTable) -> Any:
        if not isinstance(table.images, FeatureRows):
            raise TypeError(f"a head is solved on features, got {type(table.images).__name__}")
        values = np.asarray(table.images.features)
        # others than CUDA have no float64
        return torch.from_numpy(values).cuda() if self.device.type == "cuda" else values

    def loss(self, solving: Solving) -> tuple[ConvexLoss[Any], Link]:
        labels, known = solving.splits["train"].targets()
        observed = None if known is None else torch.from_numpy(known)
        loss = self.objective.convex(Targets(torch.from_numpy(labels).double(), observed))
        if loss is None:
            raise TypeError(f"{solving.settings.method} has no convex loss")
        return loss.each(to_numpy), self.objective.link or Sigmoid()

    def saver(self, solving: Solving, fitted: Fitted[Any] | None, method: str) -> Save:
        if fitted is None:
            model = Predictor.load(solving.run.path).model
        else:
            model = deepcopy(self.model)
            classifier = model.head.get_submodule("classifier")
            weights = {"weight": fitted.weight, "bias": fitted.bias}
            state = {name: torch.as_tensor(to_numpy(side)) for name, side in weights.items()}
            classifier.load_state_dict(state)
            model = self.frozen.deployed(model)

        def save(link: Link | None, rule: Rule, promises: Promises) -> None:
            parts = (model, self.head, solving.table.space, link, rule, method)
            Predictor(*parts, promises, solving.taxonomy).save(solving.run.path)

        return save
