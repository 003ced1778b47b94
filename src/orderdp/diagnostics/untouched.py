"""A look at the gradients that leaves no trace in the training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

__all__ = ["as_in_training"]


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as in a training step; afterwards all is as it was.

    Put back are the modes of all modules, their buffers (the running statistics of BatchNorm) and the global generators
    (dropout, augmentation). Parameters and their gradients are whoever's inside to leave alone.

    Args:
        model: Which is put in training mode.
    """
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = sorted({each.device for each in model.parameters() if each.device.type == "cuda"}, key=str)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=devices):
            model.train()
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer.copy_(value)
        for module, mode in modes.items():
            module.training = mode
