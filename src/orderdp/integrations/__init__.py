"""Training frameworks: one file each, an optional extra each. They connect a pruner and decide nothing.

The names are in the modules: `orderdp.integrations.accelerate` and `orderdp.integrations.lightning`.
"""

from __future__ import annotations

__all__: list[str] = []
