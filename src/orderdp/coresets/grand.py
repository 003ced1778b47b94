"""GraNd: the samples with the largest gradients early in training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from orderdp.coresets.el2n import check_moment
from orderdp.coresets.last_layer import Gradients
from orderdp.coresets.method import ScoreMethod, inits_of
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError
from orderdp.planning import is_count

__all__ = ["GraNd", "gradient_norms"]


def gradient_norms(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Norm of each sample's cross-entropy gradient with respect to all parameters.

    A sample's gradient is its own: it depends neither on the batch it stands in nor on the batch's size.
    """
    # Each tensor under one name, as these have it: a state dict has tied ones under all of theirs.
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    everything = chain(model.named_parameters(), model.named_buffers())
    rest = {name: value.detach() for name, value in everything if name not in parameters}

    def loss(weights: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, {**weights, **rest}, (one.unsqueeze(0),))
        return torch.nn.functional.cross_entropy(logits, label.unsqueeze(0))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, labels)
    squares = [value.flatten(1).double().square().sum(1) for value in gradients.values()]
    return torch.stack(squares).sum(0).sqrt()


@dataclass(frozen=True, kw_only=True)
class GraNd(ScoreMethod):
    """Keeps the largest norms of the sample's own gradient, averaged over models.

    Args:
        epoch: After how many epochs of the proxy's training.
        repeats: How many models are averaged over; None for as many as the proxy has.
        layer: "last" for the gradient of the last linear layer, in closed form; "all" for that of all parameters.
        chunk: With "all", how many gradients are held at once: each is as large as the model.
    """

    epoch: int = 4
    repeats: int | None = None
    layer: Literal["last", "all"] = "last"
    chunk: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moment(self.epoch, self.repeats)
        if self.layer not in ("last", "all"):
            raise ConfigError(f'layer must be "last" or "all", got {self.layer!r}.')
        if not is_count(self.chunk):
            raise ConfigError(f"chunk must be a whole number, at least 1, got {self.chunk!r}.")

    @property
    def needs(self) -> Needs:
        """Features and logits of one epoch, or the model of that epoch."""
        last = self.layer == "last"
        return Needs(features=last, logits=last, model=not last, labels=True, epoch=self.epoch, inits=self.repeats)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The mean norm."""
        norm = self._last if self.layer == "last" else self._all
        return np.asarray(np.mean([norm(source, init) for init in inits_of(self.needs, source)], axis=0))

    def _last(self, source: Source, init: int) -> np.ndarray:
        assert source.labels is not None
        features, logits = source.features(self.epoch, init), source.logits(self.epoch, init)
        return np.asarray(np.sqrt(Gradients.of(features, logits, source.labels).squared_norms()))

    def _all(self, source: Source, init: int) -> np.ndarray:
        model, norms = source.model(self.epoch, init), np.empty(source.n)
        for indices, inputs, labels in source.batches():
            parts = [slice(start, start + self.chunk) for start in range(0, len(inputs), self.chunk)]
            found = [gradient_norms(model, inputs[part], labels[part]) for part in parts]
            norms[indices] = torch.cat(found).cpu().numpy()
        return norms
