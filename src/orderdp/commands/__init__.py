"""The commands of the command line, one file each: what it takes, and what it does.

A module here has ``NAME``, ``SUMMARY``, ``DESCRIPTION``, ``add(parser)`` and ``run(options)``. It loads what it needs
when it is run, so that ``--help`` loads no torch.
"""

from __future__ import annotations

__all__: list[str] = []
