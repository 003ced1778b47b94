"""How large the gradients are, step by step, and how much they swing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from orderdp.errors import ConfigError, FeedbackError
from orderdp.planning import is_count

__all__ = ["GradientNorms", "gradient_norm", "rolling_spread"]

_CHUNK = 1024


@torch.no_grad()
def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all gradients together, on their device; nothing waits for it.

    Args:
        parameters: Whose ``.grad``; those without one are passed over.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        raise FeedbackError(
            "there is no gradient whose norm could be taken. Measure after backward() and before zero_grad()."
        )
    dense = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in dense]
    home = norms[0].device
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(home, non_blocking=True) for norm in norms]))
    return whole


class GradientNorms:
    """The norms of many steps. They stay on their device until they are read."""

    def __init__(self) -> None:
        self._restored = torch.empty(0)  # what came out of a checkpoint, on the host
        self._chunks: list[torch.Tensor] = []
        self._count = 0  # in the chunks

    def __len__(self) -> int:
        return len(self._restored) + self._count

    @torch.no_grad()
    def add(self, norm: torch.Tensor) -> None:
        """Notes the norm of one step."""
        place = self._count % _CHUNK
        if place == 0:
            self._chunks.append(torch.empty(_CHUNK, dtype=torch.float32, device=norm.device))
        self._chunks[-1].select(0, place).copy_(norm)
        self._count += 1

    def read(self) -> np.ndarray:
        """All norms, in order. Waits for the device."""
        return self._all().double().numpy()

    def _all(self) -> torch.Tensor:
        chunks = [chunk.cpu() for chunk in self._chunks]
        return torch.cat([self._restored, *chunks])[: len(self)]

    def summary(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation over the steps; without the steps that mixed precision made infinite."""
        norms = self.read()
        norms = norms[np.isfinite(norms)]
        mean = float(norms.mean()) if len(norms) else None
        return mean, float(norms.std(ddof=1)) if len(norms) > 1 else None

    def clear(self) -> None:
        """Forgets them."""
        self._restored, self._chunks, self._count = torch.empty(0), [], 0

    def state_dict(self) -> dict[str, Any]:
        """A tensor, for a checkpoint."""
        return {"norms": self._all().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self.clear()
        self._restored = state["norms"].float().cpu().clone()


def rolling_spread(values: Any, window: int = 50) -> np.ndarray:
    """The standard deviation within each `window` of consecutive values: how unsteady a series is, and when.

    >>> rolling_spread([1.0, 1.0, 3.0, 3.0], window=2).round(3).tolist()
    [0.0, 1.414, 0.0]

    Args:
        values: Norms of steps, or means of epochs.
        window: How many values are looked at together, at least 2.

    Returns:
        One number for each place of the window; none where there are fewer values than that.
    """
    if not is_count(window, least=2):
        raise ConfigError(f"window must be a whole number, at least 2, got {window!r}.")
    series = np.asarray(values, dtype=np.float64)
    if len(series) < window:
        return np.empty(0)
    spread: np.ndarray = np.lib.stride_tricks.sliding_window_view(series, window).std(axis=1, ddof=1)
    return spread
