"""PyTorch Lightning: a callback that checks the Trainer, puts the pruner into its checkpoints, and logs the savings.

The module adds one line to its ``training_step``::

    index, (x, y) = batch
    return pruner.update(index, losses)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from orderdp.errors import ConfigError, FeedbackError, install_command
from orderdp.policy import describe
from orderdp.pruner import Pruner
from orderdp.samplers import FilteredSampler, PrunedBatchSampler, PrunedSampler
from orderdp.streaming import GrowingPruner

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ConfigError(
        f"orderdp.integrations.lightning needs {error.name or 'lightning'}, which is not installed: "
        + install_command("lightning")
    ) from None

__all__ = ["DataPruning"]

# Number of epochs that are checked for equal length if a Trainer has no last one.
_MANY_EPOCHS = 1000


class DataPruning(Callback):
    """Connect a pruner with a Trainer.

    ::

        trainer = Trainer(max_epochs=20, callbacks=[DataPruning(pruner)])
        trainer.fit(module, pruner.loader(train_set, batch_size=128))

    ``fit`` raises, with the required Trainer arguments, under settings with which Lightning would train on samples
    other than the selected ones. Checkpoints of the Trainer contain the pruner's state. ``orderdp/kept``,
    ``orderdp/saved`` and ``orderdp/coverage`` of `Pruner.report` are logged at the end of each epoch.

    Args:
        pruner: The pruner. Without it, ``fit`` takes attribute ``pruner`` of the DataModule, which may create it in its
            ``setup``, or of the module.
        log: Whether to log.
        name: Distinguishes several callbacks of one Trainer, in checkpoints and logs.
    """

    def __init__(self, pruner: Pruner | None = None, *, log: bool = True, name: str = "") -> None:
        if pruner is not None and not isinstance(pruner, Pruner):
            raise ConfigError(f"pruner must be an orderdp.Pruner, got {type(pruner).__name__}.")
        if not isinstance(name, str):
            raise ConfigError(f"name must be a word, got {name!r}.")
        self._pruner = pruner
        self._looks_for_it = pruner is None
        self.name = name
        self._logs = bool(log)
        self._kept_at_start: float | None = None
        self._fits = True

    @property
    def pruner(self) -> Pruner:
        """The pruner that was given, or that ``fit`` has found."""
        if self._pruner is None:
            raise ConfigError("DataPruning() has no pruner before fit. Give DataPruning(pruner) to have it earlier.")
        return self._pruner

    # -- checks ----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise if the Trainer would train on samples other than the selected ones."""
        self._fits = stage == "fit"
        if not self._fits:
            return
        if self._looks_for_it:
            self._pruner = _pruner_of(trainer, pl_module)
        if trainer.world_size > 1 and not self.pruner.shard:
            raise ConfigError(
                f"each of the {trainer.world_size} processes must get its own shard, but with shard=False all would "
                "train on the same samples. Leave shard=False out of Pruner(...)."
            )
        reasons = self._wrong_arguments(trainer)
        if reasons:
            raise ConfigError(f"the Trainer needs Trainer({', '.join(reasons)}): {'; '.join(reasons.values())}.")

    def _wrong_arguments(self, trainer: Any) -> dict[str, str]:
        """Arguments that the Trainer should have, each with the reason."""
        needed = {}
        if trainer.world_size > 1 and trainer._accelerator_connector.use_distributed_sampler:
            needed["use_distributed_sampler=False"] = "Lightning would shard the pruner's samples a second time"
        if trainer.reload_dataloaders_every_n_epochs != 1 and self._size_varies(trainer):
            needed["reload_dataloaders_every_n_epochs=1"] = (
                f"epochs of {describe(self.pruner.policy)} differ in length, and Lightning would use the length of the "
                "first for all of them"
            )
        if trainer.overfit_batches:
            needed["overfit_batches=0.0"] = "Lightning replaces the sampler to overfit; use limit_train_batches"
        return needed

    def _size_varies(self, trainer: Trainer) -> bool:
        if isinstance(self.pruner, GrowingPruner):
            return True
        last = trainer.max_epochs
        epochs = range(self.pruner.epoch, _MANY_EPOCHS if last is None or last < 0 else last)
        sizes = {size for epoch in epochs for size in self.pruner.size_bounds(epoch)}
        return len(sizes) > 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if the loader is not the pruner's."""
        loaders = [each for each in tree_leaves(trainer.train_dataloader) if isinstance(each, DataLoader)]
        ours = (PrunedBatchSampler, PrunedSampler, FilteredSampler)
        if loaders and not any(
            isinstance(each.batch_sampler, ours) or isinstance(each.sampler, ours) for each in loaders
        ):
            raise ConfigError(
                f"the batches must be selected by the pruner, they come from {type(loaders[0].sampler).__name__}. "
                "Train with pruner.loader(dataset, batch_size=...)."
            )
        self._kept_at_start = self.pruner.report()["kept"]
        self._end_resumed_epoch(trainer)

    def _end_resumed_epoch(self, trainer: Any) -> None:
        """Set Lightning's counters to the end of an epoch that was over when it was saved.

        Lightning compares them with the length of the epoch that begins. If that epoch is longer than the one that was
        over, its first batches would be skipped.
        """
        loop = trainer.fit_loop.epoch_loop
        if loop.restarting and trainer.is_last_batch and trainer.num_training_batches != float("inf"):
            current = loop.batch_progress.current
            current.ready = current.started = current.processed = current.completed = int(trainer.num_training_batches)

    def _check_feedback(self) -> None:
        """Raise after the first step if its losses have not come back."""
        if self._kept_at_start is not None and self.pruner.report()["kept"] == self._kept_at_start:
            raise FeedbackError(
                "update() received no losses in the first step. Let training_step return pruner.update(index, losses)."
            )
        self._kept_at_start = None

    # -- epochs ----------------------------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the pruner's epoch after the last batch; with limit_train_batches that is before its last sample."""
        self._check_feedback()
        if trainer.is_last_batch:
            self.pruner.end_epoch()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the savings so far."""
        # After a stop by max_steps, Lightning resumes within the epoch. Otherwise it begins the next one.
        if trainer.is_last_batch or not 0 <= trainer.max_steps <= trainer.global_step:
            self.pruner.end_epoch()
        if self._logs:
            self.pruner.sync()  # a process has its own feedback only
            report = self.pruner.report()
            prefix = f"orderdp/{self.name}/" if self.name else "orderdp/"
            numbers = {prefix + name: float(report[name]) for name in ("kept", "saved", "coverage")}
            pl_module.log_dict(numbers, sync_dist=trainer.world_size > 1)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    @property
    def state_key(self) -> str:
        """Key of the pruner in checkpoints."""
        return self._generate_state_key(name=self.name) if self.name else super().state_key

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint of the Trainer. All processes call it together, and that of the first is stored."""
        self.pruner.sync()
        return {"pruner": self.pruner.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the pruner if training resumes, but not if a checkpoint is only tested."""
        if self._fits:
            self.pruner.load_state_dict(state_dict["pruner"])


def _pruner_of(trainer: Any, module: LightningModule) -> Pruner:
    """Pruner of the DataModule, which is set up before callbacks are, or of the module."""
    owners = [owner for owner in (trainer.datamodule, module) if owner is not None]
    for owner in owners:
        pruner = getattr(owner, "pruner", None)
        if isinstance(pruner, Pruner):
            return pruner
    names = " and ".join(type(owner).__name__ for owner in owners)
    raise ConfigError(
        f"DataPruning() has found no pruner: {names} must have it as attribute pruner. Let the DataModule create it in "
        "its setup, or give DataPruning(pruner)."
    )
