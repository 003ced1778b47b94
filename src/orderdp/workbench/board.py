"""What TensorBoard shows of a run, through torch's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderdp.errors import ConfigError

__all__ = ["Board"]

_SHOWN = ("loss", "metric", "lr", "samples", "saved", "coverage", "staleness")


class Board:
    """Writes the numbers of each epoch.

    Args:
        folder: Where to; ``tensorboard --logdir`` takes it or any folder above it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("logging for TensorBoard needs it: pip install 'orderdp[workbench]'.") from None
        self._writer = SummaryWriter(str(folder))

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Adds the record of an epoch."""
        numbers = {name: record.get(name) for name in _SHOWN}
        numbers.update({name: value for name, value in record.items() if name.endswith("_seconds")})
        found = record.get("diagnostics") or {}
        numbers.update({f"diagnostics/{name}": value for name, value in found.items()})
        for name, value in numbers.items():
            if value is not None:
                self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()
