"""Entry point of ``python -m orderdp``, the command line."""

from __future__ import annotations

import sys

from orderdp.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
