"""Checks of Hugging Face's Trainer: settings that would fail silently, or make processes wait for each other."""

from __future__ import annotations

import math
from typing import Any

from orderdp._planning import steps_within
from orderdp.errors import ConfigError
from orderdp.policy import describe
from orderdp.pruner import Pruner

__all__ = ["check_loss_behind", "check_trainer"]


def check_loss_behind(mixin: type, trainer: type) -> None:
    """Raise if a Trainer class computes its own loss, which the mixin in front of it would never call.

    Args:
        mixin: The class that computes the loss instead.
        trainer: A class that has the mixin among its bases.
    """
    behind = trainer.__mro__[trainer.__mro__.index(mixin) + 1 :]
    owner = next((kind for kind in behind if "compute_loss" in vars(kind)), None)
    if owner is not None and owner.__module__.partition(".")[0] != "transformers":
        raise ConfigError(
            f"compute_loss behind {mixin.__name__} must be transformers' own, got that of {owner.__name__}: training "
            "would go on without it, because it returns one number for a batch. Give sample_losses, a function of "
            "(outputs, inputs) that returns one loss a sample."
        )


def check_trainer(trainer: Any, pruner: Pruner) -> None:
    """Raise, on all processes, if a Trainer has settings that pruning does not support.

    Args:
        trainer: The Trainer, before its first epoch.
        pruner: The pruner it trains with.
    """
    _check_order(trainer.args)
    if trainer.accelerator.num_processes > 1:
        _check_processes(trainer, pruner)
    _check_sizes(trainer, pruner)


def _check_order(args: Any) -> None:
    strategy = getattr(args, "train_sampling_strategy", "random")
    if getattr(args, "group_by_length", False):  # its name in the first versions
        strategy = "group_by_length"
    if strategy != "random":
        raise ConfigError(
            f"a pruned epoch has an order of its own: train_sampling_strategy must be 'random', got {str(strategy)!r}."
        )
    if args.ignore_data_skip:
        raise ConfigError(
            "ignore_data_skip must be False: a resumed training would go through the first batches of its epoch once "
            "more. What is skipped is not loaded, so that it takes no time."
        )


def _check_processes(trainer: Any, pruner: Pruner) -> None:
    accelerator, args = trainer.accelerator, trainer.args
    world = accelerator.num_processes
    if pruner.shard:
        raise ConfigError(
            "the Trainer deals out batches to the processes, and the pruner would deal out samples before, so that "
            f"each process would get one in {world * world}. Give Pruner(..., shard=False)."
        )
    sharing = trainer.get_total_train_batch_size(args) // (trainer._train_batch_size * args.gradient_accumulation_steps)
    if sharing != world:
        raise ConfigError(
            f"all {world} processes must get batches of their own, only {sharing} do. Tensor, context and sequence "
            "parallelism are not supported here; write a loop with Pruner(..., process_group=...)."
        )
    for name, wanted in (("dispatch_batches", False), ("split_batches", False), ("even_batches", True)):
        given = bool(getattr(accelerator, name))
        if given is not wanted and not (name == "even_batches" and args.dataloader_drop_last):
            raise ConfigError(
                "every process must go through the sampler itself and get equally many batches: accelerator_config "
                f"must have {name}={wanted}, got {given}."
            )


def _check_sizes(trainer: Any, pruner: Pruner) -> None:
    """Check the lengths of all epochs: the Trainer counts an epoch's batches once, for its loop and its schedule."""
    args = trainer.args
    fewest, most = _batches(trainer, pruner, 0)
    if most == 0:
        raise ConfigError(
            f"an epoch of {pruner.size_bounds(0)[1]} samples has no full batch for every process. Choose a "
            "smaller batch size, prune less, or set dataloader_drop_last=False."
        )
    epochs = math.ceil(args.num_train_epochs)
    if args.max_steps > 0:
        epochs = math.ceil(args.max_steps * args.gradient_accumulation_steps / most)
    for epoch in range(pruner.epoch + epochs):
        bounds = _batches(trainer, pruner, epoch)
        if not fewest == most == bounds[0] == bounds[1]:
            raise ConfigError(
                "the Trainer must know how many batches an epoch has, and it must be the same number for all epochs. "
                f"{describe(pruner.policy)} gives {fewest} to {most} in epoch 0, {bounds[0]} to {bounds[1]} in epoch "
                f"{epoch}. Use a policy that keeps a constant number of samples, or a training loop of your own."
            )


def _batches(trainer: Any, pruner: Pruner, epoch: int) -> tuple[int, int]:
    """Minimum and maximum number of batches that a process can get in that epoch."""
    return steps_within(
        [pruner.size_bounds(epoch)],
        trainer._train_batch_size,
        drop_last=trainer.args.dataloader_drop_last,
        world_size=trainer.accelerator.num_processes,
        split="batches",
    )
