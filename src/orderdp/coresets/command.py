"""``orderdp coreset``: a static selection, from a data set or from arrays in a file, written to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orderdp.coresets.arrays import Arrays
from orderdp.coresets.outcome import Outcome, run
from orderdp.coresets.registry import build
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError

__all__ = ["coreset_command"]


def coreset_command(
    method: str,
    prune_ratio: float,
    out: str | os.PathLike[str],
    *,
    proxy: Source | None = None,
    from_features: str | os.PathLike[str] | None = None,
    seed: int = 0,
    **parameters: Any,
) -> Outcome:
    """Selects and writes indices, weights, scores and cost to `out`.

    Args:
        method: Name of a method.
        prune_ratio: Share left out, in [0, 1).
        out: An .npz file.
        proxy: Where arrays come from: a `Proxy` on a data set; or
        from_features: an .npz file with any of features, logits, labels, correct and scores (see `Arrays.load`).
            Without labels in it, classes do not matter.
        seed: Of all random choices.
        parameters: Of the method.
    """
    if (proxy is None) == (from_features is None):
        raise ConfigError("give either a data set or --from-features FILE.")
    if Path(out).suffix != ".npz":
        raise ConfigError(f"--out must end in .npz, got {os.fspath(out)!r}.")
    Path(out).parent.mkdir(parents=True, exist_ok=True)  # before anything is spent
    build(method, **parameters)  # a wrong name or parameter is told before a large file is read
    source = Arrays.load(from_features) if proxy is None and from_features is not None else proxy
    assert source is not None
    if source.labels is None:
        parameters.setdefault("balanced", False)
    outcome = run(method, source, prune_ratio, seed=seed, **parameters)
    outcome.save(out)
    return outcome
