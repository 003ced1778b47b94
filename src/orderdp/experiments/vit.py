"""A vision transformer for machines without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from orderdp.errors import ConfigError

__all__ = ["CompactViT"]


_SIDE = 8  # patches along each side of an image, at most


_HEAD = 16  # channels per attention head


class CompactViT(nn.Module):
    """Patches of the image attend to each other in four layers; their mean is classified.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of classes.
        width: Channels per patch, a multiple of 16.
        depth: Number of layers.
    """

    def __init__(self, shape: Sequence[int], classes: int, *, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigError(
                f"this model needs images (channels, height, width), got samples of shape {tuple(shape)}."
            )
        if width % _HEAD or width < _HEAD:
            raise ConfigError(f"the width of this model must be a multiple of {_HEAD}, got {width}.")
        channels, height, across = shape
        patch = max(2, -(-max(height, across) // _SIDE))
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self._padding = (0, -across % patch, 0, -height % patch)
        places = -(-height // patch) * -(-across // patch)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.Sequential(*(_Layer(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        tokens = self.patches(F.pad(x, self._padding)).flatten(2).transpose(1, 2) + self.places
        logits: torch.Tensor = self.head(self.norm(self.layers(tokens)).mean(1))
        return logits


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // _HEAD
        self.before_attention = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.change = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, places, width = tokens.shape
        parts = self.into(self.before_attention(tokens)).view(batch, places, 3, self.heads, _HEAD)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, places, width)
        tokens = tokens + self.out(found)
        changed: torch.Tensor = tokens + self.change(tokens)
        return changed
