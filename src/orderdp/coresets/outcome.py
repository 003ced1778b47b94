"""A selection with what it cost, and as a file."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderdp.coresets.method import Method, ScoreMethod
from orderdp.coresets.registry import build
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError
from orderdp.policy import Selection
from orderdp.replacing import replacing

__all__ = ["Outcome", "run"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a static method has chosen, and what that cost.

    Attributes:
        selection: Indices, and weights where the method has them.
        scores: One number for each sample of the data set, where the method has them; the largest are kept.
        method: The method in one line.
        prune_ratio: Share left out.
        proxy_seconds: What the proxy took for what this method needs, whether it was there already or not.
        selection_seconds: What the choice itself took.
    """

    selection: Selection
    scores: np.ndarray | None
    method: str
    prune_ratio: float
    proxy_seconds: float
    selection_seconds: float

    @property
    def seconds(self) -> float:
        """What has to be added to the time of training: proxy and choice."""
        return self.proxy_seconds + self.selection_seconds

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .npz file, under a temporary name that is then renamed."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ConfigError(f"a selection is written to a file that ends in .npz, got {os.fspath(path)!r}.")
        arrays: dict[str, Any] = {"indices": self.selection.indices, "method": self.method}
        arrays |= {"prune_ratio": self.prune_ratio, "proxy_seconds": self.proxy_seconds}
        arrays |= {"selection_seconds": self.selection_seconds}
        arrays |= {} if self.selection.weights is None else {"weights": self.selection.weights}
        arrays |= {} if self.scores is None else {"scores": self.scores}
        with replacing(path, ".npz") as temporary:
            np.savez(temporary, **arrays)


def run(method: Method | str, proxy: Source, prune_ratio: float, *, seed: int, **parameters: Any) -> Outcome:
    """Selects, and says what it cost.

    Args:
        method: A method, or the name of one.
        proxy: A `Proxy`, or `Arrays`.
        prune_ratio: Share left out, in [0, 1).
        seed: Of all random choices.
        parameters: Of the method, where it is given by name.
    """
    chosen = build(method, **parameters) if isinstance(method, str) else method
    if parameters and not isinstance(method, str):
        raise ConfigError(f"parameters belong to a method given by name, got them with {method!r}.")
    task = chosen.task(proxy, prune_ratio, seed)
    start = time.perf_counter()
    before = proxy.seconds_for(chosen.needs)
    scores = chosen.rate(proxy, seed) if isinstance(chosen, ScoreMethod) else None
    selection = chosen.choose(task) if scores is None else task.largest(scores)
    took, of_proxy = time.perf_counter() - start, proxy.seconds_for(chosen.needs)
    # What the proxy did just now is in both clocks.
    return Outcome(selection, scores, repr(chosen), prune_ratio, of_proxy, max(0.0, took - (of_proxy - before)))
