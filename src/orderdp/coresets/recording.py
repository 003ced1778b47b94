"""A pass over the data that writes features and logits straight to disk."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import torch

from orderdp.coresets.given import check_finite
from orderdp.coresets.heads import Tap
from orderdp.coresets.models import Models
from orderdp.coresets.progress import told
from orderdp.coresets.samples import Samples

__all__ = ["record"]


def record(models: Models, samples: Samples, names: list[str], epoch: int, init: int) -> None:
    """Writes what goes into the last linear layer and what comes out, or the latter alone.

    Args:
        models: Whose model, and where things are stored.
        samples: Of which data set.
        names: Under which names: features and logits, or logits.
        epoch: After how many epochs of training.
        init: Which model.
    """
    model, start = models.after(epoch, init), time.perf_counter()
    batches = samples.in_order(models.recipe.batch_size)
    shapes = [(samples.n, width) for width in models.sizes[-len(names) :]]
    with (
        ExitStack() as stack,
        Tap(model, models.head) as tap,
        torch.no_grad(),
        told(models.progress, "proxy: recording", len(batches)) as step,
    ):
        writing = [models.store.writing(name, shape, np.float32) for name, shape in zip(names, shapes, strict=True)]
        files = [stack.enter_context(file) for file in writing]
        for indices, x, _ in samples.batches(batches):
            tap.check(model(x.to(models.device)))
            for file, block in zip(files, (tap.features, tap.logits)[-len(files) :], strict=True):
                file[indices] = block.float().cpu().numpy()
            step()
        for name, file in zip(names, files, strict=True):
            check_finite(f"the proxy's {name.split('-')[0]}", file)
    models.store.spent(names[0], time.perf_counter() - start)
