"""Integrations with training frameworks: one file and one optional extra each. They connect a pruner, nothing more."""

from __future__ import annotations

__all__: list[str] = []
