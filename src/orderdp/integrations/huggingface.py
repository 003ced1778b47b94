"""Hugging Face's Trainer: `PruningTrainer`, or `PruningMixin` in front of your own Trainer class.

The Trainer stays in control: it builds batches, distributes them to processes, accumulates gradients, and skips trained
batches on resume. The pruner selects the samples of each epoch and gets their losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler

from orderdp._epochs import check_length
from orderdp.checkpoint import load_checkpoint, save_checkpoint
from orderdp.dataset import Indexed, length_of
from orderdp.errors import ConfigError, DatasetError, FeedbackError, StateError
from orderdp.integrations.huggingface_checks import check_loss_behind, check_trainer
from orderdp.integrations.huggingface_losses import output_losses, told
from orderdp.integrations.huggingface_own_loss import OwnLoss
from orderdp.pruner import Pruner
from orderdp.samplers import BatchIterator, PrunedBatchSampler

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer

    PruningTrainer: Any
else:
    _Trainer = object  # a Trainer class follows the mixin

__all__ = ["INDEX", "STATE_FILE", "EpochSampler", "IndexKeeper", "PruningMixin", "PruningTrainer"]

#: Key of the samples' indices in a batch.
INDEX = "orderdp_index"

#: Name of the file with the pruner's state in a checkpoint folder.
STATE_FILE = "orderdp.pt"

_LOGGED = ("kept", "saved", "coverage")


class EpochSampler(Sampler[int]):
    """Samples of an epoch, always from its start, because the Trainer itself skips those already trained on.

    Based on the steps of all processes together. So an epoch ends with the Trainer's last batch, and ``every="batch"``
    selects as one process with the whole step would.

    Args:
        steps: Batch sampler whose batches are the steps of all processes.
    """

    def __init__(self, steps: PrunedBatchSampler) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[int]:
        cursor = iter(self._steps)
        assert isinstance(cursor, BatchIterator)
        cursor.load_state_dict({**cursor.state_dict(), "position": 0})
        return chain.from_iterable(cursor)

    def __len__(self) -> int:
        """Samples in a whole epoch, also while an epoch is resumed."""
        steps = self._steps
        return len(steps) * steps.batch_size if steps.drop_last else len(steps.sampler)


class IndexKeeper:
    """Collator for (index, item) pairs: adds the indices to the batch that another collator builds from the items.

    So the index does not depend on a column that a collator or ``remove_unused_columns`` may drop.

    Args:
        collate: The collator for the items.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, pairs: list[tuple[int, Any]]) -> dict[str, Any]:
        """Return the batch, with the indices as int64."""
        indices, items = zip(*pairs, strict=True)
        batch = self.collate(list(items))
        if not isinstance(batch, Mapping):
            raise DatasetError(
                f"the data collator must return a dict, for the index to travel in, it returned {type(batch).__name__}."
            )
        return {**batch, INDEX: torch.tensor(indices, dtype=torch.int64)}


