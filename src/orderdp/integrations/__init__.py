"""Frameworks people train with: one file each, an optional extra each. They connect a pruner and decide nothing."""

from __future__ import annotations

__all__: list[str] = []
