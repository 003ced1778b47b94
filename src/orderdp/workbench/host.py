"""What a run ran on, and with which versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

__all__ = ["describe_host", "versions"]

_LIBRARIES = ("orderdp", "torch", "numpy", "pytorch_optimizer", "timm", "torchvision", "scikit-learn")


def describe_host(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads, device and system."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "os": platform.platform(terse=True),
    }


def versions() -> dict[str, str]:
    """Of Python and of the libraries that are there."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