class PruningMixin(_Trainer):
    """Make a Trainer train on the samples that a pruner selects.

    Put it in front: ``class MyTrainer(PruningMixin, Seq2SeqTrainer): ...``.

    Args:
        *args: Arguments of the Trainer.
        pruner: A pruner for the training set; with ``shard=False`` if there are several processes.
        sample_losses: A function of (outputs, inputs) that returns one loss per sample, if the loss is not the
            cross-entropy of the labels. `inputs` is the batch, including its labels.
        **kwargs: Arguments of the Trainer.
    """

    train_dataset: Any
    data_collator: Any

    def __init__(
        self,
        *args: Any,
        pruner: Pruner,
        sample_losses: Callable[[Any, Mapping[str, Any]], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(pruner, Pruner):
            raise ConfigError(f"pruner must be an orderdp.Pruner, got {type(pruner).__name__}.")
        if sample_losses is None:
            check_loss_behind(PruningMixin, type(self))
        train_set = kwargs.get("train_dataset", args[3] if len(args) > 3 else None)
        if train_set is not None:
            length_of(train_set)
            check_length(train_set, pruner.n)
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None:
            raise ConfigError(
                "compute_loss_func returns one number for a batch, and pruning needs one for each sample. "
                "Give sample_losses, a function of (outputs, inputs) that returns them."
            )
        self.pruner = pruner
        self._sample_losses = sample_losses
        # With label smoothing the Trainer uses the logits; Liger's kernels return no logits if they get labels.
        replaced = self.label_smoother is not None or getattr(self.args, "use_liger_kernel", False)
        self._own_loss = OwnLoss(
            compare=sample_losses is None and not replaced, rough=self.accelerator.mixed_precision != "no"
        )
        self._train_set: Indexed | None = None
        self._step = (1, 0)  # batches and samples of the optimizer step
        self._waits = getattr(pruner.policy, "needs_feedback", True)  # whether the first losses are still to come back
        self._kept_before: float | None = None
        # For a model that accepts them, the Trainer assumes a loss divided by the tokens of all accumulated batches.
        # The loss here is the mean of one batch, and the Trainer divides it by the number of batches.
        self.model_accepts_loss_kwargs = False

    # -- data --------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's own loader, over the selected samples, with their indices in the batches."""
        train_set, collator = self.train_dataset, self.data_collator
        self._kept_before = None  # a training that restarts with smaller batches has left its step unfinished
        if train_set is not None:
            length_of(train_set)
            check_length(train_set, self.pruner.n)
            check_trainer(self, self.pruner)
            self._train_set = self.train_dataset = Indexed(self._columns_of(train_set))
            self.data_collator = IndexKeeper(self._get_collator_with_removed_columns(collator, description="training"))
        try:
            return super().get_train_dataloader()
        finally:
            self.train_dataset, self.data_collator = train_set, collator

    def _columns_of(self, train_set: Any) -> Any:
        if isinstance(train_set, Indexed):
            train_set = train_set.dataset
        is_table = hasattr(train_set, "column_names") and hasattr(train_set, "remove_columns")
        return self._remove_unused_columns(train_set, description="training") if is_table else train_set

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        """Sampler over the selected samples."""
        together = self._train_batch_size * self.accelerator.num_processes
        return EpochSampler(self.pruner.batch_sampler(together, self.args.dataloader_drop_last))

    def num_examples(self, dataloader: Any) -> int:
        """Samples in an epoch, for the Trainer's messages and speeds."""
        if self._train_set is not None and getattr(dataloader, "dataset", None) is self._train_set:
            return len(self._get_train_sampler())
        return int(super().num_examples(dataloader))

    # -- losses --------------------------------------------------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of one optimizer step; store how many samples they have."""
        if self._waits:
            self._check_feedback()
        batches, items = super().get_batch_samples(*args, **kwargs)
        self._step = (len(batches), sum(len(batch[INDEX]) for batch in batches if INDEX in batch))
        return batches, items

    def _check_feedback(self) -> None:
        """Raise after the first step if its losses have not come back."""
        kept = self.pruner.report()["kept"]
        if kept == self._kept_before:
            raise FeedbackError(
                "no loss came back from the first step. Let compute_loss call super().compute_loss, or give "
                f"sample_losses instead, or return self.pruner.update(inputs[{INDEX!r}], losses)."
            )
        self._waits, self._kept_before = self._kept_before is None, kept

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean of the samples' losses, which are passed to the pruner; in evaluation the Trainer's own loss."""
        if INDEX not in inputs:
            if model.training:
                raise FeedbackError(
                    f"a training batch must have the samples' indices under {INDEX!r}, it has {sorted(inputs)}. Let "
                    "get_train_dataloader be that of PruningMixin, and keep the entry in what you make of its batches."
                )
            return super().compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        batch = {name: value for name, value in inputs.items() if name != INDEX}
        index, bare = inputs[INDEX], self._bare_model()
        outputs = self._own_loss.outputs(model, bare, batch)
        if self._sample_losses is not None:
            losses = self._sample_losses(outputs, batch)
        else:
            losses = output_losses(bare, outputs, batch, label_smoothing=self.args.label_smoothing_factor)
            self._own_loss.check(bare, outputs, batch, losses)
        extra: dict[str, Any] = told(outputs, batch, self.pruner.update_arguments, self.pruner.policy)
        loss = self.pruner.update(index, losses, **extra) * self._share_of_step(len(index))
        return (loss, outputs) if return_outputs else loss

    def _share_of_step(self, samples: int) -> float:
        """Factor of a batch in its step, so that every sample has the same weight.

        1, except in the last step of an epoch, where batches may differ in size. The Trainer divides by their number.
        """
        batches, all_samples = self._step
        return samples * batches / all_samples if all_samples else 1.0

    def _bare_model(self) -> Any:
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model  # an adapter's base model

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the savings so far to the Trainer's training logs."""
        if "loss" in logs or "train_runtime" in logs:
            report = self.pruner.report()
            logs = {**logs, **{f"orderdp_{name}": report[name] for name in _LOGGED}}
        super().log(logs, *args, **kwargs)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, **kwargs: Any) -> Any:
        """Train; on resume, also load the pruner's state from the checkpoint folder."""
        if trial is not None:
            raise ConfigError(
                "trials would start with each other's scores. Make a pruner and a Trainer for each trial."
            )
        if resume_from_checkpoint:
            self._load_pruner(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, trial, **kwargs)

    def _load_pruner(self, checkpoint: Any) -> None:
        if checkpoint is True:
            from transformers.trainer_utils import get_last_checkpoint

            checkpoint = get_last_checkpoint(self.args.output_dir)
            if checkpoint is None:
                return  # the Trainer raises the error
        path = Path(checkpoint) / STATE_FILE
        if not path.exists():
            raise StateError(
                f"{str(checkpoint)!r} must hold {STATE_FILE}, the pruner's state, it does not: it was written without "
                "pruning, with save_only_model=True, or not to its end. Resume from another checkpoint."
            )
        self.pruner.load_state_dict(load_checkpoint(path))

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        # Before the Trainer's own files, because the Trainer deletes older checkpoints when it writes them.
        if not self.args.save_only_model:
            self.pruner.sync()
            if self.args.should_save:
                folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
                folder.mkdir(parents=True, exist_ok=True)
                save_checkpoint(folder / STATE_FILE, self.pruner.state_dict())
        super()._save_checkpoint(model, trial, *args, **kwargs)


def __getattr__(name: str) -> Any:
    # Created on first access, so that the module can be imported without transformers.
    if name != "PruningTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from transformers import Trainer
    except ImportError:
        raise ConfigError("PruningTrainer needs transformers: pip install 'orderdp[transformers]'.") from None
    doc = "Hugging Face's Trainer, training on what a pruner selects. See `PruningMixin`."
    globals()[name] = type(name, (PruningMixin, Trainer), {"__doc__": doc, "__module__": __name__})
    return globals()[name]
