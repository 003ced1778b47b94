"""The last linear layer of a model: what goes in are the features, what comes out the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from orderdp.errors import ConfigError
from orderdp.naming import suggestion

__all__ = ["Tap", "find_head"]


def find_head(model: nn.Module, inputs: torch.Tensor, name: str | None = None) -> str:
    """The name of the last linear layer that a forward pass goes through, or of the one that was named.

    Args:
        model: Any model.
        inputs: Something it can be called on.
        name: How the module is called in ``model.named_modules()``.
    """
    linear = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None:
        if name not in linear:
            raise ConfigError(f"head must name an nn.Linear of the model, got {name!r}.{suggestion(name, linear)}")
        return name
    called: list[str] = []
    hooks = [module.register_forward_hook(lambda *_, key=key: called.append(key)) for key, module in linear.items()]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ConfigError("the model must go through an nn.Linear, whose inputs are the features; it has none.")
    return called[-1]


class Tap:
    """Keeps what goes into a linear layer and what comes out, while it is open.

    Args:
        model: Whose.
        head: The layer's name.
    """

    def __init__(self, model: nn.Module, head: str) -> None:
        self._head = head
        self._layer = model.get_submodule(head)
        self.features = self.logits = torch.empty(0)

    def __enter__(self) -> Tap:
        self._hook = self._layer.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _keep(self, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        if inputs[0].ndim != 2:
            raise ConfigError(
                f"the last linear layer must see one vector a sample, {self._head!r} sees shape "
                f"{tuple(inputs[0].shape)}. Name another one with Proxy(..., head=...)."
            )
        self.features, self.logits = inputs[0].detach(), output.detach()
