"""Several processes that train one model: one draw for all of them, a share for each, feedback exchanged once an epoch.

Nothing here is loaded before there is a process group. What users may want from it is `Packed`, for
``torch.distributed.checkpoint``.
"""

from __future__ import annotations

from orderdp.distributed.bit_set import Shard
from orderdp.distributed.checkpoint import Packed, load_parts, save_parts
from orderdp.distributed.collectives import Exchange

__all__ = ["Exchange", "Packed", "Shard", "load_parts", "save_parts"]
