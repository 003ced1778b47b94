"""A task of one's own for `orderdp train` and `orderdp compare`: noisy regression, judged by how near predictions come.

    orderdp compare --task examples/own_task.py:make --policies orderdp --prune-ratios 0.4 --epochs 10 --out results

A task has data, a model, a loss for each sample and a metric; the workbench does the rest.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Regression:
    """Learns a smooth function of five numbers, of which one sample in twenty is measured badly."""

    metric_name = "within 0.1"

    def __init__(self) -> None:
        self.train_set = measurements(2000, seed=0, bad=0.05)
        self.test_set = measurements(500, seed=1, bad=0.0)

    def build_model(self, seed: int) -> nn.Module:
        """The weights must depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def losses(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """One loss for each sample: no mean here. It is what the policy remembers, and what is trained on."""
        x, y = batch
        return nn.functional.smooth_l1_loss(model(x).squeeze(1), y, reduction="none")

    def metric(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """One number for each test sample; 100 times their mean is reported, and larger must be better."""
        x, y = batch
        near: torch.Tensor = (model(x).squeeze(1) - y).abs() < 0.1
        return near.float()


def measurements(n: int, seed: int, bad: float) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 5, generator=generator) * 2 - 1
    y = (x[:, 0] * 3).sin() + x[:, 1] * x[:, 2]
    wrong = torch.rand(n, generator=generator) < bad
    return TensorDataset(x, y + wrong * torch.randn(n, generator=generator))


def make() -> Regression:
    return Regression()
