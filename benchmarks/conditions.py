"""The machine and the versions that the numbers belong to."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import orderdp


def conditions() -> dict[str, Any]:
    """One JSON object that opens the report."""
    return {
        "conditions": "medians of runs taken in turns in one process, garbage collector off",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "orderdp": orderdp.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
