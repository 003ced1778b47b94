"""Models by name: small ones for two CPU cores, ResNets, a vision transformer, timm models, and user-defined models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from orderdp._training import GlobalGenerators
from orderdp._validation import checked_name
from orderdp.errors import ConfigError, install_command
from orderdp.experiments.config import import_object

__all__ = ["MODELS", "CompactCNN", "CompactViT", "ResNet", "build_model", "quarter_width", "resnet18", "resnet50"]


def mlp(shape: Sequence[int], classes: int, *, width: int = 256) -> nn.Module:
    """Build a multilayer perceptron with two hidden layers."""
    inputs = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


class CompactCNN(nn.Module):
    """A residual network of nine layers, for machines without a GPU.

    Only the first convolution works at full resolution, where most of the time would go: the image is halved three
    times, and each time a residual block follows.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of classes.
        width: Channels of the first layer; the later stages have 2 and 4 times as many.
    """

    def __init__(self, shape: Sequence[int], classes: int, *, width: int = 16) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigError(
                f"this model needs images (channels, height, width), got samples of shape {tuple(shape)}."
            )
        self.stem = _convolution(shape[0], width)
        self.stages = nn.Sequential(
            nn.MaxPool2d(2, ceil_mode=True),
            _Residual(width),
            _convolution(width, 2 * width),
            nn.MaxPool2d(2, ceil_mode=True),
            _Residual(2 * width),
            _convolution(2 * width, 4 * width),
            nn.MaxPool2d(2, ceil_mode=True),
            _Residual(4 * width),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = self.stages(self.stem(x)).amax((2, 3))
        logits: torch.Tensor = self.head(features)
        return logits


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = x + self.inner(x)
        return changed


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
        self.stem = nn.Sequential(*_normalized_convolution(shape[0], width, 3), nn.ReLU(inplace=True))
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
            *_normalized_convolution(inputs, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normalized_convolution(width, width, 3),
        )
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_normalized_convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_normalized_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normalized_convolution(width, 4 * width, 1),
        )
        self.shortcut = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


def _normalized_convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(*_normalized_convolution(inputs, outputs, 1, stride))


def resnet18(shape: Sequence[int], classes: int, *, width: int = 64) -> ResNet:
    """Build a ResNet-18: two basic blocks per stage; 11.2 million parameters for CIFAR-10."""
    return ResNet(shape, classes, (2, 2, 2, 2), bottleneck=False, width=width)


def resnet50(shape: Sequence[int], classes: int, *, width: int = 64) -> ResNet:
    """Build a ResNet-50: stages of 3, 4, 6 and 3 bottlenecks; 23.5 million parameters for CIFAR-10."""
    return ResNet(shape, classes, (3, 4, 6, 3), bottleneck=True, width=width)


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


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": CompactCNN,
    "vit": CompactViT,
    "resnet18": resnet18,
    "resnet50": resnet50,
}


def build_model(name: str, *, shape: Sequence[int], classes: int, seed: int, width: int | None = None) -> nn.Module:
    """Build the model called `name`, with weights that depend only on the seed.

    Args:
        name: One of `MODELS`, ``timm:NAME``, or ``module:factory`` for a function of (shape, classes).
        shape: Shape of one sample.
        classes: Number of classes.
        seed: Seed of the initial weights. The state of the global generator is restored.
        width: Width, for models that have one.
    """
    kind, _, rest = name.partition(":")
    factory: Callable[..., Any]
    if kind == "timm" and rest:
        factory = _timm(rest)
    elif rest:
        factory = import_object(name, "model")
    else:
        checked_name(name, MODELS, "model")
        factory = MODELS[name]
    options = {} if width is None else {"width": width}
    host = torch.device("cpu")  # models are built on the CPU
    with GlobalGenerators.seeded(seed, host).used(host):
        try:
            model = factory(shape, classes, **options)
        except TypeError as error:
            raise ConfigError(f"model {name!r} cannot be made: {error}.") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r} must be a torch.nn.Module, got {type(model).__name__}.")
    return model


def quarter_width(name: str, width: int | None = None) -> int:
    """Return the width of a model's proxy: a quarter of the model's width, rounded down and at least 1.

    >>> quarter_width("cnn"), quarter_width("mlp", 6)
    (4, 1)

    Args:
        name: Name of the model.
        width: Width of the model; None for its default.
    """
    if width is None:
        own = inspect.signature(MODELS[name]).parameters.get("width") if name in MODELS else None
        if own is None:
            raise ConfigError(
                f"the proxy has a quarter of the model's width, and model {name!r} does not say which it has. Give "
                "--width, or proxy-plan:proxy_width=N, if it takes one."
            )
        width = int(own.default)
    return max(1, width // 4)


def _timm(name: str) -> Callable[..., nn.Module]:
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        raise ConfigError(f"timm models need timm: {install_command('vision')} ({error}).") from None
    if not timm.is_model(name):
        checked_name(name, timm.list_models(), "timm model")

    def create(shape: Sequence[int], classes: int) -> nn.Module:
        model: nn.Module = timm.create_model(name, num_classes=classes, in_chans=shape[0])
        return model

    return create
