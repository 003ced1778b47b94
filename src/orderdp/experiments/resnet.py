"""ResNet-18 and -50 with the stem for small images: a 3 x 3 convolution and no pooling before the first stage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from orderdp.errors import ConfigError

__all__ = ["ResNet", "resnet18", "resnet50"]


class ResNet(nn.Module):
    """Four stages of residual blocks.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of classes.
        blocks: Number of blocks per stage.
        bottleneck: Whether blocks narrow to a quarter of their width inside (ResNet-50) or not (ResNet-18).
        width: Channels inside the blocks of the first stage; each later stage has twice as many as the one before.
    """

    def __init__(
        self, shape: Sequence[int], classes: int, blocks: Sequence[int], *, bottleneck: bool, width: int = 64
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigError(
                f"this model needs images (channels, height, width), got samples of shape {tuple(shape)}."
            )
        self.stem = nn.Sequential(*_convolution(shape[0], width, 3), nn.ReLU(inplace=True))
        block = _Bottleneck if bottleneck else _Basic
        channels, stages = width, []
        for number, depth in enumerate(blocks):
            for place in range(depth):
                stride = 2 if number > 0 and place == 0 else 1
                stages.append(block(channels, width << number, stride))
                channels = (width << number) * block.expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return logits


class _Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3)
        )
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1),
        )
        self.shortcut = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(*_convolution(inputs, outputs, 1, stride))


def resnet18(shape: Sequence[int], classes: int, *, width: int = 64) -> ResNet:
    """Build a ResNet-18: two basic blocks per stage; 11.2 million parameters for CIFAR-10."""
    return ResNet(shape, classes, (2, 2, 2, 2), bottleneck=False, width=width)


def resnet50(shape: Sequence[int], classes: int, *, width: int = 64) -> ResNet:
    """Build a ResNet-50: stages of 3, 4, 6 and 3 bottlenecks; 23.5 million parameters for CIFAR-10."""
    return ResNet(shape, classes, (3, 4, 6, 3), bottleneck=True, width=width)
