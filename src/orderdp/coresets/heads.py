"""The last linear layer of a model: what goes in are the features, what comes out the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from orderdp.errors import ConfigError
from orderdp.naming import suggestion

__all__ = ["Tap", "find_head"]


def find_head(model: nn.Module, inputs: torch.Tensor, name: str | None = None) -> str:
    """The name of the last linear layer that a forward pass goes through, or of the one that was named.

    Checked before anything is trained: it must see one vector a sample, and what it gives must be what the model gives.

    Args:
        model: In evaluation mode.
        inputs: Something it can be called on.
        name: How the module is called in ``model.named_modules()``.
    """
    linear = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in linear:
        raise ConfigError(f"head must name an nn.Linear of the model, got {name!r}.{suggestion(name, linear)}")
    head = _last_called(model, inputs, linear if name is None else {name: linear[name]})
    if head is None:
        raise ConfigError(
            "the model must go through an nn.Linear, whose inputs are the features; it goes through none."
            if name is None
            else f"the model must go through the head {name!r}, it does not. Name another with Proxy(..., head=...)."
        )
    # With noise added: a head that starts with zeros would equal whatever a scale makes of it.
    with Tap(model, head, noise=torch.Generator().manual_seed(0)) as tap, torch.no_grad():
        tap.check(model(inputs))
    return head


def _last_called(model: nn.Module, inputs: torch.Tensor, layers: Mapping[str, nn.Module]) -> str | None:
    called: list[str] = []
    hooks = [module.register_forward_hook(lambda *_, key=key: called.append(key)) for key, module in layers.items()]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return called[-1] if called else None


class Tap:
    """Keeps what goes into a linear layer and what comes out, while it is open.

    Args:
        model: Whose.
        head: The layer's name.
        noise: Of noise that is added to what comes out, new at every call; None for none.
    """

    def __init__(self, model: nn.Module, head: str, noise: torch.Generator | None = None) -> None:
        self._head = head
        self._noise = noise
        self._layer = model.get_submodule(head)
        self.features = self.logits = torch.empty(0)

    def __enter__(self) -> Tap:
        self._hook = self._layer.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def check(self, output: Any) -> None:
        """Raises unless the model's output has the probabilities that the layer's has.

        So a log-softmax after the layer is allowed, and a scale is not: methods that work on the layer's output would
        work on another model than the one that is trained.

        Args:
            output: What the model gave for the call that was kept.
        """
        if not isinstance(output, torch.Tensor):
            raise ConfigError(f"the model must give one tensor of logits, got {type(output).__name__}.")
        same = output.shape == self.logits.shape
        if same and _same_probabilities(self.logits, output):
            return
        raise ConfigError(
            f"the last linear layer must give the model's output, of shape {tuple(output.shape)}; {self._head!r} gives "
            f"{'other values' if same else tuple(self.logits.shape)}. Name the right one with Proxy(..., head=...), or "
            "give the proxy a model that ends with an nn.Linear."
        )

    def _keep(self, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        if inputs[0].ndim != 2:
            raise ConfigError(
                f"the last linear layer must see one vector a sample, {self._head!r} sees shape "
                f"{tuple(inputs[0].shape)}. Name another one with Proxy(..., head=...)."
            )
        if self._noise is not None:
            output = output + torch.randn(output.shape, generator=self._noise).to(output)
        # A copy, because what comes after the layer may work in place.
        self.features, self.logits = inputs[0].detach(), output.detach().clone()
        return output


def _same_probabilities(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Up to rounding, which is coarser in half precision and for large logits. NaN is found when it is recorded."""
    precision = max(torch.finfo(logits.dtype).eps if logits.is_floating_point() else 0.0 for logits in (first, second))
    ours, models = (logits.float().log_softmax(1) for logits in (first, second))
    tolerance = max(1e-4, 8 * precision)
    largest = first.float().abs().nan_to_num(0, 0, 0).max().item()
    return torch.allclose(ours, models, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)
