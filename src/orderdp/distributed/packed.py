"""Packed: a pruner as torch.distributed.checkpoint wants it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from orderdp.errors import StateError

if TYPE_CHECKING:
    from orderdp.pruner import Pruner

__all__ = ["Packed"]


class Packed:
    """A pruner whose state is one string of bytes.

    ``torch.distributed.checkpoint`` loads into a state of the same keys and shapes. The state of a pruner has other
    ones in mid-epoch than between epochs, so it goes there packed::

        from orderdp.distributed import Packed

        pruner.sync()
        dcp.save({"model": model.state_dict(), "pruner": Packed(pruner)}, checkpoint_id=...)
        dcp.load({"model": model.state_dict(), "pruner": Packed(pruner)}, checkpoint_id=...)

    Args:
        pruner: Whose state.
    """

    def __init__(self, pruner: Pruner) -> None:
        self._pruner = pruner

    def state_dict(self) -> dict[str, Any]:
        """The pruner's state in one entry."""
        file = io.BytesIO()
        torch.save(self._pruner.state_dict(), file)
        return {"packed": file.getvalue()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the pruner back; only tensors and plain values are read."""
        packed = state.get("packed")
        if not isinstance(packed, bytes):
            raise StateError(
                f"a packed state must be what Packed(pruner).state_dict() gave, got {type(packed).__name__}."
            )
        self._pruner.load_state_dict(torch.load(io.BytesIO(packed), weights_only=True))
