"""Exponential averages of losses, for policies that remember more than the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orderdp.policy import Rows

if TYPE_CHECKING:
    import torch

__all__ = ["mean_and_variance", "mean_only"]


def mean_only(rows: Rows, losses: torch.Tensor, alpha: float) -> dict[str, torch.Tensor]:
    """The average of the losses as "score"; the first loss of a sample is its average."""
    old = rows["score"]
    return {"score": losses.where(old.isinf(), old + alpha * (losses - old))}


def mean_and_variance(rows: Rows, losses: torch.Tensor, alpha: float) -> dict[str, torch.Tensor]:
    """The average as "score" and the average squared distance from it as "variance", 0 after the first loss."""
    mean, variance = rows["score"], rows["variance"]
    first = mean.isinf()
    distance = (losses - mean).masked_fill(first, 0.0)
    return {
        "score": losses.where(first, mean + alpha * distance),
        "variance": (1 - alpha) * (variance + alpha * distance.square()),
    }
