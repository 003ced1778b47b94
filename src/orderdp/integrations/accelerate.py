"""Hugging Face Accelerate: puts a pruner into its checkpoints, and checks its settings.

Nothing else is needed: ``accelerator.prepare(pruner.loader(...))`` distributes the batches and prefetches one, and each
batch carries its indices.
"""

from __future__ import annotations

from typing import Any

from orderdp.errors import ConfigError, install_command
from orderdp.pruner import Pruner
from orderdp.streaming import KeyFilter

__all__ = ["register"]


def register(accelerator: Any, pruner: Pruner | KeyFilter) -> None:
    """Register a pruner for the checkpoints of an Accelerator, and check that the two are compatible.

    Equivalent to ``accelerator.register_for_checkpointing(pruner)`` and, with several processes, ``pruner.sync()``
    before each ``accelerator.save_state()``, because Accelerate stores the state of the first process only. Call it on
    all processes, before training.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        pruner: The pruner; for a stream, its `KeyFilter`.
    """
    if not hasattr(accelerator, "register_for_checkpointing"):
        raise ConfigError(
            f"accelerator must be an accelerate.Accelerator, got {type(accelerator).__name__}. "
            f"{install_command('accelerate')}, and pass Accelerator()."
        )
    if not isinstance(pruner, Pruner | KeyFilter):
        raise ConfigError(f"pruner must be an orderdp.Pruner or a KeyFilter, got {type(pruner).__name__}.")
    if accelerator.num_processes > 1 and isinstance(pruner, Pruner):
        _check_sharing(accelerator, pruner)
    accelerator.register_for_checkpointing(pruner)
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: pruner.sync())


def _check_sharing(accelerator: Any, pruner: Pruner) -> None:
    if pruner.shard:
        raise ConfigError(
            "Accelerate shards the batches, so the pruner must not shard them as well. Use Pruner(..., shard=False)."
        )
    if accelerator.dispatch_batches:
        # It is enough that all processes open the loader, except for a loader that skips batches: the first would wait.
        raise ConfigError(
            "all processes must iterate over the loader, but with dispatch_batches=True only the first does. Give "
            "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))."
        )
