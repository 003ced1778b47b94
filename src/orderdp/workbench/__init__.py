"""Training, comparing, and what is kept of it."""

from __future__ import annotations

__all__: list[str] = []
