"""Colour changes of a batch of uint8 pixels (B, 3, H, W), with an amount (B,) for each image.

The four blends are ``factor * image + (1 - factor) * base``, cut to 0..255 and truncated, with
base black, grey, mean grey or blurred; like torchvision's, value for value.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d


def blend(pixels: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """Return ``factor * pixels + (1 - factor) * base``; ``factor`` (B,) may exceed 1."""
    weight = factor[:, None, None, None]
    return (weight * pixels + (1 - weight) * base).clamp_(0, 255).to(torch.uint8)


def grey(pixels: Tensor) -> Tensor:
    """Return the brightness (B, 1, H, W), truncated to whole numbers."""
    red, green, blue = pixels.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[:, None]


def mean_grey(pixels: Tensor) -> Tensor:
    """Return the mean brightness (B, 1, 1, 1)."""
    return grey(pixels).float().mean(dim=(1, 2, 3), keepdim=True)


def blurred(pixels: Tensor) -> Tensor:
    """Return each inner pixel as the mean of its nine, itself counted five times; edges stay."""
    if min(pixels.shape[2:]) <= 2:
        return pixels
    kernel = torch.full((3, 1, 3, 3), 1 / 13, device=pixels.device)
    kernel[:, :, 1, 1] = 5 / 13
    result = pixels.clone()
    result[:, :, 1:-1, 1:-1] = conv2d(pixels.float(), kernel, groups=3).round_().to(torch.uint8)
    return result


def posterise(pixels: Tensor, bits: Tensor) -> Tensor:
    """Return the pixels with only the highest ``bits`` (B,) bits kept."""
    step = torch.exp2(8 - bits)[:, None, None, None].to(torch.uint8)
    return pixels // step * step


def solarise(pixels: Tensor, threshold: Tensor) -> Tensor:
    """Return the pixels with those at or above ``threshold`` (B,) turned into their negative."""
    return torch.where(pixels >= threshold[:, None, None, None], 255 - pixels, pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Return each channel stretched to 0..255; a channel of one value stays."""
    low = pixels.amin(dim=(2, 3), keepdim=True).float()
    high = pixels.amax(dim=(2, 3), keepdim=True).float()
    flat = low == high
    scale = torch.where(flat, 1.0, 255 / (high - low))
    return ((pixels - torch.where(flat, 0.0, low)) * scale).clamp_(0, 255).to(torch.uint8)


def equalise(pixels: Tensor) -> Tensor:
    """Return each channel with its histogram flattened."""
    values = pixels.flatten(2).long()  # (B, 3, H W)
    counts = torch.zeros((*values.shape[:2], 256), dtype=torch.int64, device=pixels.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    highest = values.amax(dim=2, keepdim=True)
    step = (values.shape[2] - counts.gather(2, highest)) // 255  # (B, 3, 1)
    below = counts.cumsum(2) - counts  # pixels darker than each value
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    table = torch.where(step == 0, torch.arange(256, device=pixels.device), table)
    return table.gather(2, values).to(torch.uint8).view(pixels.shape)
