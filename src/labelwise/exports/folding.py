"""A model whose classifier does the work of its link, for programs that know no links.

    sigma(slope (W x + b) + offset)  =  sigma((slope W) x + (slope b + offset))
    softmax of (W x + b) / T         =  softmax of (W / T) x + b / T

Other programs take a sigmoid or a softmax of the logits, whichever ``problem_type`` names. Under
temperature and Platt scaling these are the model's own probabilities once the numbers are folded
into the weights; curves (SPA, isotonic, beta) and links that couple labels cannot be folded.
"""

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.models import Model, Predictor
from labelwise.networks.heads import LinearHead


@dataclass(frozen=True)
class Folded:
    """A predictor with a plain sigmoid or softmax, and the ``problem_type`` that asks for it."""

    predictor: Predictor
    problem_type: str


def folded(predictor: Predictor) -> Folded:
    """Return the predictor with its link folded into its linear head; raise if that cannot be."""
    head = predictor.model.head
    if not isinstance(head, LinearHead):
        raise SettingsError(f"only a linear head can take in a link, got {type(head).__name__}")
    slope, offset, link, problem_type = _line(predictor.link, len(predictor.space))
    classifier = deepcopy(head.classifier)
    weight, bias = classifier.weight, classifier.bias
    with torch.no_grad():
        device = weight.device
        weight.copy_(slope.to(device)[:, None] * weight.double())
        bias.copy_(slope.to(device) * bias.double() + offset.to(device))
    new = LinearHead(classifier.in_features, classifier.out_features).to(device)
    new.classifier = classifier
    mirrored, crops = predictor.model.mirrored, predictor.model.crops
    model = Model(predictor.model.backbone, new, mirrored=mirrored, crops=crops)
    return Folded(replace(predictor, model=model.eval(), link=link), problem_type)


def _line(link: Link | None, labels: int) -> tuple[Tensor, Tensor, Link, str]:
    """Return the slope and offset (K,) to fold, what remains of the link, and how it is asked."""
    if link is None:
        raise SettingsError("the model ranks labels and has no probabilities; calibrate it first")
    if isinstance(link, Softmax) and labels > 1:
        slope = torch.full((labels,), 1 / link.temperature, dtype=torch.float64)
        return slope, torch.zeros_like(slope), Softmax(), "single_label_classification"
    line = link.slope_and_offset(labels)
    if line is None:
        raise SettingsError(
            f"the link {link.kind!r} is not a sigmoid or softmax of scaled and shifted logits; "
            "`labelwise train --method bce --set calibrate=platt` gives one that is"
        )
    return *line, Sigmoid(), "multi_label_classification"
