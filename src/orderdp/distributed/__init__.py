"""Training with several processes: one draw for all, one shard per rank, scores synced once per epoch.

Nothing here is imported before there is a process group. For users: `DCPState`, for
``torch.distributed.checkpoint``, and `save_parts` and `load_parts`, for sharded tables.
"""

from __future__ import annotations

from orderdp.distributed.checkpoint import DCPState, load_parts, save_parts
from orderdp.distributed.collectives import Exchange
from orderdp.distributed.sharded_table import Shard

__all__ = ["DCPState", "Exchange", "Shard", "load_parts", "save_parts"]
