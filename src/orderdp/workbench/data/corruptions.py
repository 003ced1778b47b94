"""Test images that are harder to recognise, in five steps: noise, blur, less contrast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from orderdp.checks import checked_seed
from orderdp.errors import ConfigError
from orderdp.naming import checked_name
from orderdp.planning import is_count
from orderdp.randomness import generator
from orderdp.workbench.data.sets import ImageData, Split

__all__ = ["KINDS", "corrupted"]

# So many images at once are widened to float32.
_PART = 1000


def corrupted(data: ImageData, kind: str, severity: int = 3, seed: int = 0) -> ImageData:
    """The same data with its test images made worse; training images stay as they are.

    Args:
        data: uint8 images.
        kind: "noise" (Gaussian, a standard deviation of 4 % of the range for each step), "blur" (Gaussian, 0.4 pixels
            for each step), "contrast" (18 % less distance from the image's own mean for each step).
        severity: 1 to 5 steps.
        seed: Of the noise.
    """
    checked_name(kind, KINDS, "corruption")
    if not is_count(severity) or severity > 5:
        raise ConfigError(f"severity must be a whole number from 1 to 5, got {severity!r}.")
    images = data.test.images
    if images.dtype != torch.uint8:
        raise ConfigError(f"only uint8 images can be corrupted, got {images.dtype} of shape {tuple(images.shape)}.")
    seed = checked_seed(seed)
    worse = torch.empty_like(images)
    for number, start in enumerate(range(0, len(images), _PART)):
        part = images[start : start + _PART].float()
        rng = generator(seed, "data", "corrupt", kind, number)
        worse[start : start + _PART] = KINDS[kind](part, severity, rng).round().clamp(0, 255).to(torch.uint8)
    return replace(data, test=Split(worse, data.test.labels))


def _noise(images: torch.Tensor, severity: int, rng: np.random.Generator) -> torch.Tensor:
    noise = rng.standard_normal(tuple(images.shape), dtype=np.float32)
    return images + torch.from_numpy(noise) * (0.04 * 255 * severity)


def _blur(images: torch.Tensor, severity: int, _: np.random.Generator) -> torch.Tensor:
    sigma = 0.4 * severity
    height, width = images.shape[2:]
    rows = images.reshape(-1, 1, height, width)
    for size, dimension in ((height, 2), (width, 3)):
        radius = min(round(3 * sigma) + 1, size - 1)
        weights = torch.exp(-(torch.arange(-radius, radius + 1).float() ** 2) / (2 * sigma**2))
        kernel = (weights / weights.sum()).reshape((1, 1, -1, 1) if dimension == 2 else (1, 1, 1, -1))
        margin = (0, 0, radius, radius) if dimension == 2 else (radius, radius, 0, 0)
        rows = F.conv2d(F.pad(rows, margin, mode="reflect"), kernel)
    return rows.reshape(images.shape)


def _contrast(images: torch.Tensor, severity: int, _: np.random.Generator) -> torch.Tensor:
    mean = images.mean((2, 3), keepdim=True)
    return mean + (images - mean) * (1 - 0.18 * severity)


#: What can be done to the images.
KINDS: dict[str, Callable[[torch.Tensor, int, np.random.Generator], torch.Tensor]] = {
    "noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
}
