"""Experiments: tasks, models, training, comparing, records, statistics."""

from __future__ import annotations

__all__: list[str] = []
