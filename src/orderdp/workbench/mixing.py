"""MixUp and CutMix: training images blended in pairs, with a score that is still each sample's own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from orderdp.errors import ConfigError

__all__ = ["Mixture", "blend", "cutmix", "mixed_losses", "mixup"]


class Mixture(NamedTuple):
    """A batch of which each image is a blend of itself and another.

    Attributes:
        images: The blends.
        partner: For each image, the place in the batch of the other one.
        share: How much of each blend is the image itself, at least one half.
    """

    images: torch.Tensor
    partner: torch.Tensor
    share: float


def blend(images: torch.Tensor, mixup_alpha: float, cutmix_alpha: float, rng: np.random.Generator) -> Mixture:
    """MixUp or CutMix, whichever has an alpha above 0; one of them by chance where both have."""
    both = mixup_alpha > 0 and cutmix_alpha > 0
    use_cutmix = rng.random() < 0.5 if both else cutmix_alpha > 0
    return cutmix(images, cutmix_alpha, rng) if use_cutmix else mixup(images, mixup_alpha, rng)


def mixup(images: torch.Tensor, alpha: float, rng: np.random.Generator) -> Mixture:
    """Blends each image with another, pixel by pixel; the share comes from Beta(alpha, alpha)."""
    share = _share(alpha, rng)
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    return Mixture(images * share + images[partner] * (1 - share), partner, share)


def cutmix(images: torch.Tensor, alpha: float, rng: np.random.Generator) -> Mixture:
    """Pastes a rectangle of another image into each; the share is that of the area left."""
    if images.ndim < 3:
        raise ConfigError(f"CutMix needs images, these samples have the shape {tuple(images.shape[1:])}. Use MixUp.")
    height, width = images.shape[-2:]
    side = np.sqrt(1 - _share(alpha, rng))
    tall, wide = int(side * height), int(side * width)  # rounded down: the larger part stays the image's own
    top, left = (int(rng.integers(0, room + 1)) for room in (height - tall, width - wide))
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    mixed = images.clone()
    mixed[..., top : top + tall, left : left + wide] = images[partner, ..., top : top + tall, left : left + wide]
    return Mixture(mixed, partner, 1 - tall * wide / (height * width))


def mixed_losses(
    logits: torch.Tensor, targets: torch.Tensor, mixture: Mixture, label_smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss to train on and the score to remember, one of each for every sample.

    The loss is that of the blend: by both labels, in the blend's shares. The score is the loss by the sample's own
    label alone: what the partner happened to be says nothing about the sample.
    """
    own = F.cross_entropy(logits, targets, reduction="none", label_smoothing=label_smoothing)
    other = F.cross_entropy(logits, targets[mixture.partner], reduction="none", label_smoothing=label_smoothing)
    return own * mixture.share + other * (1 - mixture.share), own.detach()


def _share(alpha: float, rng: np.random.Generator) -> float:
    # The larger part is the image itself, or its score would be that of another.
    share = float(rng.beta(alpha, alpha))
    return max(share, 1 - share)
