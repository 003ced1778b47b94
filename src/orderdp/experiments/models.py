"""Models by name: small ones for two CPU cores, the paper's ResNets, timm models, and user-defined models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from orderdp._torch import GlobalGenerators
from orderdp._validation import checked_name
from orderdp.errors import ConfigError
from orderdp.experiments._imports import import_object
from orderdp.experiments.resnet import resnet18, resnet50
from orderdp.experiments.vit import CompactViT

__all__ = ["MODELS", "CompactCNN", "build_model", "quarter_width"]


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
        raise ConfigError(f"timm models need timm: pip install 'orderdp[vision]' ({error}).") from None
    if not timm.is_model(name):
        checked_name(name, timm.list_models(), "timm model")

    def create(shape: Sequence[int], classes: int) -> nn.Module:
        model: nn.Module = timm.create_model(name, num_classes=classes, in_chans=shape[0])
        return model

    return create
