"""What training runs are made of: data, models, optimisers, training, comparing, records."""

from __future__ import annotations

__all__: list[str] = []
