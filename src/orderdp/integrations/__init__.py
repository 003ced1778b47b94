"""Frameworks people train with, one file each; they connect and decide nothing."""

from __future__ import annotations

__all__: list[str] = []
