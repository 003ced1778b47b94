"""Tables too large for one process: each rank holds the scores of its own samples.

A draw reads scores block by block and keeps what it has found as bits. Ranks find the global top together by summing
small histograms (`exact`), or each draws from its own samples (`stratified`). `Pruner(..., table="sharded")` is the way
in; `save_parts` and `load_parts` are its checkpoints.
"""

from __future__ import annotations

from orderdp.sharded.files import load_parts, save_parts
from orderdp.sharded.ownership import Shard

__all__ = ["Shard", "load_parts", "save_parts"]
