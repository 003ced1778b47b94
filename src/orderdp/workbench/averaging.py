"""The average of the iterates, each weighted by its learning rate: what the convergence theorem speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["IterateAverage"]


class IterateAverage:
    """Sum of lr_t * theta_t over the steps, divided by the sum of lr_t. Buffers are averaged alike.

    Args:
        model: Whose parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._total = 0.0
        self._share = 1.0
        self.model = AveragedModel(model, avg_fn=self._mixed, use_buffers=True)

    def add(self, model: nn.Module, lr: float) -> None:
        """Takes in the model as it is after a step with this learning rate."""
        self._total += lr
        self._share = lr / self._total if self._total else 1.0
        self.model.update_parameters(model)

    def _mixed(self, average: torch.Tensor, current: torch.Tensor, count: Any) -> torch.Tensor:
        return average + (current - average) * self._share

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"total": self._total, "model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self._total = float(state["total"])
        self.model.load_state_dict(state["model"])
