"""Rules that decide what an epoch trains on. One file a policy."""

from __future__ import annotations

from orderdp.policies.orderdp import OrderDP

__all__ = ["OrderDP"]
