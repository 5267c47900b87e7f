"""Freezing: parts of a backbone that training leaves as they are."""

from collections.abc import Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.errors import SettingsError
from labelwise.networks.backbones.base import Backbone
from labelwise.types import nearest


def freeze(backbone: Backbone, stages: int = 0, prefixes: Sequence[str] = ()) -> None:
    """Freeze the first ``stages`` stages and all parameters whose name starts with a prefix.

    Their batch norms keep the stored statistics. ``stages=-1`` freezes the whole backbone.
    A prefix may leave out the leading ``network.`` of timm's and torchvision's models.
    """
    groups = backbone.stages()
    if not -1 <= stages <= len(groups):
        raise SettingsError(
            f"backbone {backbone.name!r} has {len(groups)} stages to freeze, got {stages}"
        )
    frozen = {name for group in (groups if stages == -1 else groups[:stages]) for name in group}
    names = [name for name, _ in backbone.named_parameters()]
    for prefix in prefixes:
        matches = [name for name in names if _starts(name, prefix)]
        if not matches:
            tops = sorted({name.removeprefix("network.").partition(".")[0] for name in names})
            raise SettingsError(f"no layer starts with {prefix!r}{nearest(prefix, tops)}")
        frozen.update(matches)
    for name, parameter in backbone.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    backbone.train(backbone.training)


def freeze_batch_norm(backbone: Backbone) -> None:
    """Freeze weight, bias and statistics of every batch norm."""
    for module in backbone.modules():
        if isinstance(module, _BatchNorm):
            module.requires_grad_(False)
    backbone.train(backbone.training)


def _starts(name: str, prefix: str) -> bool:
    return f"{name.removeprefix('network.')}.".startswith(f"{prefix.rstrip('.')}.")
