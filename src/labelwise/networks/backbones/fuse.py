"""Convolutions that do the work of the batch normalisation behind them, for inference alone.

    gamma (w * x + b - mean) / sqrt(var + eps) + beta  =  w' * x + b'

Which norm follows which convolution is seen in one forward pass. The fused network is then compared
with the original: where a convolution's output is used elsewhere too, they differ, and the original
is kept.
"""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

TOLERANCE = 1e-4  # of the largest output

Network = TypeVar("Network", bound=nn.Module)
Pair = tuple[nn.Conv2d, nn.BatchNorm2d]


def fused(network: Network, example: Tensor) -> Network:
    """Return a copy of a network in evaluation without batch normalisation behind convolutions.

    ``example`` is an input. The network itself is returned where nothing can be fused.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    copy = deepcopy(network)
    with torch.no_grad():
        before, pairs = _watched(copy, example)
        for convolution, norm in pairs:
            _fuse(convolution, norm)
        norms = [norm for _, norm in pairs]
        for name, module in list(copy.named_modules()):
            if any(module is norm for norm in norms):
                copy.set_submodule(name, _without_norm(module))
        same = bool(pairs) and _agree(before, copy(example))
    return copy if same else network


def _watched(network: nn.Module, example: Tensor) -> tuple[Tensor, list[Pair]]:
    """Return the output, and each convolution whose output a batch norm takes, both used once."""
    made: list[tuple[Any, nn.Conv2d]] = []
    taken: list[tuple[Any, nn.BatchNorm2d]] = []
    hooks = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(lambda m, _, out: made.append((out, m))))
        elif isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            hooks.append(module.register_forward_pre_hook(lambda m, x: taken.append((x[0], m))))
    output: Tensor = network(example)
    for hook in hooks:
        hook.remove()
    convolutions, norms = [m for _, m in made], [m for _, m in taken]
    pairs = [
        (convolution, norm)
        for result, convolution in made
        for given, norm in taken
        if given is result and convolutions.count(convolution) == norms.count(norm) == 1
    ]
    return output, pairs


def _fuse(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight,
        convolution.bias,
        norm.get_buffer("running_mean"),
        norm.get_buffer("running_var"),
        norm.eps,
        norm.weight,
        norm.bias,
    )


def _without_norm(norm: nn.Module) -> nn.Module:
    """Return what is left of a norm: timm's apply dropout and an activation after it."""
    rest = [getattr(norm, name, None) for name in ("drop", "act")]
    return nn.Sequential(*(module for module in rest if isinstance(module, nn.Module)))


def _agree(before: Tensor, after: Tensor) -> bool:
    limit = TOLERANCE * before.abs().max().clamp(min=1.0)
    return bool((before - after).abs().max() <= limit)
